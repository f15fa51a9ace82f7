//! What a device says that it can do is true in both directions: what it claims works, what it does not claim is
//! refused with an ordinary answer.

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, CreateError, NotSupported, PostError, PostErrorKind,
    QueuePairAttributes, QueuePairState, RegisterError, SendOperation, SharedReceiveQueueAttributes, Transport,
    WindowType,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::{End, Pair, Setup, create};
use super::transfer::{CONNECTED, NOTHING, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("capability/transports", NOTHING, transports),
        test(Transport::ReliableConnection, "capability/read", read),
        test(Transport::ReliableConnection, "capability/atomics", atomics),
        test(Transport::ReliableConnection, "capability/invalidate", invalidate),
        Test::new("capability/shared-receive-queue", NOTHING, shared_receive_queue),
        Test::new("capability/memory-windows", NOTHING, memory_windows),
        Test::new("capability/null-region", NOTHING, null_region),
        Test::new("capability/slotted-region", NOTHING, slotted_region),
        Test::new("capability/completion-channel", NOTHING, completion_channel),
        Test::new("capability/resize-completion-queue", NOTHING, resize),
        Test::new("capability/completion-moderation", NOTHING, moderation),
        test(Transport::ReliableConnection, "capability/zero-based-region", zero_based),
        test(Transport::ReliableConnection, "capability/rate-limit", rate_limit),
        Test::new("capability/event-descriptors", Capabilities::EVENT_DESCRIPTORS, event_descriptors),
    ];
    for transport in [Transport::UnreliableConnection, Transport::UnreliableDatagram] {
        tests.push(test(transport, "read/refused", move |context| refused_on(context, transport, SendOperation::Read)));
        tests.push(test(transport, "atomics/refused", move |context| {
            refused_on(context, transport, |remote| SendOperation::FetchAndAdd { remote, add: 1 })
        }));
    }
    for transport in CONNECTED {
        tests.push(test(transport, "multicast/refused", move |context| {
            let pair = Pair::of(context, transport)?;
            let group = longhaul_verbs::Gid::from(std::net::Ipv4Addr::new(233, 252, 0, 1));
            refusal("joining a group", pair.ends[0].queue_pair.attach_multicast(group)).map(drop)
        }));
    }
    tests
}

/// Fails unless a creation fits what the device claims.
fn fits<T>(claimed: bool, what: &str, missing: Capabilities, made: Result<T, CreateError>) -> Outcome {
    match (claimed, made) {
        (true, Ok(_)) => Ok(()),
        (true, Err(error)) => Err(Failure::from(error).context(format_args!("{what} is claimed"))),
        (false, Ok(_)) => Err(Failure::new(format!("{what}: expected NotSupported, got success"))),
        (false, Err(CreateError::NotSupported(NotSupported { capability }))) => {
            ensure(capability.intersects(missing), || {
                format!("{what}: expected the missing capability to be {missing:?}, got {capability:?}")
            })
        }
        (false, Err(error)) => Err(Failure::new(format!("{what}: expected NotSupported, got {error}"))),
    }
}

fn transports(context: &mut Context<'_>) -> Outcome {
    let capabilities = context.device_attributes(0)?.capabilities;
    for transport in Transport::ALL {
        let device = context.device(0);
        let domain = device.allocate_protection_domain()?;
        let queue = device.create_completion_queue(16)?;
        let made = domain.create_queue_pair(transport, &queue, &queue, &Default::default());
        let claimed = capabilities.contains(transport.capability());
        fits(claimed, transport.abbreviation(), transport.capability(), made)?;
    }
    Ok(())
}

/// A request that is not supported is refused when posted, and the queue pair stays as it was.
fn not_supported(posted: Result<(), PostError>, missing: Capabilities, end: &End) -> Outcome {
    let error = refusal("an operation that the device does not claim", posted)?;
    match error.kind {
        PostErrorKind::NotSupported(NotSupported { capability }) => ensure(capability.intersects(missing), || {
            format!("expected the missing capability to be {missing:?}, got {capability:?}")
        })?,
        PostErrorKind::WrongTransport { .. } | PostErrorKind::System(_) => {}
        _ => return Err(Failure::new(format!("expected NotSupported, got {error}"))),
    }
    end.is_in(QueuePairState::ReadyToSend)
}

fn pair_for_reads(context: &mut Context<'_>) -> Outcome<Pair> {
    let capabilities = context.capabilities()?;
    let mut setup = Setup::new(Transport::ReliableConnection);
    if capabilities.contains(Capabilities::READ) {
        setup.access |= Access::REMOTE_READ;
    }
    if capabilities.contains(Capabilities::ATOMICS) {
        setup.access |= Access::REMOTE_ATOMIC;
    }
    Pair::new(context, &setup)
}

fn read(context: &mut Context<'_>) -> Outcome {
    let pair = pair_for_reads(context)?;
    let [reader, owner] = &pair.ends;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let mut remote = Memory::new(&owner.domain, 5000, rights)?;
    remote.fill(0, &pattern(2, 5000));
    let mut local = Memory::target(&reader.domain, 5000)?;
    let entry = [local.whole()];
    let request = reader.request(1, SendOperation::Read(remote.remote(0)), &entry);
    let posted = reader.queue_pair.post_send(&[request]);
    if !context.capabilities()?.contains(Capabilities::READ) {
        return not_supported(posted, Capabilities::READ, reader);
    }
    posted?;
    let done = context.completion("reader", &reader.send_queue)?;
    status("reader", &done, 1, CompletionStatus::Success)?;
    equal("operation", CompletionOperation::Read, done.operation)?;
    local.expect(0, &remote.bytes(0..5000));
    local.verify("memory read into")
}

fn atomics(context: &mut Context<'_>) -> Outcome {
    let pair = pair_for_reads(context)?;
    let [requester, owner] = &pair.ends;
    let has = context.capabilities()?.contains(Capabilities::ATOMICS);
    let rights = match has {
        true => Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
        false => Access::LOCAL_WRITE,
    };
    let region = owner.domain.register(vec![0; 64], rights)?;
    let remote = region.remote(region.address().wrapping_neg() % 8);
    let local = Memory::target(&requester.domain, 8)?;
    let entry = [local.whole()];
    let operations =
        [SendOperation::FetchAndAdd { remote, add: 5 }, SendOperation::CompareAndSwap { remote, compare: 5, swap: 9 }];
    for (id, operation) in (0..).zip(operations) {
        let request = requester.request(id, operation, &entry);
        let posted = requester.queue_pair.post_send(&[request]);
        if !has {
            not_supported(posted, Capabilities::ATOMICS, requester)?;
            continue;
        }
        posted?;
        let done = context.completion("requester", &requester.send_queue)?;
        status("requester", &done, id, CompletionStatus::Success)?;
    }
    Ok(())
}

fn invalidate(context: &mut Context<'_>) -> Outcome {
    if context.capabilities()?.contains(Capabilities::INVALIDATE) {
        return Ok(());
    }
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    receiver.receive(1, &[])?;
    let memory = Memory::target(&sender.domain, 8)?;
    let local = SendOperation::LocalInvalidate(memory.remote_key());
    for operation in [SendOperation::SendWithInvalidate(1), local] {
        let posted = sender.queue_pair.post_send(&[sender.request(1, operation, &[])]);
        not_supported(posted, Capabilities::INVALIDATE, sender)?;
    }
    context.no_completion("receiver", &receiver.receive_queue)
}

fn refused_on(
    context: &mut Context<'_>,
    transport: Transport,
    operation: fn(longhaul_verbs::RemoteMemory) -> SendOperation,
) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let [requester, owner] = &pair.ends;
    let remote = Memory::target(&owner.domain, 64)?;
    let local = Memory::target(&requester.domain, 8)?;
    let entry = [local.whole()];
    let request = requester.request(1, operation(remote.remote(0)), &entry);
    let any = Capabilities::READ | Capabilities::ATOMICS;
    not_supported(requester.queue_pair.post_send(&[request]), any, requester)?;
    context.unchanged("remote memory", &remote)?;
    local.verify("local memory")
}

fn shared_receive_queue(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities.contains(Capabilities::SHARED_RECEIVE_QUEUE);
    let domain = context.device(0).allocate_protection_domain()?;
    let made = domain.create_shared_receive_queue(SharedReceiveQueueAttributes { requests: 8, entries: 1, limit: 0 });
    fits(claimed, "a shared receive queue", Capabilities::SHARED_RECEIVE_QUEUE, made)
}

fn memory_windows(context: &mut Context<'_>) -> Outcome {
    let capabilities = context.device_attributes(0)?.capabilities;
    let domain = context.device(0).allocate_protection_domain()?;
    let type_1 = Capabilities::WINDOW_TYPE_1;
    let made = domain.allocate_memory_window(WindowType::Type1);
    fits(capabilities.intersects(type_1), "a type 1 window", type_1, made)?;
    let type_2 = Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B;
    let made = domain.allocate_memory_window(WindowType::Type2);
    fits(capabilities.intersects(type_2), "a type 2 window", type_2, made)
}

/// Fails unless a registration fits what the device claims.
fn fits_registration<T>(claimed: bool, what: &str, missing: Capabilities, made: Result<T, RegisterError>) -> Outcome {
    match (claimed, made) {
        (true, Ok(_)) => Ok(()),
        (true, Err(error)) => Err(Failure::from(error).context(format_args!("{what} is claimed"))),
        (false, Err(RegisterError::NotSupported(NotSupported { capability }))) => {
            ensure(capability.intersects(missing), || {
                format!("{what}: expected the missing capability to be {missing:?}, got {capability:?}")
            })
        }
        (false, Ok(_)) => Err(Failure::new(format!("{what}: expected NotSupported, got success"))),
        (false, Err(error)) => Err(Failure::new(format!("{what}: expected NotSupported, got {error}"))),
    }
}

fn null_region(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities.contains(Capabilities::NULL_REGION);
    let domain = context.device(0).allocate_protection_domain()?;
    fits_registration(claimed, "null region", Capabilities::NULL_REGION, domain.allocate_null_region())
}

fn slotted_region(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities.contains(Capabilities::SLOTTED_REGION);
    let domain = context.device(0).allocate_protection_domain()?;
    let made = domain.allocate_slotted_region(4, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    fits_registration(claimed, "slotted region", Capabilities::SLOTTED_REGION, made)
}

fn completion_channel(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities.contains(Capabilities::COMPLETION_CHANNEL);
    let made = context.device(0).create_completion_channel();
    fits(claimed, "a completion channel", Capabilities::COMPLETION_CHANNEL, made)
}

/// A resized completion queue keeps what is in it.
fn resize(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities;
    let transport = Transport::ALL.into_iter().find(|transport| claimed.contains(transport.capability()));
    let Some(transport) = transport else {
        return Err(Failure::not_applicable("a transport"));
    };
    let setup = Setup::new(transport);
    let queue = context.device(0).create_completion_queue(16)?;
    let domain = context.device(0).allocate_protection_domain()?;
    let queue_pair = create(&domain, &queue, &queue, &setup)?;
    let pair = Pair::unconnected(context, &setup)?;
    // ERR flushes receives: completions without a peer.
    queue_pair.modify(&pair.attributes(0, QueuePairState::Initialized))?;
    for id in 0..10 {
        queue_pair.post_receive(&[longhaul_verbs::ReceiveRequest { id, local: &[] }])?;
    }
    queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error))?;
    let has = claimed.contains(Capabilities::RESIZE_COMPLETION_QUEUE);
    fits(has, "resizing", Capabilities::RESIZE_COMPLETION_QUEUE, queue.resize(200))?;
    if has {
        ensure(queue.capacity() >= 200, || format!("expected room for 200, got {}", queue.capacity()))?;
    }
    for (id, flushed) in (0..).zip(context.completions("resized queue", &queue, 10)?) {
        status("resized queue", &flushed, id, CompletionStatus::FlushedError)?;
    }
    Ok(())
}

/// In a zero-based region everything, local entries and the peer's addresses, counts from 0.
fn zero_based(context: &mut Context<'_>) -> Outcome {
    let claimed = context.capabilities()?.contains(Capabilities::ZERO_BASED);
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let [sender, receiver] = &pair.ends;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
    let (source, target) = match (claimed, sender.domain.register(pattern(7, 100), rights)) {
        (true, Ok(source)) => (source, receiver.domain.register_zeroed(100, rights)?),
        (true, Err(error)) => return Err(error.into()),
        (false, Ok(_)) => return Err(Failure::new("zero-based region: expected NotSupported, got success")),
        (false, Err(_)) => return Ok(()),
    };
    equal("first address of a zero-based region", 0, source.address())?;
    let remote = longhaul_verbs::RemoteMemory { address: 10, key: target.remote_key() };
    let local = longhaul_verbs::ScatterGatherEntry { address: 20, length: 30, local_key: source.local_key() };
    sender.send(1, SendOperation::Write(remote), &[local])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    equal("bytes before the target", vec![0; 10], target.to_vec(0..10))?;
    equal("bytes written", source.to_vec(20..50), target.to_vec(10..40))?;
    equal("bytes behind the target", vec![0; 60], target.to_vec(40..100))
}

fn moderation(context: &mut Context<'_>) -> Outcome {
    let claimed = context.device_attributes(0)?.capabilities.contains(Capabilities::COMPLETION_MODERATION);
    let queue = context.device(0).create_completion_queue(16)?;
    match (claimed, queue.raw().moderate(4, 10)) {
        (true, Ok(())) | (false, Err(longhaul_verbs::ModifyError::NotSupported(_))) => Ok(()),
        (true, Err(error)) => Err(error.into()),
        (false, Ok(())) => Err(Failure::new("moderation: expected NotSupported, got success")),
        (false, Err(error)) => Err(Failure::new(format!("moderation: expected NotSupported, got {error}"))),
    }
}

fn rate_limit(context: &mut Context<'_>) -> Outcome {
    let claimed = context.capabilities()?.contains(Capabilities::RATE_LIMIT);
    let pair = Pair::of(context, Transport::ReliableConnection)?;
    let modified = pair.ends[0].queue_pair.modify(&QueuePairAttributes {
        rate_limit_kilobits_per_second: Some(1_000_000),
        ..QueuePairAttributes::to_state(QueuePairState::ReadyToSend)
    });
    match (claimed, modified) {
        (true, Ok(())) | (false, Err(_)) => pair.ends[0].is_in(QueuePairState::ReadyToSend),
        (true, Err(error)) => Err(error.into()),
        (false, Ok(())) => Err(Failure::new("rate limit: expected NotSupported, got success")),
    }
}

fn event_descriptors(context: &mut Context<'_>) -> Outcome {
    for end in [0, 1] {
        let device = context.device(end);
        ensure(device.event_descriptor().is_some(), || {
            "expected a descriptor for asynchronous events, got none".into()
        })?;
        if device.attributes()?.capabilities.contains(Capabilities::COMPLETION_CHANNEL) {
            let channel = device.create_completion_channel()?;
            ensure(channel.descriptor().is_some(), || "expected a descriptor for completion events, got none".into())?;
        }
    }
    Ok(())
}
