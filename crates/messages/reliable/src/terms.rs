//! What all messages of a connection have in common.

use std::sync::Arc;

use longhaul_sdr::QueuePair;
use longhaul_time::Instant;
use longhaul_wire::record::{Offer, Record, Refusal, Refused};

use crate::attributes::Attributes;
use crate::jobs::Jobs;
use crate::parts;
use crate::scheme::{MessageShape, Scheme};
use crate::ticket::MessageError;

pub(crate) struct Terms {
    pub(crate) queue_pair: QueuePair,
    pub(crate) scheme: Arc<dyn Scheme>,
    pub(crate) scheme_name: String,
    pub(crate) attributes: Attributes,
    /// Encoding and decoding.
    pub(crate) jobs: Jobs,
    /// Of every message, but for its length.
    template: MessageShape,
    pub(crate) has_parity: bool,
    /// Messages may end with bytes missing.
    pub(crate) is_best_effort: bool,
    part_bytes: Option<u64>,
    /// When the peer was heard of last, whatever it said.
    pub(crate) heard: Option<Instant>,
    frames_heard: u64,
}

impl Terms {
    pub(crate) fn new(queue_pair: QueuePair, scheme: Arc<dyn Scheme>, attributes: Attributes) -> Self {
        let own = queue_pair.attributes();
        let template = MessageShape {
            message_bytes: 0,
            parity_bytes: 0,
            chunk_bytes: own.chunk_bytes,
            packet_bytes: own.mtu.byte_count(),
            rate_bits_per_second: own.rate_bits_per_second,
        };
        let has_parity = scheme.parity_bytes(u64::from(template.chunk_bytes), template.chunk_bytes) > 0;
        let (scheme_name, is_best_effort) = (scheme.name(), scheme.is_best_effort());
        // They are remembered from now on.
        queue_pair.take_send_news();
        Terms {
            queue_pair,
            scheme,
            scheme_name,
            attributes,
            jobs: Jobs::default(),
            template,
            has_parity,
            is_best_effort,
            part_bytes: None,
            heard: None,
            frames_heard: 0,
        }
    }

    /// Note whether the peer was heard of.
    pub(crate) fn listen(&mut self, now: Instant) {
        let (_, _, control) = self.queue_pair.counters();
        if control.received != self.frames_heard {
            (self.frames_heard, self.heard) = (control.received, Some(now));
        }
    }

    /// The longest part of a message, whose parity fits too; `None` until the ends are connected, 0 when parity never
    /// fits. The user's immediate holds the length of a message in one part, so it has 32 bits.
    pub(crate) fn part_bytes(&mut self) -> Option<u64> {
        if self.part_bytes.is_none() {
            let most = self.queue_pair.message_bytes_max()?;
            let chunk_bytes = self.template.chunk_bytes;
            let fits = |bytes: u64| self.scheme.parity_bytes(bytes, chunk_bytes) <= most;
            // Parts that are shorter than a chunk, so that their parity fits, would be hundreds for a message that is not long.
            let has_room = fits(chunk_bytes.into());
            self.part_bytes = Some(if has_room { parts::longest(most.min(u32::MAX.into()), fits) } else { 0 });
        }
        self.part_bytes
    }

    /// Why nothing can be sent when parts have no bytes.
    pub(crate) fn no_room_for_parity(&self) -> MessageError {
        let message_bytes_max = self.queue_pair.message_bytes_max().unwrap_or(0);
        MessageError::NoRoomForParity { scheme: self.scheme_name.clone(), message_bytes_max }
    }

    /// Messages of `sdr` that a part takes.
    pub(crate) fn numbers_a_part(&self) -> u64 {
        1 + u64::from(self.has_parity)
    }

    /// Payload of a packet.
    pub(crate) fn packet_bytes(&self) -> u32 {
        self.template.packet_bytes
    }

    /// Of a message, or a part of one.
    pub(crate) fn shape_of(&self, length: u64) -> MessageShape {
        let parity_bytes = self.scheme.parity_bytes(length, self.template.chunk_bytes);
        MessageShape { message_bytes: length, parity_bytes, ..self.template }
    }

    /// Whether the sender of a message has the same scheme and chunks.
    pub(crate) fn are_those_of(&self, offer: &Offer<'_>) -> bool {
        (offer.scheme, offer.chunk_bytes) == (&*self.scheme_name, self.template.chunk_bytes)
    }

    pub(crate) fn describe(&self) -> String {
        describe(&self.scheme_name, self.template.chunk_bytes)
    }

    pub(crate) fn tell(&self, number: u64, record: &Record<'_>) {
        self.queue_pair.send_to_peer(record_bytes(number, record));
    }

    /// The same for a record that carries a message.
    pub(crate) fn tell_contents(&self, number: u64, record: &Record<'_>, now: Instant) {
        self.queue_pair.send_data_to_peer(record_bytes(number, record), now);
    }

    /// Whether a record of this size fits into a control message.
    pub(crate) fn fits(&self, record: &Record<'_>) -> bool {
        record.byte_count() <= self.queue_pair.scheme_bytes_max()
    }

    pub(crate) fn refuse(&self, number: u64, reason: Refusal, was_accepted: bool) {
        let refused = Refused { reason, was_accepted, scheme: &self.describe() };
        self.tell(number, &Record::Refused(refused));
    }
}

/// A record of a message as bytes for [`QueuePair::send_to_peer`].
pub fn record_bytes(number: u64, record: &Record<'_>) -> Vec<u8> {
    let mut bytes = vec![0; record.byte_count()];
    record.emit(number, &mut bytes).expect("it has the size of the record");
    bytes
}

/// What the ends must have in common.
pub(crate) fn describe(scheme: &str, chunk_bytes: u32) -> String {
    format!("{scheme} with chunks of {chunk_bytes} bytes")
}
