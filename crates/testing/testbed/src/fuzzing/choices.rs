//! Bytes of a fuzzer's input, taken one after the other as what is needed. Where they end, everything is zero.

use longhaul_time::Duration;

pub(super) struct Choices<'a> {
    rest: &'a [u8],
}

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Choices { rest: bytes }
    }

    pub(super) fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Up to this many bytes.
    pub(super) fn bytes(&mut self, most: usize) -> &'a [u8] {
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

    pub(super) fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn flag(&mut self) -> bool {
        self.u8() & 1 != 0
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.u8()) % all.len()]
    }

    /// A number: near the one that is right now, small, near the end of its space, or any.
    pub(super) fn number(&mut self, right: u64) -> u64 {
        match self.u8() % 6 {
            0 | 1 => right,
            2 => right.wrapping_add_signed(i64::from(self.u8().cast_signed())),
            3 => self.u8().into(),
            4 => u64::MAX - u64::from(self.u8()),
            _ => u64::from_le_bytes(self.array()),
        }
    }

    /// A time, from a nanosecond to minutes.
    pub(super) fn time(&mut self) -> Duration {
        let (exponent, mantissa) = (self.u8() % 30, self.u8());
        Duration::from_nanos((1 + u64::from(mantissa)) << exponent)
    }
}
