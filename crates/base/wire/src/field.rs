//! Big-endian fields at fixed places of a buffer: everything in RoCEv2 but the ICRC is in network byte order.
//!
//! The callers are views that have checked the buffer's length, so the index operations below are in bounds; with a slice
//! as buffer the compiler sees that as well and drops its own checks.

use crate::Truncated;
use core::ops::Range;

/// A run of bytes inside a header.
pub(crate) type Field = Range<usize>;

/// `Ok` when `data` can hold a header of `expected_bytes`.
#[inline]
pub(crate) fn check_length(data: &[u8], header: &'static str, expected_bytes: usize) -> Result<(), Truncated> {
    if data.len() >= expected_bytes {
        Ok(())
    } else {
        Err(Truncated { header, expected_bytes, found_bytes: data.len() })
    }
}

#[inline]
pub(crate) fn read_u16(data: &[u8], at: Field) -> u16 {
    let data = &data[at];
    u16::from_be_bytes([data[0], data[1]])
}

/// Three bytes: queue pair numbers, packet and message sequence numbers.
#[inline]
pub(crate) fn read_u24(data: &[u8], at: Field) -> u32 {
    let data = &data[at];
    u32::from_be_bytes([0, data[0], data[1], data[2]])
}

#[inline]
pub(crate) fn read_u32(data: &[u8], at: Field) -> u32 {
    let data = &data[at];
    u32::from_be_bytes([data[0], data[1], data[2], data[3]])
}

#[inline]
pub(crate) fn read_u64(data: &[u8], at: Field) -> u64 {
    let data = &data[at];
    u64::from_be_bytes([data[0], data[1], data[2], data[3], data[4], data[5], data[6], data[7]])
}

#[inline]
pub(crate) fn write_u16(data: &mut [u8], at: Field, value: u16) {
    data[at].copy_from_slice(&value.to_be_bytes());
}

/// Writes the low 24 bits of `value`; higher bits are dropped.
#[inline]
pub(crate) fn write_u24(data: &mut [u8], at: Field, value: u32) {
    data[at].copy_from_slice(&value.to_be_bytes()[1..]);
}

#[inline]
pub(crate) fn write_u32(data: &mut [u8], at: Field, value: u32) {
    data[at].copy_from_slice(&value.to_be_bytes());
}

#[inline]
pub(crate) fn write_u64(data: &mut [u8], at: Field, value: u64) {
    data[at].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_stay_in_their_range() {
        let mut data = [0xa5; 10];
        write_u24(&mut data, 1..4, 0xff_12_34_56);
        assert_eq!(data[..5], [0xa5, 0x12, 0x34, 0x56, 0xa5]);
        assert_eq!(read_u24(&data, 1..4), 0x12_34_56);
        write_u64(&mut data, 1..9, 0x0102_0304_0506_0708);
        assert_eq!(data, [0xa5, 1, 2, 3, 4, 5, 6, 7, 8, 0xa5]);
        assert_eq!(read_u64(&data, 1..9), 0x0102_0304_0506_0708);
        assert_eq!(read_u32(&data, 1..5), 0x0102_0304);
        assert_eq!(read_u16(&data, 1..3), 0x0102);
    }
}
