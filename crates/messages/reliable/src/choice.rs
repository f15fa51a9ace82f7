//! What the sender chooses for each message: its scheme, among those that the ends have agreed on, and its chunks.
//!
//! ```text
//!   agreed at connect: sr:nack, ec:mds:32,8, be     default chunks
//!   send ─▶ Choice { scheme, chunk_bytes } ─▶ MessageTerms ═══ offer names both ═══▶ MessageTerms ─▶ the receiver's half
//! ```
//!
//! No round trip is spent on it: the receiver has room for the parity of any of the schemes before it knows which one a
//! message has.

use std::sync::Arc;

use thiserror::Error;

use crate::scheme::{MessageShape, Scheme};

/// How a message is to be brought over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The name of a scheme that the ends have agreed on; the first of those by default.
    pub scheme: Option<String>,
    /// Bytes of a chunk, a multiple of the MTU; by default what the queue pair was made with. With a code, chunks that are longer than the queue
    /// pair's make more parity for some lengths than the receiver has room for; such a message fails.
    pub chunk_bytes: Option<u32>,
}

impl Choice {
    /// A scheme by its name, with the default chunks.
    pub fn scheme(name: impl Into<String>) -> Self {
        Choice { scheme: Some(name.into()), chunk_bytes: None }
    }

    /// The same with chunks of this many bytes.
    pub fn with_chunk_bytes(self, chunk_bytes: u32) -> Self {
        Choice { chunk_bytes: Some(chunk_bytes), ..self }
    }
}

/// Why a message cannot have what was chosen for it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// The ends have not agreed on the scheme.
    #[error(
        "the ends have not agreed on the scheme {scheme} when they connected, but on {agreed}; choose one of those, or connect with it"
    )]
    SchemeNotAgreed {
        /// What was chosen.
        scheme: String,
        /// What they have agreed on.
        agreed: String,
    },
    /// Chunks are whole packets.
    #[error("chunks of {chunk_bytes} bytes are not possible: a chunk is a multiple of the MTU, {mtu}")]
    Chunks {
        /// What was chosen.
        chunk_bytes: u32,
        /// Bytes of a packet.
        mtu: u32,
    },
}

/// A scheme that the ends have agreed on.
pub(crate) struct Agreed {
    pub(crate) scheme: Arc<dyn Scheme>,
    pub(crate) name: String,
    pub(crate) has_parity: bool,
    /// Messages may end with bytes missing.
    pub(crate) is_best_effort: bool,
}

impl Agreed {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, chunk_bytes: u32) -> Arc<Self> {
        let has_parity = scheme.parity_bytes(u64::from(chunk_bytes), chunk_bytes) > 0;
        let (name, is_best_effort) = (scheme.name(), scheme.is_best_effort());
        Arc::new(Agreed { scheme, name, has_parity, is_best_effort })
    }
}

/// What the sender has chosen for a message.
#[derive(Clone)]
pub(crate) struct MessageTerms {
    pub(crate) agreed: Arc<Agreed>,
    /// Of a message without bytes.
    pub(crate) template: MessageShape,
}

impl MessageTerms {
    /// Of the message, or a part of it.
    pub(crate) fn shape_of(&self, length: u64) -> MessageShape {
        let parity_bytes = self.agreed.scheme.parity_bytes(length, self.template.chunk_bytes);
        MessageShape { message_bytes: length, parity_bytes, ..self.template }
    }

    pub(crate) fn name(&self) -> &str {
        &self.agreed.name
    }

    pub(crate) fn chunk_bytes(&self) -> u32 {
        self.template.chunk_bytes
    }

    pub(crate) fn has_parity(&self) -> bool {
        self.agreed.has_parity
    }

    pub(crate) fn is_best_effort(&self) -> bool {
        self.agreed.is_best_effort
    }

    pub(crate) fn describe(&self) -> String {
        describe(self.name(), self.chunk_bytes())
    }
}

/// What a message has.
pub(crate) fn describe(scheme: &str, chunk_bytes: u32) -> String {
    format!("{scheme} with chunks of {chunk_bytes} bytes")
}
