//! Messages as their users hold them: one-shot and streaming sends, and receives.
#![allow(unsafe_code, reason = "a receive gives its bytes back once their key has been revoked")]

use std::ops::Range;
use std::sync::Arc;

use longhaul_verbs::{DestroyError, RegisterError, SlottedRegion, raw};
use longhaul_wire::control::ClearToSend;
use thiserror::Error;

use crate::bitmap::MessageBitmap;
use crate::memory::{BorrowError, Incoming, Memory, ReceivedBytes};
use crate::queue_pair::{QueuePair, Shared};
use crate::sending::SendStatus;

/// Why a send could not be started or continued.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// As many messages are open as the table has slots.
    #[error("{0} messages are being sent, as many as the message table has room for; wait for one of them")]
    TableFull(u32),
    /// The bytes are in use, or not there.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// Packets begin at multiples of the MTU.
    #[error("offset {offset} is not a multiple of the MTU, {mtu}")]
    Offset {
        /// What was given.
        offset: u64,
        /// Bytes.
        mtu: u32,
    },
    /// Longer than the queue pair was made for.
    #[error("a message of {bytes} bytes is too long: the queue pair takes at most {most}; raise message_bytes_max")]
    TooLong {
        /// What was given.
        bytes: u64,
        /// What fits.
        most: u64,
    },
}

/// Why a receive could not be posted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The slot of the next message still has one, or the sender has not reported yet that it is done with the last one
    /// that had its slot and its generation.
    #[error("the message table is full: message {0} has to be completed first, here and at the sender")]
    TableFull(u64),
    /// The bytes are in use, or not there.
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    /// Longer than the queue pair was made for.
    #[error("a receive of {bytes} bytes is too long: the queue pair takes at most {most}; raise message_bytes_max")]
    TooLong {
        /// What was given.
        bytes: u64,
        /// What fits.
        most: u64,
    },
    /// The device refused a key.
    #[error("the device refused a key for the receive")]
    Register(#[from] RegisterError),
}

/// Why a receive could not be completed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CompleteError {
    /// The device did not revoke the key: it may still write there, so the bytes are kept from everybody for good.
    #[error("the device did not revoke the key of message {number}, so its memory stays in use")]
    NotRevoked {
        /// The message.
        number: u64,
        /// What the device said.
        source: RevokeError,
    },
}

/// What a device said instead of revoking a key.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// A slot could not be bound to nothing.
    #[error(transparent)]
    Slot(#[from] RegisterError),
    /// A region could not be deregistered.
    #[error(transparent)]
    Region(#[from] DestroyError),
}

impl QueuePair {
    /// Begin a message that is sent piece by piece, in any order and as often as needed (the paper's `send_stream_start`).
    pub fn start_stream(&self, user_immediate: Option<u32>) -> Result<SendStream, SendError> {
        let slots = self.shared.shape.layout.slot_count();
        let number = self.shared.state().sending.start(user_immediate).ok_or(SendError::TableFull(slots))?;
        Ok(SendStream { shared: self.shared.clone(), number, has_immediate: user_immediate.is_some() })
    }

    /// Send a message once (the paper's `send_post`).
    pub fn post_send(
        &self,
        memory: &Memory,
        range: Range<usize>,
        user_immediate: Option<u32>,
    ) -> Result<SendStream, SendError> {
        let Shared { shape, guard, .. } = &*self.shared;
        let packets = range.len().div_ceil(shape.packet_bytes as usize);
        self.shared.check_piece(0, range.len())?;
        let bytes = memory.lend_to_send(range.clone())?;
        let first_byte = match user_immediate {
            Some(_) if packets >= shape.layout.fragment_count() as usize => None,
            // No byte of an empty message could go along; its receiver has none to look at either.
            Some(_) if range.is_empty() => Some(guard.lend_to_send()),
            Some(_) => Some(memory.lend_to_send(range.start..range.start + 1)?),
            None => None,
        };
        let stream = self.start_stream(user_immediate)?;
        let mut state = self.shared.state();
        if let Some(first_byte) = first_byte {
            state.sending.send_fragments(stream.number, packets as u32, first_byte);
        }
        state.sending.add(stream.number, 0, bytes);
        state.sending.end(stream.number);
        if packets > 1 {
            state.control.expect_long_message();
        }
        drop(state);
        Ok(stream)
    }

    /// Post a receive; the peer's next message comes here (the paper's `recv_post`).
    pub fn post_receive(&self, memory: &Memory, range: Range<usize>) -> Result<Receive, ReceiveError> {
        let Shared { attributes, shape, table, root, guard, .. } = &*self.shared;
        let (length, most) = (range.len() as u64, attributes.message_bytes_max);
        if length > most {
            return Err(ReceiveError::TooLong { bytes: length, most });
        }
        let incoming = memory.lend_to_receive(range)?;
        let mut state = self.shared.state();
        let number = state.next_receive_number(shape).map_err(ReceiveError::TableFull)?;
        let (key, address, remote_key) = match root {
            Some(root) => {
                let root_number = self.shared.root_number_of(root, number);
                match length {
                    // An empty message needs no memory, but a key that can be checked.
                    0 => guard.bind(root, root_number)?,
                    _ => incoming.bind(root, root_number)?,
                }
                let place = root.remote(root_number, 0);
                (Key::Slot, place.address, place.key)
            }
            None => {
                let region = match length {
                    0 => guard.register()?,
                    _ => incoming.register()?,
                };
                let (address, key) = (region.address(), region.remote_key());
                (Key::Region(region), address, key)
            }
        };
        let packet_count = length.div_ceil(u64::from(shape.packet_bytes)) as u32;
        let bitmap = Arc::new(MessageBitmap::new(packet_count, attributes.chunk_bytes / shape.packet_bytes));
        self.drain_before(number);
        table.enter(number, bitmap.clone());
        let generation = shape.generation_of(number) as u8;
        if packet_count > 1 {
            state.control.expect_long_message();
        }
        state.receiving.opened(ClearToSend { number, address, length, key: remote_key, generation, is_over: false });
        drop(state);
        Ok(Receive { shared: self.shared.clone(), number, bitmap, open: Some((incoming, key)) })
    }
}

impl QueuePair {
    /// Let the peer's next message go nowhere: it has ended as soon as the peer hears of it. Returns its number; `None` while none is free. It takes
    /// neither memory nor a key, so nothing else can keep a number from being used.
    pub fn skip_receive(&self) -> Option<u64> {
        let Shared { shape, .. } = &*self.shared;
        let mut state = self.shared.state();
        let number = state.next_receive_number(shape).ok()?;
        self.drain_before(number);
        let generation = shape.generation_of(number) as u8;
        state.receiving.opened(ClearToSend { number, address: 0, length: 0, key: 0, generation, is_over: false });
        state.receiving.completed(number);
        // Its clear-to-send may never be told, and a send of no bytes does not ask for it: it must be told that the message is over.
        state.owe_answer();
        Some(number)
    }

    /// What came for the message that had this slot and this generation before may be in a completion queue still, and would count for this one.
    /// Since the slot was bound anew, nothing of that message is added. With several generations that was rounds of the table ago, so that
    /// once a round is enough.
    fn drain_before(&self, number: u64) {
        let Shared { shape, context, .. } = &*self.shared;
        if shape.generations == 1 || shape.slot_of(number) == 0 {
            context.drain();
        }
    }
}

impl Shared {
    /// The number that a message has under the root key, and so its addresses there. They come from the message's own 64-bit number,
    /// and come again only when all 64 bits of address space have been used. That space is cut to whole rounds of the table, so that
    /// also then the slots of live messages differ.
    fn root_number_of(&self, root: &SlottedRegion, number: u64) -> u64 {
        #[cfg(feature = "mutations")]
        match self.mutation {
            Some(crate::mutation::Mutation::ShareSlots) => return self.shape.slot_of(number).into(),
            Some(crate::mutation::Mutation::ReuseAddresses) => {
                return number % (u64::from(self.shape.layout.slot_count()) * u64::from(self.shape.generations));
            }
            _ => {}
        }
        let slots = u64::from(root.raw().slots());
        number % (root.number_count() / slots * slots)
    }

    fn check_piece(&self, offset: u64, length: usize) -> Result<(), SendError> {
        let mtu = self.shape.packet_bytes;
        if !offset.is_multiple_of(mtu.into()) {
            return Err(SendError::Offset { offset, mtu });
        }
        let (bytes, most) = (offset.saturating_add(length as u64), self.attributes.message_bytes_max);
        if bytes > most {
            return Err(SendError::TooLong { bytes, most });
        }
        Ok(())
    }
}

/// A message that is being sent. Dropping it ends it; what was added to it is still sent.
pub struct SendStream {
    shared: Arc<Shared>,
    number: u64,
    has_immediate: bool,
}

impl SendStream {
    /// The message's number: the receiver's receive has the same.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Send bytes to an offset of the message, a multiple of the MTU (the paper's `send_stream_continue`). The same ones may be sent any
    /// number of times.
    pub fn send_at(&self, offset: u64, memory: &Memory, range: Range<usize>) -> Result<(), SendError> {
        self.shared.check_piece(offset, range.len())?;
        let is_long = offset + range.len() as u64 > u64::from(self.shared.shape.packet_bytes);
        let bytes = memory.lend_to_send(range)?;
        let mut state = self.shared.state();
        state.sending.add(self.number, offset, bytes);
        if is_long {
            state.control.expect_long_message();
        }
        Ok(())
    }

    /// Send the user's immediate once more, in writes that carry only the message's first byte, which is at `first` of the memory. Messages with
    /// fewer packets than it has fragments need this; packets of others carry it anyway.
    pub fn send_immediate(&self, memory: &Memory, first: usize) -> Result<(), SendError> {
        let first_byte = memory.lend_to_send(first..first.saturating_add(1))?;
        if self.has_immediate {
            self.shared.state().sending.send_fragments(self.number, 0, first_byte);
        }
        Ok(())
    }

    /// Nothing more will be added (the paper's `send_stream_end`).
    pub fn end(&self) {
        self.shared.state().sending.end(self.number);
    }

    /// Take back what has been added and not been posted to the device yet: nobody needs it any more.
    pub fn abandon(&self) {
        self.shared.state().sending.finish_early(self.number);
    }

    /// Whether the receiver has told where the message goes. Before that nothing of it leaves.
    pub fn is_cleared(&self) -> bool {
        self.shared.state().sending.is_cleared(self.number)
    }

    /// The receiver's room for the message, while it is known and the message is not over.
    pub fn cleared_bytes(&self) -> Option<u64> {
        self.shared.state().sending.cleared_bytes(self.number)
    }

    /// Bytes that have left this device. They leave in the order in which they were added (on several channels,
    /// nearly), so a sender that counts what it adds knows what is still in the device.
    pub fn left_bytes(&self) -> u64 {
        self.shared.state().sending.left_bytes(self.number)
    }

    /// How far it has come (the paper's `send_poll`).
    pub fn status(&self) -> SendStatus {
        self.shared.state().sending.status(self.number)
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        self.shared.state().sending.detach(self.number);
    }
}

/// A receive that was posted. Dropping it completes the message and forgets it.
pub struct Receive {
    shared: Arc<Shared>,
    number: u64,
    bitmap: Arc<MessageBitmap>,
    /// `None` only while it is being completed.
    open: Option<(Incoming, Key)>,
}

/// What the peer reaches the memory of a receive with.
enum Key {
    /// The message's slot of the root key.
    Slot,
    Region(Arc<dyn raw::MemoryRegion>),
}

impl Receive {
    /// The message's number: the sender's stream has the same.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// What has arrived so far (the paper's `recv_bitmap_get`).
    pub fn bitmap(&self) -> &MessageBitmap {
        &self.bitmap
    }

    /// The ranges of bytes that have not arrived so far, exact to the packet, of a message with this many bytes.
    pub fn missing_bytes(&self, message_bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.bitmap.missing_bytes(message_bytes, self.shared.shape.packet_bytes)
    }

    /// The sender's immediate, once all of it has arrived; 0 if it gave none (the paper's `recv_imm_get`). Only packets whose key the
    /// device has checked count, so it is the peer's word; of an empty or short message it comes in writes of its own
    /// ([`crate::immediate`] says how, and for which receives it does not).
    pub fn user_immediate(&self) -> Option<u32> {
        self.bitmap.user_immediate(self.shared.shape.layout)
    }

    /// End the message, whole or not (the paper's `recv_complete`). When this returns, no packet that is still in
    /// flight changes its bytes.
    pub fn complete(mut self) -> Result<ReceivedMessage, CompleteError> {
        let bytes = self.close().expect("a receive is completed once")?;
        let packet_bytes = self.shared.shape.packet_bytes;
        Ok(ReceivedMessage { number: self.number, bitmap: self.bitmap.clone(), packet_bytes, bytes })
    }

    fn close(&mut self) -> Option<Result<ReceivedBytes, CompleteError>> {
        let (incoming, key) = self.open.take()?;
        let Shared { table, root, .. } = &*self.shared;
        table.leave(self.number);
        let revoked = match (&key, root) {
            #[cfg(feature = "mutations")]
            _ if self.shared.mutation == Some(crate::mutation::Mutation::SkipKeyChange) => Ok(()),
            (Key::Slot, Some(root)) => {
                root.unbind(self.shared.root_number_of(root, self.number)).map_err(RevokeError::from)
            }
            (Key::Region(region), _) => match region.deregister() {
                Err(DestroyError::Gone) => Ok(()),
                result => result.map_err(RevokeError::from),
            },
            (Key::Slot, None) => Ok(()),
        };
        Some(match revoked {
            Ok(()) => {
                self.shared.state().receiving.completed(self.number);
                // SAFETY: the key has just been revoked, and the device has confirmed it.
                Ok(unsafe { incoming.into_received() })
            }
            Err(source) => {
                // The message stays open, so that its slot and its number are not used again.
                if incoming.len() == 0 {
                    self.shared.guard.quarantine();
                }
                incoming.quarantine();
                Err(CompleteError::NotRevoked { number: self.number, source })
            }
        })
    }
}

impl Drop for Receive {
    fn drop(&mut self) {
        // A caller that drops it does not need the result.
        let _ = self.close();
    }
}

/// A message that has been completed: its bytes, and which of them arrived.
pub struct ReceivedMessage {
    number: u64,
    bitmap: Arc<MessageBitmap>,
    packet_bytes: u32,
    bytes: ReceivedBytes,
}

impl ReceivedMessage {
    /// The message's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The chunks that were whole when it was completed. (A thread that polls a channel may set another bit for a moment after
    /// that, for a packet that had arrived before.)
    pub fn bitmap(&self) -> &MessageBitmap {
        &self.bitmap
    }

    /// The ranges of bytes that had not arrived when it was completed, exact to the packet, of a message with this many bytes.
    pub fn missing_bytes(&self, message_bytes: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.bitmap.missing_bytes(message_bytes, self.packet_bytes)
    }

    /// The same bitmap, to be held while the bytes are changed.
    pub fn shared_bitmap(&self) -> Arc<MessageBitmap> {
        self.bitmap.clone()
    }

    /// Its bytes, where they were received.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, to be changed: missing chunks can be computed there.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Only its bytes.
    pub fn into_bytes(self) -> ReceivedBytes {
        self.bytes
    }
}
