//! Messages whose sender chooses how they are brought over.

use std::ops::Range;

use longhaul_reliable::{Choice, Deadline, MessageReport, Sent};
use longhaul_sdr::Memory;

use crate::connection::{Connection, when_ended};
use crate::pending::Pending;
use crate::transfer_error::TransferError;

/// A connection, and what its next messages have ([`Connection::choose`]).
#[derive(Clone, Debug)]
pub struct Chosen<'a> {
    connection: &'a Connection,
    choice: Choice,
}

impl<'a> Chosen<'a> {
    pub(crate) fn new(connection: &'a Connection, choice: Choice) -> Self {
        Chosen { connection, choice }
    }

    /// As [`Connection::write`].
    pub fn write(&self, bytes: impl Into<Vec<u8>>) -> Pending<MessageReport, TransferError> {
        let bytes = bytes.into();
        let length = bytes.len();
        match self.connection.register(bytes) {
            Ok(memory) => self.write_from(&memory, 0..length),
            Err(error) => Pending::ready(Err(error.into())),
        }
    }

    /// As [`Connection::write_from`].
    pub fn write_from(&self, memory: &Memory, range: Range<usize>) -> Pending<MessageReport, TransferError> {
        let shared = self.connection.shared();
        when_ended(shared, shared.send(memory, range, &self.choice), |sent| sent)
    }

    /// As [`Connection::write_bounded`].
    pub fn write_bounded(&self, bytes: impl Into<Vec<u8>>, deadline: Deadline) -> Pending<Sent, TransferError> {
        let bytes = bytes.into();
        let length = bytes.len();
        match self.connection.register(bytes) {
            Ok(memory) => self.write_bounded_from(&memory, 0..length, deadline),
            Err(error) => Pending::ready(Err(error.into())),
        }
    }

    /// As [`Connection::write_bounded_from`].
    pub fn write_bounded_from(
        &self,
        memory: &Memory,
        range: Range<usize>,
        deadline: Deadline,
    ) -> Pending<Sent, TransferError> {
        let shared = self.connection.shared();
        when_ended(shared, shared.send_bounded(memory, range, deadline, &self.choice), |sent| sent)
    }
}
