//! How series look. Colours are those of Okabe and Ito, which readers with any kind of colour blindness can tell apart;
//! and since slides are also printed, no two series differ by colour alone.

use crate::canvas::{BLACK, Canvas, Colour, GREY, Place, Stroke, WHITE};

/// Okabe and Ito (2008), without their yellow, which is too light for a line on white.
const COLOURS: [Colour; 7] =
    [(0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233), (0, 0, 0)];

/// The look of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Of its lines and markers.
    pub colour: Colour,
    pub(crate) width: f64,
    pub(crate) dash: Dash,
    pub(crate) marker: Option<Marker>,
    /// White inside its markers, so that two lines of one colour differ where they lie on each other.
    pub(crate) is_hollow: bool,
}

/// Lines that are drawn in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dash {
    Solid,
    Dashed,
    Dotted,
    /// Only markers.
    Nothing,
}

/// What is drawn at points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// On its tip.
    Pointer,
    Cross,
    Plus,
}

const MARKERS: [Marker; 7] =
    [Marker::Circle, Marker::Square, Marker::Triangle, Marker::Diamond, Marker::Pointer, Marker::Cross, Marker::Plus];

impl Style {
    /// The n-th of several series.
    pub fn numbered(index: usize) -> Self {
        let (colour, marker) = (COLOURS[index % COLOURS.len()], MARKERS[index % MARKERS.len()]);
        let dash = [Dash::Solid, Dash::Dashed, Dash::Dotted][index / COLOURS.len() % 3];
        Style { colour, width: 2.5, dash, marker: Some(marker), is_hollow: false }
    }

    /// There for comparison only.
    pub fn faint() -> Self {
        Style { colour: GREY, width: 1.5, dash: Dash::Dashed, marker: None, is_hollow: false }
    }

    /// A thin black line, for one quantity next to others of a scheme's colour.
    pub fn thin() -> Self {
        Style { colour: BLACK, width: 1.5, dash: Dash::Solid, marker: None, is_hollow: false }
    }

    /// For the tail of what this style shows the mean or the median of.
    pub fn tail(self) -> Self {
        Style { dash: Dash::Dashed, is_hollow: true, ..self }
    }

    /// In dots.
    pub fn dotted(self) -> Self {
        Style { dash: Dash::Dotted, ..self }
    }

    /// Only the line, which is calculated, and whose points are only steps.
    pub fn without_marker(self) -> Self {
        Style { marker: None, ..self }
    }

    /// Only markers, each at what was measured.
    pub fn without_line(self) -> Self {
        Style { dash: Dash::Nothing, ..self }
    }

    pub(crate) fn has_line(&self) -> bool {
        self.dash != Dash::Nothing
    }

    pub(crate) fn stroke(&self) -> Stroke<'static> {
        let dashes: &[f64] = match self.dash {
            Dash::Solid | Dash::Nothing => &[],
            Dash::Dashed => &[8.0, 5.0],
            Dash::Dotted => &[2.0, 4.0],
        };
        Stroke { colour: self.colour, width: self.width, dashes }
    }

    /// The marker, if there is one.
    pub(crate) fn mark(&self, canvas: &mut Canvas<'_>, (x, y): Place) {
        const R: f64 = 5.0;
        /// How large the white inside of a hollow marker is, over the marker.
        const HOLLOW: f64 = 0.5;
        let at = |offsets: &[Place]| offsets.iter().map(|(right, down)| (x + right, y + down)).collect::<Vec<_>>();
        let shape: &[Place] = match self.marker {
            None => return,
            Some(Marker::Circle) => {
                canvas.circle((x, y), R, self.colour);
                if self.is_hollow {
                    canvas.circle((x, y), HOLLOW * R, WHITE);
                }
                return;
            }
            Some(Marker::Square) => &[(-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)],
            Some(Marker::Triangle) => &[(0.0, -6.0), (5.5, 4.0), (-5.5, 4.0)],
            Some(Marker::Diamond) => &[(0.0, -6.5), (6.5, 0.0), (0.0, 6.5), (-6.5, 0.0)],
            Some(Marker::Pointer) => &[(0.0, 6.0), (5.5, -4.0), (-5.5, -4.0)],
            Some(marker @ (Marker::Cross | Marker::Plus)) => {
                let strokes: [[Place; 2]; 2] = match marker {
                    Marker::Cross => [[(-4.5, -4.5), (4.5, 4.5)], [(-4.5, 4.5), (4.5, -4.5)]],
                    _ => [[(-5.5, 0.0), (5.5, 0.0)], [(0.0, -5.5), (0.0, 5.5)]],
                };
                for stroke in strokes {
                    canvas.line(&at(&stroke), Stroke::solid(self.colour, 2.5));
                }
                return;
            }
        };
        canvas.polygon(&at(shape), self.colour);
        if self.is_hollow {
            let inside: Vec<Place> = shape.iter().map(|(right, down)| (HOLLOW * right, HOLLOW * down)).collect();
            canvas.polygon(&at(&inside), WHITE);
        }
    }
}

/// Colours of a heat map: white at a middle, blue towards the first value, red towards the last. Equal factors are
/// equal steps on each side, and both ends are as strong, however far they are from the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    /// Where it is as blue as it becomes.
    pub first: f64,
    /// Where it is white.
    pub middle: f64,
    /// Where it is as red as it becomes.
    pub last: f64,
}

/// ColorBrewer's RdBu, from blue over white to red: safe for readers with colour blindness.
const BLUE_TO_RED: [Colour; 9] = [
    (33, 102, 172),
    (67, 147, 195),
    (146, 197, 222),
    (209, 229, 240),
    (255, 255, 255),
    (253, 219, 199),
    (244, 165, 130),
    (214, 96, 77),
    (178, 24, 43),
];

impl Ramp {
    pub(crate) fn colour(&self, value: f64) -> Colour {
        let part = |from: f64, to: f64| ((value / from).ln() / (to / from).ln()).clamp(0.0, 1.0);
        let place = match value < self.middle {
            true => 4.0 * part(self.first, self.middle),
            false => 4.0 + 4.0 * part(self.middle, self.last),
        };
        let index = (place.floor() as usize).min(7);
        let (from, to) = (BLUE_TO_RED[index], BLUE_TO_RED[index + 1]);
        let share = place - index as f64;
        let mix = |from: u8, to: u8| (f64::from(from) + share * (f64::from(to) - f64::from(from))).round() as u8;
        (mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
    }
}

/// Whether white letters are easier to read on it than black ones.
pub(crate) fn is_dark((red, green, blue): Colour) -> bool {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue) < 128.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ramps_go_by_factors() {
        let ramp = Ramp { first: 0.5, middle: 1.0, last: 4.0 };
        let expected = [(0.1, 0), (0.5, 0), (1.0, 4), (2.0, 6), (4.0, 8), (9.0, 8)];
        for (value, index) in expected {
            assert_eq!(ramp.colour(value), BLUE_TO_RED[index], "{value}");
        }
        assert!(is_dark(ramp.colour(0.5)) && is_dark(ramp.colour(4.0)) && !is_dark(ramp.colour(1.0)));
    }

    #[test]
    fn no_two_series_look_the_same() {
        let styles: Vec<Style> = (0..14).map(Style::numbered).collect();
        for (index, style) in styles.iter().enumerate() {
            assert!(!styles[..index].contains(style), "{index}");
        }
    }
}
