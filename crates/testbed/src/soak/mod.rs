//! The soak: random programs of verbs operations over bad links, watched by the [checkers](crate::checker).
//!
//! A seed decides everything: the network, the queue pairs, every request and every pause. Each run has two phases, as
//! in TigerBeetle's simulator: first faults, and nothing wrong may be seen; then the links are healed, and everything
//! must get done. The same seed gives the same run on every machine, so a failing seed is all that a report needs.

mod actions;
mod campaign;
mod dice;
mod memory;
mod plan;
mod program;

use std::path::PathBuf;

use longhaul_softnic::Config;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{QueuePairState, Transport};

use crate::checker::{EndNumber, Ending, Kind, MessageNumber, NetworkFacts, Rule, Violations};
use crate::world::{World, WorldConfig};

pub use campaign::{Campaign, Summary};
pub use program::Tally;

use actions::Draft;
use plan::Plan;
use program::Program;

/// Steps of a run unless told.
pub const OPERATIONS_DEFAULT: u32 = 600;

/// What a run may be told besides its seed.
#[derive(Clone)]
pub struct SoakOptions {
    /// Steps of the random program.
    pub operations: u32,
    /// Where to write the packets, as pcapng.
    pub capture: Option<PathBuf>,
    /// Changes the devices' configuration after the seed has chosen it; tests put mistakes into the device here.
    pub configure: fn(&mut Config),
}

impl Default for SoakOptions {
    fn default() -> Self {
        SoakOptions { operations: OPERATIONS_DEFAULT, capture: None, configure: |_| {} }
    }
}

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Messages posted.
    pub messages: u64,
    /// Packets carried by the network.
    pub packets: u64,
    /// Of all that the network did.
    pub trace_hash: u64,
    /// How requests ended.
    pub tally: Tally,
    /// What was wrong.
    pub violations: Violations,
}

/// Runs one seed. Fails only if the capture cannot be written.
pub fn run_seed(seed: u64, options: &SoakOptions) -> std::io::Result<SeedReport> {
    let plan = Plan::draw(seed);
    let mut config = WorldConfig { seed, nodes: plan.node_count, link: plan.link.clone(), ..WorldConfig::default() };
    plan.configure(&mut config.nic);
    (options.configure)(&mut config.nic);
    let mut world = World::new(config);
    if let Some(path) = &options.capture {
        world.capture_to(path)?;
    }
    let mut program = Program::new(plan, seed, &world);
    run_with_faults(&mut program, &mut world, options.operations);
    run_healed(&mut program, &mut world);
    if options.capture.is_some() {
        world.finish_capture()?;
    }
    Ok(SeedReport {
        seed,
        messages: program.messages.len() as u64,
        packets: world.packet_count(),
        trace_hash: world.trace_hash(),
        tally: program.tally,
        violations: program.judge.violations().clone(),
    })
}

/// Phase one: safety.
fn run_with_faults(program: &mut Program, world: &mut World, operations: u32) {
    // All memory is looked at so many times; what completions speak of is looked at every time.
    let steps_between_checks = (operations / 12).max(1);
    for step in 0..operations {
        program.step(world);
        let pause_ns = program.dice.within(0..=program.plan.pause_max.as_nanos() as u64);
        program.advance(world, Duration::from_nanos(pause_ns));
        if step % steps_between_checks == 0 {
            program.judge.check_all_memory(&program.memory);
        }
        if !program.judge.violations().is_empty() {
            // What follows a violation says little; the first one is the one to look at.
            return;
        }
    }
    program.judge.check_all_memory(&program.memory);
}

/// Phase two: the links are healed, and everything must get done.
fn run_healed(program: &mut Program, world: &mut World) {
    if !program.judge.violations().is_empty() {
        return;
    }
    world.set_link_profile(program.plan.healed_link());
    program.judge.network_changes();
    // What is still under way arrives with the old delays; what was lost is asked for again.
    program.advance(world, 2 * program.plan.transit_max);
    program.judge.set_network(NetworkFacts::default());
    finish_outstanding(program, world);
    let fresh = post_last_messages(program, world);
    wait_for_last_messages(program, world, &fresh);
    // Silence: nothing else may happen, to memory or in completion queues.
    program.advance(world, Duration::from_secs(1));
    // A plain unreliable write is announced by nothing, but nothing has lost it either.
    for (_, message) in fresh {
        program.judge.must_be_placed(message, "a healed network was silent", &program.memory);
    }
    program.judge.check_all_memory(&program.memory);
    for region in program.memory.registered() {
        program.memory.revoke(&mut program.judge, region);
    }
}

/// How long everything may take: each request may have to use up its retries, and those before it theirs.
fn patience(program: &Program) -> Duration {
    Duration::from_secs(10) + 200 * program.plan.timeout_max()
}

/// Every request posted so far ends; queue pairs that failed are brought back.
fn finish_outstanding(program: &mut Program, world: &mut World) {
    let deadline = world.now() + patience(program);
    for end in program.all_ends() {
        let is_done = |program: &Program| program.judge.owed_sends(end) == 0;
        advance_with_receives(program, world, deadline, is_done);
        if !is_done(program) {
            let subject = format!("{} queue pair {}", program.transport(end).abbreviation(), end.0);
            let came = format!(
                "{} still outstanding, state {:?}",
                program.judge.owed_sends(end),
                program.ends[end.0].queue_pair.state()
            );
            program.judge.accuse(Rule::Progress, subject, "all sends to complete on a healed network", came);
        }
    }
    let unsure = settle_unsignaled(program, world, deadline);
    for end in program.all_ends() {
        let ends = [end, program.peer(end)];
        let is_in_error = |end: EndNumber| program.ends[end.0].queue_pair.state() == QueuePairState::Error;
        let has_unfit = |end: EndNumber| program.judge.unfit_receives(end, program.message_bytes_max(end)) > 0;
        let is_unsure = |end: EndNumber| unsure.contains(&end);
        if ends.into_iter().any(|end| is_in_error(end) || has_unfit(end) || is_unsure(end)) {
            program.reconnect(end, world);
        }
        if program.ends[end.0].queue_pair.state() == QueuePairState::SendQueueError {
            program.resume(end, world);
        }
    }
}

/// A request that is not signalled tells nothing until it fails, and some are made to fail. A signalled one behind them on each
/// reliable connection ends after them, one way or the other. Returns the queue pairs that have no room for it.
fn settle_unsignaled(program: &mut Program, world: &mut World, deadline: Instant) -> Vec<EndNumber> {
    let (mut markers, mut unsure) = (Vec::new(), Vec::new());
    let reliable = |end: &EndNumber| program.transport(*end) == Transport::ReliableConnection;
    for end in program.all_ends().filter(reliable).collect::<Vec<_>>() {
        let draft = Draft {
            kind: Kind::Write,
            length: 0,
            has_immediate: false,
            mistake: None,
            is_inline: false,
            is_signaled: true,
        };
        match program.free_sends(end) {
            0 => unsure.push(end),
            _ => markers.extend(program.post_message(end, draft)),
        }
    }
    advance_with_receives(program, world, deadline, |program| {
        markers.iter().all(|marker| program.judge.ending(*marker).is_some())
    });
    unsure
}

/// Receives that messages wait for and that there is room for (RC; with UC a message does not wait).
fn missing_receives(program: &Program, end: EndNumber) -> usize {
    if program.transport(end) != Transport::ReliableConnection {
        return 0;
    }
    let room = program.pair(end).limits.receive_requests as usize - program.judge.used_receives(end);
    program.judge.missing_receives(end).min(room)
}

/// Lets time pass until something is true, and posts receives that are missing as soon as there is room for them.
fn advance_with_receives(
    program: &mut Program,
    world: &mut World,
    deadline: Instant,
    is_done: impl Fn(&Program) -> bool,
) {
    let is_missing = |program: &Program| program.all_ends().any(|end| missing_receives(program, end) > 0);
    loop {
        program.all_ends().for_each(|end| post_missing_receives(program, end));
        program.advance_until(world, deadline, |program| is_done(program) || is_missing(program));
        if is_done(program) || world.now() >= deadline {
            return;
        }
    }
}

fn post_missing_receives(program: &mut Program, end: EndNumber) {
    for _ in 0..missing_receives(program, end) {
        program.post_receive(end, false);
    }
}

/// A few more messages on every queue pair, with a receive for each of them. (Unsignalled messages of the first phase
/// may still take receives before them; those are posted while waiting.)
fn post_last_messages(program: &mut Program, world: &mut World) -> Vec<(EndNumber, MessageNumber)> {
    let mut posted = Vec::new();
    for round in 0..4 {
        for end in program.all_ends() {
            let peer = program.peer(end);
            if program.free_sends(end) == 0 {
                continue;
            }
            if program.judge.used_receives(peer) == 0 {
                program.post_receive(peer, false);
            }
            let is_datagram = program.transport(end) == Transport::UnreliableDatagram;
            let length = program.dice.index(program.message_bytes_max(end) + 1);
            let draft = Draft {
                kind: if is_datagram || round % 2 == 0 { Kind::Send } else { Kind::Write },
                length,
                // A shorter message does not say which one it is without one.
                has_immediate: length < 8 || program.dice.chance(50),
                mistake: None,
                is_inline: false,
                is_signaled: true,
            };
            posted.extend(program.post_message(end, draft).map(|message| (end, message)));
        }
        // Queues are short on some seeds: each round is done before the next one begins.
        wait_for_last_messages(program, world, &posted);
    }
    posted
}

/// Reliable messages succeed, and all messages that take a receive are delivered.
fn wait_for_last_messages(program: &mut Program, world: &mut World, posted: &[(EndNumber, MessageNumber)]) {
    let deadline = world.now() + patience(program);
    let is_done = |program: &Program, message: MessageNumber| {
        let is_delivered = program.judge.delivered_count(message) > 0 || !program.judge.takes_receive(message);
        program.judge.ending(message).is_some() && is_delivered
    };
    advance_with_receives(program, world, deadline, |program| {
        posted.iter().all(|(_, message)| is_done(program, *message))
    });
    for &(end, message) in posted {
        let ending = program.judge.ending(message);
        if !is_done(program, message) || ending != Some(Ending::Succeeded) {
            let transport = program.transport(end).abbreviation();
            let subject = format!("message {message} of {transport} queue pair {}", end.0);
            let came = format!(
                "{ending:?}, delivered {} times, queue pairs in {:?} and {:?}",
                program.judge.delivered_count(message),
                program.ends[end.0].queue_pair.state(),
                program.ends[program.peer(end).0].queue_pair.state(),
            );
            program.judge.accuse(Rule::Progress, subject, "success and delivery on a healed network", came);
        }
    }
}
