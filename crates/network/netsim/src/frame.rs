//! What links carry, and where its memory comes from.

/// A frame: bytes, and possibly payload of which only the length exists.
///
/// Simulations that do not look at payload leave it out (`elided_bytes`), and save the copying; rates and queues
/// still see the whole length. Bit errors then hit the bytes that exist, where a receiver can notice them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The bytes that exist: all of them, or the headers.
    pub bytes: Vec<u8>,
    /// How many bytes follow on the wire that exist only as a length.
    pub elided_bytes: u32,
}

impl Frame {
    /// Length on the wire.
    #[inline]
    pub fn wire_bytes(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX).saturating_add(self.elided_bytes)
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Frame { bytes, elided_bytes: 0 }
    }
}

/// Buffers that are used again, so that a running simulation allocates nothing. The one used last is handed out first:
/// it is still in the cache.
#[derive(Debug)]
pub struct FramePool {
    free: Vec<Vec<u8>>,
    buffer_bytes: usize,
    buffer_count_max: usize,
}

impl FramePool {
    /// A pool whose buffers have room for `buffer_bytes` from the start, and that keeps at most `buffer_count_max`.
    pub fn new(buffer_bytes: usize, buffer_count_max: usize) -> Self {
        FramePool { free: Vec::new(), buffer_bytes, buffer_count_max }
    }

    /// A buffer, with whatever its last user left in it: clearing it here would make its user write every byte twice.
    #[inline]
    pub fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_else(|| Vec::with_capacity(self.buffer_bytes))
    }

    /// Gives a buffer back, whatever is in it. One too small to be worth keeping is freed.
    #[inline]
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        if self.free.len() < self.buffer_count_max && buffer.capacity() >= self.buffer_bytes {
            self.free.push(buffer);
        }
    }

    /// A copy of a frame, in a buffer of the pool.
    pub fn copy(&mut self, frame: &Frame) -> Frame {
        let mut bytes = self.take();
        bytes.clear();
        bytes.extend_from_slice(&frame.bytes);
        Frame { bytes, elided_bytes: frame.elided_bytes }
    }

    /// Buffers waiting to be used.
    pub fn free_count(&self) -> usize {
        self.free.len()
    }
}
