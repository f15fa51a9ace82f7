//! What devices, ports and objects say of themselves is consistent, and what cannot be made is refused.

use std::collections::BTreeSet;

use longhaul_verbs::{
    Access, Capabilities, CreateError, GidType, LinkState, QueryError, QueuePairLimits, QueuePairOptions,
    RegisterError, Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, equal, refusal};
use super::pair::{Pair, Setup};
use super::transfer::{NOTHING, test};

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        Test::new("device/query/attributes", NOTHING, device_attributes),
        Test::new("device/query/port", NOTHING, port_attributes),
        Test::new("device/query/gid-table", NOTHING, gid_table),
        Test::new("device/query/partition-keys", NOTHING, partition_keys),
        Test::new("device/query/counters", NOTHING, counters),
        Test::new("device/create/completion-queue", NOTHING, completion_queue),
        Test::new("device/register/rights", NOTHING, registration_rights),
        Test::new("device/register/keys-and-addresses", NOTHING, registration),
        Test::new("device/register/released-on-drop", NOTHING, released_on_drop),
    ];
    for transport in Transport::ALL {
        tests.push(test(transport, "create/limits", move |context| limits(context, transport)));
        tests.push(test(transport, "create/too-large-is-refused", move |context| too_large(context, transport)));
        tests.push(test(transport, "create/destroy", move |context| destroy(context, transport)));
    }
    tests
}

fn device_attributes(context: &mut Context<'_>) -> Outcome {
    for end in [0, 1] {
        ensure(!context.device(end).name().is_empty(), || "the device has no name".into())?;
        let attributes = context.device_attributes(end)?;
        let at_least_one = [
            ("ports", u64::from(attributes.port_count)),
            ("region bytes", attributes.max_region_bytes),
            ("queue pairs", attributes.max_queue_pairs.into()),
            ("work requests", attributes.max_work_requests.into()),
            ("scatter-gather entries", attributes.max_scatter_gather_entries.into()),
            ("completion queues", attributes.max_completion_queues.into()),
            ("completion queue entries", attributes.max_completion_queue_entries.into()),
            ("memory regions", attributes.max_memory_regions.into()),
            ("protection domains", attributes.max_protection_domains.into()),
            ("message bytes", attributes.max_message_bytes),
        ];
        for (what, count) in at_least_one {
            ensure(count >= 1, || format!("expected at least one of {what}, got none"))?;
        }
        let any =
            Capabilities::RELIABLE_CONNECTION | Capabilities::UNRELIABLE_CONNECTION | Capabilities::UNRELIABLE_DATAGRAM;
        ensure(attributes.capabilities.intersects(any), || "expected a transport, got none".into())?;
        equal("attributes asked twice", attributes, context.device_attributes(end)?)?;
    }
    Ok(())
}

fn port_attributes(context: &mut Context<'_>) -> Outcome {
    for end in [0, 1] {
        let count = context.device_attributes(end)?.port_count;
        let device = context.device(end);
        let port = context.port_attributes(end)?;
        equal("state of the port", LinkState::Active, port.state)?;
        ensure(port.active_mtu <= port.max_mtu, || {
            format!("expected an active MTU up to {:?}, got {:?}", port.max_mtu, port.active_mtu)
        })?;
        let mtu = context.path_mtu();
        ensure(mtu <= port.active_mtu, || {
            format!("expected the active MTU to allow the path's {mtu:?}, got {:?}", port.active_mtu)
        })?;
        ensure(port.gid_table_length >= 1, || "the GID table has no rows".into())?;
        for wrong in [0, count + 1] {
            refusal("asking for a port that is not there", device.port_attributes(wrong))?;
        }
    }
    Ok(())
}

fn gid_table(context: &mut Context<'_>) -> Outcome {
    for end in [0, 1] {
        let device = context.device(end);
        let (port, index) = (context.port(end), u32::from(context.gid_index(end)));
        let entry = device.gid(port, index)?;
        equal("row of the GID entry", index, entry.index)?;
        ensure(entry.gid.0 != [0; 16], || "expected an address, got zeros".into())?;
        ensure(!entry.gid.is_multicast(), || format!("expected one address, got the group {:?}", entry.gid))?;
        ensure(entry.gid_type != GidType::RoceV1, || "expected a GID for RoCEv2 or InfiniBand".into())?;
        let length = context.port_attributes(end)?.gid_table_length;
        let error = refusal("asking for a row beyond the GID table", device.gid(port, length))?;
        let fits = matches!(error, QueryError::NoSuch { .. } | QueryError::System(_));
        ensure(fits, || format!("expected NoSuch, got {error}"))?;
        refusal("asking for the GID of port 0", device.gid(0, index))?;
    }
    Ok(())
}

/// With RoCE there is the default partition and no other.
fn partition_keys(context: &mut Context<'_>) -> Outcome {
    let device = context.device(0);
    let port = context.port(0);
    let length = context.port_attributes(0)?.partition_key_table_length;
    ensure(length >= 1, || "the partition key table has no rows".into())?;
    equal("partition key 0", 0xffff, device.partition_key(port, 0)?)?;
    refusal("asking for a row beyond the partition key table", device.partition_key(port, length)).map(drop)
}

fn counters(context: &mut Context<'_>) -> Outcome {
    let mut names = BTreeSet::new();
    for counter in context.device(0).counters() {
        ensure(names.insert(counter.name.clone()), || format!("the counter {} is there twice", counter.name))?;
    }
    Ok(())
}

fn completion_queue(context: &mut Context<'_>) -> Outcome {
    let most = context.device_attributes(0)?.max_completion_queue_entries;
    let device = context.device(0);
    for entries in [1, 2, 100] {
        let queue = device.create_completion_queue(entries)?;
        ensure(queue.capacity() >= entries, || {
            format!("expected room for {entries} completions, got {}", queue.capacity())
        })?;
        equal("completions in a new queue", None, queue.poll_one()?)?;
        equal("completions taken into no room", 0, queue.poll(&mut [])?)?;
    }
    if let Some(too_many) = most.checked_add(1) {
        refusal("a completion queue beyond the device's limit", device.create_completion_queue(too_many))?;
    }
    Ok(())
}

/// Peers may write only where this process's device may (IBTA 10.6.3).
fn registration_rights(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(0).allocate_protection_domain()?;
    for rights in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let error = refusal("remote rights without local write", domain.register_zeroed(100, rights))?;
        let fits = matches!(
            error,
            RegisterError::RemoteWriteWithoutLocalWrite | RegisterError::NotSupported(_) | RegisterError::System(_)
        );
        ensure(fits, || format!("expected RemoteWriteWithoutLocalWrite, got {error}"))?;
    }
    for rights in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ] {
        domain.register_zeroed(100, rights)?;
    }
    Ok(())
}

fn registration(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(0).allocate_protection_domain()?;
    let mut keys = BTreeSet::new();
    let mut regions = Vec::new();
    for length in [1, 4095, 4096, 4097, 1 << 20] {
        let region = domain.register(vec![7; length], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        equal("length", length as u64, region.raw().length())?;
        ensure(keys.insert(region.local_key()), || "two regions have the same local key".into())?;
        equal("bytes of the region", true, region.to_vec(0..length) == vec![7; length])?;
        regions.push(region);
    }
    for region in regions {
        let length = region.len();
        equal("bytes taken back", vec![7; length], region.into_buffer()?)?;
    }
    Ok(())
}

/// Far more objects than a device holds at once, one after the other.
fn released_on_drop(context: &mut Context<'_>) -> Outcome {
    for round in 0..200 {
        let device = context.device(0);
        let made = || -> Outcome {
            let domain = device.allocate_protection_domain()?;
            let region = domain.register_zeroed(64 << 10, Access::LOCAL_WRITE)?;
            let queue = device.create_completion_queue(64)?;
            drop((region, queue, domain));
            Ok(())
        };
        made().map_err(|failure| failure.context(format_args!("round {round}")))?;
    }
    Ok(())
}

/// A queue pair is given at least what was asked for.
fn limits(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let setup = Setup {
        limits: QueuePairLimits {
            send_requests: 17,
            receive_requests: 33,
            send_entries: 2,
            receive_entries: 3,
            inline_bytes: context.device_attributes(0)?.max_inline_bytes.min(31),
        },
        ..Setup::new(transport)
    };
    let most = context.device_attributes(0)?;
    let pair = Pair::unconnected(context, &setup)?;
    let queue_pair = &pair.ends[0].queue_pair;
    equal("transport", transport, queue_pair.transport())?;
    let Some(given) = queue_pair.query()?.limits else {
        return Err(Failure::new("query: expected the limits of the queue pair, got none"));
    };
    let asked = setup.limits;
    let pairs = [
        ("send requests", asked.send_requests, given.send_requests),
        ("receive requests", asked.receive_requests, given.receive_requests),
        ("send entries", asked.send_entries.min(most.max_scatter_gather_entries), given.send_entries),
        ("receive entries", asked.receive_entries.min(most.max_scatter_gather_entries), given.receive_entries),
        ("inline bytes", asked.inline_bytes, given.inline_bytes),
    ];
    for (what, asked, given) in pairs {
        ensure(given >= asked, || format!("{what}: expected at least {asked}, got {given}"))?;
    }
    Ok(())
}

fn too_large(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let most = context.device_attributes(0)?;
    let device = context.device(0);
    let domain = device.allocate_protection_domain()?;
    let queue = device.create_completion_queue(16)?;
    let good = QueuePairLimits::default();
    let bad = [
        ("send requests", QueuePairLimits { send_requests: most.max_work_requests.saturating_add(1), ..good }),
        ("receive requests", QueuePairLimits { receive_requests: most.max_work_requests.saturating_add(1), ..good }),
        ("send entries", QueuePairLimits { send_entries: most.max_scatter_gather_entries.saturating_add(1), ..good }),
        (
            "receive entries",
            QueuePairLimits { receive_entries: most.max_scatter_gather_entries.saturating_add(1), ..good },
        ),
        ("inline bytes", QueuePairLimits { inline_bytes: most.max_inline_bytes.saturating_add(1), ..good }),
    ];
    for (what, limits) in bad {
        if what == "inline bytes" && most.max_inline_bytes == 0 {
            // The device reports the number only of a queue pair that has been created.
            continue;
        }
        let options = QueuePairOptions { limits, ..Default::default() };
        let error = refusal(what, domain.create_queue_pair(transport, &queue, &queue, &options))?;
        let fits =
            matches!(error, CreateError::TooMany { .. } | CreateError::InvalidArgument { .. } | CreateError::System(_));
        ensure(fits, || format!("{what}: expected TooMany, got {error}"))?;
    }
    Ok(())
}

/// A destroyed queue pair takes no calls.
fn destroy(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let end = &pair.ends[0];
    end.queue_pair.destroy()?;
    refusal("destroying twice", end.queue_pair.destroy())?;
    refusal("posting a send to a destroyed queue pair", end.send(1, longhaul_verbs::SendOperation::Send, &[]))?;
    refusal("posting a receive to a destroyed queue pair", end.receive(1, &[]))?;
    refusal("modifying a destroyed queue pair", end.go(longhaul_verbs::QueuePairState::Error))?;
    refusal("asking a destroyed queue pair", end.queue_pair.query())?;
    context.no_completion("destroyed queue pair", &end.send_queue)
}
