//! Arithmetic with remainders of polynomials over one bit, modulo the polynomial of CRC-32.
//!
//! A remainder is a `u32` in the order that the CRC itself uses: the highest bit is the coefficient of x^0, the lowest that of
//! x^31. In this order a byte that enters the CRC sits in the low eight bits, and every byte after it multiplies by x^8. The
//! polynomial has x^0, so x has an inverse, and the bytes that followed can be taken away again.

/// x^32 modulo the polynomial.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The remainder 1.
const ONE: u32 = 1 << 31;

/// The product of two remainders. The same work whatever they are: 32 steps without a branch, some 20 ns.
#[inline]
const fn multiply(left: u32, right: u32) -> u32 {
    let mut product = 0;
    let mut shifted = right;
    let mut bit = 0;
    while bit < 32 {
        product ^= shifted & ((left >> (31 - bit)) & 1).wrapping_neg();
        shifted = (shifted >> 1) ^ (POLYNOMIAL & (shifted & 1).wrapping_neg());
        bit += 1;
    }
    product
}

/// The remainder divided by x.
const fn divide_by_x(remainder: u32) -> u32 {
    if remainder & ONE != 0 { ((remainder ^ POLYNOMIAL) << 1) | 1 } else { remainder << 1 }
}

const fn powers(base: u32) -> [u32; 256] {
    let mut powers = [ONE; 256];
    let mut exponent = 1;
    while exponent < 256 {
        powers[exponent] = multiply(powers[exponent - 1], base);
        exponent += 1;
    }
    powers
}

const fn divide_one_by_x(times: u32) -> u32 {
    let mut remainder = ONE;
    let mut count = 0;
    while count < times {
        remainder = divide_by_x(remainder);
        count += 1;
    }
    remainder
}

/// x^(-8 n) for n = 0, 1, … 255.
static PER_BYTE: [u32; 256] = powers(divide_one_by_x(8));
/// x^(-8 · 256 n) for n = 0, 1, … 255.
static PER_256_BYTES: [u32; 256] = powers(divide_one_by_x(8 * 256));

/// x^(8 n) for n = 0, 1, … 255.
static ADDED_PER_BYTE: [u32; 256] = powers(ONE >> 8);
/// x^(8 · 256 n) for n = 0, 1, … 255.
static ADDED_PER_256_BYTES: [u32; 256] = powers(multiply(ADDED_PER_BYTE[255], ADDED_PER_BYTE[1]));

/// What a change of the CRC becomes when `byte_count` bytes are added; byte counts from 2^16 on are no packet's.
#[inline]
pub(crate) fn add_bytes(change: u32, byte_count: usize) -> Option<u32> {
    let high = ADDED_PER_256_BYTES.get(byte_count >> 8)?;
    let low = ADDED_PER_BYTE[byte_count & 0xff];
    Some(multiply(multiply(change, low), *high))
}

/// What a change of the CRC was before `byte_count` bytes were added; byte counts from 2^16 on are no packet's.
#[inline]
pub(crate) fn undo_bytes(change: u32, byte_count: usize) -> Option<u32> {
    let high = PER_256_BYTES.get(byte_count >> 8)?;
    let low = PER_BYTE[byte_count & 0xff];
    Some(multiply(multiply(change, low), *high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_x_has_an_inverse() {
        for value in [0, 1, ONE, 0xdead_beef, u32::MAX] {
            assert_eq!(multiply(value, ONE), value);
            assert_eq!(multiply(divide_by_x(value), ONE >> 1), value);
        }
    }

    #[test]
    fn bytes_can_be_added_and_undone() {
        // Two messages that differ in their first byte: the CRCs differ by what the byte became, and undoing all bytes
        // but the first gives what the CRC of the one byte alone does.
        let message = [0x5a; 65_536];
        let mut other = message;
        other[0] ^= 0x81;
        let alone = crc32fast::hash(&message[..1]) ^ crc32fast::hash(&other[..1]);
        for length in [1, 2, 3, 255, 256, 257, 4096, 65_535, 65_536] {
            let change = crc32fast::hash(&message[..length]) ^ crc32fast::hash(&other[..length]);
            assert_eq!(undo_bytes(change, length - 1), Some(alone), "{length}");
            assert_eq!(add_bytes(alone, length - 1), Some(change), "{length}");
        }
        assert_eq!(undo_bytes(1, 65_536), None);
        assert_eq!(add_bytes(1, 65_536), None);
    }
}
