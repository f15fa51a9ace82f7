//! The soak: random programs of verbs operations over bad links, watched by the [checkers](crate::checker).
//!
//! A seed decides everything: the network, the queue pairs, every request and every pause. Each run has two phases, as
//! in TigerBeetle's simulator: first faults, and nothing wrong may be seen; then the links are healed, and everything
//! must get done. The same seed gives the same run on every machine, so a failing seed is all that a report needs.

mod actions;
mod campaign;
mod fault_plan;
mod faults;
mod ground;
mod memory;
mod plan;
mod program;
mod protection;
mod real_time;
mod responses;
mod shared_receives;
mod slots;
mod state;
mod tally;
mod windows;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use longhaul_shim::BlockCode;
use longhaul_softnic::{Config, ShimLayer};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Capabilities, QueuePairState, Transport};
use longhaul_world::{World, WorldConfig};

use crate::checker::{EndNumber, Ending, Kind, MessageNumber, NetworkFacts, Rule, Violations};

pub use campaign::{Campaign, Summary};
pub use real_time::Troubles;
pub use tally::Tally;

use actions::Draft;
use ground::Ground;
use plan::Plan;
use program::Program;
use protection::Watched;
use real_time::RealGround;

/// Steps of a run by default.
pub const OPERATIONS_DEFAULT: u32 = 600;

/// What the devices are attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SoakPort {
    /// A simulated network, on virtual time.
    #[default]
    Virtual,
    /// UDP sockets of these addresses of this host (one or two), on real time, with a bad network in process. Every
    /// device is at all of them, each at a port of its own. Without any, devices have loopback addresses of their own.
    Udp(Vec<IpAddr>),
}

/// Options of a run, apart from its seed.
#[derive(Clone)]
pub struct SoakOptions {
    /// Steps of the random program.
    pub operations: u32,
    /// Where to write the packets, as pcapng.
    pub capture: Option<PathBuf>,
    /// What the devices are attached to.
    pub port: SoakPort,
    /// Changes the devices' configuration after the seed has chosen it; tests put mistakes into the device here.
    pub configure: fn(&mut Config),
    /// On virtual time: protects RC and UC with forward error correction of this code, in the ports of all devices.
    pub fec: Option<BlockCode>,
    /// Changes the shims that do so; tests put mistakes into them here.
    pub configure_shim: fn(ShimLayer) -> ShimLayer,
    /// Half of the repair packets are changed in flight, with a right ICRC.
    pub lies: bool,
}

impl Default for SoakOptions {
    fn default() -> Self {
        SoakOptions {
            operations: OPERATIONS_DEFAULT,
            capture: None,
            port: SoakPort::Virtual,
            configure: |_| {},
            fec: None,
            configure_shim: |shim| shim,
            lies: false,
        }
    }
}

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Messages posted.
    pub messages: u64,
    /// Packets carried by the network.
    pub packets: u64,
    /// Lost ones that forward error correction restored, by the devices that there were at the end.
    pub restored: u64,
    /// Blocks of which it restored nothing because something was wrong.
    pub wrong_blocks: u64,
    /// Of all that the network did, on virtual time.
    pub trace_hash: Option<u64>,
    /// What the bad network did, on real time.
    pub troubles: Troubles,
    /// How requests ended.
    pub tally: Tally,
    /// What was wrong.
    pub violations: Violations,
}

impl SeedReport {
    fn of(seed: u64, program: &Program) -> Self {
        SeedReport {
            seed,
            messages: program.messages.len() as u64,
            packets: 0,
            restored: 0,
            wrong_blocks: 0,
            trace_hash: None,
            troubles: Troubles::default(),
            tally: program.tally.clone(),
            violations: program.judge.violations().clone(),
        }
    }
}

/// Why a seed could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoakError {
    /// The capture could not be written.
    #[error("the capture could not be written; is the file's folder there and writable?")]
    Capture(#[from] std::io::Error),
    /// A device on UDP sockets could not be opened.
    #[error("a device on UDP sockets could not be opened")]
    Open(#[from] longhaul_softnic_udp::OpenError),
    /// Forward error correction cannot work with the code.
    #[error("forward error correction cannot work with this code")]
    Fec(#[from] longhaul_shim::ConfigError),
}

/// Runs one seed.
pub fn run_seed(seed: u64, options: &SoakOptions) -> Result<SeedReport, SoakError> {
    match &options.port {
        SoakPort::Virtual => run_on_virtual_time(seed, options),
        SoakPort::Udp(addresses) => run_on_real_time(seed, addresses, options),
    }
}

fn run_on_virtual_time(seed: u64, options: &SoakOptions) -> Result<SeedReport, SoakError> {
    let mut plan = Plan::draw(seed);
    let shim = options.fec.map(|code| protection::draw(seed, code, options.lies));
    if let Some(shim) = &shim {
        shim.check()?;
        plan = plan.protected(shim);
    }
    let watched = Arc::new(Watched::default());
    let mut config = WorldConfig {
        seed,
        nodes: plan.node_count,
        topology: plan.topology,
        link: plan.link.clone(),
        layers: shim.map(|shim| protection::layers(seed, shim, options.configure_shim, options.lies, watched.clone())),
        ..WorldConfig::default()
    };
    plan.configure(&mut config.nic);
    (options.configure)(&mut config.nic);
    let node_count = config.nodes;
    let mut world = World::new(config);
    if let Some(path) = &options.capture {
        world.capture_to(path)?;
    }
    let mut program = run_program(plan, seed, &mut world, options.operations);
    if options.capture.is_some() {
        world.finish_capture()?;
    }
    let counters = (0..node_count).map(|node| {
        world.with_layers(node, |stack| {
            let counters = stack.layers_mut::<ShimLayer>().next().map(|layer| layer.counters().1).unwrap_or_default();
            (counters.restored, counters.wrong_blocks)
        })
    });
    let (restored, wrong_blocks) =
        counters.fold((0, 0), |(some, wrong), (more, more_wrong)| (some + more, wrong + more_wrong));
    if let Some(fault) = watched.fault() {
        let expected = "no repair packet, and nothing wrong that did not arrive so";
        program.judge.accuse(Rule::Protection, "what shims have handed on", expected, fault);
    }
    Ok(SeedReport {
        packets: world.packet_count(),
        restored,
        wrong_blocks,
        trace_hash: Some(world.trace_hash()),
        ..SeedReport::of(seed, &program)
    })
}

fn run_on_real_time(seed: u64, addresses: &[IpAddr], options: &SoakOptions) -> Result<SeedReport, SoakError> {
    let plan = Plan::draw(seed).on_real_time(if addresses.is_empty() { 2 } else { addresses.len() });
    let mut ground = RealGround::open(&plan, seed, addresses, options.capture.as_deref(), options.configure)?;
    let program = run_program(plan, seed, &mut ground, options.operations);
    Ok(SeedReport { packets: ground.packet_count(), troubles: ground.troubles(), ..SeedReport::of(seed, &program) })
}

fn run_program(plan: Plan, seed: u64, ground: &mut dyn Ground, operations: u32) -> Program {
    let mut program = Program::new(plan, seed, ground);
    run_with_faults(&mut program, ground, operations);
    run_healed(&mut program, ground);
    program
}

/// Phase one: safety.
fn run_with_faults(program: &mut Program, ground: &mut dyn Ground, operations: u32) {
    // All memory is checked this often; memory that completions refer to is checked every time.
    let steps_between_checks = (operations / 12).max(1);
    for step in 0..operations {
        program.step_faults(ground);
        program.step(ground);
        let pause_ns = program.dice.within(0..=program.plan.pause_max.as_nanos() as u64);
        program.advance(ground, Duration::from_nanos(pause_ns));
        if step % steps_between_checks == 0 {
            program.poll_events(ground);
            program.check_all_memory(ground);
        }
        if !program.judge.violations().is_empty() {
            // What follows a violation says little; the first one is the one to look at.
            return;
        }
    }
    program.check_all_memory(ground);
}

/// Phase two: the links are healed, and everything must get done.
fn run_healed(program: &mut Program, ground: &mut dyn Ground) {
    if !program.judge.violations().is_empty() {
        return;
    }
    program.mend_all_faults(ground);
    ground.set_link_profile(program.plan.healed_link());
    program.judge.network_changes();
    // What is still in flight arrives with the old delays; what was lost is asked for again.
    program.advance(ground, 2 * program.plan.transit_max);
    let is_slow = program.plan.network.is_slow;
    program.judge.set_network(NetworkFacts { is_slow, ..NetworkFacts::default() });
    finish_outstanding(program, ground);
    let fresh = post_last_messages(program, ground);
    wait_for_last_messages(program, ground, &fresh);
    // Silence: nothing else may happen, to memory or in completion queues.
    let silence = ground.silence();
    program.advance(ground, silence);
    // A plain unreliable write is announced by nothing, but nothing has lost it either.
    for (_, message) in fresh {
        program.judge.must_be_placed(message, "a healed network was silent", &program.memory);
    }
    program.check_all_memory(ground);
    program.poll_events(ground);
    for end in program.all_ends() {
        program.drop_window(end);
        program.drop_slots(end);
    }
    for region in program.memory.registered() {
        program.memory.revoke(&mut program.judge, region);
    }
}

/// How long everything may take: each request may have to use up its retries, and those before it theirs.
fn patience(program: &Program) -> Duration {
    Duration::from_secs(10) + 200 * program.plan.timeout_max()
}

/// Every request posted so far ends; queue pairs that failed are brought back.
fn finish_outstanding(program: &mut Program, ground: &mut dyn Ground) {
    let deadline = ground.now() + patience(program);
    for end in program.all_ends() {
        let is_done = |program: &Program| program.judge.owed_sends(end) == 0;
        advance_with_receives(program, ground, deadline, is_done);
        if !is_done(program) {
            let subject = format!("{} queue pair {}", program.transport(end).abbreviation(), end.0);
            let got = format!(
                "{} still outstanding, state {:?}",
                program.judge.owed_sends(end),
                program.ends[end.0].queue_pair.state()
            );
            program.judge.accuse(Rule::Progress, subject, "all sends to complete on a healed network", got);
        }
    }
    let unsure = settle_unsignaled(program, ground, deadline);
    for end in program.all_ends() {
        let ends = [end, program.peer(end)];
        let is_in_error = |end: EndNumber| program.ends[end.0].queue_pair.state() == QueuePairState::Error;
        let has_unfit = |end: EndNumber| program.judge.unfit_receives(end, program.message_bytes_max(end)) > 0;
        let is_unsure = |end: EndNumber| unsure.contains(&end);
        if ends.into_iter().any(|end| is_in_error(end) || has_unfit(end) || is_unsure(end)) {
            program.reconnect(end, ground);
        }
        if program.ends[end.0].queue_pair.state() == QueuePairState::SendQueueError {
            program.resume(end, ground);
        }
    }
}

/// An unsignaled request reports nothing until it fails, and some are made to fail. A signalled one behind them on each
/// reliable connection ends after them, one way or the other. Returns the queue pairs that have no room for it.
fn settle_unsignaled(program: &mut Program, ground: &mut dyn Ground, deadline: Instant) -> Vec<EndNumber> {
    let (mut markers, mut unsure) = (Vec::new(), Vec::new());
    let reliable = |end: &EndNumber| program.transport(*end) == Transport::ReliableConnection;
    for end in program.all_ends().filter(reliable).collect::<Vec<_>>() {
        let draft = Draft::plain(Kind::Write, 0);
        match program.free_sends(end) {
            0 => unsure.push(end),
            _ => markers.extend(program.post_message(end, draft)),
        }
    }
    advance_with_receives(program, ground, deadline, |program| {
        markers.iter().all(|marker| program.judge.ending(*marker).is_some())
    });
    unsure
}

/// Receives that messages wait for and that there is room for (RC; with UC a message does not wait).
fn missing_receives(program: &Program, end: EndNumber) -> usize {
    if program.transport(end) != Transport::ReliableConnection {
        return 0;
    }
    program.judge.missing_receives(end).min(program.free_receives(end))
}

/// Lets time pass until something is true, and posts receives that are missing as soon as there is room for them.
fn advance_with_receives(
    program: &mut Program,
    ground: &mut dyn Ground,
    deadline: Instant,
    is_done: impl Fn(&Program) -> bool,
) {
    let is_missing = |program: &Program| program.all_ends().any(|end| missing_receives(program, end) > 0);
    loop {
        program.all_ends().for_each(|end| post_missing_receives(program, end));
        program.advance_until(ground, deadline, |program| is_done(program) || is_missing(program));
        if is_done(program) || ground.now() >= deadline {
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
fn post_last_messages(program: &mut Program, ground: &mut dyn Ground) -> Vec<(EndNumber, MessageNumber)> {
    let mut posted = Vec::new();
    for round in 0..4 {
        for end in program.all_ends() {
            let peer = program.peer(end);
            if program.free_sends(end) == 0 {
                continue;
            }
            if program.shared_receives(peer).is_none() && program.judge.used_receives(peer) == 0 {
                program.post_receive(peer, false);
            }
            let is_datagram = program.transport(end) == Transport::UnreliableDatagram;
            if round >= 2 && program.transport(end) == Transport::ReliableConnection {
                let message = match round {
                    2 if program.has(Capabilities::READ) => program.post_read(end, false),
                    3 if program.has(Capabilities::ATOMICS) => program.post_atomic(end, false),
                    _ => None,
                };
                posted.extend(message.map(|message| (end, message)));
            }
            if program.free_sends(end) == 0 {
                continue;
            }
            let length = program.dice.index(program.message_bytes_max(end) + 1);
            let kind = if is_datagram || round % 2 == 0 { Kind::Send } else { Kind::Write };
            // A shorter message does not say which one it is without an immediate.
            let has_immediate = length < 8 || program.dice.chance(50);
            let draft = Draft { has_immediate, ..Draft::plain(kind, length) };
            posted.extend(program.post_message(end, draft).map(|message| (end, message)));
            // All of them at once might not find room in the sockets' buffers.
            program.advance(ground, Duration::ZERO);
        }
        // Queues are short on some seeds: each round is done before the next one begins.
        wait_for_last_messages(program, ground, &posted);
    }
    posted
}

/// Reliable messages succeed, and all messages that take a receive are delivered.
fn wait_for_last_messages(program: &mut Program, ground: &mut dyn Ground, posted: &[(EndNumber, MessageNumber)]) {
    let deadline = ground.now() + patience(program);
    let is_done = |program: &Program, message: MessageNumber| {
        let is_delivered = program.judge.delivered_count(message) > 0 || !program.judge.takes_receive(message);
        program.judge.ending(message).is_some() && is_delivered
    };
    advance_with_receives(program, ground, deadline, |program| {
        posted.iter().all(|(_, message)| is_done(program, *message))
    });
    for &(end, message) in posted {
        let ending = program.judge.ending(message);
        if !is_done(program, message) || ending != Some(Ending::Succeeded) {
            let transport = program.transport(end).abbreviation();
            let subject = format!("message {message} of {transport} queue pair {}", end.0);
            let got = format!(
                "{ending:?}, delivered {} times, queue pairs in {:?} and {:?}",
                program.judge.delivered_count(message),
                program.ends[end.0].queue_pair.state(),
                program.ends[program.peer(end).0].queue_pair.state(),
            );
            program.judge.accuse(Rule::Progress, subject, "success and delivery on a healed network", got);
        }
    }
}
