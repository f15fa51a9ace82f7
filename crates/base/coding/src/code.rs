//! Which code, and what it can recover: small values that the two ends agree on.

use std::fmt;
use std::str::FromStr;

use crate::Arrived;

/// Most chunks of a submessage, data and parity together.
pub const CHUNKS_MAX: usize = 255;

/// An erasure code: its kind, and how many data and parity chunks a submessage has. Written `mds:32,8` or `xor:32,8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code {
    kind: CodeKind,
    data_chunks: u8,
    parity_chunks: u8,
}

/// What a code can repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CodeKind {
    /// One loss in each of the interleaved groups, of which there are as many as parity chunks.
    Xor,
    /// As many losses as there are parity chunks, anywhere in a submessage.
    Mds,
}

/// Why there is no such code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// Nothing to protect, or nothing to protect it with.
    #[error("a code has at least 1 data chunk and 1 parity chunk, not {data_chunks} and {parity_chunks}")]
    Empty {
        /// As asked for.
        data_chunks: usize,
        /// As asked for.
        parity_chunks: usize,
    },
    /// The field has no more elements.
    #[error("a code has at most {CHUNKS_MAX} chunks, data and parity together, not {data_chunks} + {parity_chunks}")]
    TooManyChunks {
        /// As asked for.
        data_chunks: usize,
        /// As asked for.
        parity_chunks: usize,
    },
    /// Some parity chunks would cover nothing.
    #[error(
        "an XOR code has at most as many parity chunks as data chunks, because each parity chunk is the XOR of data chunks of its \
         own: {parity_chunks} parity chunks for {data_chunks} data chunks are too many"
    )]
    XorParityUnused {
        /// As asked for.
        data_chunks: usize,
        /// As asked for.
        parity_chunks: usize,
    },
}

/// Why a text is no code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCodeError {
    /// Not of the right form.
    #[error("\"{0}\" is not a code; use mds:K,M or xor:K,M with K data and M parity chunks, such as mds:32,8")]
    Form(String),
    /// The right form, but there is no such code.
    #[error(transparent)]
    Code(#[from] CodeError),
}

impl Code {
    /// The XOR code: parity chunk `i` is the XOR of the data chunks `j` with `j mod parity_chunks = i`.
    pub const fn xor(data_chunks: usize, parity_chunks: usize) -> Result<Code, CodeError> {
        Code::new(CodeKind::Xor, data_chunks, parity_chunks)
    }

    /// The Reed–Solomon code: any `data_chunks` of all chunks give all others.
    pub const fn mds(data_chunks: usize, parity_chunks: usize) -> Result<Code, CodeError> {
        Code::new(CodeKind::Mds, data_chunks, parity_chunks)
    }

    /// The code of a kind.
    pub const fn new(kind: CodeKind, data_chunks: usize, parity_chunks: usize) -> Result<Code, CodeError> {
        if matches!(kind, CodeKind::Xor) && parity_chunks > data_chunks && data_chunks > 0 {
            return Err(CodeError::XorParityUnused { data_chunks, parity_chunks });
        }
        if data_chunks == 0 || parity_chunks == 0 {
            return Err(CodeError::Empty { data_chunks, parity_chunks });
        }
        if data_chunks > CHUNKS_MAX || parity_chunks > CHUNKS_MAX || data_chunks + parity_chunks > CHUNKS_MAX {
            return Err(CodeError::TooManyChunks { data_chunks, parity_chunks });
        }
        Ok(Code { kind, data_chunks: data_chunks as u8, parity_chunks: parity_chunks as u8 })
    }

    /// Which of the codes.
    pub const fn kind(self) -> CodeKind {
        self.kind
    }

    /// Data chunks of a submessage.
    pub const fn data_chunks(self) -> usize {
        self.data_chunks as usize
    }

    /// Parity chunks of a submessage.
    pub const fn parity_chunks(self) -> usize {
        self.parity_chunks as usize
    }

    /// The same code for a submessage with only the first `data_chunks` of its data chunks, as at the end of a message.
    /// The parity is the same as if the others were zeros.
    ///
    /// # Panics
    ///
    /// When `data_chunks` is 0 or more than the code has.
    pub const fn shortened(self, data_chunks: usize) -> Code {
        assert!(
            0 < data_chunks && data_chunks <= self.data_chunks(),
            "a code can only be shortened, and not to nothing"
        );
        Code { data_chunks: data_chunks as u8, ..self }
    }

    /// Whether all data chunks are there or can be computed from what is there. Costs a few instructions: it may be
    /// asked after each chunk that arrives. Bits of chunks that the code does not have are ignored.
    pub fn can_decode(self, arrived: &Arrived) -> bool {
        let data = arrived.data.count_of_first(self.data_chunks());
        let lost = self.data_chunks() - data;
        match self.kind {
            CodeKind::Mds => lost <= arrived.parity.count_of_first(self.parity_chunks()),
            CodeKind::Xor => lost == 0 || (0..self.parity_chunks()).all(|group| self.can_decode_group(group, arrived)),
        }
    }

    fn can_decode_group(self, group: usize, arrived: &Arrived) -> bool {
        let chunks = (group..self.data_chunks()).step_by(self.parity_chunks());
        let lost = chunks.filter(|&chunk| !arrived.data.contains(chunk)).count();
        lost <= usize::from(arrived.parity.contains(group))
    }
}

impl fmt::Display for CodeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CodeKind::Xor => "xor",
            CodeKind::Mds => "mds",
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{},{}", self.kind, self.data_chunks, self.parity_chunks)
    }
}

impl FromStr for Code {
    type Err = ParseCodeError;

    fn from_str(text: &str) -> Result<Code, ParseCodeError> {
        let parts = || {
            let (kind, counts) = text.split_once(':')?;
            let (data, parity) = counts.split_once(',')?;
            Some((kind, data.trim().parse().ok()?, parity.trim().parse().ok()?))
        };
        match parts() {
            Some(("xor", data, parity)) => Ok(Code::xor(data, parity)?),
            Some(("mds", data, parity)) => Ok(Code::mds(data, parity)?),
            _ => Err(ParseCodeError::Form(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChunkSet;

    #[test]
    fn codes_that_cannot_be_are_refused() {
        for make in [Code::xor, Code::mds] {
            assert!(matches!(make(0, 1), Err(CodeError::Empty { .. })));
            assert!(matches!(make(1, 0), Err(CodeError::Empty { .. })));
            assert!(matches!(make(128, 128), Err(CodeError::TooManyChunks { .. })));
            assert!(matches!(make(usize::MAX, 2), Err(CodeError::TooManyChunks { .. })));
            assert!(make(128, 127).is_ok());
            assert!(make(1, 1).is_ok());
        }
        assert!(matches!(Code::xor(4, 5), Err(CodeError::XorParityUnused { .. })));
        assert!(Code::mds(1, 254).is_ok());
    }

    #[test]
    fn codes_have_a_text_form() {
        for code in [Code::mds(32, 8).unwrap(), Code::xor(32, 8).unwrap()] {
            assert_eq!(code.to_string().parse(), Ok(code));
        }
        assert_eq!(Code::mds(32, 8).unwrap().to_string(), "mds:32,8");
        for text in ["", "mds", "mds:32", "mds:32,", "mds:32,8,1", "raid:32,8", "mds:-1,8"] {
            assert_eq!(text.parse::<Code>(), Err(ParseCodeError::Form(text.to_owned())));
        }
        assert!(matches!("xor:1,2".parse::<Code>(), Err(ParseCodeError::Code(_))));
    }

    #[test]
    fn xor_mends_one_loss_in_each_group() {
        let code = Code::xor(6, 2).unwrap();
        let lost = |chunks: &[usize], parity: usize| {
            let mut arrived = Arrived { data: ChunkSet::first(6), parity: ChunkSet::first(2) };
            chunks.iter().for_each(|&chunk| arrived.data.remove(chunk));
            arrived.parity.remove(parity);
            code.can_decode(&arrived)
        };
        let none = 200;
        assert!(lost(&[2, 5], none), "one in each group");
        assert!(!lost(&[2, 4], none), "two in group 0");
        assert!(!lost(&[2], 0), "one in group 0, and its parity");
        assert!(lost(&[2], 1));
        assert!(lost(&[], 0), "parity alone is not missed");
    }
}
