//! Memory that knows what should be in it: a region with a guard on either side and a model of its contents, so that
//! a byte written anywhere it should not be is noticed.

use std::ops::Range;

use longhaul_verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory, ScatterGatherEntry};

use super::failure::{Failure, Outcome};

/// Bytes before and after the usable part.
const GUARD_BYTES: usize = 64;

/// Reproducible bytes that do not repeat with any packet size.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A registered region between guards. Offsets count from its first usable byte.
pub(super) struct Memory {
    region: MemoryRegion,
    /// What should be in the region, guards included.
    model: Vec<u8>,
}

impl Memory {
    /// Registers `length` usable bytes, filled with a pattern of their own.
    pub(super) fn new(domain: &ProtectionDomain, length: usize, access: Access) -> Outcome<Self> {
        let model = pattern(0xbad5_eed0 ^ length as u64, length + 2 * GUARD_BYTES);
        let region = domain.register(model.clone(), access)?;
        Ok(Memory { region, model })
    }

    /// Memory to send from.
    pub(super) fn source(domain: &ProtectionDomain, bytes: &[u8]) -> Outcome<Self> {
        let mut memory = Memory::new(domain, bytes.len(), Access::empty())?;
        memory.fill(0, bytes);
        Ok(memory)
    }

    /// Memory that receives and peers' writes may go to.
    pub(super) fn target(domain: &ProtectionDomain, length: usize) -> Outcome<Self> {
        Memory::new(domain, length, Access::LOCAL_WRITE | Access::REMOTE_WRITE)
    }

    /// Usable bytes.
    pub(super) fn len(&self) -> usize {
        self.model.len() - 2 * GUARD_BYTES
    }

    pub(super) fn local_key(&self) -> u32 {
        self.region.local_key()
    }

    pub(super) fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// The region, guards included.
    pub(super) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The first offset from here on whose address an atomic can use.
    pub(super) fn aligned(&self, offset: usize) -> usize {
        offset + (self.remote(offset).address.wrapping_neg() % 8) as usize
    }

    /// Address of the region's very first byte, its guard's.
    pub(super) fn region_start(&self) -> u64 {
        self.region.address()
    }

    /// Address after the region's very last byte.
    pub(super) fn region_end(&self) -> u64 {
        self.region.address() + self.region.len() as u64
    }

    /// An entry for a work request.
    pub(super) fn entry(&self, range: Range<usize>) -> ScatterGatherEntry {
        self.region.entry(range.start + GUARD_BYTES..range.end + GUARD_BYTES)
    }

    /// An entry for all of it.
    pub(super) fn whole(&self) -> ScatterGatherEntry {
        self.entry(0..self.len())
    }

    /// A place for the peer.
    pub(super) fn remote(&self, offset: usize) -> RemoteMemory {
        self.region.remote((offset + GUARD_BYTES) as u64)
    }

    /// The program writes here.
    pub(super) fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.region.copy_in(offset + GUARD_BYTES, bytes);
        self.expect(offset, bytes);
    }

    /// The device should write, or should have written, here.
    pub(super) fn expect(&mut self, offset: usize, bytes: &[u8]) {
        let start = offset + GUARD_BYTES;
        self.model[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Whatever is here now is right: the specification leaves it open.
    pub(super) fn accept(&mut self, range: Range<usize>) {
        let range = range.start + GUARD_BYTES..range.end + GUARD_BYTES;
        self.region.copy_out(range.start, &mut self.model[range]);
    }

    /// What is in a range now.
    pub(super) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.region.to_vec(range.start + GUARD_BYTES..range.end + GUARD_BYTES)
    }

    /// Fails unless every byte, guards included, is as the model says.
    pub(super) fn verify(&self, what: &str) -> Outcome {
        let actual = self.region.to_vec(0..self.model.len());
        if actual == self.model {
            return Ok(());
        }
        let differs = |index: &usize| actual[*index] != self.model[*index];
        let first = (0..actual.len()).find(differs).unwrap_or(0);
        let count = (0..actual.len()).filter(differs).count();
        let offset = first as i64 - GUARD_BYTES as i64;
        let place = if first < GUARD_BYTES || first >= GUARD_BYTES + self.len() {
            "in the guard outside the target"
        } else {
            "inside"
        };
        Err(Failure::new(format!(
            "{what}: {count} of {} bytes are wrong; the first is at offset {offset} ({place}): expected {:#04x}, got {:#04x}",
            self.len(),
            self.model[first],
            actual[first]
        )))
    }

    /// Revokes the keys and gives the bytes back, guards included.
    pub(super) fn into_bytes(self) -> Outcome<Vec<u8>> {
        Ok(self.region.into_buffer()?)
    }
}
