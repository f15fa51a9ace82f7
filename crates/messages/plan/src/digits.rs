//! Numbers as people read them: four digits that count, and no more. The model is within some percent of a real link,
//! so further digits would only claim what nobody knows.

/// Larger numbers are written with a power of ten, because nobody counts their zeros.
const PLAIN_MAX: f64 = 1e7;
/// Smaller numbers, too.
const PLAIN_MIN: f64 = 1e-6;

/// The nearest number of four digits.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A number with four digits, zeros at its end included: 1.000, 27.90, 12350.
pub fn four_digits(value: f64) -> String {
    // Rounded before its digits are counted: 9.9996 is 10.00.
    let rounded = rounded(value);
    match rounded.abs() {
        0.0 => "0".to_owned(),
        size if !(PLAIN_MIN..PLAIN_MAX).contains(&size) => format!("{value:.2e}"),
        size => {
            let decimals = (3.0 - size.log10().floor()).max(0.0) as usize;
            format!("{rounded:.decimals$}")
        }
    }
}

/// A number with at most four digits: 1, 27.9, 12350.
pub fn significant(value: f64) -> String {
    let text = four_digits(value);
    let (digits, power) = text.split_at(text.find('e').unwrap_or(text.len()));
    match digits.contains('.') {
        true => format!("{}{power}", digits.trim_end_matches('0').trim_end_matches('.')),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_count() {
        let values = [27.6843, 0.0501, 102.74, 12345.6, 0.0, 3e9, 9.9996, 99_996.0, 1.0, 4e-9, -2.5];
        assert_eq!(
            values.map(four_digits),
            ["27.68", "0.05010", "102.7", "12350", "0", "3.00e9", "10.00", "100000", "1.000", "4.00e-9", "-2.500"]
        );
        assert_eq!(
            values.map(significant),
            ["27.68", "0.0501", "102.7", "12350", "0", "3e9", "10", "100000", "1", "4e-9", "-2.5"]
        );
    }
}
