//! A table whose cells are coloured by their values.

use crate::axis::{decimal, plain};
use crate::canvas::{Anchor, Area, BLACK, Canvas, DARK_GREY, Lettering, Stroke, WHITE, text_width};
use crate::plot::{AXIS_TITLE_SIZE, Entry, Plot, TICK_SIZE};
use crate::style::{Ramp, is_dark};

/// Cells of a colour and a number.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// What it shows.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// What the columns are.
    pub x_title: String,
    /// What the rows are.
    pub y_title: String,
    /// From left to right.
    pub x_labels: Vec<String>,
    /// From the bottom up.
    pub y_labels: Vec<String>,
    /// Rows from the bottom up, each from left to right; a cell without a value stays white.
    pub rows: Vec<Vec<Option<f64>>>,
    /// What is written on the scale of colours.
    pub value_title: String,
    /// Colors of values.
    pub ramp: Ramp,
    /// Values that are marked on the scale of colours.
    pub ramp_ticks: Vec<f64>,
    /// What a reader must know.
    pub notes: Vec<String>,
}

const RAMP_WIDTH: f64 = 18.0;
const RAMP_STEPS: usize = 96;

impl Plot for HeatMap {
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
        Vec::new()
    }

    fn draw(&self, canvas: &mut Canvas<'_>, area: Area) {
        let width = |labels: &[String]| labels.iter().map(|label| text_width(label, TICK_SIZE)).fold(0.0, f64::max);
        let tick_labels: Vec<String> = self.ramp_ticks.iter().map(|value| plain(*value)).collect();
        let ramp_room = RAMP_WIDTH + 10.0 + width(&tick_labels) + 1.5 * AXIS_TITLE_SIZE;
        let inner = Area {
            left: area.left + 1.6 * AXIS_TITLE_SIZE + width(&self.y_labels) + 8.0,
            right: area.right - ramp_room - 18.0,
            top: area.top + 4.0,
            bottom: area.bottom - 1.5 * AXIS_TITLE_SIZE - 1.5 * TICK_SIZE,
        };
        self.draw_cells(canvas, inner);
        let (middle, height) = inner.middle();
        let title = Lettering::new(AXIS_TITLE_SIZE, Anchor::Middle);
        canvas.text(&self.x_title, (middle, area.bottom - 0.6 * AXIS_TITLE_SIZE), title);
        canvas.text(&self.y_title, (area.left + 0.6 * AXIS_TITLE_SIZE, height), title.upright());
        let ramp = Area { left: inner.right + 18.0, right: inner.right + 18.0 + RAMP_WIDTH, ..inner };
        self.draw_ramp(canvas, ramp, &tick_labels);
        canvas.text(&self.value_title, (area.right - 0.6 * AXIS_TITLE_SIZE, height), title.upright());
    }
}

impl HeatMap {
    fn draw_cells(&self, canvas: &mut Canvas<'_>, inner: Area) {
        let (columns, rows) = (self.x_labels.len() as f64, self.y_labels.len() as f64);
        let cell = (inner.width() / columns, inner.height() / rows);
        let size = (0.42 * cell.1).min(0.28 * cell.0).clamp(8.0, TICK_SIZE);
        for (row, values) in self.rows.iter().enumerate() {
            let bottom = inner.bottom - row as f64 * cell.1;
            let label = Lettering::new(TICK_SIZE, Anchor::Right);
            canvas.text(&self.y_labels[row], (inner.left - 8.0, bottom - 0.5 * cell.1), label);
            for (column, value) in values.iter().enumerate() {
                let Some(value) = *value else { continue };
                let left = inner.left + column as f64 * cell.0;
                let area = Area { left, right: left + cell.0, top: bottom - cell.1, bottom };
                let colour = self.ramp.colour(value);
                canvas.rectangle(area, colour);
                let letters = if is_dark(colour) { WHITE } else { BLACK };
                canvas.text(&cell_text(value), area.middle(), Lettering::new(size, Anchor::Middle).coloured(letters));
            }
        }
        for (column, label) in self.x_labels.iter().enumerate() {
            let middle = inner.left + (column as f64 + 0.5) * cell.0;
            canvas.text(
                label,
                (middle, inner.bottom + 0.6 * TICK_SIZE + 5.0),
                Lettering::new(TICK_SIZE, Anchor::Middle),
            );
        }
    }

    /// Equal factors are equal lengths on each side of a middle.
    fn draw_ramp(&self, canvas: &mut Canvas<'_>, area: Area, labels: &[String]) {
        let (first, last) = (self.ramp.first, self.ramp.last);
        let level = |value: f64| area.bottom - (value / first).ln() / (last / first).ln() * area.height();
        // Each step reaches to the top and is painted over by the next: between areas that only touch, viewers let the
        // background through.
        for step in 0..RAMP_STEPS {
            let at = |step: f64| first * (last / first).powf(step / RAMP_STEPS as f64);
            let step = step as f64;
            canvas.rectangle(Area { bottom: level(at(step)), ..area }, self.ramp.colour(at(step + 0.5)));
        }
        for (value, label) in self.ramp_ticks.iter().zip(labels) {
            let y = level(*value);
            canvas.line(&[(area.right, y), (area.right + 5.0, y)], Stroke::solid(DARK_GREY, 1.0));
            canvas.text(label, (area.right + 9.0, y), Lettering::new(TICK_SIZE, Anchor::Left));
        }
        let corners = [
            (area.left, area.top),
            (area.right, area.top),
            (area.right, area.bottom),
            (area.left, area.bottom),
            (area.left, area.top),
        ];
        canvas.line(&corners, Stroke::solid(DARK_GREY, 1.0));
    }
}

/// Two digits behind the point below ten, one above.
fn cell_text(value: f64) -> String {
    decimal(value, if value < 9.995 { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_its_number() {
        let map = HeatMap {
            title: "t".to_owned(),
            subtitle: "s".to_owned(),
            x_title: "x".to_owned(),
            y_title: "y".to_owned(),
            x_labels: vec!["a".to_owned(), "b".to_owned()],
            y_labels: vec!["c".to_owned()],
            rows: vec![vec![Some(1.234), None]],
            value_title: "v".to_owned(),
            ramp: Ramp { first: 0.5, middle: 1.0, last: 12.0 },
            ramp_ticks: vec![0.5, 1.0, 12.0],
            notes: Vec::new(),
        };
        let svg = crate::sheet::svg(&map);
        crate::sheet::tests::assert_well_formed(&svg);
        for text in ["\n1.23\n", "\n12\n", "\n0.5\n"] {
            assert_eq!(svg.matches(text).count(), 1, "{text}");
        }
    }
}
