//! A message that has been received.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_reliable::{Ending, MessageReport, Received};
use longhaul_sdr::{Context, Memory};

use crate::transfer_error::TransferError;

/// Buffers that are kept for the next receives.
const BUFFERS_MAX: usize = 16;
/// And their bytes.
const BUFFER_BYTES_MAX: usize = 64 << 20;
/// Up to this, that there is memory is not asked before.
const CERTAIN_BYTES: usize = 1 << 30;

/// A message that has been received: its bytes, and which of them are missing.
pub struct Message {
    /// `None` only while it is taken apart.
    received: Option<Received>,
    memory: Option<Memory>,
    pool: Option<Arc<BufferPool>>,
}

impl Message {
    pub(crate) fn new(received: Received, memory: Memory, pool: Option<Arc<BufferPool>>) -> Self {
        Message { received: Some(received), memory: Some(memory), pool }
    }

    fn received(&self) -> &Received {
        self.received.as_ref().expect("it is there until it is taken apart")
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.received().bytes()
    }

    /// The ranges of bytes that did not arrive and could not be computed, in order and exact to the packet. There are none unless the receive
    /// was bounded or partial. Without such ranges, [`Message::bytes`] is what was sent; with them, the bytes in them are
    /// what the receive's [`Fill`](longhaul_reliable::Fill) says.
    pub fn missing(&self) -> &[Range<u64>] {
        self.received().missing()
    }

    /// What ended it.
    pub fn ending(&self) -> Ending {
        self.received().ending()
    }

    /// Its transfer, as this end saw it.
    pub fn report(&self) -> &MessageReport {
        self.received().report()
    }

    /// Its bytes to keep: moved where they can be, otherwise copied.
    pub fn into_vec(mut self) -> Vec<u8> {
        let Some(received) = self.received.take() else { return Vec::new() };
        let length = received.bytes().len();
        match (self.memory.take(), &self.pool) {
            // A buffer that is much too large is not worth keeping for this.
            (Some(memory), Some(_)) if length >= memory.len() / 2 => {
                drop(received);
                match memory.into_buffer() {
                    Ok(mut buffer) => {
                        buffer.truncate(length);
                        buffer
                    }
                    Err(memory) => memory.read(0..length).map(|bytes| bytes.to_vec()).unwrap_or_default(),
                }
            }
            (memory, _) => {
                self.memory = memory;
                let bytes = received.bytes().to_vec();
                drop(received);
                bytes
            }
        }
    }
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // The bytes are free only then.
        drop(self.received.take());
        if let (Some(memory), Some(pool)) = (self.memory.take(), &self.pool) {
            pool.put_back(memory);
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.received.fmt(formatter)
    }
}

/// Buffers of messages that are dropped, for the next receives: registering costs more than finding one.
pub(crate) struct BufferPool {
    free: Mutex<Vec<Memory>>,
}

impl BufferPool {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(BufferPool { free: Mutex::default() })
    }

    /// A buffer of exactly this many bytes.
    pub(crate) fn take(&self, context: &Context, bytes: usize) -> Result<Memory, TransferError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.iter().position(|memory| memory.len() == bytes) {
            return Ok(free.swap_remove(index));
        }
        drop(free);
        // A failure to allocate would end the process.
        if bytes > CERTAIN_BYTES && Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            return Err(TransferError::NoMemory(bytes));
        }
        Ok(context.register(vec![0; bytes])?)
    }

    fn put_back(&self, memory: Memory) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = free.iter().map(Memory::len).sum();
        if free.len() < BUFFERS_MAX && kept + memory.len() <= BUFFER_BYTES_MAX {
            free.push(memory);
        }
    }
}
