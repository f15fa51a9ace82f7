//! Bars, each with a word above it.

use crate::axis::{Axis, Scale};
use crate::canvas::{Anchor, Area, BLACK, Canvas, Colour, DARK_GREY, LIGHT_GREY, Lettering, Stroke, text_width};
use crate::plot::{AXIS_TITLE_SIZE, Entry, Plot, Swatch, TICK_SIZE};
use crate::style::{Dash, Style};

/// The line at a value.
const GUIDE: Style = Style { colour: BLACK, width: 1.5, dash: Dash::Dashed, marker: None, is_hollow: false };

/// Groups of bars over names.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// What it shows.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// What the groups are.
    pub x_title: String,
    /// From zero on.
    pub y_title: String,
    /// Names of the groups, each with its bars.
    pub groups: Vec<(String, Vec<Bar>)>,
    /// What each colour stands for, in the order of first use.
    pub kinds: Vec<(String, Colour)>,
    /// A line at a value, and what the legend says of it.
    pub guide: Option<(f64, String)>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Which of [`BarChart::kinds`].
    pub kind: usize,
    /// On the y axis.
    pub height: f64,
    /// Above it.
    pub above: String,
}

impl BarChart {
    fn colour(&self, bar: &Bar) -> Colour {
        self.kinds.get(bar.kind).map_or(DARK_GREY, |kind| kind.1)
    }
}

impl Plot for BarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn subtitle(&self) -> &str {
        &self.subtitle
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn legend(&self) -> Vec<Entry> {
        let filled = |(name, colour): &(String, Colour)| Entry { name: name.clone(), swatch: Swatch::Filled(*colour) };
        let line = |(_, name): &(f64, String)| Entry { name: name.clone(), swatch: Swatch::Line(GUIDE) };
        self.kinds.iter().map(filled).chain(self.guide.iter().map(line)).collect()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, area: Area) {
        let heights = self.groups.iter().flat_map(|group| &group.1).map(|bar| bar.height);
        let values = heights.chain(self.guide.iter().map(|guide| guide.0)).chain([0.0]);
        let highest = values.fold(0.0, f64::max);
        // Room for what is written above the highest.
        let y = Axis::new("", Scale::Linear)
            .over(0.0, if highest > 0.0 { 1.08 * highest } else { 1.0 })
            .fitted([].into_iter());
        let ticks = y.ticks(((area.height() / 55.0) as usize).max(2));
        let labels = ticks.iter().map(|tick| text_width(&tick.label, TICK_SIZE)).fold(0.0, f64::max);
        let inner = Area {
            left: area.left + 1.6 * AXIS_TITLE_SIZE + labels + 8.0,
            right: area.right - 10.0,
            bottom: area.bottom - 1.5 * AXIS_TITLE_SIZE - 1.5 * TICK_SIZE,
            ..area
        };
        let level = |value: f64| inner.bottom - y.position(value).unwrap_or(0.0) * inner.height();
        for tick in &ticks {
            let place = level(tick.value);
            canvas.line(&[(inner.left, place), (inner.right, place)], Stroke::solid(LIGHT_GREY, 1.0));
            canvas.text(&tick.label, (inner.left - 8.0, place), Lettering::new(TICK_SIZE, Anchor::Right));
        }
        // Every bar is as wide, so that there is room for what is written above it.
        let bar_count: usize = self.groups.iter().map(|group| group.1.len().max(1)).sum();
        let bar_room = inner.width() / bar_count.max(1) as f64;
        let mut right = inner.left;
        for (name, bars) in &self.groups {
            let group_width = bar_room * bars.len().max(1) as f64;
            let left = right;
            right += group_width;
            let bar_width = 0.84 * bar_room;
            for (place, bar) in bars.iter().enumerate() {
                let left = left + 0.5 * (group_width - bar_width * bars.len() as f64) + place as f64 * bar_width;
                let own = Area {
                    left: left + 1.0,
                    right: left + bar_width - 1.0,
                    top: level(bar.height),
                    bottom: inner.bottom,
                };
                self.draw_bar(canvas, own, bar);
            }
            let middle = left + 0.5 * group_width;
            canvas.text(
                name,
                (middle, inner.bottom + 0.6 * TICK_SIZE + 5.0),
                Lettering::new(TICK_SIZE, Anchor::Middle),
            );
        }
        if let Some((value, _)) = &self.guide {
            canvas.line(&[(inner.left, level(*value)), (inner.right, level(*value))], GUIDE.stroke());
        }
        let frame = [(inner.left, inner.top), (inner.left, inner.bottom), (inner.right, inner.bottom)];
        canvas.line(&frame, Stroke::solid(DARK_GREY, 1.5));
        let (middle, height) = inner.middle();
        let title = Lettering::new(AXIS_TITLE_SIZE, Anchor::Middle);
        canvas.text(&self.x_title, (middle, area.bottom - 0.6 * AXIS_TITLE_SIZE), title);
        canvas.text(&self.y_title, (area.left + 0.6 * AXIS_TITLE_SIZE, height), title.upright());
    }
}

impl BarChart {
    fn draw_bar(&self, canvas: &mut Canvas<'_>, area: Area, bar: &Bar) {
        let colour = self.colour(bar);
        canvas.rectangle(area, colour);
        let middle = area.middle().0;
        // As large as the bar is wide enough for.
        let size = |text: &str| (TICK_SIZE * area.width() / text_width(text, TICK_SIZE).max(1.0)).clamp(9.0, TICK_SIZE);
        canvas.text(&bar.above, (middle, area.top - 9.0), Lettering::new(size(&bar.above), Anchor::Middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_words() {
        let bar = |kind, height: f64| Bar { kind, height, above: format!("{height:.1}") };
        let chart = BarChart {
            title: "t".to_owned(),
            subtitle: "s".to_owned(),
            x_title: "x".to_owned(),
            y_title: "y".to_owned(),
            groups: vec![("one".to_owned(), vec![bar(0, 15.3), bar(1, 40.8)]), ("two".to_owned(), vec![bar(0, 0.0)])],
            kinds: vec![("reported".to_owned(), LIGHT_GREY), ("ours".to_owned(), BLACK)],
            guide: Some((11.6, "line rate".to_owned())),
            notes: Vec::new(),
        };
        let svg = crate::sheet::svg(&chart);
        crate::sheet::tests::assert_well_formed(&svg);
        for text in ["15.3", "40.8", "line rate", "reported", "ours", "two"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}");
        }
    }
}
