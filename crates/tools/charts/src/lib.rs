//! Charts as SVG: lines, heat maps and bars, ready for a slide.
//!
//! ```text
//!   LineChart, HeatMap, BarChart ── what is shown ──▶ svg()            one chart on a sheet
//!                                                    side_by_side()   several on one sheet
//! ```
//!
//! plotters writes the SVG (`canvas`); axes, legends and layout are our own, because plotters puts the legend into
//! the plot and knows neither 128 MiB nor 10⁻⁵ for a mark. The same chart gives the same text, byte for byte. Nothing
//! outside the file is needed to show it: the font is whatever the viewer takes for "sans-serif".

mod axis;
mod bars;
mod canvas;
mod heat;
mod lines;
mod plot;
mod sheet;
mod style;

pub use axis::{Axis, Scale, bytes, decimal, plain, power_of_ten};
pub use bars::{Bar, BarChart};
pub use canvas::{Area, Canvas, Colour};
pub use heat::HeatMap;
pub use lines::{Guide, LineChart, Series};
pub use plot::{Entry, Plot, Swatch};
pub use sheet::{side_by_side, svg};
pub use style::{Ramp, Style};
