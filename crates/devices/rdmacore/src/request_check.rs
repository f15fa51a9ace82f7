//! What can be said against a send request before a device sees it. libibverbs checks little of it, and for some of it
//! the answer would be undefined; devices of all kinds give the same answers here.

use std::sync::Arc;

use longhaul_verbs::{
    PostErrorKind, QueuePairLimits, ScatterGatherEntry, SendFlags, SendOperation, SendRequest, Transport,
};

use crate::address_handle::AddressHandle;
use crate::context::Context;
use crate::handle::own;

/// What an atomic brings back.
const ATOMIC_BYTES: u64 = 8;

/// What the requests of a queue pair are held against.
pub(crate) struct Bounds {
    pub(crate) transport: Transport,
    pub(crate) limits: QueuePairLimits,
    /// The longest message: of a connection, or in a single datagram.
    pub(crate) message_bytes: u64,
}

/// How a good request is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posting {
    /// With its neighbours.
    InBatch,
    /// The bind of a window under this key: alone, because window and region must be held meanwhile.
    Bind(u32),
}

/// Check all of a request but the objects of a bind.
pub(crate) fn check_send(
    bounds: &Bounds,
    context: &Arc<Context>,
    request: &SendRequest<'_>,
) -> Result<Posting, PostErrorKind> {
    let posting = check_form(bounds, request)?;
    if let Some(to) = &request.destination {
        let handle = own::<AddressHandle>(context, to.address_handle);
        handle.ok_or(PostErrorKind::ForeignObject { what: "address handle" })?;
    }
    Ok(posting)
}

/// Check what the request says by itself.
fn check_form(bounds: &Bounds, request: &SendRequest<'_>) -> Result<Posting, PostErrorKind> {
    let Bounds { transport, limits, message_bytes } = bounds;
    let is_datagram = *transport == Transport::UnreliableDatagram;
    let is_reliable = *transport == Transport::ReliableConnection;
    use SendOperation as O;
    let (is_possible, takes_inline, is_atomic) = match request.operation {
        O::Send | O::SendWithImmediate(_) => (true, true, false),
        O::SendWithInvalidate(_) => (is_reliable, true, false),
        O::Write(_) | O::WriteWithImmediate(..) => (!is_datagram, true, false),
        O::Read(_) => (is_reliable, false, false),
        O::CompareAndSwap { .. } | O::FetchAndAdd { .. } => (is_reliable, false, true),
        // These concern this device alone, and have no data.
        O::LocalInvalidate(_) if !is_datagram => return without_destination(request, Posting::InBatch),
        O::BindWindow(key) if !is_datagram => {
            request.window.as_ref().ok_or(PostErrorKind::Window)?;
            return without_destination(request, Posting::Bind(key));
        }
        _ => (false, false, false),
    };
    if !is_possible {
        return Err(PostErrorKind::WrongTransport { transport: *transport });
    }
    if request.destination.is_some() != is_datagram {
        return Err(PostErrorKind::Destination);
    }
    let bytes = list_length(request.local);
    if bytes > *message_bytes {
        return Err(PostErrorKind::MessageTooLong { bytes, most: *message_bytes });
    }
    if is_atomic && bytes != ATOMIC_BYTES {
        return Err(PostErrorKind::AtomicLength { bytes });
    }
    if request.flags.contains(SendFlags::INLINE) {
        if !takes_inline {
            return Err(PostErrorKind::InlineFlag);
        }
        if bytes > u64::from(limits.inline_bytes) {
            return Err(PostErrorKind::TooMuchInline { bytes, most: limits.inline_bytes });
        }
    }
    check_entries(request.local.len(), limits.send_entries)?;
    Ok(Posting::InBatch)
}

fn without_destination(request: &SendRequest<'_>, posting: Posting) -> Result<Posting, PostErrorKind> {
    if request.destination.is_some() { Err(PostErrorKind::Destination) } else { Ok(posting) }
}

/// Drivers copy as many entries as the request says, unchecked.
pub(crate) fn check_entries(entries: usize, most: u32) -> Result<(), PostErrorKind> {
    if entries > most as usize { Err(PostErrorKind::TooManyEntries { entries, most }) } else { Ok(()) }
}

fn list_length(entries: &[ScatterGatherEntry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.length)).sum()
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::RemoteMemory;

    use super::*;

    const REMOTE: RemoteMemory = RemoteMemory { address: 1, key: 2 };

    fn bounds(transport: Transport) -> Bounds {
        let limits = QueuePairLimits {
            send_requests: 4,
            receive_requests: 4,
            send_entries: 2,
            receive_entries: 2,
            inline_bytes: 16,
        };
        Bounds { transport, limits, message_bytes: 1024 }
    }

    fn entry(length: u32) -> ScatterGatherEntry {
        ScatterGatherEntry { address: 0, length, local_key: 0 }
    }

    #[test]
    fn each_transport_has_its_operations() {
        use SendOperation as O;
        let atomic = O::CompareAndSwap { remote: REMOTE, compare: 0, swap: 0 };
        // RC, UC, UD; without a destination, UD can be recognized only by the kind of its refusal.
        let table = [
            (O::Send, [true, true, true]),
            (O::SendWithImmediate(0), [true, true, true]),
            (O::SendWithInvalidate(0), [true, false, false]),
            (O::Write(REMOTE), [true, true, false]),
            (O::WriteWithImmediate(REMOTE, 0), [true, true, false]),
            (O::Read(REMOTE), [true, false, false]),
            (atomic, [true, false, false]),
            (O::FetchAndAdd { remote: REMOTE, add: 1 }, [true, false, false]),
            (O::LocalInvalidate(0), [true, true, false]),
        ];
        let entries = [entry(8)];
        for (operation, expected) in table {
            for (transport, expected) in Transport::ALL.into_iter().zip(expected) {
                let result = check_form(&bounds(transport), &SendRequest::new(0, operation, &entries));
                let is_refused = matches!(result, Err(PostErrorKind::WrongTransport { .. }));
                assert_eq!(!is_refused, expected, "{operation:?} on {transport:?}: {result:?}");
            }
        }
    }

    #[test]
    fn binds_need_a_window_and_a_connection() {
        let request = SendRequest::new(0, SendOperation::BindWindow(5), &[]);
        let result = check_form(&bounds(Transport::ReliableConnection), &request);
        assert!(matches!(result, Err(PostErrorKind::Window)), "{result:?}");
        let result = check_form(&bounds(Transport::UnreliableDatagram), &request);
        assert!(matches!(result, Err(PostErrorKind::WrongTransport { .. })), "{result:?}");
    }

    #[test]
    fn a_datagram_needs_a_destination() {
        let result = check_form(&bounds(Transport::UnreliableDatagram), &SendRequest::new(0, SendOperation::Send, &[]));
        assert!(matches!(result, Err(PostErrorKind::Destination)), "{result:?}");
    }

    #[test]
    fn lengths_are_bounded() {
        let connected = bounds(Transport::ReliableConnection);
        let check = |operation, entries: &[ScatterGatherEntry], flags| {
            check_form(&connected, &SendRequest::new(0, operation, entries).with_flags(flags))
        };
        let none = SendFlags::empty();
        assert!(check(SendOperation::Send, &[entry(1000), entry(24)], none).is_ok());
        let result = check(SendOperation::Send, &[entry(1000), entry(25)], none);
        assert!(matches!(result, Err(PostErrorKind::MessageTooLong { bytes: 1025, most: 1024 })), "{result:?}");
        let result = check(SendOperation::Send, &[entry(u32::MAX), entry(u32::MAX)], none);
        assert!(matches!(result, Err(PostErrorKind::MessageTooLong { bytes: 0x1_ffff_fffe, .. })), "{result:?}");
        let result = check(SendOperation::Send, &[entry(1), entry(1), entry(1)], none);
        assert!(matches!(result, Err(PostErrorKind::TooManyEntries { entries: 3, most: 2 })), "{result:?}");
        assert!(check(SendOperation::Send, &[entry(16)], SendFlags::INLINE).is_ok());
        let result = check(SendOperation::Send, &[entry(17)], SendFlags::INLINE);
        assert!(matches!(result, Err(PostErrorKind::TooMuchInline { bytes: 17, most: 16 })), "{result:?}");
        let result = check(SendOperation::Read(REMOTE), &[entry(8)], SendFlags::INLINE);
        assert!(matches!(result, Err(PostErrorKind::InlineFlag)), "{result:?}");
        let result = check(SendOperation::FetchAndAdd { remote: REMOTE, add: 1 }, &[entry(7)], none);
        assert!(matches!(result, Err(PostErrorKind::AtomicLength { bytes: 7 })), "{result:?}");
    }
}
