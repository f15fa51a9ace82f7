//! Lines over two axes.

use crate::axis::{Axis, FittedAxis};
use crate::canvas::{Anchor, Area, Canvas, DARK_GREY, LIGHT_GREY, Lettering, Place, Stroke, text_width};
use crate::plot::{AXIS_TITLE_SIZE, Entry, Plot, Swatch, TICK_SIZE};
use crate::style::Style;

/// Markers of a line are not drawn closer to each other, which leaves room for those of others between them.
const MARKER_DISTANCE: f64 = 66.0;
/// Points that are farther from each other are all marked: they are what is known, not steps of a curve.
const APART: f64 = 45.0;
const GUIDE_SIZE: f64 = 14.0;
const LABEL_SIZE: f64 = 13.0;

/// Lines, one for each series.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// What it shows.
    pub title: String,
    /// Under which conditions: link, message, chunk.
    pub subtitle: String,
    /// From left to right.
    pub x: Axis,
    /// From the bottom up.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series>,
    /// Values worth a line of their own.
    pub guides: Vec<Guide>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// How it looks.
    pub style: Style,
    /// In the order in which they are joined. A point without a finite value, or without a logarithm where one is
    /// needed, leaves a gap.
    pub points: Vec<(f64, f64)>,
    /// What is written below the points, in their order; usually nothing.
    pub labels: Vec<String>,
}

impl Series {
    /// A line through points, without labels.
    pub fn new(name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Self {
        Series { name: name.into(), style, points, labels: Vec::new() }
    }

    /// With something written below its points.
    pub fn labelled(self, labels: Vec<String>) -> Self {
        Series { labels, ..self }
    }
}

/// A thin line through the whole chart, with a word to it.
#[derive(Clone, Debug)]
pub struct Guide {
    at: f64,
    is_across: bool,
    label: String,
}

impl Guide {
    /// At a value of y.
    pub fn across(y: f64, label: impl Into<String>) -> Self {
        Guide { at: y, is_across: true, label: label.into() }
    }

    /// At a value of x.
    pub fn upwards(x: f64, label: impl Into<String>) -> Self {
        Guide { at: x, is_across: false, label: label.into() }
    }
}

/// Where the data is drawn, and what its axes are.
struct Frame {
    area: Area,
    x: FittedAxis,
    y: FittedAxis,
}

impl Frame {
    fn place(&self, (x, y): (f64, f64)) -> Option<Place> {
        let (across, up) = (self.x.position(x)?, self.y.position(y)?);
        Some((self.area.left + across * self.area.width(), self.area.bottom - up * self.area.height()))
    }
}

impl Plot for LineChart {
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
        let entry = |series: &Series| Entry { name: series.name.clone(), swatch: Swatch::Line(series.style) };
        self.series.iter().map(entry).collect()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, area: Area) {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let x = self.x.fitted(points().map(|point| point.0));
        let y = self.y.fitted(points().map(|point| point.1));
        let frame = Frame { area: draw_axes(canvas, area, (&self.x.title, x), (&self.y.title, y)), x, y };
        for guide in &self.guides {
            draw_guide(canvas, &frame, guide, &self.guides);
        }
        for (index, series) in self.series.iter().enumerate() {
            // Each begins its markers elsewhere: lines that lie on each other do not hide each other's.
            let first_marker = MARKER_DISTANCE * index as f64 / self.series.len() as f64;
            draw_series(canvas, &frame, series, first_marker);
        }
    }
}

/// Grid, marks, their labels and the titles; what is left in the middle.
fn draw_axes(canvas: &mut Canvas<'_>, area: Area, x: (&str, FittedAxis), y: (&str, FittedAxis)) -> Area {
    let y_ticks = y.1.ticks(((area.height() / 55.0) as usize).max(2));
    let label_width = y_ticks.iter().map(|tick| text_width(&tick.label, TICK_SIZE)).fold(0.0, f64::max);
    let inner = Area {
        left: area.left + 1.6 * AXIS_TITLE_SIZE + label_width + 8.0,
        right: area.right - 26.0,
        bottom: area.bottom - 1.5 * AXIS_TITLE_SIZE - 1.5 * TICK_SIZE,
        ..area
    };
    let x_ticks = x.1.ticks(((inner.width() / 76.0) as usize).max(2));
    let grid = Stroke::solid(LIGHT_GREY, 1.0);
    for tick in y_ticks {
        let Some(up) = y.1.position(tick.value) else { continue };
        let level = inner.bottom - up * inner.height();
        canvas.line(&[(inner.left, level), (inner.right, level)], grid);
        canvas.text(&tick.label, (inner.left - 8.0, level), Lettering::new(TICK_SIZE, Anchor::Right));
    }
    for tick in x_ticks {
        let Some(across) = x.1.position(tick.value) else { continue };
        let place = inner.left + across * inner.width();
        canvas.line(&[(place, inner.top), (place, inner.bottom)], grid);
        canvas.line(&[(place, inner.bottom), (place, inner.bottom + 5.0)], Stroke::solid(DARK_GREY, 1.0));
        canvas.text(
            &tick.label,
            (place, inner.bottom + 0.6 * TICK_SIZE + 7.0),
            Lettering::new(TICK_SIZE, Anchor::Middle),
        );
    }
    let frame = [(inner.left, inner.top), (inner.left, inner.bottom), (inner.right, inner.bottom)];
    canvas.line(&frame, Stroke::solid(DARK_GREY, 1.5));
    let (middle, height) = inner.middle();
    canvas.text(x.0, (middle, area.bottom - 0.6 * AXIS_TITLE_SIZE), Lettering::new(AXIS_TITLE_SIZE, Anchor::Middle));
    canvas.text(
        y.0,
        (area.left + 0.6 * AXIS_TITLE_SIZE, height),
        Lettering::new(AXIS_TITLE_SIZE, Anchor::Middle).upright(),
    );
    inner
}

fn draw_guide(canvas: &mut Canvas<'_>, frame: &Frame, guide: &Guide, all: &[Guide]) {
    let area = frame.area;
    let stroke = Stroke { colour: DARK_GREY, width: 1.0, dashes: &[7.0, 5.0] };
    let lettering = Lettering::new(GUIDE_SIZE, Anchor::Right).coloured(DARK_GREY);
    match guide.is_across {
        true => {
            let Some((_, level)) = frame.place((frame.x.first, guide.at)) else { return };
            if (area.top..=area.bottom).contains(&level) {
                canvas.line(&[(area.left, level), (area.right, level)], stroke);
                let place = (area.left + 6.0, level - 0.65 * GUIDE_SIZE);
                canvas.text(&guide.label, place, Lettering { anchor: Anchor::Left, ..lettering });
            }
        }
        false => {
            let Some((place, _)) = frame.place((guide.at, frame.y.first)) else { return };
            if (area.left..=area.right).contains(&place) {
                canvas.line(&[(place, area.top), (place, area.bottom)], stroke);
                // Behind the line, unless the next one is there or the chart ends.
                let others = all.iter().filter(|other| !other.is_across && other.at > guide.at);
                let next = others.filter_map(|other| frame.place((other.at, frame.y.first)));
                let room = next.map(|next| next.0).fold(area.right, f64::min) - place;
                let is_left = text_width(&guide.label, GUIDE_SIZE) + 12.0 > room;
                let (anchor, shift) = if is_left { (Anchor::Right, -6.0) } else { (Anchor::Left, 6.0) };
                canvas.text(&guide.label, (place + shift, area.top + GUIDE_SIZE), Lettering { anchor, ..lettering });
            }
        }
    }
}

fn draw_series(canvas: &mut Canvas<'_>, frame: &Frame, series: &Series, first_marker: f64) {
    let places: Vec<Option<Place>> = series.points.iter().map(|point| frame.place(*point)).collect();
    for piece in places.split(|place| place.is_none() || !series.style.has_line()) {
        let piece: Vec<Place> = piece.iter().flatten().copied().collect();
        for inside in clipped(&piece, frame.area) {
            canvas.line(&inside, series.style.stroke());
        }
    }
    let inside = |place: &Place| frame.area.contains(*place);
    let shown: Vec<Place> = places.iter().flatten().copied().filter(inside).collect();
    let shown = if series.style.has_line() { marked(&shown, first_marker) } else { shown };
    shown.into_iter().for_each(|place| series.style.mark(canvas, place));
    for (place, label) in places.iter().zip(&series.labels) {
        if let Some(place) = place.filter(inside) {
            draw_label(canvas, frame.area, place, label);
        }
    }
}

/// Which places of a line are marked: all of them if they are far from each other, otherwise one for each distance
/// along the line.
fn marked(places: &[Place], first_marker: f64) -> Vec<Place> {
    let length = |pair: &[Place]| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1);
    let whole: f64 = places.windows(2).map(length).sum();
    if whole >= APART * places.len().saturating_sub(1) as f64 {
        return places.to_vec();
    }
    let (mut marked, mut done, mut next) = (Vec::new(), 0.0, first_marker);
    for (index, place) in places.iter().enumerate() {
        if index > 0 {
            done += length(&places[index - 1..=index]);
        }
        if done >= next {
            marked.push(*place);
            next = done + MARKER_DISTANCE;
        }
    }
    marked
}

/// Below a point, and not across the chart's edges.
fn draw_label(canvas: &mut Canvas<'_>, area: Area, (x, y): Place, label: &str) {
    let half = 0.5 * text_width(label, LABEL_SIZE);
    let (x, anchor) = match () {
        () if x - half < area.left => (area.left + 8.0, Anchor::Left),
        () if x + half > area.right => (area.right, Anchor::Right),
        () => (x, Anchor::Middle),
    };
    canvas.text(label, (x, y + 1.4 * LABEL_SIZE), Lettering::new(LABEL_SIZE, anchor));
}

/// The pieces of a line that are in an area.
fn clipped(places: &[Place], area: Area) -> Vec<Vec<Place>> {
    let mut pieces: Vec<Vec<Place>> = Vec::new();
    for pair in places.windows(2) {
        let Some((from, to)) = clipped_segment(pair[0], pair[1], area) else { continue };
        match pieces.last_mut() {
            Some(piece) if piece.last() == Some(&from) => piece.push(to),
            _ => pieces.push(vec![from, to]),
        }
    }
    pieces
}

/// Liang and Barsky (1984): the part of a segment that is in an area.
fn clipped_segment(from: Place, to: Place, area: Area) -> Option<(Place, Place)> {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let (mut begin, mut end) = (0.0_f64, 1.0_f64);
    for (step, room) in
        [(-dx, from.0 - area.left), (dx, area.right - from.0), (-dy, from.1 - area.top), (dy, area.bottom - from.1)]
    {
        if step == 0.0 {
            if room < 0.0 {
                return None;
            }
        } else if step < 0.0 {
            begin = begin.max(room / step);
        } else {
            end = end.min(room / step);
        }
    }
    let at = |share: f64| match share {
        0.0 => from,
        1.0 => to,
        _ => (from.0 + share * dx, from.1 + share * dy),
    };
    (begin <= end).then(|| (at(begin), at(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_the_edge() {
        let area = Area { left: 0.0, top: 0.0, right: 10.0, bottom: 10.0 };
        let line = [(-10.0, 5.0), (5.0, 5.0), (5.0, 15.0), (8.0, 15.0), (8.0, 5.0)];
        assert_eq!(clipped(&line, area), [vec![(0.0, 5.0), (5.0, 5.0), (5.0, 10.0)], vec![(8.0, 10.0), (8.0, 5.0)]]);
        assert!(clipped(&[(-1.0, -1.0), (-1.0, 20.0)], area).is_empty());
    }

    #[test]
    fn without_a_line_every_point_is_marked() {
        let points: Vec<(f64, f64)> = (0..50).map(|x| (f64::from(x), 1.0)).collect();
        let drawn = |style: Style| {
            let chart = LineChart {
                title: "a".to_owned(),
                subtitle: String::new(),
                x: Axis::new("x", crate::axis::Scale::Linear),
                y: Axis::new("y", crate::axis::Scale::Linear),
                series: vec![Series::new("one", style, points.clone())],
                guides: Vec::new(),
                notes: Vec::new(),
            };
            // One more in the legend.
            crate::sheet::svg(&chart).matches("<circle").count()
        };
        assert_eq!(drawn(Style::numbered(0).without_line()), 51);
        assert!((2..30).contains(&drawn(Style::numbered(0))));
        assert_eq!(drawn(Style::numbered(0).without_marker()), 0);
    }

    #[test]
    fn lines_on_each_other_have_their_markers_apart() {
        let line: Vec<Place> = (0..=80).map(|step| (5.0 * f64::from(step), 0.0)).collect();
        let (one, other) = (marked(&line, 0.0), marked(&line, 0.5 * MARKER_DISTANCE));
        assert!(one.len() >= 5 && other.len() >= 5);
        for place in &one {
            assert!(other.iter().all(|other| (other.0 - place.0).abs() > 20.0), "{place:?}");
        }
        // Few points are all marked.
        assert_eq!(marked(&[(0.0, 0.0), (50.0, 0.0), (100.0, 0.0)], 30.0).len(), 3);
        assert!(marked(&[], 30.0).is_empty());
    }

    #[test]
    fn points_are_where_their_logarithms_are() {
        let frame = Frame {
            area: Area { left: 100.0, top: 0.0, right: 300.0, bottom: 50.0 },
            x: Axis::new("", crate::axis::Scale::Log10).over(1e-4, 1.0).fitted([].into_iter()),
            y: Axis::new("", crate::axis::Scale::Linear).over(0.0, 5.0).fitted([].into_iter()),
        };
        let (x, y) = frame.place((1e-2, 1.0)).expect("is there");
        assert!((x - 200.0).abs() < 1e-9 && (y - 40.0).abs() < 1e-9);
        assert_eq!(frame.place((0.0, 1.0)), None);
    }
}
