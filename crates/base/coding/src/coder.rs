//! Encodes and decodes one submessage.

use crate::code::{CHUNKS_MAX, CodeKind};
use crate::combine::{combine, exclusive_or};
use crate::kernel::Kernel;
use crate::matrix::{Coefficients, Solver};
use crate::{Arrived, Code};

/// A code with what it needs at work: coefficients, the kernel for this processor, room for decoding.
///
/// Encoding and decoding allocate nothing once a coder has been in use. For several threads, clone it.
#[derive(Debug, Clone)]
pub struct Coder {
    code: Code,
    kernel: Kernel,
    parity: Coefficients,
    solver: Solver,
}

/// Why a submessage cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No data, or more than the code has.
    #[error("expected 1 to {most} data chunks for the code {code}, got {got}")]
    DataChunks {
        /// The code.
        code: Code,
        /// Its data chunks.
        most: usize,
        /// How many were given.
        got: usize,
    },
    /// Parity chunks that the code does not have.
    #[error("expected parity chunks below {count} for the code {code}, got {first} to {end} (exclusive)")]
    ParityChunks {
        /// The code.
        code: Code,
        /// Its parity chunks.
        count: usize,
        /// The first that was asked for.
        first: usize,
        /// The one after the last that was asked for.
        end: usize,
    },
    /// Parity chunks are as long as each other.
    #[error("expected parity chunks of one length, got {expected} bytes and, in parity chunk {chunk}, {got}")]
    ParityLength {
        /// Which of the given ones.
        chunk: usize,
        /// The length of the first.
        expected: usize,
        /// Its length.
        got: usize,
    },
    /// No data chunk is longer than the parity chunks.
    #[error("expected data chunks of at most {most} bytes, as long as parity chunks are; data chunk {chunk} has {got}")]
    DataLength {
        /// Which one.
        chunk: usize,
        /// The length of the parity chunks.
        most: usize,
        /// Its length.
        got: usize,
    },
}

/// Why a submessage cannot be decoded. Nothing has been written then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No data, or more than the code has.
    #[error("expected 1 to {most} data chunks for the code {code}, got {got}")]
    DataChunks {
        /// The code.
        code: Code,
        /// Its data chunks.
        most: usize,
        /// How many were given.
        got: usize,
    },
    /// A slice for each parity chunk, also for the lost ones.
    #[error("expected {expected} parity chunks for the code {code} (any slice for a lost one), got {got}")]
    ParityChunks {
        /// The code.
        code: Code,
        /// Its parity chunks.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// Parity chunks are as long as each other.
    #[error("expected parity chunks of one length, got {expected} bytes and, in parity chunk {chunk}, {got}")]
    ParityLength {
        /// Which one.
        chunk: usize,
        /// The length of the first that has arrived.
        expected: usize,
        /// Its length.
        got: usize,
    },
    /// No data chunk is longer than the parity chunks.
    #[error("expected data chunks of at most {most} bytes, as long as parity chunks are; data chunk {chunk} has {got}")]
    DataLength {
        /// Which one.
        chunk: usize,
        /// The length of the parity chunks.
        most: usize,
        /// Its length.
        got: usize,
    },
    /// More is lost than the code can recover.
    #[error(
        "{lost} data chunks are lost, which {code} cannot recover from the {parity} parity chunks that have arrived; have them sent \
         again (Code::can_decode says so without trying)"
    )]
    TooMuchLost {
        /// The code.
        code: Code,
        /// Lost data chunks.
        lost: usize,
        /// Parity chunks that are there.
        parity: usize,
    },
}

impl Coder {
    /// A coder with the fastest kernel that this processor has.
    pub fn new(code: Code) -> Coder {
        Coder::with_kernel(code, Kernel::fastest())
    }

    /// A coder with a certain kernel, for tests and measurements: all give the same bytes.
    ///
    /// # Panics
    ///
    /// When this processor does not have what the kernel needs.
    pub fn with_kernel(code: Code, kernel: Kernel) -> Coder {
        assert!(kernel.is_available(), "{kernel} does not run on this processor");
        let parity = match code.kind() {
            CodeKind::Mds => Coefficients::of_parity(code.data_chunks(), code.parity_chunks()),
            CodeKind::Xor => Coefficients::default(),
        };
        Coder { code, kernel, parity, solver: Solver::default() }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The kernel that the MDS code runs on.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Computes all parity chunks. There may be fewer data chunks than the code has, and data chunks may be shorter
    /// than parity chunks: what is missing counts as zeros.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), EncodeError> {
        let (first, end, count) = (0, parity.len(), self.code.parity_chunks());
        if end != count {
            return Err(EncodeError::ParityChunks { code: self.code, count, first, end });
        }
        self.encode_some(data, first, parity)
    }

    /// Computes only the parity chunks from `first` on, as many as there are slices. Each pass over the data costs:
    /// take as many at a time as are wanted soon.
    pub fn encode_some(&self, data: &[&[u8]], first: usize, parity: &mut [&mut [u8]]) -> Result<(), EncodeError> {
        let (code, most, count) = (self.code, self.code.data_chunks(), self.code.parity_chunks());
        if data.is_empty() || data.len() > most {
            return Err(EncodeError::DataChunks { code, most, got: data.len() });
        }
        let end = first.saturating_add(parity.len());
        if end > count {
            return Err(EncodeError::ParityChunks { code, count, first, end });
        }
        let expected = parity.first().map_or(0, |parity| parity.len());
        if let Some((chunk, got)) = position(parity.iter().map(|chunk| chunk.len()), |length| length != expected) {
            return Err(EncodeError::ParityLength { chunk, expected, got });
        }
        let too_long = position(data.iter().map(|chunk| chunk.len()), |length| length > expected);
        if let (Some((chunk, got)), false) = (too_long, parity.is_empty()) {
            return Err(EncodeError::DataLength { chunk, most: expected, got });
        }
        match code.kind() {
            CodeKind::Mds => combine(self.kernel, &self.parity, first, data, parity),
            CodeKind::Xor => {
                for (group, parity) in (first..).zip(parity) {
                    exclusive_or(data.iter().skip(group).step_by(count).copied(), parity);
                }
            }
        }
        Ok(())
    }

    /// Computes the lost data chunks, in place, from what has arrived. A lost chunk may be shorter than parity chunks
    /// are, if it was so when it was encoded. Slices of lost parity chunks are not looked at.
    pub fn decode(&mut self, arrived: &Arrived, data: &mut [&mut [u8]], parity: &[&[u8]]) -> Result<(), DecodeError> {
        self.check_decode(arrived, data, parity)?;
        match self.code.kind() {
            CodeKind::Mds => self.decode_mds(arrived, data, parity),
            CodeKind::Xor => self.decode_xor(arrived, data, parity),
        }
        Ok(())
    }

    fn check_decode(&self, arrived: &Arrived, data: &[&mut [u8]], parity: &[&[u8]]) -> Result<(), DecodeError> {
        let (code, most, expected) = (self.code, self.code.data_chunks(), self.code.parity_chunks());
        if data.is_empty() || data.len() > most {
            return Err(DecodeError::DataChunks { code, most, got: data.len() });
        }
        if parity.len() != expected {
            return Err(DecodeError::ParityChunks { code, expected, got: parity.len() });
        }
        let lost = data.len() - arrived.data.count_of_first(data.len());
        if !code.shortened(data.len()).can_decode(arrived) {
            return Err(DecodeError::TooMuchLost { code, lost, parity: arrived.parity.count_of_first(expected) });
        }
        let mut lengths = parity.iter().enumerate().filter(|(chunk, _)| arrived.parity.contains(*chunk));
        let Some((_, first)) = lengths.next() else {
            return Ok(());
        };
        let expected = first.len();
        if let Some((chunk, parity)) = lengths.find(|(_, chunk)| chunk.len() != expected) {
            return Err(DecodeError::ParityLength { chunk, expected, got: parity.len() });
        }
        if let Some((chunk, got)) = position(data.iter().map(|chunk| chunk.len()), |length| length > expected) {
            return Err(DecodeError::DataLength { chunk, most: expected, got });
        }
        Ok(())
    }

    fn decode_mds(&mut self, arrived: &Arrived, data: &mut [&mut [u8]], parity: &[&[u8]]) {
        let mut lost = List::new(0);
        let mut there = List::new(0);
        let mut sources = List::<&[u8]>::new(&[]);
        let mut outputs: [&mut [u8]; CHUNKS_MAX] = [(); CHUNKS_MAX].map(|()| Default::default());
        for (chunk, slice) in data.iter_mut().enumerate() {
            if arrived.data.contains(chunk) {
                there.push(chunk as u8);
                sources.push(slice);
            } else {
                outputs[lost.count] = slice;
                lost.push(chunk as u8);
            }
        }
        if lost.count == 0 {
            return;
        }
        let mut used = List::new(0);
        let parity_there = (0..parity.len()).filter(|&chunk| arrived.parity.contains(chunk));
        for chunk in parity_there.take(lost.count) {
            used.push(chunk as u8);
            sources.push(parity[chunk]);
        }
        self.solver.solve(lost.items(), there.items(), used.items());
        combine(self.kernel, &self.solver.coefficients, 0, sources.items(), &mut outputs[..lost.count]);
    }

    fn decode_xor(&self, arrived: &Arrived, data: &mut [&mut [u8]], parity: &[&[u8]]) {
        let groups = self.code.parity_chunks();
        for lost in (0..data.len()).filter(|&chunk| !arrived.data.contains(chunk)) {
            let (before, rest) = data.split_at_mut(lost);
            let [output, after @ ..] = rest else {
                unreachable!("a lost chunk is one of the chunks");
            };
            let group = lost % groups;
            let before = before.iter().skip(group).step_by(groups).map(|chunk| &**chunk);
            let after = after.iter().skip(groups - 1).step_by(groups).map(|chunk| &**chunk);
            exclusive_or([parity[group]].into_iter().chain(before).chain(after), output);
        }
    }
}

/// The first of `lengths` that is wrong, and where it stands.
fn position(lengths: impl Iterator<Item = usize>, is_wrong: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
    lengths.enumerate().find(|(_, length)| is_wrong(*length))
}

/// At most as many items as a code has chunks, on the stack.
struct List<T> {
    items: [T; CHUNKS_MAX],
    count: usize,
}

impl<T: Copy> List<T> {
    fn new(filler: T) -> List<T> {
        List { items: [filler; CHUNKS_MAX], count: 0 }
    }

    fn push(&mut self, item: T) {
        self.items[self.count] = item;
        self.count += 1;
    }

    fn items(&self) -> &[T] {
        &self.items[..self.count]
    }
}
