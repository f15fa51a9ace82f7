//! What charts are drawn with: lines, shapes and text on a white sheet, in a unit that is a pixel of a slide.
//!
//! plotters' SVG writer places everything at whole numbers, which makes curves jagged; so the sheet has finer units
//! than pixels. It does not know dashes either: a dashed line is many short ones.

use plotters::backend::{DrawingBackend, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, FontTransform, IntoFont, RGBColor, ShapeStyle, TextStyle};

/// Units of the SVG in a pixel.
const UNITS_A_PIXEL: f64 = 4.0;
/// plotters divides the size of a font by this.
const FONT_SIZE_DIVISOR: f64 = 1.24;
/// Width of a letter of the family "sans-serif", which every viewer chooses for itself, on average over its size:
/// rather too wide than too narrow.
const LETTER_WIDTH: f64 = 0.58;

/// Red, green, blue.
pub type Colour = (u8, u8, u8);

pub(crate) const BLACK: Colour = (0, 0, 0);
pub(crate) const WHITE: Colour = (255, 255, 255);
/// Of axes and small print.
pub(crate) const DARK_GREY: Colour = (70, 70, 70);
/// Of curves that are there for comparison.
pub(crate) const GREY: Colour = (128, 128, 128);
/// Of the grid.
pub(crate) const LIGHT_GREY: Colour = (224, 224, 224);

/// A place on the sheet, in pixels, y downwards.
pub(crate) type Place = (f64, f64);

/// A part of the sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    pub(crate) fn width(&self) -> f64 {
        self.right - self.left
    }

    pub(crate) fn height(&self) -> f64 {
        self.bottom - self.top
    }

    pub(crate) fn middle(&self) -> Place {
        (0.5 * (self.left + self.right), 0.5 * (self.top + self.bottom))
    }

    pub(crate) fn contains(&self, place: Place) -> bool {
        (self.left..=self.right).contains(&place.0) && (self.top..=self.bottom).contains(&place.1)
    }
}

/// How a text lies around its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Left,
    Middle,
    Right,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lettering {
    pub(crate) size: f64,
    pub(crate) colour: Colour,
    pub(crate) anchor: Anchor,
    pub(crate) is_bold: bool,
    /// Reads upwards.
    pub(crate) is_upright: bool,
}

impl Lettering {
    pub(crate) fn new(size: f64, anchor: Anchor) -> Self {
        Lettering { size, colour: BLACK, anchor, is_bold: false, is_upright: false }
    }

    pub(crate) fn bold(self) -> Self {
        Lettering { is_bold: true, ..self }
    }

    pub(crate) fn upright(self) -> Self {
        Lettering { is_upright: true, ..self }
    }

    pub(crate) fn coloured(self, colour: Colour) -> Self {
        Lettering { colour, ..self }
    }
}

/// About how wide a text is.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * LETTER_WIDTH * size
}

/// A line's width and dashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stroke<'a> {
    pub(crate) colour: Colour,
    pub(crate) width: f64,
    /// Lengths that are drawn and left out in turn; none: all is drawn.
    pub(crate) dashes: &'a [f64],
}

impl Stroke<'_> {
    pub(crate) fn solid(colour: Colour, width: f64) -> Self {
        Stroke { colour, width, dashes: &[] }
    }
}

/// The sheet.
pub struct Canvas<'a> {
    backend: SVGBackend<'a>,
}

/// Draws on a white sheet of a width and height, and gives the SVG.
pub(crate) fn draw_sheet(width: u32, height: u32, title: &str, draw: impl FnOnce(&mut Canvas<'_>)) -> String {
    let mut text = String::new();
    let units = (units(f64::from(width)) as u32, units(f64::from(height)) as u32);
    let mut canvas = Canvas { backend: SVGBackend::with_string(&mut text, units) };
    canvas.rectangle(Area { left: 0.0, top: 0.0, right: width.into(), bottom: height.into() }, WHITE);
    draw(&mut canvas);
    written(canvas.backend.present());
    drop(canvas);
    // The writer's first line has the sheet's units for its size on screen; and screen readers read a title.
    let (_, drawn) = text.split_once('\n').expect("the writer has begun with a line of its own");
    format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {} {}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\">\n<title>{}</title>\n{drawn}",
        units.0,
        units.1,
        escaped(title),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn units(pixels: f64) -> i32 {
    (pixels * UNITS_A_PIXEL).round() as i32
}

fn place_units((x, y): Place) -> (i32, i32) {
    (units(x), units(y))
}

/// Writing to a string does not fail.
fn written<Answer, Error: std::fmt::Debug>(answer: Result<Answer, Error>) {
    answer.expect("a string takes all that is written to it");
}

impl Canvas<'_> {
    /// A filled rectangle.
    pub(crate) fn rectangle(&mut self, area: Area, colour: Colour) {
        let corners = [(area.left, area.top), (area.right, area.bottom)].map(place_units);
        written(self.backend.draw_rect(corners[0], corners[1], &shape(colour, 0.0), true));
    }

    /// A filled polygon.
    pub(crate) fn polygon(&mut self, corners: &[Place], colour: Colour) {
        written(self.backend.fill_polygon(corners.iter().copied().map(place_units), &shape(colour, 0.0)));
    }

    /// A filled circle.
    pub(crate) fn circle(&mut self, middle: Place, radius: f64, colour: Colour) {
        written(self.backend.draw_circle(place_units(middle), units(radius) as u32, &shape(colour, 0.0), true));
    }

    /// A line through some places.
    pub(crate) fn line(&mut self, places: &[Place], stroke: Stroke<'_>) {
        for piece in dashed(places, stroke.dashes) {
            let places = piece.into_iter().map(place_units);
            written(self.backend.draw_path(places, &shape(stroke.colour, stroke.width)));
        }
    }

    /// A text, in the middle of its height at the place.
    pub(crate) fn text(&mut self, text: &str, place: Place, lettering: Lettering) {
        let weight = if lettering.is_bold { FontStyle::Bold } else { FontStyle::Normal };
        let turn = if lettering.is_upright { FontTransform::Rotate270 } else { FontTransform::None };
        let anchor = match lettering.anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let font = ("sans-serif", lettering.size * UNITS_A_PIXEL * FONT_SIZE_DIVISOR)
            .into_font()
            .style(weight)
            .transform(turn);
        let colour = colour(lettering.colour);
        let style = TextStyle::from(font).color(&colour).pos(Pos::new(anchor, VPos::Center));
        written(self.backend.draw_text(text, &style, place_units(place)));
    }
}

fn colour((red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

fn shape(of: Colour, width: f64) -> ShapeStyle {
    ShapeStyle { color: colour(of).into(), filled: true, stroke_width: units(width).max(0) as u32 }
}

/// The pieces of a line that are drawn.
fn dashed(places: &[Place], dashes: &[f64]) -> Vec<Vec<Place>> {
    if dashes.is_empty() {
        return if places.len() > 1 { vec![places.to_vec()] } else { Vec::new() };
    }
    let mut pieces = Vec::new();
    let (mut index, mut left) = (0, dashes[0]);
    let mut piece: Vec<Place> = places.first().copied().into_iter().collect();
    for pair in places.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let share = done / length;
            let place = (from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1));
            // Even ones are drawn.
            if index % 2 == 0 {
                piece.push(place);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![place];
            }
            index = (index + 1) % dashes.len();
            left = dashes[index];
        }
        left -= length - done;
        if index % 2 == 0 {
            piece.push(to);
        }
    }
    if index % 2 == 0 && piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_leave_gaps_and_go_round_corners() {
        let corner = [(0.0, 0.0), (10.0, 0.0), (10.0, 10.0)];
        assert_eq!(
            dashed(&corner, &[4.0, 4.0]),
            [vec![(0.0, 0.0), (4.0, 0.0)], vec![(8.0, 0.0), (10.0, 0.0), (10.0, 2.0)], vec![(10.0, 6.0), (10.0, 10.0)],]
        );
        assert_eq!(dashed(&corner, &[]), [corner.to_vec()]);
        assert!(dashed(&corner[..1], &[]).is_empty() && dashed(&corner[..1], &[1.0, 1.0]).is_empty());
    }

    #[test]
    fn text_and_title_are_escaped() {
        let svg = draw_sheet(100, 50, "a < b & c", |canvas| {
            canvas.text("1 < 2 & \"3\" > 2", (50.0, 25.0), Lettering::new(10.0, Anchor::Middle));
        });
        assert!(svg.contains("<title>a &lt; b &amp; c</title>") && svg.contains("1 &lt; 2 &amp; &quot;3&quot; &gt; 2"));
        assert!(
            svg.starts_with("<svg width=\"100\" height=\"50\" viewBox=\"0 0 400 200\"") && svg.ends_with("</svg>\n")
        );
    }
}
