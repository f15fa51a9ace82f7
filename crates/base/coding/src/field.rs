//! The field of 256 elements, with the polynomial x⁸ + x⁴ + x³ + x² + 1: addition is XOR, multiplication is by table.
//!
//! The tables are computed by the compiler. Multiplication by a constant is linear in the bits of the other factor:
//! that is what the forms for SIMD rest on.

/// The polynomial; 2 generates all elements but 0.
const POLYNOMIAL: u16 = 0x11d;

/// `PRODUCTS[a][b]` is `a · b`.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = products();

/// Bytes `0 … 15` are the products of a constant with `0 … 15`, and bytes `16 … 31` those with `0, 16, … 240`: a
/// product is the XOR of two of them. For each constant.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static NIBBLE_PRODUCTS: [[u8; 32]; 256] = nibble_products();

/// Multiplication by a constant as a matrix of bits, as the GFNI instructions take it: byte `7 - i` holds the bits of
/// the factor that are added up in bit `i` of the product. For each constant.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static BIT_MATRICES: [u64; 256] = bit_matrices();

static INVERSES: [u8; 256] = inverses();

/// `a · b`.
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    PRODUCTS[usize::from(a)][usize::from(b)]
}

/// `1 / a`.
///
/// # Panics
///
/// When `a` is 0.
pub(crate) fn invert(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    INVERSES[usize::from(a)]
}

/// The definition, bit by bit.
const fn product(a: u8, b: u8) -> u8 {
    let mut shifted = a as u16;
    let mut sum = 0;
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 != 0 {
            sum ^= shifted;
        }
        shifted <<= 1;
        if shifted & 0x100 != 0 {
            shifted ^= POLYNOMIAL;
        }
        bit += 1;
    }
    sum as u8
}

const fn products() -> [[u8; 256]; 256] {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        // Linear in b: the powers of two by definition, the rest as sums of what is there already.
        let mut b = 1_usize;
        while b < 256 {
            let lowest = b & b.wrapping_neg();
            table[a][b] = if lowest == b { product(a as u8, b as u8) } else { table[a][lowest] ^ table[a][b ^ lowest] };
            b += 1;
        }
        a += 1;
    }
    table
}

const fn nibble_products() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut a = 0;
    while a < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[a][nibble] = product(a as u8, nibble as u8);
            table[a][16 + nibble] = product(a as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        a += 1;
    }
    table
}

const fn bit_matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut a = 0;
    while a < 256 {
        let mut factor_bit = 0;
        while factor_bit < 8 {
            let column = product(a as u8, 1 << factor_bit);
            let mut product_bit = 0;
            while product_bit < 8 {
                let is_set = (column >> product_bit & 1) as u64;
                table[a] |= is_set << (8 * (7 - product_bit) + factor_bit);
                product_bit += 1;
            }
            factor_bit += 1;
        }
        a += 1;
    }
    table
}

const fn inverses() -> [u8; 256] {
    // 2 generates the field: 2ⁿ and 2²⁵⁵⁻ⁿ are each other's inverses.
    let mut powers = [1; 256];
    let mut n = 1;
    while n < 256 {
        powers[n] = product(powers[n - 1], 2);
        n += 1;
    }
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        table[powers[n] as usize] = powers[255 - n];
        n += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 0..=255_u8 {
            assert_eq!(multiply(a, 1), a);
            assert_eq!(multiply(a, 0), 0);
            if a != 0 {
                assert_eq!(multiply(a, invert(a)), 1);
            }
            for b in 0..=255 {
                assert_eq!(multiply(a, b), product(a, b));
                assert_eq!(multiply(a, b), multiply(b, a));
                let c = a.wrapping_mul(31) ^ b.wrapping_mul(17);
                assert_eq!(multiply(multiply(a, b), c), multiply(a, multiply(b, c)));
                assert_eq!(multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
            }
        }
    }

    /// Values that anybody's tables for 0x11d have.
    #[test]
    fn it_is_this_field() {
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert_eq!(multiply(0xff, 0xff), 0xe2);
        assert_eq!(invert(2), 0x8e);
    }

    #[test]
    fn the_forms_for_simd_give_the_same_products() {
        for a in 0..=255_u8 {
            for b in 0..=255_u8 {
                let nibbles = &NIBBLE_PRODUCTS[usize::from(a)];
                assert_eq!(nibbles[usize::from(b & 15)] ^ nibbles[16 + usize::from(b >> 4)], multiply(a, b));
                let rows = BIT_MATRICES[usize::from(a)].to_be_bytes();
                let bit = |i: usize| ((rows[i] & b).count_ones() as u8 & 1) << i;
                assert_eq!((0..8).map(bit).sum::<u8>(), multiply(a, b));
            }
        }
    }
}
