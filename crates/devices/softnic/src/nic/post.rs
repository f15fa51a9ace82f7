//! Posting: from a program's request to one in the device's queues, after everything that can be checked at once.

use longhaul_verbs::{
    DatagramDestination, PostError, PostErrorKind, QueuePairState, ReceiveRequest, SendFlags, SendOperation,
    SendRequest, Transport, WriteBurst,
};
use std::any::Any;

use crate::config::Config;
use crate::device::{AddressHandle, window_bind};
use crate::memory::WindowBind;
use crate::nic::Nic;
use crate::port::Route;
use crate::queue_pair::{
    ATOMIC_BYTES, Attached, Destination, Entries, MESSAGE_BYTES_MAX, QueuePair, QueuePairKey, ReceiveWork, SendKind,
    SendWork, list_length,
};

impl Nic {
    /// Post sends, in order. `copy_inline` copies the data of requests with the flag `INLINE`.
    pub(crate) fn post_send(
        &mut self,
        key: QueuePairKey,
        requests: &[SendRequest<'_>],
        copy_inline: impl Fn(&SendRequest<'_>) -> Box<[u8]>,
    ) -> Result<(), PostError> {
        let serial = self.serial;
        let result = self.enqueue(key, requests.len(), |queue_pair, config, index| {
            prepare(queue_pair, config, serial, &requests[index], &copy_inline)
        });
        self.finish_post(key);
        result
    }

    /// Post many single-packet WRITEs with immediate.
    pub(crate) fn post_write_burst(&mut self, key: QueuePairKey, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        if !burst.is_consistent() {
            return Err(PostErrorKind::InconsistentBurst.at(0));
        }
        let serial = self.serial;
        let result = self.enqueue(key, burst.immediates.len(), |queue_pair, config, index| {
            let entry = [burst.entry(index)];
            #[cfg(feature = "mutations")]
            let entry = match config.mutation {
                Some(crate::config::Mutation::FailsBursts) if burst.immediates.len() > 1 => {
                    entry.map(|entry| longhaul_verbs::ScatterGatherEntry { local_key: !entry.local_key, ..entry })
                }
                _ => entry,
            };
            let request =
                SendRequest::new(burst.id, burst.operation(index), &entry).with_flags(burst.request_flags(index));
            prepare(queue_pair, config, serial, &request, &|_| Box::default())
        });
        self.finish_post(key);
        result
    }

    /// Post the binding of a type 1 window.
    pub(crate) fn post_window_bind(
        &mut self,
        key: QueuePairKey,
        id: u64,
        flags: SendFlags,
        bind: WindowBind,
    ) -> Result<(), PostError> {
        let result = self.enqueue(key, 1, |queue_pair, _, _| match queue_pair.identity().transport {
            Transport::UnreliableDatagram => {
                Err(PostErrorKind::WrongTransport { transport: Transport::UnreliableDatagram })
            }
            _ => {
                let kind = SendKind::BindWindow(Box::new(bind));
                Ok(SendWork::new(id, kind, flags - SendFlags::INLINE, 0, Entries::new(&[])))
            }
        });
        self.finish_post(key);
        result
    }

    fn enqueue(
        &mut self,
        key: QueuePairKey,
        count: usize,
        prepare: impl Fn(&QueuePair, &Config, usize) -> Result<SendWork, PostErrorKind>,
    ) -> Result<(), PostError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return Err(PostErrorKind::Gone.at(0));
        };
        if !queue_pair.state().takes_sends() {
            return Err(PostErrorKind::InvalidState { state: queue_pair.state() }.at(0));
        }
        for index in 0..count {
            let depth = queue_pair.identity().limits.send_requests;
            if queue_pair.send_queue().len() >= depth as usize {
                return Err(PostErrorKind::QueueFull { depth }.at(index));
            }
            let work = prepare(queue_pair, &self.shared.config, index).map_err(|kind| kind.at(index))?;
            queue_pair.post_send(work);
        }
        Ok(())
    }

    /// Let what was posted be sent, or flushed when the state says so.
    fn finish_post(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return;
        };
        match queue_pair.state() {
            QueuePairState::Error | QueuePairState::SendQueueError => queue_pair.flush_sends(&mut self.shared),
            _ => {
                self.activate(key);
                self.has_news = true;
            }
        }
    }

    /// Post receives, in order.
    pub(crate) fn post_receive(&mut self, key: QueuePairKey, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return Err(PostErrorKind::Gone.at(0));
        };
        if !queue_pair.state().takes_receives() {
            return Err(PostErrorKind::InvalidState { state: queue_pair.state() }.at(0));
        }
        if queue_pair.identity().shared_receive.is_some() {
            return Err(PostErrorKind::SharedReceives.at(0));
        }
        let limits = queue_pair.identity().limits;
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if queue_pair.receives_posted() >= limits.receive_requests as usize {
                result = Err(PostErrorKind::QueueFull { depth: limits.receive_requests }.at(index));
                break;
            }
            if request.local.len() > limits.receive_entries.into() {
                let (entries, most) = (request.local.len(), limits.receive_entries.into());
                result = Err(PostErrorKind::TooManyEntries { entries, most }.at(index));
                break;
            }
            let work = ReceiveWork { id: request.id, entries: Entries::new(request.local) };
            queue_pair.post_receive(work);
        }
        if queue_pair.state() == QueuePairState::Error {
            queue_pair.flush_receives(&mut self.shared);
        }
        result
    }
}

/// Check a request and turn it into one of ours.
fn prepare(
    queue_pair: &QueuePair,
    config: &Config,
    serial: u64,
    request: &SendRequest<'_>,
    copy_inline: &impl Fn(&SendRequest<'_>) -> Box<[u8]>,
) -> Result<SendWork, PostErrorKind> {
    let transport = queue_pair.identity().transport;
    let limits = queue_pair.identity().limits;
    let is_datagram = transport == Transport::UnreliableDatagram;
    let is_reliable = transport == Transport::ReliableConnection;
    let (kind, attached) = match request.operation {
        SendOperation::Send => (SendKind::Send, Attached::Nothing),
        SendOperation::SendWithImmediate(immediate) => (SendKind::Send, Attached::Immediate(immediate)),
        SendOperation::Write(remote) => (SendKind::Write(remote), Attached::Nothing),
        SendOperation::WriteWithImmediate(remote, immediate) => {
            (SendKind::Write(remote), Attached::Immediate(immediate))
        }
        // Windows are for peers that write and read, which datagrams do not.
        SendOperation::LocalInvalidate(key) if !is_datagram => {
            return prepare_local(request, SendKind::LocalInvalidate(key));
        }
        SendOperation::BindWindow(key) if !is_datagram => {
            let window = request.window.as_ref().ok_or(PostErrorKind::Window)?;
            let bind = window_bind(serial, window, key)?;
            return prepare_local(request, SendKind::BindWindow(Box::new(bind)));
        }
        SendOperation::SendWithInvalidate(key) if is_reliable => (SendKind::Send, Attached::Invalidate(key)),
        SendOperation::Read(remote) if is_reliable => (SendKind::Read(remote), Attached::Nothing),
        SendOperation::CompareAndSwap { remote, compare, swap } if is_reliable => {
            (SendKind::CompareAndSwap { remote, compare, swap }, Attached::Nothing)
        }
        SendOperation::FetchAndAdd { remote, add } if is_reliable => {
            (SendKind::FetchAndAdd { remote, add }, Attached::Nothing)
        }
        _ => return Err(PostErrorKind::WrongTransport { transport }),
    };
    if is_datagram && matches!(kind, SendKind::Write(_)) {
        return Err(PostErrorKind::WrongTransport { transport });
    }
    if request.destination.is_some() != is_datagram {
        return Err(PostErrorKind::Destination);
    }
    let bytes = list_length(request.local);
    let most = if is_datagram { config.mtu.byte_count().into() } else { MESSAGE_BYTES_MAX };
    if bytes > most {
        return Err(PostErrorKind::MessageTooLong { bytes, most });
    }
    let is_atomic = matches!(kind, SendKind::CompareAndSwap { .. } | SendKind::FetchAndAdd { .. });
    if is_atomic && bytes != ATOMIC_BYTES {
        return Err(PostErrorKind::AtomicLength { bytes });
    }
    let entries = if request.flags.contains(SendFlags::INLINE) {
        if is_atomic || matches!(kind, SendKind::Read(_)) {
            return Err(PostErrorKind::InlineFlag);
        }
        if bytes > u64::from(limits.inline_bytes) {
            return Err(PostErrorKind::TooMuchInline { bytes, most: limits.inline_bytes.into() });
        }
        Entries::Inline(copy_inline(request))
    } else {
        if request.local.len() > limits.send_entries.into() {
            return Err(PostErrorKind::TooManyEntries {
                entries: request.local.len(),
                most: limits.send_entries.into(),
            });
        }
        Entries::new(request.local)
    };
    let destination = match &request.destination {
        None => None,
        Some(to) => Some(Box::new(resolve_destination(queue_pair, config, serial, to)?)),
    };
    Ok(SendWork { attached, destination, ..SendWork::new(request.id, kind, request.flags, bytes as u32, entries) })
}

/// A request that concerns this device alone has no data and no destination.
fn prepare_local(request: &SendRequest<'_>, kind: SendKind) -> Result<SendWork, PostErrorKind> {
    if request.destination.is_some() {
        return Err(PostErrorKind::Destination);
    }
    Ok(SendWork::new(request.id, kind, request.flags, 0, Entries::new(&[])))
}

fn resolve_destination(
    queue_pair: &QueuePair,
    config: &Config,
    serial: u64,
    to: &DatagramDestination<'_>,
) -> Result<Destination, PostErrorKind> {
    let handle = (to.address_handle as &dyn Any).downcast_ref::<AddressHandle>();
    let path = handle
        .filter(|handle| handle.device_serial == serial)
        .ok_or(PostErrorKind::ForeignObject { what: "address handle" })?
        .path;
    // The source address was checked when the handle was made, with this very configuration.
    let route = Route::along(config, queue_pair.identity().number, &path);
    Ok(Destination { route, queue_pair: to.queue_pair.value(), queue_key: to.queue_key })
}
