//! The phases of a run, and what is checked at its end.

use longhaul_impair::Profile;
use longhaul_time::{Duration, Instant};

use super::contents::{UNTOUCHED, digest};
use super::driving::CLOSING_MAX;
use super::ends::{Carrier, End};
use super::plan::{Ground, Item, Plan};
use super::program::{FRESH_ROUNDS, Half, MessageState, Program, Receiving, Sending};
use super::violation::Rule;

/// Longer than any packet is held back.
const SILENCE: Duration = Duration::from_millis(10_500);
/// An end asks, and is answered, within this.
const REPORTS_MAX: Duration = Duration::from_secs(4);
/// Everything ends within this, plus the time that the messages take.
const HEALED_MAX: Duration = Duration::from_secs(12);

pub(super) fn run(program: &mut Program<'_>) {
    let plan = program.plan;
    // The program, with its faults.
    program.run_until(Instant::ZERO + plan.length(), |_| false);
    program.heal(healed(plan));
    end_all(program);
    for round in 0..FRESH_ROUNDS {
        program.begin_fresh(round);
        end_all(program);
        if round + 1 < FRESH_ROUNDS && program.world.link_totals().held > 0 {
            let end = program.now() + SILENCE;
            program.run_until(end, |_| false);
        }
    }
    if program.judge.violations.is_empty() {
        hear_reports(program);
        check_messages(program);
        check_ends(program);
        check_totals(program);
    }
    close(program);
}

/// Let every end hear what its peer has consumed: until somebody asks, what it takes for lost may be long out of date.
fn hear_reports(program: &mut Program<'_>) {
    for end in program.connections.iter().flat_map(|connection| connection.ends.iter().flatten()) {
        end.carrier.look(|queue_pair| queue_pair.ask_peer());
        if let Carrier::Scheme(shared) = &end.carrier {
            shared.wake_driver();
        }
    }
    let end = program.now() + REPORTS_MAX;
    program.run_until(end, |_| false);
}

fn healed(plan: &Plan) -> Profile {
    match plan.ground {
        Ground::Lossy => plan.link.clone(),
        _ => Profile::default().with_propagation_delay(plan.delay),
    }
}

/// Everything ends, now that nothing more goes wrong.
fn end_all(program: &mut Program<'_>) {
    if !program.judge.violations.is_empty() {
        return;
    }
    let plan = program.plan;
    let slowest = plan.connections.iter().map(|connection| {
        let bytes: usize = program.messages.iter().map(|message| message.bytes).sum();
        connection
            .rate_bits_per_second
            .map_or(Duration::ZERO, |rate| Duration::from_nanos(3 * bytes as u64 * 8 * 1_000_000_000 / rate))
    });
    let slowest = slowest.max().unwrap_or_default();
    let timeout = plan.connections.iter().map(|connection| connection.timeout).max().unwrap_or_default();
    let limit = HEALED_MAX + 2 * timeout + slowest + program.messages.len() as u32 * 8 * plan.round_trip();
    let end = program.now() + limit;
    program.run_until(end, |program| program.is_over() && program.is_settled());
    if !program.judge.violations.is_empty() || program.is_over() {
        return;
    }
    let is_open = |state: &MessageState| state.send.is_pending() || state.receive.is_pending();
    let open = program.states.iter().filter(|state| is_open(state)).count();
    let first = program.states.iter().position(is_open);
    let now = program.now();
    let text = format!("{open} messages are not over {limit:?} after everything was healed, the first is {first:?}");
    program.judge.accuse(Rule::Ending, now, text);
}

/// What was said of messages fits together, and what was handed back is as it was.
fn check_messages(program: &mut Program<'_>) {
    let now = program.now();
    let mut found = Vec::new();
    for (index, (plan, state)) in program.messages.iter().zip(&program.states).enumerate() {
        if program.plan.connections[plan.connection].has_liar {
            continue;
        }
        let name = format!("connection {}, message {index} of {} bytes", plan.connection, plan.bytes);
        if let (Half::Succeeded(Sending::Ticket(_)), Half::Failed(why)) = (&state.send, &state.receive) {
            found.push((Rule::Success, format!("{name}: the send succeeded, the receive failed: {why}")));
        }
        let has_again = match &state.send {
            Half::Succeeded(Sending::Ticket(ticket)) => ticket.is_over(),
            _ => false,
        } || match &state.receive {
            Half::Succeeded(Receiving::Ticket(ticket)) => ticket.is_over(),
            _ => false,
        };
        if has_again {
            found.push((Rule::Once, format!("{name}: it ended a second time")));
        }
        let connection = &program.connections[plan.connection];
        let side = 1 - plan.from;
        let Some(end) = connection.ends[side].as_ref().filter(|_| state.life == Some(connection.life)) else {
            continue;
        };
        let Some(range) = connection.places[side].ranges[index].clone() else { continue };
        let Ok(bytes) = end.memory.read(range) else {
            found.push((Rule::Memory, format!("{name}: its memory is still in use")));
            continue;
        };
        if state.digest.is_some_and(|before| before != digest(&bytes)) {
            found.push((Rule::Memory, format!("{name}: its memory has changed since it was handed back")));
        }
        let is_received = matches!(state.receive, Half::Succeeded(Receiving::Ticket(_)));
        if is_received && bytes[plan.bytes.min(bytes.len())..].iter().any(|byte| *byte != UNTOUCHED) {
            found.push((Rule::Memory, format!("{name}: something was written behind it")));
        }
    }
    found.into_iter().for_each(|(rule, text)| program.judge.accuse(rule, now, text));
}

/// What ends have counted.
fn check_ends(program: &mut Program<'_>) {
    let now = program.now();
    let mut found = Vec::new();
    let round_trip = program.plan.round_trip();
    // What was held up may come after the last report that its sender got.
    let lost = program.world.link_totals().lost + program.world.link_totals().held;
    let has_forgeries = program.plan.items.iter().any(|item| matches!(item, Item::Forgery(_)));
    for (index, connection) in program.connections.iter().enumerate() {
        let plan = &program.plan.connections[index];
        if plan.has_liar {
            continue;
        }
        for (side, end) in connection.ends.iter().enumerate() {
            let Some(End { carrier, memory, posted, .. }) = end else { continue };
            let name = format!("connection {index}, end {side}");
            for gap in connection.places[side].gaps() {
                let is_untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == UNTOUCHED);
                if !memory.read(gap.clone()).is_ok_and(|bytes| is_untouched(&bytes)) {
                    found.push((Rule::Memory, format!("{name}: something was written to {gap:?}, between messages")));
                }
            }
            if let Some(over) = carrier.over_count().filter(|over| over != posted) {
                found.push((Rule::Once, format!("{name}: {over} of {posted} messages that were posted have ended")));
            }
            let seen = carrier.look(|queue_pair| (queue_pair.round_trip_time(), queue_pair.counters().0));
            let Some((measured, sent)) = seen else { continue };
            if measured.least.is_some_and(|least| least + round_trip / 100 < round_trip) {
                found.push((Rule::RoundTrip, format!("{name}: {measured:?}, the path has {round_trip:?}")));
            }
            let most = 2 * round_trip + Duration::from_millis(1);
            if program.plan.ground != Ground::Storm && measured.smoothed.is_some_and(|smoothed| smoothed > most) {
                found.push((Rule::RoundTrip, format!("{name}: {measured:?}, the path has {round_trip:?}")));
            }
            // What the peer's device refuses, because its message has ended and another has the slot, consumes no
            // receive either.
            let refused = refused_by(program, plan.nodes[1 - side]);
            if sent.presumed_lost > lost + refused && !has_forgeries && !program.plan.has_crash() {
                let text = format!(
                    "{name}: {} packets are taken for lost, {lost} were lost or late, and {refused} were refused",
                    sent.presumed_lost
                );
                found.push((Rule::Window, text));
            }
        }
    }
    found.into_iter().for_each(|(rule, text)| program.judge.accuse(rule, now, text));
}

/// What a device has refused, or had no receive for because its program stood still.
fn refused_by(program: &Program<'_>, node: usize) -> u64 {
    let counters = program.world.device(node).counters();
    let of = |name: &str| counters.iter().find(|counter| counter.name == name).map(|counter| counter.value);
    ["resp_remote_access_errors", "out_of_buffer"].map(|name| of(name).expect("softnic counts it")).iter().sum()
}

/// What the whole program took.
fn check_totals(program: &mut Program<'_>) {
    let now = program.now();
    let (sent, repeated) = (program.judge.sent_packets, program.judge.repeated_packets);
    let duplicates = program.judge.duplicate_packets;
    let is_attacked = program.forged > 0;
    if program.plan.ground == Ground::Clean && !is_attacked && duplicates * 1000 > sent {
        let text = format!("{duplicates} of {sent} packets arrived twice, and nothing was lost or late");
        program.judge.accuse(Rule::Repeats, now, text);
    }
    let is_repeating = |names: &[&str; 2]| names[0] == "sr:nack";
    let only_repeats = program.plan.connections.iter().all(|plan| plan.schemes.as_ref().is_some_and(is_repeating));
    let lost = program.world.link_totals().lost;
    if program.plan.ground == Ground::Lossy && only_repeats && 2 * repeated > 3 * lost + 16 {
        let text = format!("{repeated} packets of {sent} were repeated, {lost} were lost");
        program.judge.accuse(Rule::Repeats, now, text);
    }
    for (index, plan) in program.plan.connections.iter().enumerate() {
        let Some(rate) = plan.rate_bits_per_second else { continue };
        let own = || program.messages.iter().zip(&program.states).filter(|(message, _)| message.connection == index);
        let bytes: usize =
            own().filter(|(_, state)| state.ended_at[1].is_some()).map(|(message, _)| message.bytes).sum();
        let begun = own().filter_map(|(_, state)| state.posted_at[0]).min();
        let ended = own()
            .filter(|(message, _)| message.send_at != Duration::MAX)
            .filter_map(|(_, state)| state.ended_at[1])
            .max();
        if let (Some(begun), Some(ended)) = (begun, ended) {
            let took = (ended - begun).as_secs_f64();
            let allowed = rate as f64 * took * 1.2 + 8.0 * 64.0 * 256.0;
            if bytes as f64 * 8.0 > allowed {
                let text = format!("connection {index}: {bytes} bytes in {took:.4} s, at {rate} bits a second at most");
                program.judge.accuse(Rule::Rate, now, text);
            }
        }
    }
}

/// Close everything: what was still waited for ends with its connection, and every connection ends soon.
fn close(program: &mut Program<'_>) {
    if program.judge.violations.is_empty() {
        let ends = program.connections.iter_mut().flat_map(|connection| connection.ends.iter_mut().flatten());
        ends.for_each(End::close);
        let is_closed = |program: &Program<'_>| {
            let mut ends = program.connections.iter().flat_map(|connection| connection.ends.iter().flatten());
            ends.all(|end| end.carrier.is_closed())
        };
        let end = program.now() + CLOSING_MAX;
        program.run_until(end, is_closed);
        if program.judge.violations.is_empty() && !is_closed(program) {
            let text = format!("not all connections have ended {CLOSING_MAX:?} after they were closed");
            program.judge.accuse(Rule::Ending, program.now(), text);
        }
    }
    program.hosts.iter_mut().for_each(|host| host.driver.kill());
    let now = program.now();
    for index in 0..program.connections.len() {
        for side in 0..2 {
            let connection = &mut program.connections[index];
            let life = connection.life;
            if connection.ends[side].take().is_none() {
                continue;
            }
            let own = |message: &super::plan::MessagePlan, state: &MessageState| {
                message.connection == index && state.life == Some(life)
            };
            let all = program.messages.iter().zip(&program.states).filter(|(message, state)| own(message, state));
            let is_open = |message: &super::plan::MessagePlan, state: &MessageState| match message.from == side {
                true => matches!(&state.send, Half::Pending(Sending::Ticket(ticket)) if !ticket.is_over()),
                false => matches!(&state.receive, Half::Pending(Receiving::Ticket(ticket)) if !ticket.is_over()),
            };
            let open = all.filter(|(message, state)| is_open(message, state)).count();
            if open > 0 {
                let text = format!("connection {index}, end {side}: it is closed, and {open} messages are not over");
                program.judge.accuse(Rule::Ending, now, text);
            }
        }
    }
}
