//! A whole message: many submessages, one after the other in memory, on as many threads as asked for.
//!
//! Threads take submessages in order, so that the parity of the first ones can be sent while later ones are being
//! encoded. They live as long as the call; a message worth several of them takes much longer than starting them.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{Arrived, CHUNKS_MAX, Code, Coder, DecodeError};

/// How a message lies in memory: chunks of `chunk_bytes` (the last may be shorter), `k` of which are a submessage (the
/// last may have fewer). Its parity: for each submessage, `m` chunks of `chunk_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLayout {
    code: Code,
    chunk_bytes: usize,
    message_bytes: usize,
}

/// Why a message cannot be cut like that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Chunks have bytes.
    #[error("a chunk has at least 1 byte, not 0")]
    EmptyChunks,
    /// More than can be addressed.
    #[error("{message_bytes} bytes in chunks of {chunk_bytes} and their parity are more than can be addressed")]
    TooLarge {
        /// As asked for.
        message_bytes: usize,
        /// As asked for.
        chunk_bytes: usize,
    },
}

/// Why a message cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeMessageError {
    /// Not the message that the layout is of.
    #[error("expected the {expected} bytes of the message, got {got}")]
    DataBytes {
        /// As the layout says.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// Not the room that parity needs.
    #[error("expected room for {expected} bytes of parity, got {got}")]
    ParityBytes {
        /// As the layout says.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A coder for something else.
    #[error("expected a coder for {expected}, as the layout says, got one for {got}")]
    Code {
        /// As the layout says.
        expected: Code,
        /// The coder's.
        got: Code,
    },
}

/// Why a message cannot be decoded. Nothing has been written then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeMessageError {
    /// Not the message that the layout is of.
    #[error("expected the {expected} bytes of the message, got {got}")]
    DataBytes {
        /// As the layout says.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// Not all of the parity.
    #[error("expected {expected} bytes of parity (anything in place of lost chunks), got {got}")]
    ParityBytes {
        /// As the layout says.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A coder for something else.
    #[error("expected a coder for {expected}, as the layout says, got one for {got}")]
    Code {
        /// As the layout says.
        expected: Code,
        /// The coder's.
        got: Code,
    },
    /// One of the submessages cannot be recovered.
    #[error("submessage {submessage}: {source}")]
    Submessage {
        /// Which one.
        submessage: usize,
        /// Why.
        source: DecodeError,
    },
}

impl MessageLayout {
    /// The layout of a message of `message_bytes` bytes.
    pub fn new(code: Code, chunk_bytes: usize, message_bytes: usize) -> Result<MessageLayout, LayoutError> {
        if chunk_bytes == 0 {
            return Err(LayoutError::EmptyChunks);
        }
        let layout = MessageLayout { code, chunk_bytes, message_bytes };
        let too_large = LayoutError::TooLarge { message_bytes, chunk_bytes };
        let submessage_bytes = chunk_bytes.checked_mul(code.data_chunks()).ok_or(too_large)?;
        let parity_bytes = chunk_bytes.checked_mul(code.parity_chunks()).ok_or(too_large)?;
        let submessages = message_bytes.div_ceil(submessage_bytes);
        submessages.checked_mul(parity_bytes).ok_or(too_large)?;
        Ok(layout)
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Bytes of the message.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// How many submessages there are; none if the message is empty.
    pub fn submessages(&self) -> usize {
        self.message_bytes.div_ceil(self.submessage_bytes())
    }

    /// Chunks of the whole message.
    pub fn data_chunks(&self) -> usize {
        self.message_bytes.div_ceil(self.chunk_bytes)
    }

    /// Bytes of all its parity.
    pub fn parity_bytes(&self) -> usize {
        self.submessages() * self.submessage_parity_bytes()
    }

    /// Where a submessage lies in the message.
    pub fn data_range(&self, submessage: usize) -> Range<usize> {
        let start = submessage * self.submessage_bytes();
        start..start.saturating_add(self.submessage_bytes()).min(self.message_bytes)
    }

    /// Where a submessage's parity lies in the parity.
    pub fn parity_range(&self, submessage: usize) -> Range<usize> {
        let start = submessage * self.submessage_parity_bytes();
        start..start + self.submessage_parity_bytes()
    }

    /// The code of a submessage: the last one may have fewer data chunks. Ask it what can be decoded.
    pub fn submessage_code(&self, submessage: usize) -> Code {
        self.code.shortened(self.data_range(submessage).len().div_ceil(self.chunk_bytes))
    }

    fn submessage_bytes(&self) -> usize {
        self.code.data_chunks() * self.chunk_bytes
    }

    fn submessage_parity_bytes(&self) -> usize {
        self.code.parity_chunks() * self.chunk_bytes
    }
}

/// Whole messages.
impl Coder {
    /// Computes the parity of a message, on `threads` threads. `ready` is called with each submessage whose parity is
    /// there, on the thread that has computed it, in about the order of the submessages.
    pub fn encode_message(
        &self,
        layout: &MessageLayout,
        threads: NonZeroUsize,
        data: &[u8],
        parity: &mut [u8],
        ready: impl Fn(usize) + Sync,
    ) -> Result<(), EncodeMessageError> {
        if self.code() != layout.code {
            return Err(EncodeMessageError::Code { expected: layout.code, got: self.code() });
        }
        if data.len() != layout.message_bytes {
            return Err(EncodeMessageError::DataBytes { expected: layout.message_bytes, got: data.len() });
        }
        if parity.len() != layout.parity_bytes() {
            return Err(EncodeMessageError::ParityBytes { expected: layout.parity_bytes(), got: parity.len() });
        }
        let data = data.chunks(layout.submessage_bytes());
        let parity = parity.chunks_mut(layout.submessage_parity_bytes());
        let submessages = data.zip(parity).enumerate();
        share_out(threads.get().min(layout.submessages()), submessages, || {
            |(submessage, (data, parity)): (usize, (&[u8], &mut [u8]))| {
                self.encode_submessage(layout.chunk_bytes, data, parity);
                ready(submessage);
            }
        });
        Ok(())
    }

    fn encode_submessage(&self, chunk_bytes: usize, data: &[u8], parity: &mut [u8]) {
        let mut data_chunks: [&[u8]; CHUNKS_MAX] = [&[]; CHUNKS_MAX];
        let mut parity_chunks: [&mut [u8]; CHUNKS_MAX] = [(); CHUNKS_MAX].map(|()| Default::default());
        let data_count = fill(&mut data_chunks, data.chunks(chunk_bytes));
        let parity_count = fill(&mut parity_chunks, parity.chunks_mut(chunk_bytes));
        self.encode(&data_chunks[..data_count], &mut parity_chunks[..parity_count])
            .expect("the layout gives each submessage chunks as its code has them");
    }

    /// Computes everything that is lost of a message, in place, on `threads` threads. `arrived` says what has arrived
    /// of each submessage.
    pub fn decode_message(
        &mut self,
        layout: &MessageLayout,
        threads: NonZeroUsize,
        arrived: impl Fn(usize) -> Arrived + Sync,
        data: &mut [u8],
        parity: &[u8],
    ) -> Result<(), DecodeMessageError> {
        if self.code() != layout.code {
            return Err(DecodeMessageError::Code { expected: layout.code, got: self.code() });
        }
        if data.len() != layout.message_bytes {
            return Err(DecodeMessageError::DataBytes { expected: layout.message_bytes, got: data.len() });
        }
        if parity.len() != layout.parity_bytes() {
            return Err(DecodeMessageError::ParityBytes { expected: layout.parity_bytes(), got: parity.len() });
        }
        let code = |submessage| layout.submessage_code(submessage);
        if let Some(submessage) = (0..layout.submessages()).find(|&s| !code(s).can_decode(&arrived(s))) {
            let (code, arrived) = (code(submessage), arrived(submessage));
            let lost = code.data_chunks() - arrived.data.count_of_first(code.data_chunks());
            let parity = arrived.parity.count_of_first(code.parity_chunks());
            let source = DecodeError::TooMuchLost { code, lost, parity };
            return Err(DecodeMessageError::Submessage { submessage, source });
        }
        let data = data.chunks_mut(layout.submessage_bytes());
        let parity = parity.chunks(layout.submessage_parity_bytes());
        let is_complete = |submessage| {
            let count = code(submessage).data_chunks();
            arrived(submessage).data.count_of_first(count) == count
        };
        let submessages = data.zip(parity).enumerate().filter(|(submessage, _)| !is_complete(*submessage));
        let coder = &*self;
        share_out(threads.get().min(layout.submessages()), submessages, || {
            let mut coder = coder.clone();
            let arrived = &arrived;
            move |(submessage, (data, parity)): (usize, (&mut [u8], &[u8]))| {
                coder.decode_submessage(&arrived(submessage), layout.chunk_bytes, data, parity);
            }
        });
        Ok(())
    }

    fn decode_submessage(&mut self, arrived: &Arrived, chunk_bytes: usize, data: &mut [u8], parity: &[u8]) {
        let mut data_chunks: [&mut [u8]; CHUNKS_MAX] = [(); CHUNKS_MAX].map(|()| Default::default());
        let mut parity_chunks: [&[u8]; CHUNKS_MAX] = [&[]; CHUNKS_MAX];
        let data_count = fill(&mut data_chunks, data.chunks_mut(chunk_bytes));
        let parity_count = fill(&mut parity_chunks, parity.chunks(chunk_bytes));
        self.decode(arrived, &mut data_chunks[..data_count], &parity_chunks[..parity_count])
            .expect("can_decode has said so, and the layout gives each submessage chunks as its code has them");
    }
}

/// Puts `items` into `places` from the start; how many.
fn fill<T>(places: &mut [T], items: impl Iterator<Item = T>) -> usize {
    places.iter_mut().zip(items).map(|(place, item)| *place = item).count()
}

/// Hands `items` out to `threads` threads, this one among them, in order. Each thread makes itself a worker.
fn share_out<I: Iterator + Send, W: FnMut(I::Item)>(threads: usize, items: I, worker: impl Fn() -> W + Sync) {
    if threads <= 1 {
        items.for_each(worker());
        return;
    }
    let items = Mutex::new(items);
    // When another thread panics, the scope does too, once all have ended.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut worker = worker();
        while let Some(item) = next() {
            worker(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
}
