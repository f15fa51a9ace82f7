//! Element types: f32, bf16 and f16. All arithmetic is in f32; the two short ones are rounded once, when stored.

use std::fmt;

/// bfloat16: the upper half of an f32. Rounded to nearest, ties to even.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// IEEE 754 half precision (binary16). Rounded to nearest, ties to even; beyond ±65504 it is infinite.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct F16(pub u16);

impl Bf16 {
    /// The nearest one.
    pub fn from_f32(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            // Quiet, so that what is cut off cannot turn it into an infinity.
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }

    /// The same value; always exact.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
}

impl F16 {
    /// The nearest one.
    pub fn from_f32(value: f32) -> F16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) as u16 & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        let half = match magnitude {
            // NaN: quiet, with the upper bits of what it carries.
            0x7f80_0001.. => 0x7e00 | (magnitude >> 13) as u16 & 0x3ff,
            // 65520 and more round to infinity.
            0x477f_f000.. => 0x7c00,
            // Normal: the exponent's bias changes from 127 to 15, 13 bits are rounded away.
            0x3880_0000.. => ((magnitude - 0x3800_0000 + 0xfff + (magnitude >> 13 & 1)) >> 13) as u16,
            // Subnormal: adding 0.5 puts the unit of the last place of a half, 2⁻²⁴, into the last place of the sum.
            _ => (f32::from_bits(magnitude) + 0.5).to_bits() as u16,
        };
        F16(sign | half)
    }

    /// The same value; always exact.
    pub fn to_f32(self) -> f32 {
        let (sign, magnitude) = (u32::from(self.0 & 0x8000) << 16, u32::from(self.0 & 0x7fff));
        let bits = match magnitude {
            0x7c01.. => ((magnitude << 13) + 0x7000_0000) | 0x40_0000,
            0x7c00 => 0x7f80_0000,
            0x400.. => (magnitude << 13) + 0x3800_0000,
            // Subnormal: a whole number of 2⁻²⁴, taken from the last places of 0.5.
            _ => (f32::from_bits(0x3f00_0000 | magnitude) - 0.5).to_bits(),
        };
        f32::from_bits(sign | bits)
    }
}

impl fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

impl fmt::Debug for F16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f32().fmt(f)
    }
}

/// Which element type it is, for kernels with instructions for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementKind {
    /// IEEE 754 single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE 754 half precision.
    F16,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for super::Bf16 {}
    impl Sealed for super::F16 {}
}

/// An element of a tensor: `f32`, [`Bf16`] or [`F16`].
pub trait HadamardElement: sealed::Sealed + Copy + Default + fmt::Debug + Send + Sync + 'static {
    /// Which one it is.
    const KIND: ElementKind;
    /// The value in f32; always exact.
    fn to_f32(self) -> f32;
    /// The nearest element, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl HadamardElement for f32 {
    const KIND: ElementKind = ElementKind::F32;
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> f32 {
        value
    }
}

impl HadamardElement for Bf16 {
    const KIND: ElementKind = ElementKind::Bf16;
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(value: f32) -> Bf16 {
        Bf16::from_f32(value)
    }
}

impl HadamardElement for F16 {
    const KIND: ElementKind = ElementKind::F16;
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    fn from_f32(value: f32) -> F16 {
        F16::from_f32(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_value_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            for (there, value, is_nan) in [
                (Bf16::from_f32(Bf16(bits).to_f32()).0, Bf16(bits).to_f32(), bits & 0x7fff > 0x7f80),
                (F16::from_f32(F16(bits).to_f32()).0, F16(bits).to_f32(), bits & 0x7fff > 0x7c00),
            ] {
                assert_eq!(value.is_nan(), is_nan, "{bits:#06x}");
                assert!(there == bits || is_nan, "{bits:#06x} became {there:#06x}");
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_and_ties_go_to_even() {
        // 1 + 2⁻⁸ lies between 1 and 1 + 2⁻⁷; 1 + 3 · 2⁻⁸ between 1 + 2⁻⁷ and 1 + 2⁻⁶.
        assert_eq!(Bf16::from_f32(1.0 + 1.0 / 256.0).to_f32(), 1.0);
        assert_eq!(Bf16::from_f32(1.0 + 3.0 / 256.0).to_f32(), 1.0 + 4.0 / 256.0);
        assert_eq!(Bf16::from_f32(1.0 + 1.0 / 255.9).to_f32(), 1.0 + 2.0 / 256.0);
        assert_eq!(Bf16::from_f32(f32::MAX).to_f32(), f32::INFINITY);
        assert_eq!(F16::from_f32(2049.0).to_f32(), 2048.0);
        assert_eq!(F16::from_f32(2051.0).to_f32(), 2052.0);
        assert_eq!(F16::from_f32(65_519.9).to_f32(), 65_504.0);
        assert_eq!(F16::from_f32(65_520.0).to_f32(), f32::INFINITY);
        assert_eq!(F16::from_f32(-1e9).to_f32(), f32::NEG_INFINITY);
        // Half of the smallest goes to zero, a little more does not, and zero keeps its sign.
        let smallest = 1.0 / 16_777_216.0;
        assert_eq!(F16::from_f32(smallest / 2.0).0, 0);
        assert_eq!(F16::from_f32(smallest * 0.501).0, 1);
        assert_eq!(F16::from_f32(-smallest * 1.5).0, 0x8002);
        assert_eq!(F16::from_f32(-0.0).0, 0x8000);
        // The largest subnormal rounds up to the smallest normal.
        assert_eq!(F16::from_f32(smallest * 1023.6).0, 0x400);
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001)] {
            assert!(Bf16::from_f32(nan).to_f32().is_nan());
            assert!(F16::from_f32(nan).to_f32().is_nan());
        }
    }
}
