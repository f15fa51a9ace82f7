//! Axes: where a value lies between two ends, which values are marked, and what is written at the marks.

/// How values are spread along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps.
    Linear,
    /// Equal factors, marked at powers of ten or, over a short range, between them.
    Log10,
    /// Equal factors, marked at powers of two.
    Log2,
    /// The same for a number of bytes: 128 MiB.
    Log2Bytes,
}

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// With the unit.
    pub title: String,
    /// How values are spread.
    pub scale: Scale,
    /// First and last value; if none is given, those of the data, rounded outwards.
    pub range: Option<(f64, f64)>,
    /// Between marks of a linear axis; if none is given, a round number.
    pub step: Option<f64>,
}

/// A value that is marked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) label: String,
}

impl Axis {
    /// With the ends of its data.
    pub fn new(title: impl Into<String>, scale: Scale) -> Self {
        Axis { title: title.into(), scale, range: None, step: None }
    }

    /// From one value to another, whatever the data.
    pub fn over(self, first: f64, last: f64) -> Self {
        Axis { range: Some((first, last)), ..self }
    }

    /// Marked at multiples of a step.
    pub fn every(self, step: f64) -> Self {
        Axis { step: Some(step), ..self }
    }

    /// With its ends, for some data: those that were given, or all data that can be shown.
    pub(crate) fn fitted(&self, values: impl Iterator<Item = f64>) -> FittedAxis {
        let (first, last) = self.range.unwrap_or_else(|| {
            let shown = values.filter(|value| value.is_finite() && (self.scale == Scale::Linear || *value > 0.0));
            let (low, high) =
                shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
            match low <= high {
                true => rounded_outwards(self.scale, low, high),
                false => (1.0, 10.0),
            }
        });
        FittedAxis { scale: self.scale, first, last, step: self.step }
    }
}

/// An axis whose ends are known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FittedAxis {
    scale: Scale,
    pub(crate) first: f64,
    pub(crate) last: f64,
    step: Option<f64>,
}

impl FittedAxis {
    /// Where a value is: 0 at the first end, 1 at the last; nowhere, if a logarithm would be needed that there is not.
    pub(crate) fn position(&self, value: f64) -> Option<f64> {
        let position = match self.scale {
            Scale::Linear => (value - self.first) / (self.last - self.first),
            Scale::Log10 | Scale::Log2 | Scale::Log2Bytes => (value / self.first).ln() / (self.last / self.first).ln(),
        };
        position.is_finite().then_some(position)
    }

    /// About this many tick marks at most.
    pub(crate) fn ticks(&self, count: usize) -> Vec<Tick> {
        match self.scale {
            Scale::Linear => self.linear_ticks(count),
            Scale::Log10 => self.decimal_ticks(count),
            Scale::Log2 => self.binary_ticks(count, plain),
            Scale::Log2Bytes => self.binary_ticks(count, bytes),
        }
    }

    fn contains(&self, value: f64) -> bool {
        let slack = 1e-9 * (self.last - self.first);
        (self.first - slack..=self.last + slack).contains(&value)
    }

    fn linear_ticks(&self, count: usize) -> Vec<Tick> {
        let step = self.step.unwrap_or_else(|| round_step((self.last - self.first) / count.max(1) as f64));
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let indices = (self.first / step).floor() as i64..=(self.last / step).ceil() as i64;
        let values = indices.map(|index| index as f64 * step).filter(|value| self.contains(*value));
        values.map(|value| Tick { value, label: decimal(value, decimals) }).collect()
    }

    /// Powers of ten; where there are fewer than two of them for each other mark that there may be, also 2 and 5 times
    /// those.
    fn decimal_ticks(&self, count: usize) -> Vec<Tick> {
        let exponents = self.first.log10().floor() as i32..=self.last.log10().ceil() as i32;
        let decades = (self.last / self.first).log10();
        let factors: &[f64] = match decades {
            ..1.0 if count >= 6 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            ..2.2 if count >= 3 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        // Every power, or every second one, …
        let every = if factors.len() > 1 { 1 } else { (decades / count.max(1) as f64).ceil().max(1.0) as i32 };
        let is_plain = self.first >= 0.009 && self.last <= 99_999.0;
        let values = exponents
            .filter(|exponent| exponent % every == 0)
            .flat_map(|exponent| factors.iter().map(move |factor| (exponent, *factor)));
        values
            .map(|(exponent, factor)| {
                let value = factor * 10.0_f64.powi(exponent);
                let label = match is_plain {
                    true => plain(value),
                    false if factor == 1.0 => power_of_ten(exponent),
                    false => format!("{factor}·{}", power_of_ten(exponent)),
                };
                Tick { value, label }
            })
            .filter(|tick| self.contains(tick.value))
            .collect()
    }

    fn binary_ticks(&self, count: usize, label: fn(f64) -> String) -> Vec<Tick> {
        let (first, last) = ((self.first.log2() - 1e-9).ceil() as i32, (self.last.log2() + 1e-9).floor() as i32);
        let every = ((last - first).max(0) as usize).div_ceil(count.max(1)).max(1);
        let values = (first..=last).step_by(every).map(|exponent| f64::from(exponent).exp2());
        values.map(|value| Tick { value, label: label(value) }).collect()
    }
}

fn rounded_outwards(scale: Scale, low: f64, high: f64) -> (f64, f64) {
    match scale {
        Scale::Linear => {
            let spread = if high > low { high - low } else { low.abs().max(1.0) };
            let step = round_step(spread / 6.0);
            let first = (low / step + 1e-9).floor() * step;
            (first, ((high / step - 1e-9).ceil() * step).max(first + step))
        }
        Scale::Log10 if high / low < 100.0 => {
            // A power of ten would leave half of the axis empty.
            let steps = [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0];
            let around = |value: f64| 10.0_f64.powf((value.log10() + 1e-12).floor());
            let low_step = steps.iter().rev().find(|step| **step * around(low) <= low * (1.0 + 1e-9)).unwrap_or(&1.0);
            let high_step = steps.iter().find(|step| **step * around(high) >= high * (1.0 - 1e-9)).unwrap_or(&10.0);
            let (first, last) = (low_step * around(low), high_step * around(high));
            if last > first { (first, last) } else { (first, 10.0 * first) }
        }
        Scale::Log10 => (10.0_f64.powf((low.log10() + 1e-9).floor()), 10.0_f64.powf((high.log10() - 1e-9).ceil())),
        Scale::Log2 | Scale::Log2Bytes => {
            let (first, last) = ((low.log2() + 1e-9).floor(), (high.log2() - 1e-9).ceil());
            (first.exp2(), last.max(first + 1.0).exp2())
        }
    }
}

/// The least of 1, 2, 5, 10, … that is no less.
fn round_step(least: f64) -> f64 {
    let power = 10.0_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.into_iter().find(|step| step * power >= least * (1.0 - 1e-9)).unwrap_or(10.0) * power
}

/// With a minus sign rather than a hyphen.
pub fn decimal(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(digits) if digits.chars().all(|digit| matches!(digit, '0' | '.')) => digits.to_owned(),
        Some(digits) => format!("−{digits}"),
        None => text,
    }
}

/// As few digits as show the value: 0.05, 1.5, 20.
pub fn plain(value: f64) -> String {
    let decimals = (0..6).find(|decimals| {
        let shift = 10.0_f64.powi(*decimals);
        ((value * shift).round() / shift - value).abs() < 1e-9 * value.abs()
    });
    decimal(value, decimals.unwrap_or(6) as usize)
}

/// 10⁻⁵.
pub fn power_of_ten(exponent: i32) -> String {
    let digits = exponent.to_string();
    let raised = digits.chars().map(|letter| match letter {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit => char::from_u32('⁰' as u32 + digit.to_digit(10).unwrap_or(0)).unwrap_or(digit),
    });
    "10".chars().chain(raised).collect()
}

/// 128 MiB.
pub fn bytes(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = ((count.log2() + 1e-9) / 10.0).floor().clamp(0.0, 4.0) as usize;
    format!("{} {}", plain(count / 1024.0_f64.powi(unit as i32)), UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: FittedAxis, count: usize) -> Vec<String> {
        axis.ticks(count).into_iter().map(|tick| tick.label).collect()
    }

    fn fitted(scale: Scale, values: &[f64]) -> FittedAxis {
        Axis::new("", scale).fitted(values.iter().copied())
    }

    #[test]
    fn logarithms_have_equal_factors() {
        let loss = fitted(Scale::Log10, &[1e-8, 1e-1]);
        assert!((loss.first / 1e-8 - 1.0).abs() < 1e-9 && (loss.last / 1e-1 - 1.0).abs() < 1e-9);
        assert!((loss.position(1e-8).expect("is there")).abs() < 1e-9);
        assert!((loss.position(1e-1).expect("is there") - 1.0).abs() < 1e-9);
        let step = loss.position(1e-4).expect("is there") - loss.position(1e-5).expect("is there");
        assert!((step - 1.0 / 7.0).abs() < 1e-9);
        assert_eq!((loss.position(0.0), loss.position(-1.0)), (None, None));
        let bytes = fitted(Scale::Log2Bytes, &[1024.0, 1_048_576.0]);
        assert!((bytes.position(32_768.0).expect("is there") - 0.5).abs() < 1e-9);
    }

    #[test]
    fn powers_of_ten_are_raised() {
        assert_eq!(labels(fitted(Scale::Log10, &[1e-8, 1e-1]), 10)[..3], ["10⁻⁸", "10⁻⁷", "10⁻⁶"]);
        assert_eq!(labels(fitted(Scale::Log10, &[1e-8, 1.0]), 5), ["10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "10⁰"]);
        assert_eq!((power_of_ten(12), power_of_ten(-30)), ("10¹²".to_owned(), "10⁻³⁰".to_owned()));
        // A short range is marked between powers as well, and in digits.
        assert_eq!(
            labels(Axis::new("", Scale::Log10).over(1.0, 20.0).fitted([].into_iter()), 6),
            ["1", "2", "5", "10", "20"]
        );
        assert_eq!(labels(fitted(Scale::Log10, &[0.02, 0.9]), 6), ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(labels(fitted(Scale::Log2, &[0.5, 8.0]), 9), ["0.5", "1", "2", "4", "8"]);
        let sizes = labels(fitted(Scale::Log2Bytes, &[131_072.0, 2.0_f64.powi(41)]), 9);
        assert_eq!(sizes, ["128 KiB", "1 MiB", "8 MiB", "64 MiB", "512 MiB", "4 GiB", "32 GiB", "256 GiB", "2 TiB"]);
        assert_eq!(
            (bytes(1.0), bytes(1536.0), bytes(512.0)),
            ("1 B".to_owned(), "1.5 KiB".to_owned(), "512 B".to_owned())
        );
    }

    #[test]
    fn steps_are_round_and_minus_is_minus() {
        assert_eq!(
            labels(fitted(Scale::Linear, &[0.0, 6000.0]), 6),
            ["0", "1000", "2000", "3000", "4000", "5000", "6000"]
        );
        assert_eq!(labels(fitted(Scale::Linear, &[-0.1, 0.13]), 6), ["−0.10", "−0.05", "0.00", "0.05", "0.10", "0.15"]);
        let short = labels(fitted(Scale::Linear, &[1.0, 1.55]), 6);
        assert_eq!((short.first().map(String::as_str), short.last().map(String::as_str)), (Some("1.0"), Some("1.6")));
        assert_eq!(labels(fitted(Scale::Linear, &[0.3, 0.3]), 2), ["0.2", "0.3", "0.4"]);
        let thirds = Axis::new("", Scale::Linear).over(0.0, 10.0).every(3.0).fitted([].into_iter());
        assert_eq!(labels(thirds, 50), ["0", "3", "6", "9"]);
    }
}
