//! What all messages of a connection have in common.

use std::sync::Arc;

use longhaul_sdr::QueuePair;
use longhaul_time::Instant;
use longhaul_wire::record::{Offer, Record, Refusal, Refused};

use crate::attributes::Attributes;
use crate::choice::{self, Agreed, Choice, ChoiceError, MessageTerms};
use crate::jobs::Jobs;
use crate::parts;
use crate::scheme::{MessageShape, Scheme};
use crate::ticket::MessageError;

pub(crate) struct Terms {
    pub(crate) queue_pair: QueuePair,
    /// What messages may have; the first is that of those whose sender names none.
    agreed: Vec<Arc<Agreed>>,
    pub(crate) attributes: Attributes,
    /// Encoding and decoding.
    pub(crate) jobs: Jobs,
    /// Of every message, but for its length and its chunks.
    template: MessageShape,
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
        // They are remembered from now on.
        queue_pair.take_send_news();
        Terms {
            queue_pair,
            agreed: vec![Agreed::new(scheme, template.chunk_bytes)],
            attributes,
            jobs: Jobs::default(),
            template,
            part_bytes: None,
            heard: None,
            frames_heard: 0,
        }
    }

    /// Messages may have these schemes as well.
    pub(crate) fn agree(&mut self, others: impl IntoIterator<Item = Arc<dyn Scheme>>) {
        let chunk_bytes = self.template.chunk_bytes;
        self.agreed.extend(others.into_iter().map(|scheme| Agreed::new(scheme, chunk_bytes)));
    }

    /// Note whether the peer was heard of.
    pub(crate) fn listen(&mut self, now: Instant) {
        let (_, _, control) = self.queue_pair.counters();
        if control.received != self.frames_heard {
            (self.frames_heard, self.heard) = (control.received, Some(now));
        }
    }

    /// Room for the parity of a message of up to this many bytes, whichever of the schemes it has. Both ends compute the same.
    pub(crate) fn parity_room(&self, bytes: u64) -> u64 {
        let parity_bytes = |agreed: &Arc<Agreed>| agreed.scheme.parity_bytes(bytes, self.template.chunk_bytes);
        self.agreed.iter().map(parity_bytes).max().unwrap_or(0)
    }

    /// The longest part of a message, whose parity fits too; `None` until the ends are connected, 0 when parity never
    /// fits. The user's immediate holds the length of a message in one part, so it has 32 bits.
    pub(crate) fn part_bytes(&mut self) -> Option<u64> {
        if self.part_bytes.is_none() {
            let most = self.queue_pair.message_bytes_max()?;
            let fits = |bytes: u64| self.parity_room(bytes) <= most;
            // Parts that are shorter than a chunk, so that their parity fits, would be hundreds for a message that is not long.
            let has_room = fits(self.template.chunk_bytes.into());
            self.part_bytes = Some(if has_room { parts::longest(most.min(u32::MAX.into()), fits) } else { 0 });
        }
        self.part_bytes
    }

    /// The same, if it has been asked for since the ends are connected.
    pub(crate) fn known_part_bytes(&self) -> Option<u64> {
        self.part_bytes
    }

    /// Why nothing can be sent when parts have no bytes.
    pub(crate) fn no_room_for_parity(&self) -> MessageError {
        let message_bytes_max = self.queue_pair.message_bytes_max().unwrap_or(0);
        let chunk_bytes = self.template.chunk_bytes;
        let is_too_long =
            |agreed: &&Arc<Agreed>| agreed.scheme.parity_bytes(chunk_bytes.into(), chunk_bytes) > message_bytes_max;
        let scheme = self.agreed.iter().find(is_too_long).map(|agreed| agreed.name.clone()).unwrap_or_default();
        MessageError::NoRoomForParity { scheme, message_bytes_max }
    }

    /// Whether the message's parity fits the room that its receiver has for it, in each part of these bytes.
    pub(crate) fn check_parity(&self, message: &MessageTerms, parts: [u64; 2]) -> Result<(), MessageError> {
        for bytes in parts {
            let (parity_bytes, room) = (message.shape_of(bytes).parity_bytes, self.parity_room(bytes));
            if parity_bytes > room {
                let (scheme, chunk_bytes) = (message.name().to_owned(), message.chunk_bytes());
                return Err(MessageError::ChunksTooLong { scheme, chunk_bytes, parity_bytes, room });
            }
        }
        Ok(())
    }

    /// Messages of `sdr` that a part takes, whichever of the schemes it has: so the ends need not agree on that first.
    pub(crate) fn numbers_a_part(&self) -> u64 {
        1 + u64::from(self.agreed.iter().any(|agreed| agreed.has_parity))
    }

    /// Payload of a packet.
    pub(crate) fn packet_bytes(&self) -> u32 {
        self.template.packet_bytes
    }

    /// Of a message of which nothing is known but its length.
    pub(crate) fn shape_of_unheard(&self, length: u64) -> MessageShape {
        MessageShape { message_bytes: length, ..self.template }
    }

    /// What a message has whose sender chooses nothing.
    #[cfg(feature = "mutations")]
    pub(crate) fn default_terms(&self) -> Option<MessageTerms> {
        self.terms_of(None, None)
    }

    fn terms_of(&self, scheme: Option<&str>, chunk_bytes: Option<u32>) -> Option<MessageTerms> {
        let mut agreed = self.agreed.iter();
        let agreed = match scheme {
            Some(name) => agreed.find(|agreed| agreed.name == name),
            None => agreed.next(),
        };
        let chunk_bytes = chunk_bytes.unwrap_or(self.template.chunk_bytes);
        let is_whole = chunk_bytes > 0 && chunk_bytes.is_multiple_of(self.template.packet_bytes);
        let template = MessageShape { chunk_bytes, ..self.template };
        is_whole.then_some(MessageTerms { agreed: agreed?.clone(), template })
    }

    /// What a message has whose sender chooses this.
    pub(crate) fn chosen(&self, choice: &Choice) -> Result<MessageTerms, ChoiceError> {
        self.terms_of(choice.scheme.as_deref(), choice.chunk_bytes).ok_or_else(|| {
            let is_agreed = |name: &String| self.agreed.iter().any(|agreed| agreed.name == *name);
            match &choice.scheme {
                Some(scheme) if !is_agreed(scheme) => {
                    ChoiceError::SchemeNotAgreed { scheme: scheme.clone(), agreed: self.names() }
                }
                _ => ChoiceError::Chunks {
                    chunk_bytes: choice.chunk_bytes.unwrap_or(0),
                    mtu: self.template.packet_bytes,
                },
            }
        })
    }

    /// What a message has whose sender says this of it, if the ends have agreed on that.
    pub(crate) fn offered(&self, offer: &Offer<'_>) -> Option<MessageTerms> {
        self.terms_of(Some(offer.scheme), Some(offer.chunk_bytes))
    }

    /// The names of the schemes that the ends have agreed on.
    pub(crate) fn names(&self) -> String {
        let names: Vec<&str> = self.agreed.iter().map(|agreed| &*agreed.name).collect();
        names.join(",")
    }

    /// What messages may have, and what chunks have those whose sender chooses none.
    pub(crate) fn describe(&self) -> String {
        choice::describe(&self.names(), self.template.chunk_bytes)
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
        let all = self.describe();
        let refused = |scheme| Record::Refused(Refused { reason, was_accepted, scheme });
        // Many names do not fit a frame of a small MTU; who reads them sees where they end.
        let room = self.queue_pair.scheme_bytes_max().saturating_sub(refused("").byte_count());
        self.tell(number, &refused(&all[..all.floor_char_boundary(room.min(all.len()))]));
    }
}

/// A record of a message as bytes for [`QueuePair::send_to_peer`].
pub fn record_bytes(number: u64, record: &Record<'_>) -> Vec<u8> {
    let mut bytes = vec![0; record.byte_count()];
    record.emit(number, &mut bytes).expect("it has the size of the record");
    bytes
}
