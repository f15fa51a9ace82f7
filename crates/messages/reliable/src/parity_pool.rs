//! Memory for parity, used again: registering it anew for each message would cost more than computing it.

use longhaul_sdr::{Context, Memory, RegisterError};

/// Memories that are kept for later.
const FREE_MAX: usize = 64;
/// One that is longer than this many times what is needed is left for others.
const EXCESS_MAX: usize = 8;

#[derive(Default)]
pub(crate) struct ParityPool {
    free: Vec<Memory>,
}

impl ParityPool {
    /// Memory of at least this many bytes.
    pub(crate) fn take(&mut self, context: &Context, bytes: usize) -> Result<Memory, RegisterError> {
        // A message of nothing has parity of nothing, and a region has bytes.
        let bytes = bytes.max(1);
        let fits = |memory: &Memory| memory.len() >= bytes && memory.len() / EXCESS_MAX <= bytes;
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
}
