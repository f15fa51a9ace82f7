//! Memory for parity, used again: registering it anew for each message would cost more than computing it.

use longhaul_sdr::{Context, Memory, RegisterError};

/// Memories that are kept for later.
const FREE_MAX: usize = 64;
/// One that is longer than this many times what is needed is left for others.
const EXCESS_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct ParityPool {
    /// The oldest first.
    free: Vec<Memory>,
}

impl ParityPool {
    /// Memory of at least this many bytes, and at most `most` if that is more.
    pub(crate) fn take(&mut self, context: &Context, bytes: usize, most: u64) -> Result<Memory, RegisterError> {
        // A message of nothing has parity of nothing, and a region has bytes.
        let bytes = bytes.max(1);
        let most = bytes.max(usize::try_from(most).unwrap_or(usize::MAX));
        let fits = |memory: &Memory| (bytes..=most).contains(&memory.len()) && memory.len() / EXCESS_MAX <= bytes;
        // One that is still being sent from stays here.
        let is_unused = |memory: &Memory| memory.write(0..memory.len()).is_ok();
        match self.free.iter().position(|memory| fits(memory) && is_unused(memory)) {
            Some(index) => Ok(self.free.swap_remove(index)),
            None => context.register(vec![0; bytes]),
        }
    }

    pub(crate) fn put_back(&mut self, memory: Memory) {
        // The oldest goes: kept for good, memories of short messages would leave no place for those of longer ones.
        if self.free.len() == FREE_MAX {
            self.free.remove(0);
        }
        self.free.push(memory);
    }

    /// Keep no more than this many bytes.
    pub(crate) fn trim(&mut self, bytes_max: u64) {
        let mut kept: u64 = self.free.iter().map(|memory| memory.len() as u64).sum();
        let oldest = self.free.iter().take_while(|memory| {
            let is_too_much = kept > bytes_max;
            kept -= memory.len() as u64;
            is_too_much
        });
        let count = oldest.count();
        self.free.drain(..count);
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }
}
