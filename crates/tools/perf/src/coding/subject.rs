//! What is measured, and the memory it works on.

use std::num::NonZeroUsize;

use longhaul_coding::{Arrived, ChunkSet, Code, Coder, LayoutError, MessageLayout};

/// One thread takes this share of the message in a round.
pub(super) const PORTIONS: usize = 8;
/// Copies go in pieces of this many bytes: as much as a submessage of the usual code has.
const COPY_BYTES: usize = 2 << 20;

/// Something that goes through a message's data.
pub(super) struct Subject {
    work: Work,
    threads: NonZeroUsize,
}

enum Work {
    /// Copying, the measure of what memory can do.
    Copy,
    Encode(Coder),
    /// This many data chunks of each submessage are lost.
    Decode(Coder, usize),
    #[cfg(feature = "bench-isal")]
    Isal(super::isal::Encoder),
}

/// A message, room for its parity and for a copy.
pub(super) struct Buffers {
    chunk_bytes: usize,
    data: Vec<u8>,
    copy: Vec<u8>,
    parity: Vec<u8>,
}

/// The part of the buffers that a round works on.
pub(super) struct Portion<'a> {
    chunk_bytes: usize,
    data: &'a mut [u8],
    copy: &'a mut [u8],
    /// As much as any code needs for the data.
    parity: &'a mut [u8],
}

impl Buffers {
    pub(super) fn new(chunk_bytes: usize, message_bytes: usize, subjects: &[Subject]) -> Result<Buffers, LayoutError> {
        let mut parity_bytes = 0;
        for code in subjects.iter().filter_map(|subject| subject.code()) {
            // Each portion may end with a submessage that is not full, and has a whole submessage's parity.
            let more = PORTIONS * code.parity_chunks() * chunk_bytes;
            let layout = MessageLayout::new(code, chunk_bytes, message_bytes)?;
            parity_bytes = parity_bytes.max(layout.parity_bytes().saturating_add(more));
        }
        let mut state = 1_u64;
        let mut data = vec![0; message_bytes];
        // Contents do not matter for speed, but zeros would hide errors.
        for word in data.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes()[..word.len()]);
        }
        // Filled, not zeroed: pages that were never touched would cost a fault in the first round, or be one page all
        // over.
        Ok(Buffers { chunk_bytes, copy: data.clone(), data, parity: vec![0xff; parity_bytes] })
    }

    /// Part number `index` of `count`.
    pub(super) fn portion(&mut self, index: usize, count: usize) -> Portion<'_> {
        let (data_bytes, parity_bytes) = (self.data.len() / count, self.parity.len() / count);
        Portion {
            chunk_bytes: self.chunk_bytes,
            data: &mut self.data[index * data_bytes..][..data_bytes],
            copy: &mut self.copy[index * data_bytes..][..data_bytes],
            parity: &mut self.parity[index * parity_bytes..][..parity_bytes],
        }
    }
}

impl Portion<'_> {
    pub(super) fn data_bytes(&self) -> usize {
        self.data.len()
    }
}

pub(super) fn is_mds(code: Code) -> bool {
    code.to_string().starts_with("mds:")
}

impl Subject {
    pub(super) fn copy() -> Subject {
        Subject { work: Work::Copy, threads: NonZeroUsize::MIN }
    }

    pub(super) fn encode(coder: Coder, threads: NonZeroUsize) -> Subject {
        Subject { work: Work::Encode(coder), threads }
    }

    pub(super) fn decode(coder: Coder, lost: usize) -> Subject {
        Subject { work: Work::Decode(coder, lost), threads: NonZeroUsize::MIN }
    }

    #[cfg(feature = "bench-isal")]
    pub(super) fn isal(code: Code) -> Subject {
        Subject { work: Work::Isal(super::isal::Encoder::new(code)), threads: NonZeroUsize::MIN }
    }

    pub(super) fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    pub(super) fn code(&self) -> Option<Code> {
        match &self.work {
            Work::Copy => None,
            Work::Encode(coder) | Work::Decode(coder, _) => Some(coder.code()),
            #[cfg(feature = "bench-isal")]
            Work::Isal(encoder) => Some(encoder.code()),
        }
    }

    pub(super) fn code_name(&self) -> &'static str {
        match &self.work {
            Work::Copy => "copy",
            Work::Encode(coder) | Work::Decode(coder, _) if is_mds(coder.code()) => "mds",
            Work::Encode(_) | Work::Decode(..) => "xor",
            #[cfg(feature = "bench-isal")]
            Work::Isal(_) => "isal",
        }
    }

    pub(super) fn operation(&self) -> &'static str {
        match &self.work {
            Work::Copy => "copy",
            Work::Encode(_) => "encode",
            Work::Decode(..) => "decode",
            #[cfg(feature = "bench-isal")]
            Work::Isal(_) => "encode",
        }
    }

    /// Lost data chunks of each submessage.
    pub(super) fn lost(&self) -> Option<usize> {
        match &self.work {
            Work::Decode(_, lost) => Some(*lost),
            _ => None,
        }
    }

    /// What the inner loop is. XOR leaves it to the compiler.
    pub(super) fn kernel(&self) -> String {
        match &self.work {
            Work::Encode(coder) | Work::Decode(coder, _) if is_mds(coder.code()) => coder.kernel().to_string(),
            Work::Encode(_) | Work::Decode(..) => "compiler".to_owned(),
            Work::Copy => "memcpy".to_owned(),
            #[cfg(feature = "bench-isal")]
            Work::Isal(_) => "isa-l".to_owned(),
        }
    }

    /// Before a round, and not counted: a decoder needs parity. Its data is then in the cache, as after arrival.
    pub(super) fn prepare(&mut self, portion: Portion<'_>) {
        if let Work::Decode(coder, _) = &self.work {
            Subject::encode(coder.clone(), self.threads).run(portion);
        }
    }

    /// One round.
    pub(super) fn run(&mut self, portion: Portion<'_>) {
        let Portion { chunk_bytes, data, copy, parity } = portion;
        match &mut self.work {
            Work::Copy => {
                for (to, from) in copy.chunks_mut(COPY_BYTES).zip(data.chunks(COPY_BYTES)) {
                    to.copy_from_slice(from);
                }
            }
            Work::Encode(coder) => {
                let layout = layout(coder.code(), chunk_bytes, data.len());
                let parity = &mut parity[..layout.parity_bytes()];
                coder
                    .encode_message(&layout, self.threads, data, parity, |_| ())
                    .expect("buffers as the layout has them");
            }
            Work::Decode(coder, lost) => {
                let layout = layout(coder.code(), chunk_bytes, data.len());
                let parity = &parity[..layout.parity_bytes()];
                let arrived = |submessage| arrived(layout.submessage_code(submessage), *lost);
                coder
                    .decode_message(&layout, self.threads, arrived, data, parity)
                    .expect("no more lost than can be recovered");
            }
            #[cfg(feature = "bench-isal")]
            Work::Isal(encoder) => {
                let layout = layout(encoder.code(), chunk_bytes, data.len());
                encoder.encode_message(&layout, data, &mut parity[..layout.parity_bytes()]);
            }
        }
    }

    /// Before anything is measured: does it do what it should? Nobody wants to know how fast wrong bytes are computed.
    pub(super) fn check(&mut self, buffers: &mut Buffers) -> Result<(), String> {
        let Some(code) = self.code() else {
            return Ok(());
        };
        let portion = buffers.portion(0, PORTIONS);
        let layout = layout(code, portion.chunk_bytes, portion.data.len());
        let reference = Coder::new(code);
        let mut expected = vec![0; layout.parity_bytes()];
        reference
            .encode_message(&layout, NonZeroUsize::MIN, portion.data, &mut expected, |_| ())
            .expect("buffers as the layout has them");
        if let Some(lost) = self.lost() {
            portion.parity[..expected.len()].copy_from_slice(&expected);
            for submessage in 0..layout.submessages() {
                let code = layout.submessage_code(submessage);
                let arrived = arrived(code, lost);
                let chunks = portion.data[layout.data_range(submessage)].chunks_mut(portion.chunk_bytes).enumerate();
                chunks.filter(|(chunk, _)| !arrived.data.contains(*chunk)).for_each(|(_, chunk)| chunk.fill(0));
            }
        } else {
            portion.parity.fill(0xff);
        }
        self.run(buffers.portion(0, PORTIONS));
        let portion = buffers.portion(0, PORTIONS);
        let name = format!("{} {} on {}", self.code_name(), self.operation(), self.kernel());
        if portion.data != portion.copy {
            return Err(format!("{name}: the data is not what it was"));
        }
        if portion.parity[..expected.len()] != expected {
            return Err(format!("{name}: the parity is not that of {code}"));
        }
        Ok(())
    }
}

/// `lost` data chunks of a submessage lost, from the first one on, if it has as many and they can be recovered.
fn arrived(code: Code, lost: usize) -> Arrived {
    let mut arrived =
        Arrived { data: ChunkSet::first(code.data_chunks()), parity: ChunkSet::first(code.parity_chunks()) };
    (0..lost.min(code.data_chunks())).for_each(|chunk| arrived.data.remove(chunk));
    arrived
}

/// How a part of the message is cut.
fn layout(code: Code, chunk_bytes: usize, bytes: usize) -> MessageLayout {
    MessageLayout::new(code, chunk_bytes, bytes).expect("a part of a message that could be cut like this")
}
