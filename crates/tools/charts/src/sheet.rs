//! Sheets: a title, charts with their legends, and notes.

use crate::canvas::{Anchor, Area, Canvas, DARK_GREY, Lettering, draw_sheet, text_width};
use crate::plot::{Entry, Plot, Swatch};

const SHEET_WIDTH: u32 = 960;
/// Of two charts side by side. A page shows sheets of any width equally wide: on a wider one, letters would be too
/// small there.
const WIDE_SHEET_WIDTH: u32 = 1200;
/// Of three, which need the room.
const WIDEST_SHEET_WIDTH: u32 = 1440;
const SHEET_HEIGHT: u32 = 600;
const TITLE_SIZE: f64 = 22.0;
const SUBTITLE_SIZE: f64 = 15.0;
const HEADING_SIZE: f64 = 17.0;
const LEGEND_SIZE: f64 = 15.0;
const NOTE_SIZE: f64 = 13.0;
/// Lines of text are so far apart, over their size.
const LINE_SPACING: f64 = 1.35;
const MARGIN: f64 = 18.0;

/// One chart on a sheet.
pub fn svg(plot: &dyn Plot) -> String {
    sheet(SHEET_WIDTH, (plot.title(), plot.subtitle()), plot.notes(), |canvas, area| {
        let area = draw_legend(&plot.legend(), canvas, area);
        plot.draw(canvas, area);
    })
}

/// Several charts on one sheet; the title of each stands above it.
pub fn side_by_side(title: &str, subtitle: &str, plots: &[&dyn Plot]) -> String {
    let width = match plots.len() {
        0 | 1 => SHEET_WIDTH,
        2 => WIDE_SHEET_WIDTH,
        _ => WIDEST_SHEET_WIDTH,
    };
    let notes: Vec<String> = plots.iter().flat_map(|plot| plot.notes().to_vec()).collect();
    sheet(width, (title, subtitle), &notes, |canvas, area| {
        let step = (area.width() + MARGIN) / plots.len() as f64;
        let draw_head = |canvas: &mut Canvas<'_>, (index, plot): (usize, &&dyn Plot)| {
            let left = area.left + index as f64 * step;
            let own = Area { left, right: left + step - MARGIN, ..area };
            let top = draw_texts(&[plot.title()], own, HEADING_SIZE, |lettering| lettering.bold(), canvas);
            let top = draw_texts(&[plot.subtitle()], Area { top, ..own }, NOTE_SIZE, |lettering| lettering, canvas);
            draw_legend(&plot.legend(), canvas, Area { top: top + 4.0, ..own })
        };
        let areas: Vec<Area> = plots.iter().enumerate().map(|numbered| draw_head(canvas, numbered)).collect();
        // All begin at one height, so that they can be compared.
        let top = areas.iter().map(|area| area.top).fold(0.0, f64::max);
        for (plot, own) in plots.iter().zip(areas) {
            plot.draw(canvas, Area { top, ..own });
        }
    })
}

/// Title above, notes below, and something between them.
fn sheet(
    width: u32,
    (title, subtitle): (&str, &str),
    notes: &[String],
    draw: impl FnOnce(&mut Canvas<'_>, Area),
) -> String {
    draw_sheet(width, SHEET_HEIGHT, title, |canvas| {
        let inner = Area {
            left: MARGIN,
            top: 0.75 * MARGIN,
            right: f64::from(width) - MARGIN,
            bottom: f64::from(SHEET_HEIGHT) - 0.5 * MARGIN,
        };
        let grey = |lettering: Lettering| lettering.coloured(DARK_GREY);
        let top = draw_texts(&[title], inner, TITLE_SIZE, |lettering| lettering.bold(), canvas);
        let top = draw_texts(&[subtitle], Area { top, ..inner }, SUBTITLE_SIZE, grey, canvas) + 6.0;
        let lines: usize = notes.iter().map(|note| wrapped(note, NOTE_SIZE, inner.width()).len()).sum();
        let bottom = inner.bottom - lines as f64 * NOTE_SIZE * LINE_SPACING;
        let notes: Vec<&str> = notes.iter().map(String::as_str).collect();
        draw_texts(&notes, Area { top: bottom, ..inner }, NOTE_SIZE, grey, canvas);
        draw(canvas, Area { top, bottom: bottom - 4.0, ..inner });
    })
}

/// Some paragraphs from the top of an area on; where they end.
fn draw_texts(
    texts: &[&str],
    area: Area,
    size: f64,
    look: impl Fn(Lettering) -> Lettering,
    canvas: &mut Canvas<'_>,
) -> f64 {
    let lettering = look(Lettering::new(size, Anchor::Left));
    let mut top = area.top;
    for line in texts.iter().flat_map(|text| wrapped(text, size, area.width())) {
        canvas.text(&line, (area.left, top + 0.5 * size * LINE_SPACING), lettering);
        top += size * LINE_SPACING;
    }
    top
}

/// A text in lines that are no wider than some width, if its words allow it.
fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(word, size) + size < width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The legend, in rows at the top of an area; what is left of the area.
fn draw_legend(entries: &[Entry], canvas: &mut Canvas<'_>, area: Area) -> Area {
    const SWATCH_WIDTH: f64 = 36.0;
    const APART: f64 = 18.0;
    const ROW: f64 = 22.0;
    if entries.is_empty() {
        return area;
    }
    let wide = |entry: &Entry| SWATCH_WIDTH + 8.0 + text_width(&entry.name, LEGEND_SIZE) + APART;
    // In columns, so that names of one row stand below those of another; each as wide as its widest.
    let widths = |columns: usize| -> Vec<f64> {
        let entries = |column: usize| entries.iter().skip(column).step_by(columns);
        (0..columns).map(|column| entries(column).map(wide).fold(0.0, f64::max)).collect()
    };
    let fits = |columns: &usize| widths(*columns).iter().sum::<f64>() <= area.width() + APART;
    let fit = (1..=entries.len()).rev().find(fits).unwrap_or(1);
    let rows = entries.len().div_ceil(fit);
    // No more columns than these rows need, if that still fits.
    let even = entries.len().div_ceil(rows);
    let columns = if fits(&even) { even } else { fit };
    let widths = widths(columns);
    for (index, entry) in entries.iter().enumerate() {
        let x = area.left + widths[..index % columns].iter().sum::<f64>();
        let y = area.top + (0.5 + (index / columns) as f64) * ROW;
        match &entry.swatch {
            Swatch::Line(style) => {
                if style.has_line() {
                    canvas.line(&[(x, y), (x + SWATCH_WIDTH, y)], style.stroke());
                }
                style.mark(canvas, (x + 0.5 * SWATCH_WIDTH, y));
            }
            Swatch::Filled(colour) => {
                let box_area = Area { left: x + 12.0, top: y - 7.0, right: x + SWATCH_WIDTH, bottom: y + 7.0 };
                canvas.rectangle(box_area, *colour);
            }
        }
        canvas.text(&entry.name, (x + SWATCH_WIDTH + 8.0, y), Lettering::new(LEGEND_SIZE, Anchor::Left));
    }
    Area { top: area.top + rows as f64 * ROW + 8.0, ..area }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::axis::{Axis, Scale};
    use crate::lines::{Guide, LineChart, Series};
    use crate::style::Style;

    /// Every tag that is opened is closed, attributes are quoted, and nothing is left over.
    pub(crate) fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = svg.trim_end();
        while let Some(begin) = rest.find('<') {
            let (text, tag) = rest.split_at(begin);
            assert!(!text.contains('>') && !open.is_empty() || text.is_empty(), "text outside of tags: {text}");
            for entity in text.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;", "apos;"].iter().any(|name| entity.starts_with(name)),
                    "{entity}"
                );
            }
            let (inside, after) = tag[1..].split_once('>').expect("a tag ends");
            assert!(!inside.contains('<') && inside.matches('"').count() % 2 == 0, "{inside}");
            let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            match (inside.starts_with('/'), inside.ends_with('/')) {
                (true, _) => assert_eq!(open.pop(), Some(name)),
                (false, false) => open.push(name),
                (false, true) => {}
            }
            rest = after;
        }
        assert!(open.is_empty() && rest.is_empty(), "{open:?} {rest}");
    }

    fn chart() -> LineChart {
        LineChart {
            title: "Slowdown & size <here>".to_owned(),
            subtitle: "400 Gbit/s".to_owned(),
            x: Axis::new("Message", Scale::Log2Bytes),
            y: Axis::new("Slowdown", Scale::Linear),
            series: vec![
                Series::new("sr:rto", Style::numbered(0), vec![(65_536.0, 1.0), (1_048_576.0, 2.0)]),
                Series::new("\"ec\"", Style::numbered(1).tail(), vec![(65_536.0, 1.5), (1_048_576.0, 1.25)]),
            ],
            guides: vec![Guide::across(1.8, "a timeout")],
            notes: vec!["Mind the gap".to_owned()],
        }
    }

    #[test]
    fn a_chart_is_well_formed_and_the_same_every_time() {
        let drawn = svg(&chart());
        assert_well_formed(&drawn);
        assert_eq!(drawn, svg(&chart()));
        for text in
            ["Slowdown &amp; size &lt;here&gt;", "400 Gbit/s", "sr:rto", "64 KiB", "1 MiB", "a timeout", "Mind the gap"]
        {
            assert!(drawn.contains(text), "{text}");
        }
    }

    #[test]
    fn two_charts_stand_on_one_sheet() {
        let two = side_by_side("Both", "of them", &[&chart(), &chart()]);
        assert_well_formed(&two);
        assert_eq!(two.matches("64 KiB").count(), 2);
        assert!(two.contains("width=\"1200\""));
    }

    #[test]
    fn nothing_to_show_is_shown_as_nothing() {
        let empty = LineChart { series: Vec::new(), guides: Vec::new(), ..chart() };
        assert_well_formed(&svg(&empty));
        let holes = vec![(65_536.0, f64::NAN), (0.0, 1.0), (131_072.0, f64::INFINITY), (262_144.0, 2.0)];
        let drawn = svg(&LineChart { series: vec![Series::new("holes", Style::numbered(0), holes)], ..chart() });
        assert_well_formed(&drawn);
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
    }

    #[test]
    fn words_go_on_new_lines() {
        assert_eq!(wrapped("one two three", 10.0, 60.0), ["one two", "three"]);
        assert_eq!(wrapped("", 10.0, 60.0), [""; 0]);
        assert_eq!(wrapped("unbreakable", 10.0, 20.0), ["unbreakable"]);
    }
}
