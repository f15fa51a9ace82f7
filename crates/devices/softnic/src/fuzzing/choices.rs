//! Bytes of a fuzzer's input, taken one after the other as what is needed. Where they end, everything is zero.

use longhaul_time::Duration;

/// Choices that bytes make.
pub struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    /// What these bytes choose.
    pub fn new(bytes: &'a [u8]) -> Self {
        Choices { rest: bytes }
    }

    /// Whether all bytes are taken.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Up to this many bytes.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn array<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let mut array = [0; LENGTH];
        let taken = self.bytes(LENGTH);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }

    /// A number: near the one that is right now, small, near the end of its space, or any.
    pub fn number(&mut self, right: u64) -> u64 {
        match self.u8() % 6 {
            0 | 1 => right,
            2 => right.wrapping_add_signed(i64::from(self.u8().cast_signed())),
            3 => self.u8().into(),
            4 => u64::MAX - u64::from(self.u8()),
            _ => u64::from_le_bytes(self.array()),
        }
    }

    /// A time, from a nanosecond to minutes.
    pub fn time(&mut self) -> Duration {
        let (exponent, mantissa) = (self.u8() % 30, self.u8());
        Duration::from_nanos((1 + u64::from(mantissa)) << exponent)
    }
}
