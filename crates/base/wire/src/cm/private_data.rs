//! What programs say to each other inside the messages.

use core::fmt;

use crate::mad::DATA_BYTES;

/// What follows the MAD header.
pub(crate) type Data = [u8; DATA_BYTES];

/// Room that a message has for bytes of programs, zero behind them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> PrivateData<BYTES> {
    /// None: all zero.
    pub const EMPTY: PrivateData<BYTES> = PrivateData([0; BYTES]);

    /// Bytes, if there is room for them.
    pub fn new(bytes: &[u8]) -> Option<PrivateData<BYTES>> {
        let mut room = [0; BYTES];
        room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(PrivateData(room))
    }

    /// All of the room.
    pub const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// From the bytes at `at` to the end of what it holds.
    pub(crate) fn read(data: &Data, at: usize) -> PrivateData<BYTES> {
        let mut room = [0; BYTES];
        room.copy_from_slice(&data[at..at + BYTES]);
        PrivateData(room)
    }

    pub(crate) fn write(&self, data: &mut Data, at: usize) {
        data[at..at + BYTES].copy_from_slice(&self.0);
    }
}

impl<const BYTES: usize> Default for PrivateData<BYTES> {
    fn default() -> Self {
        PrivateData::EMPTY
    }
}

impl<const BYTES: usize> fmt::Debug for PrivateData<BYTES> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        write!(formatter, "PrivateData({:02x?} of {BYTES})", &self.0[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_its_room_and_no_more() {
        assert_eq!(PrivateData::<4>::new(&[1, 2]).unwrap().bytes(), &[1, 2, 0, 0]);
        assert_eq!(PrivateData::<4>::new(&[1; 4]).unwrap().bytes(), &[1; 4]);
        assert_eq!(PrivateData::<4>::new(&[1; 5]), None);
    }
}
