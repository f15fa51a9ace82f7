//! What the receiving halves of RC and UC share: a message that arrives in packets, and each packet into memory.

use longhaul_verbs::{Access, CompletionFlags, CompletionOperation, CompletionStatus, RemoteMemory, WorkCompletion};
use longhaul_wire::{Headers, Opcode, Operation, Position, reth};

use crate::memory::{AccessDenied, Payload};
use crate::queue_pair::{MESSAGE_BYTES_MAX, Message, QueuePair};
use crate::resources::Resources;

/// Why a packet that was in sequence could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted.
    NotReady,
    /// It does not fit what came before, or has the wrong length.
    InvalidRequest,
    /// Key, range or rights.
    RemoteAccess,
    /// The receive's own memory cannot be written.
    LocalProtection,
    /// The receive is too short.
    LocalLength,
    /// The key that the message names cannot be made invalid.
    Invalidation,
}

/// What a packet that was carried out did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    InMessage,
    MessageEnded,
}

/// Carry out one request packet that is in sequence: check it, place its payload, complete a receive at the end.
/// When it is refused, nothing has changed, but for a receive taken from a shared queue, and for the payload of a message whose
/// key cannot be invalidated.
pub(crate) fn execute(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
) -> Result<Executed, Refusal> {
    let opcode = headers.bth.opcode;
    let position = opcode.position();
    let length = payload.len();
    let mtu_bytes = queue_pair.mtu_bytes();
    queue_pair.arriving_mut().set_single_write(None);
    let fits = match position {
        Position::First | Position::Middle => length == mtu_bytes,
        Position::Last => (1..=mtu_bytes).contains(&length),
        Position::Only => length <= mtu_bytes,
    };
    if !fits {
        return Err(Refusal::InvalidRequest);
    }
    let message = match (position.is_start(), queue_pair.arriving().message()) {
        (true, Message::None) => begin(queue_pair, shared, headers)?,
        (false, message @ Message::Send { .. }) if opcode.operation() == Operation::Send => message,
        (false, message @ Message::Write { .. }) if opcode.operation() == Operation::Write => message,
        _ => return Err(Refusal::InvalidRequest),
    };
    let domain = queue_pair.identity().domain;
    let (operation, message) = match message {
        Message::None => return Err(Refusal::InvalidRequest),
        Message::Send { received } => {
            let Some(receive) = queue_pair.next_receive() else {
                return Err(Refusal::NotReady);
            };
            let total = u64::from(received) + u64::from(length);
            if total > MESSAGE_BYTES_MAX {
                return Err(Refusal::InvalidRequest);
            }
            if total > receive.entries.length() {
                return Err(Refusal::LocalLength);
            }
            let entries = receive.entries.list();
            shared.memory.scatter(domain, entries, received.into(), payload).map_err(|_| Refusal::LocalProtection)?;
            (CompletionOperation::Receive, Message::Send { received: received + length })
        }
        Message::Write { address, key, received, left } => {
            if length > left || (position.is_end() && length != left) {
                return Err(Refusal::InvalidRequest);
            }
            if headers.immediate.is_some() && !queue_pair.has_receive(shared) {
                return Err(Refusal::NotReady);
            }
            place_write(queue_pair, shared, key, address, payload).map_err(|_| Refusal::RemoteAccess)?;
            let message = Message::Write {
                address: address + u64::from(length),
                key,
                received: received + length,
                left: left - length,
            };
            (CompletionOperation::ReceiveWriteWithImmediate, message)
        }
    };
    if !position.is_end() {
        queue_pair.arriving_mut().set_message(message);
        return Ok(Executed::InMessage);
    }
    // The last thing that can be refused: with it everything has happened.
    if let Some(key) = headers.invalidate
        && shared.memory.invalidate(queue_pair.identity().accessor(), key).is_err()
    {
        return Err(Refusal::Invalidation);
    }
    queue_pair.arriving_mut().set_message(Message::None);
    if let Message::Write { address, key, .. } = message
        && opcode == Opcode::UcWriteOnlyWithImmediate
        && length == mtu_bytes
    {
        queue_pair.arriving_mut().set_single_write(Some(RemoteMemory { address, key }));
    }
    let received = match message {
        Message::Send { received } | Message::Write { received, .. } => received,
        Message::None => 0,
    };
    if operation == CompletionOperation::Receive || headers.immediate.is_some() {
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::IMMEDIATE, headers.immediate.is_some());
        flags.set(CompletionFlags::CONGESTION_MARK, shared.is_arriving_marked);
        flags.set(CompletionFlags::INVALIDATED, headers.invalidate.is_some());
        let completion = WorkCompletion {
            status: CompletionStatus::Success,
            operation,
            flags,
            byte_count: received,
            immediate_or_key: headers.immediate.or(headers.invalidate).unwrap_or(0),
            ..Default::default()
        };
        queue_pair.complete_receive(shared, completion, headers.bth.solicited_event);
    }
    Ok(Executed::MessageEnded)
}

/// What a first packet begins.
fn begin(queue_pair: &mut QueuePair, shared: &mut Resources, headers: &Headers) -> Result<Message, Refusal> {
    match headers.bth.opcode.operation() {
        Operation::Send if !queue_pair.has_receive(shared) => Err(Refusal::NotReady),
        Operation::Send => Ok(Message::Send { received: 0 }),
        Operation::Write => {
            let reth = check_remote_range(queue_pair, shared, headers, Access::REMOTE_WRITE)?;
            let (address, key) = (reth.virtual_address, reth.remote_key);
            queue_pair.arriving_mut().begin_write(shared.memory.binding_count());
            Ok(Message::Write { address, key, received: 0, left: reth.dma_length })
        }
        _ => Err(Refusal::InvalidRequest),
    }
}

/// What a WRITE or a READ names, if the queue pair and the key give this right to all of it.
pub(crate) fn check_remote_range(
    queue_pair: &QueuePair,
    shared: &Resources,
    headers: &Headers,
    right: Access,
) -> Result<reth::Header, Refusal> {
    let reth = headers.reth.ok_or(Refusal::InvalidRequest)?;
    if !queue_pair.settings().access.contains(right) {
        return Err(Refusal::RemoteAccess);
    }
    let length = u64::from(reth.dma_length);
    if length > MESSAGE_BYTES_MAX {
        return Err(Refusal::InvalidRequest);
    }
    // Nothing needs no key (IBTA 9.7.4.1.1).
    if length > 0 {
        let who = queue_pair.identity().accessor();
        let checked = shared.memory.check_remote(who, reth.remote_key, reth.virtual_address, length, right);
        checked.map_err(|_| Refusal::RemoteAccess)?;
    }
    Ok(reth)
}

/// The key is looked up for each packet: it may have been revoked since the first.
fn place_write(
    queue_pair: &mut QueuePair,
    shared: &Resources,
    key: u32,
    address: u64,
    payload: Payload<'_>,
) -> Result<(), AccessDenied> {
    if payload.len() == 0 {
        return Ok(());
    }
    let who = queue_pair.identity().accessor();
    #[cfg(feature = "mutations")]
    if shared.config.mutation == Some(crate::config::Mutation::AcknowledgeBeforePlacement)
        && let Payload::Carried(bytes) = payload
    {
        shared.memory.check_remote(who, key, address, bytes.len() as u64, Access::REMOTE_WRITE)?;
        let late = queue_pair.arriving_mut().defer(key, address, bytes.to_vec());
        if let Some((key, address, bytes)) = late {
            let _ = shared.memory.remote_write(who, key, address, Payload::Carried(&bytes));
        }
        return Ok(());
    }
    shared.memory.remote_write(who, key, address, payload)
}
