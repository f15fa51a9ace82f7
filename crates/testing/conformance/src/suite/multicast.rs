//! Datagrams to groups. (With RoCEv2 a group is an IP multicast address; IBTA 10.5.)

use longhaul_verbs::{
    AddressHandle, Capabilities, Gid, MulticastError, PathAttributes, QueuePairNumber, SendOperation, SendRequest,
    Transport,
};

use super::Test;
use super::context::Context;
use super::failure::{Outcome, ensure, equal, refusal};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, GRH_BYTES, Pair};

const UD: Transport = Transport::UnreliableDatagram;

pub(super) fn tests() -> Vec<Test> {
    let test = |name: &str, function: fn(&mut Context<'_>) -> Outcome| {
        let needs = Capabilities::UNRELIABLE_DATAGRAM | Capabilities::MULTICAST;
        Test::new(format!("ud/multicast/{name}"), needs, function)
    };
    vec![
        test("members-receive", members_receive),
        test("both-ways", both_ways),
        test("members-on-the-senders-device", members_on_the_senders_device),
        test("non-members-do-not", non_members_do_not),
        test("detached-does-not", detached_does_not),
        test("wrong-queue-key-is-dropped", wrong_queue_key),
        test("member-of-two-groups", two_groups),
        test("attached-twice-receives-once", attached_twice),
        test("refusals", refusals),
    ]
}

/// A group of the address family that the ends use. From the range for documentation (RFC 6676).
fn group(context: &Context<'_>, number: u8) -> Outcome<Gid> {
    Ok(match context.gid(0)?.to_ip() {
        std::net::IpAddr::V4(_) => Gid::from(std::net::Ipv4Addr::new(233, 252, 0, number)),
        std::net::IpAddr::V6(_) => Gid::from(std::net::Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0xdb8, number.into())),
    })
}

fn path_to(context: &Context<'_>, end: usize, sender: &End, group: Gid) -> Outcome<AddressHandle> {
    Ok(sender.domain.create_address_handle(&PathAttributes {
        port: context.port(end),
        source_gid_index: context.gid_index(end),
        ..PathAttributes::to(group)
    })?)
}

/// Sends `message` from one end of the pair to a group.
fn send_to(context: &mut Context<'_>, pair: &Pair, end: usize, group: Gid, queue_key: u32, message: &[u8]) -> Outcome {
    let sender = &pair.ends[end];
    let source = Memory::source(&sender.domain, message)?;
    let handle = path_to(context, end, sender, group)?;
    let local = [source.whole()];
    let destination = handle.destination(QueuePairNumber::MULTICAST, queue_key);
    let request = SendRequest::new(5, SendOperation::SendWithImmediate(9), &local).to(destination);
    sender.queue_pair.post_send(&[request])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    Form::SendWithImmediate.check_sent(&sent, sender, 5)
}

/// Waits for `message` at a member.
fn arrives(context: &mut Context<'_>, sender: &End, receiver: &End, target: &mut Memory, message: &[u8]) -> Outcome {
    let received = context.completion("member of the group", &receiver.receive_queue)?;
    equal(
        "flag GLOBAL_ROUTE_HEADER",
        true,
        received.flags.contains(longhaul_verbs::CompletionFlags::GLOBAL_ROUTE_HEADER),
    )?;
    Form::SendWithImmediate.check_received(&received, (sender, receiver), 6, message.len(), 9)?;
    target.accept(0..GRH_BYTES);
    target.expect(GRH_BYTES, message);
    target.verify("target memory")
}

fn ready(receiver: &End) -> Outcome<Memory> {
    let target = Memory::target(&receiver.domain, GRH_BYTES + 300)?;
    receiver.receive(6, &[target.whole()])?;
    Ok(target)
}

/// Each of several members on one device gets its own copy.
fn members_receive(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 1)?;
    let pair = Pair::of(context, UD)?;
    let others = [Pair::of(context, UD)?, Pair::of(context, UD)?];
    let members = [&pair.ends[1], &others[0].ends[1], &others[1].ends[1]];
    for member in members {
        member.queue_pair.attach_multicast(group)?;
    }
    for round in 0..3 {
        let message = pattern(round, 100 * round as usize);
        let mut targets = Vec::new();
        for member in members {
            targets.push(ready(member)?);
        }
        send_to(context, &pair, 0, group, pair.setup.queue_key, &message)?;
        for (member, target) in members.into_iter().zip(&mut targets) {
            arrives(context, &pair.ends[0], member, target, &message)?;
        }
    }
    Ok(())
}

/// Members at both ends, senders at both ends.
fn both_ways(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 2)?;
    let (senders, members) = (Pair::of(context, UD)?, Pair::of(context, UD)?);
    for member in &members.ends {
        member.queue_pair.attach_multicast(group)?;
    }
    for end in [0, 1] {
        let member = &members.ends[1 - end];
        let mut target = ready(member)?;
        send_to(context, &senders, end, group, senders.setup.queue_key, b"both ways")?;
        arrives(context, &senders.ends[end], member, &mut target, b"both ways")?;
    }
    Ok(())
}

/// A group's members on the sender's own device are members like any other, the sending queue pair included (what
/// libibverbs' `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB` turns off).
fn members_on_the_senders_device(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 10)?;
    let (sender, other) = (Pair::of(context, UD)?, Pair::of(context, UD)?);
    let (own, local) = (&sender.ends[0], &other.ends[0]);
    let mut targets = Vec::new();
    for member in [own, local] {
        member.queue_pair.attach_multicast(group)?;
        targets.push(ready(member)?);
    }
    send_to(context, &sender, 0, group, sender.setup.queue_key, b"home")?;
    for (member, target) in [own, local].into_iter().zip(&mut targets) {
        let arrived = arrives(context, own, member, target, b"home");
        context.tolerate(arrived)?;
    }
    Ok(())
}

fn non_members_do_not(context: &mut Context<'_>) -> Outcome {
    let (joined, other) = (group(context, 3)?, group(context, 4)?);
    let pair = Pair::of(context, UD)?;
    let outsider = Pair::of(context, UD)?;
    pair.ends[1].queue_pair.attach_multicast(joined)?;
    let mut target = ready(&pair.ends[1])?;
    let outside = ready(&outsider.ends[1])?;
    send_to(context, &pair, 0, other, pair.setup.queue_key, b"to nobody")?;
    context.no_completion("member of another group", &pair.ends[1].receive_queue)?;
    target.verify("target memory")?;
    send_to(context, &pair, 0, joined, pair.setup.queue_key, b"to members")?;
    arrives(context, &pair.ends[0], &pair.ends[1], &mut target, b"to members")?;
    context.no_completion("queue pair that is no member", &outsider.ends[1].receive_queue)?;
    outside.verify("target memory")
}

fn detached_does_not(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 5)?;
    let pair = Pair::of(context, UD)?;
    let member = &pair.ends[1];
    member.queue_pair.attach_multicast(group)?;
    let mut target = ready(member)?;
    send_to(context, &pair, 0, group, pair.setup.queue_key, b"before")?;
    arrives(context, &pair.ends[0], member, &mut target, b"before")?;
    member.queue_pair.detach_multicast(group)?;
    let mut target = ready(member)?;
    send_to(context, &pair, 0, group, pair.setup.queue_key, b"after")?;
    context.no_completion("queue pair that has left the group", &member.receive_queue)?;
    target.verify("target memory")?;
    member.queue_pair.attach_multicast(group)?;
    send_to(context, &pair, 0, group, pair.setup.queue_key, b"again")?;
    arrives(context, &pair.ends[0], member, &mut target, b"again")
}

fn wrong_queue_key(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 6)?;
    let pair = Pair::of(context, UD)?;
    let member = &pair.ends[1];
    member.queue_pair.attach_multicast(group)?;
    let target = ready(member)?;
    send_to(context, &pair, 0, group, pair.setup.queue_key ^ 1, b"wrong")?;
    context.no_completion("member with another queue key", &member.receive_queue)?;
    target.verify("target memory")
}

/// A queue pair may be in several groups, and gets one copy of what is sent to each.
fn two_groups(context: &mut Context<'_>) -> Outcome {
    let groups = [group(context, 7)?, group(context, 8)?];
    let pair = Pair::of(context, UD)?;
    let member = &pair.ends[1];
    for group in groups {
        member.queue_pair.attach_multicast(group)?;
    }
    for group in groups {
        let mut target = ready(member)?;
        send_to(context, &pair, 0, group, pair.setup.queue_key, b"one copy")?;
        arrives(context, &pair.ends[0], member, &mut target, b"one copy")?;
        let spare = ready(member)?;
        context.no_completion("member, for the second time", &member.receive_queue)?;
        spare.verify("target memory")?;
        // The spare receive is used up, so that the next round begins with none.
        send_to(context, &pair, 0, group, pair.setup.queue_key, b"")?;
        context.completion("member", &member.receive_queue)?;
    }
    Ok(())
}

/// Attaching twice is attaching once (`ibv_attach_mcast`).
fn attached_twice(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 11)?;
    let pair = Pair::of(context, UD)?;
    let member = &pair.ends[1];
    for _ in 0..2 {
        member.queue_pair.attach_multicast(group)?;
    }
    let mut target = ready(member)?;
    let spare = ready(member)?;
    send_to(context, &pair, 0, group, pair.setup.queue_key, b"once")?;
    arrives(context, &pair.ends[0], member, &mut target, b"once")?;
    context.no_completion("member, for the second time", &member.receive_queue)?;
    spare.verify("target memory")
}

fn refusals(context: &mut Context<'_>) -> Outcome {
    let group = group(context, 9)?;
    let pair = Pair::of(context, UD)?;
    let member = &pair.ends[1].queue_pair;
    let error = refusal("attaching to an ordinary address", member.attach_multicast(context.gid(0)?))?;
    let fits = matches!(error, MulticastError::NotAGroup | MulticastError::System(_));
    ensure(fits, || format!("ordinary address: expected NotAGroup, got {error}"))?;
    let error = refusal("leaving a group never joined", member.detach_multicast(group))?;
    let fits = matches!(error, MulticastError::NotAttached | MulticastError::System(_));
    ensure(fits, || format!("leaving: expected NotAttached, got {error}"))?;
    member.attach_multicast(group)?;
    member.detach_multicast(group)?;
    refusal("leaving a group twice", member.detach_multicast(group))?;
    if context.capabilities()?.contains(Capabilities::RELIABLE_CONNECTION) {
        let connected = Pair::of(context, Transport::ReliableConnection)?;
        let error = refusal("joining with RC", connected.ends[1].queue_pair.attach_multicast(group))?;
        let fits = matches!(error, MulticastError::WrongTransport | MulticastError::System(_));
        ensure(fits, || format!("RC: expected WrongTransport, got {error}"))?;
    }
    Ok(())
}
