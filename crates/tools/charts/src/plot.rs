//! What can be put on a sheet, and its legend.

use crate::canvas::{Area, Canvas, Colour};
use crate::style::Style;

/// Letters of an axis title.
pub(crate) const AXIS_TITLE_SIZE: f64 = 16.0;
/// Letters at a mark.
pub(crate) const TICK_SIZE: f64 = 14.0;

/// What can be put on a sheet.
pub trait Plot {
    /// What it shows.
    fn title(&self) -> &str;
    /// Under which conditions.
    fn subtitle(&self) -> &str;
    /// What a reader must know.
    fn notes(&self) -> &[String];
    /// What stands for what.
    fn legend(&self) -> Vec<Entry>;
    /// Draws it, with its axes, into an area.
    fn draw(&self, canvas: &mut Canvas<'_>, area: Area);
}

/// A line of a legend.
pub struct Entry {
    pub(crate) name: String,
    pub(crate) swatch: Swatch,
}

/// What a legend shows before a name.
pub enum Swatch {
    /// A piece of the line.
    Line(Style),
    /// A filled square.
    Filled(Colour),
}
