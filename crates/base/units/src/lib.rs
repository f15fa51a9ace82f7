//! Quantities on the command line: a number and its unit, such as `25ms`, `400G`, `128MiB`, `1e-3` or `3750km`.
//!
//! One place for every command, so that what one of them understands the others do as well. Units may be written in
//! small letters or capitals: `gb` are bytes, `gbps` and `gbit` are bits a second.

use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::str::FromStr;

use longhaul_time::Duration;
use thiserror::Error;

/// Longer times are mistakes.
const DURATION_MAX: Duration = Duration::from_secs(86_400);
/// Slower and faster links are mistakes; most of all a number whose unit was forgotten.
const RATE_RANGE: RangeInclusive<f64> = 1e3..=1e13;
/// More than any memory has.
const BYTES_MAX: f64 = (1_u64 << 48) as f64;
/// Three times round the earth.
const KILOMETRES_MAX: f64 = 120_000.0;

/// What cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// No number in front.
    #[error("expected a number, as in {example}, got {got:?}")]
    NoNumber {
        /// How it is written.
        example: &'static str,
        /// What was.
        got: String,
    },
    /// A unit of something else, or none.
    #[error("expected a unit ({units}), as in {example}, got {got:?}")]
    Unit {
        /// The units that are accepted.
        units: &'static str,
        /// How it is written.
        example: &'static str,
        /// What was.
        got: String,
    },
    /// A number that makes no sense.
    #[error("expected {range}, as in {example}, got {got:?}")]
    Range {
        /// What makes sense.
        range: &'static str,
        /// How it is written.
        example: &'static str,
        /// What was.
        got: String,
    },
}

/// How a kind of quantity is written.
struct Kind {
    example: &'static str,
    /// Units in small letters, each with its factor.
    units: &'static [(&'static str, f64)],
    /// The units as people read them.
    units_named: &'static str,
    /// What makes sense, as people read it.
    range: &'static str,
}

const DURATION: Kind = Kind {
    example: "25ms",
    units: &[("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)],
    units_named: "ns, us, ms or s",
    range: "0 to a day",
};
const RATE: Kind = Kind {
    example: "400G, 10gbit or 10Gbps",
    units: &[
        ("", 1.0),
        ("bit", 1.0),
        ("bps", 1.0),
        ("bit/s", 1.0),
        ("k", 1e3),
        ("kbit", 1e3),
        ("kbps", 1e3),
        ("kbit/s", 1e3),
        ("m", 1e6),
        ("mbit", 1e6),
        ("mbps", 1e6),
        ("mbit/s", 1e6),
        ("g", 1e9),
        ("gbit", 1e9),
        ("gbps", 1e9),
        ("gbit/s", 1e9),
        ("t", 1e12),
        ("tbit", 1e12),
        ("tbps", 1e12),
        ("tbit/s", 1e12),
    ],
    units_named: "K, M, G or T, with or without bit, bit/s or bps",
    range: "1 kbit/s to 10 Tbit/s",
};
const BYTES: Kind = Kind {
    example: "128MiB",
    units: &[
        ("", 1.0),
        ("b", 1.0),
        ("k", 1024.0),
        ("kib", 1024.0),
        ("kb", 1e3),
        ("m", 1048576.0),
        ("mib", 1048576.0),
        ("mb", 1e6),
        ("g", 1073741824.0),
        ("gib", 1073741824.0),
        ("gb", 1e9),
        ("t", 1099511627776.0),
        ("tib", 1099511627776.0),
        ("tb", 1e12),
    ],
    units_named: "bytes, KiB, MiB, GiB or TiB, or decimal kB, MB, GB or TB",
    range: "a whole number of bytes, at most 256 TiB",
};
const SHARE: Kind = Kind {
    example: "1e-3, 0.001 or 0.1%",
    units: &[("", 1.0), ("%", 0.01)],
    units_named: "a share without unit, or %",
    range: "between 0 and 1",
};
const NUMBER: Kind =
    Kind { example: "4 or 2.5", units: &[("", 1.0)], units_named: "none", range: "a number of at least 0" };
const DISTANCE: Kind =
    Kind { example: "3750km", units: &[("km", 1.0), ("m", 1e-3)], units_named: "km or m", range: "0 to 120000 km" };

impl Kind {
    /// The number in the first unit whose factor is 1.
    fn parse(&self, text: &str) -> Result<f64, QuantityError> {
        let text = text.trim();
        let (number, unit) = text.split_at(number_length(text));
        let (example, got) = (self.example, text.to_owned());
        let Ok(number) = number.parse::<f64>() else { return Err(QuantityError::NoNumber { example, got }) };
        let unit = unit.trim().to_lowercase();
        match self.units.iter().find(|(name, _)| *name == unit) {
            Some((_, factor)) => Ok(number * factor),
            None => Err(QuantityError::Unit { units: self.units_named, example, got }),
        }
    }

    fn out_of_range(&self, text: &str) -> QuantityError {
        QuantityError::Range { range: self.range, example: self.example, got: text.trim().to_owned() }
    }
}

/// How much of a text is a number: digits, a point, and an exponent if digits follow its `e`.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mantissa = bytes.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    if !matches!(bytes.get(mantissa), Some(b'e' | b'E')) {
        return mantissa;
    }
    let sign = usize::from(matches!(bytes.get(mantissa + 1), Some(b'+' | b'-')));
    match digits((mantissa + 1 + sign).min(bytes.len())) {
        0 => mantissa,
        exponent => mantissa + 1 + sign + exponent,
    }
}

/// A time: `25ms`.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let nanoseconds = DURATION.parse(text)?.round();
    match nanoseconds <= DURATION_MAX.as_nanos() as f64 {
        true => Ok(Duration::from_nanos(nanoseconds as u64)),
        false => Err(DURATION.out_of_range(text)),
    }
}

/// A rate in bits a second: `400G`, `10gbit`.
pub fn rate(text: &str) -> Result<u64, QuantityError> {
    let rate = RATE.parse(text)?.round();
    if RATE_RANGE.contains(&rate) { Ok(rate as u64) } else { Err(RATE.out_of_range(text)) }
}

/// Bytes: `128MiB`.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let bytes = BYTES.parse(text)?;
    if bytes <= BYTES_MAX && bytes.fract() == 0.0 { Ok(bytes as u64) } else { Err(BYTES.out_of_range(text)) }
}

/// Bytes within a range, as the parser of an option: `64KiB`.
pub fn bytes_within<T: TryFrom<u64> + Send + Sync + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let bytes = bytes(text).map_err(|error| error.to_string())?;
        let fits = Some(bytes).filter(|bytes| range.contains(bytes)).and_then(|bytes| T::try_from(bytes).ok());
        fits.ok_or_else(|| {
            let [least, most] = [*range.start(), *range.end()].map(bytes_text);
            format!("expected {least} to {most}, got \"{text}\"")
        })
    }
}

/// Seconds within a range, as the parser of an option.
pub fn seconds_within(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let seconds = text.parse().ok().filter(|seconds| range.contains(seconds));
        let (least, most) = (range.start(), range.end());
        seconds.ok_or_else(|| format!("expected seconds between {least} and {most}, got \"{text}\""))
    }
}

/// A whole number within a range, as the parser of an option. clap's own shows the range in Rust's notation, and names
/// none for what is not a number.
pub fn whole_number<N: FromStr + PartialOrd + fmt::Display>(
    range: impl RangeBounds<N> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| match (range.start_bound(), range.end_bound()) {
            (Bound::Included(least), Bound::Included(most)) => {
                format!("expected a whole number from {least} to {most}")
            }
            (Bound::Included(least), _) => format!("expected a whole number of at least {least}, got \"{text}\""),
            _ => format!("expected a whole number, got \"{text}\""),
        })
    }
}

/// Gbit/s, as the parser of an option: a bare number is in Gbit/s, as perftest has it, and a rate with a unit is one as
/// everywhere. 0 is unlimited.
pub fn gbits(text: &str) -> Result<f64, String> {
    let gbits = match text.trim().parse::<f64>() {
        Ok(gbits) => gbits,
        Err(_) => rate(text).map_err(|error| error.to_string())? as f64 / 1e9,
    };
    match gbits == 0.0 || (0.000_001..=100_000.0).contains(&gbits) {
        true => Ok(gbits),
        false => Err(format!(
            "expected Gbit/s, between 0.000001 and 100000, or 0 for unlimited, or a rate with its unit, as in 500Mbps, got \"{text}\""
        )),
    }
}

/// A share or probability: `1e-3`, `0.1%`.
pub fn share(text: &str) -> Result<f64, QuantityError> {
    let share = SHARE.parse(text)?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(SHARE.out_of_range(text)) }
}

/// A number that has no unit.
pub fn number(text: &str) -> Result<f64, QuantityError> {
    let number = NUMBER.parse(text)?;
    if number.is_finite() { Ok(number) } else { Err(NUMBER.out_of_range(text)) }
}

/// A distance in kilometres: `3750km`.
pub fn kilometres(text: &str) -> Result<f64, QuantityError> {
    let kilometres = DISTANCE.parse(text)?;
    if kilometres <= KILOMETRES_MAX { Ok(kilometres) } else { Err(DISTANCE.out_of_range(text)) }
}

/// Bytes as people read them, in the largest binary unit that leaves a whole number.
pub fn bytes_text(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes >= 1 << shift && bytes.trailing_zeros() >= *shift);
    match unit {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
    }
}

/// A rate as people read it: `400 Gbit/s`.
pub fn rate_text(bits_per_second: u64) -> String {
    let units = [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    let rate = bits_per_second as f64;
    let (factor, unit) = units.into_iter().find(|(factor, _)| rate >= *factor).unwrap_or((1.0, "bit/s"));
    format!("{} {unit}", rate / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        for (text, nanoseconds) in
            [("25ms", 25_000_000), ("1.5s", 1_500_000_000), ("3 us", 3000), ("7µs", 7000), ("40NS", 40), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
        for (text, expected) in [
            ("400G", 400_000_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("10gbit", 10_000_000_000),
            ("1000000", 1_000_000),
            ("3.2T", 3_200_000_000_000),
            ("64 kbit", 64_000),
            ("10Gbps", 10_000_000_000),
            ("250 Mbit/s", 250_000_000),
            ("1e9", 1_000_000_000),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("128MiB", 128 << 20),
            ("1", 1),
            ("4KiB", 4096),
            ("1.5k", 1536),
            ("2G", 2 << 30),
            ("8 tib", 8 << 40),
            ("1GB", 1_000_000_000),
            ("64kB", 64_000),
        ] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for (text, expected) in [("1e-3", 1e-3), ("0", 0.0), ("1%", 0.01), ("1", 1.0), ("5E-2", 0.05), ("1e+0", 1.0)] {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
        assert_eq!((number("4"), number("2.5")), (Ok(4.0), Ok(2.5)));
        assert_eq!((kilometres("3750km"), kilometres("500 m")), (Ok(3750.0), Ok(0.5)));
    }

    #[test]
    fn texts_are_whole_numbers_of_a_unit() {
        let texts = [2 << 40, 16 << 20, 212_992, 3 << 30, 65536, 1000, 1, 0].map(bytes_text);
        assert_eq!(texts, ["2 TiB", "16 MiB", "208 KiB", "3 GiB", "64 KiB", "1000 bytes", "1 byte", "0 bytes"]);
        let rates = [400_000_000_000, 2_500_000_000, 1_000_000, 1_000_000_000_000].map(rate_text);
        assert_eq!(rates, ["400 Gbit/s", "2.5 Gbit/s", "1 Mbit/s", "1 Tbit/s"]);
    }

    #[test]
    fn ranges_say_what_is_allowed() {
        let size = bytes_within::<u32>(1..=1 << 30);
        assert_eq!((size("64KiB"), size("1GB"), size("1")), (Ok(65_536), Ok(1_000_000_000), Ok(1)));
        for wrong in ["0", "2GiB", "8TiB"] {
            assert_eq!(size(wrong), Err(format!("expected 1 byte to 1 GiB, got \"{wrong}\"")));
        }
        assert!(size("many").is_err_and(|error| error.contains("as in 128MiB")));
        let count = whole_number(2_u32..);
        assert_eq!((count("2"), count("100")), (Ok(2), Ok(100)));
        for wrong in ["1", "-3", "5000000000", "few"] {
            assert_eq!(count(wrong), Err(format!("expected a whole number of at least 2, got \"{wrong}\"")));
        }
        assert_eq!((gbits("2.5"), gbits("0"), gbits("10Gbps"), gbits("500M")), (Ok(2.5), Ok(0.0), Ok(10.0), Ok(0.5)));
        for wrong in ["-1", "1e9", "5X", "fast", "nan"] {
            assert!(gbits(wrong).is_err_and(|error| error.contains("got")), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        type Parse = fn(&str) -> Result<f64, QuantityError>;
        let (of_duration, of_rate, of_bytes): (Parse, Parse, Parse) = (
            |text| duration(text).map(|duration| duration.as_secs_f64()),
            |text| rate(text).map(|rate| rate as f64),
            |text| bytes(text).map(|bytes| bytes as f64),
        );
        for (parse, text, expected) in [
            (of_duration, "25", "expected a unit (ns, us, ms or s), as in 25ms, got \"25\""),
            (of_duration, "25min", "expected a unit (ns, us, ms or s), as in 25ms, got \"25min\""),
            (of_duration, "soon", "expected a number, as in 25ms, got \"soon\""),
            (of_duration, "-5ms", "expected a number, as in 25ms, got \"-5ms\""),
            (of_duration, "1e9s", "expected 0 to a day, as in 25ms, got \"1e9s\""),
            (of_rate, "5", "expected 1 kbit/s to 10 Tbit/s, as in 400G, 10gbit or 10Gbps, got \"5\""),
            (
                of_rate,
                "4X",
                "expected a unit (K, M, G or T, with or without bit, bit/s or bps), as in 400G, 10gbit or 10Gbps, got \"4X\"",
            ),
            (of_rate, "", "expected a number, as in 400G, 10gbit or 10Gbps, got \"\""),
            (
                of_bytes,
                "1MX",
                "expected a unit (bytes, KiB, MiB, GiB or TiB, or decimal kB, MB, GB or TB), as in 128MiB, got \"1MX\"",
            ),
            (of_bytes, "0.3", "expected a whole number of bytes, at most 256 TiB, as in 128MiB, got \"0.3\""),
            (of_bytes, "1e30", "expected a whole number of bytes, at most 256 TiB, as in 128MiB, got \"1e30\""),
            (share, "101%", "expected between 0 and 1, as in 1e-3, 0.001 or 0.1%, got \"101%\""),
            (share, "1ms", "expected a unit (a share without unit, or %), as in 1e-3, 0.001 or 0.1%, got \"1ms\""),
            (share, "1e", "expected a unit (a share without unit, or %), as in 1e-3, 0.001 or 0.1%, got \"1e\""),
            (share, "nan", "expected a number, as in 1e-3, 0.001 or 0.1%, got \"nan\""),
            (number, "4ms", "expected a unit (none), as in 4 or 2.5, got \"4ms\""),
            (number, "1e999", "expected a number of at least 0, as in 4 or 2.5, got \"1e999\""),
            (kilometres, "25", "expected a unit (km or m), as in 3750km, got \"25\""),
            (kilometres, "1e6km", "expected 0 to 120000 km, as in 3750km, got \"1e6km\""),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert_eq!(error, expected);
        }
    }
}
