//! The soak of messages: random programs over `sdr`, `reliable` and `runtime`, on software RNICs and virtual time.
//!
//! A seed decides everything: hosts, connections of mixed schemes, every message, everything that goes wrong, an
//! attacker who knows addresses and queue pair numbers, and a peer that speaks the protocol and lies. Bytes say which
//! message they belong to, so what is received is judged by code that knows nothing of the implementation (`judge`).
//!
//! ```text
//!   seed ─▶ plan: items ─▶ program ─▶ ends ─▶ driver: the runtime of programs, on virtual time ═══ world ═══ (attacker, liar ─▶ packets)
//!                              └──▶ judge: contents, endings, waits ─▶ violations ─▶ shrink: fewer items that still fail
//! ```
//!
//! A run has four phases: the program with its faults; everything is healed, and all messages must end; a fresh message
//! on each connection must take a few round trips; silence until the last packet that was held back has arrived, after
//! which nothing may have changed, and another fresh message.

mod attacker;
mod campaign;
mod contents;
mod driver;
mod driving;
mod ends;
mod finish;
mod happenings;
mod judge;
mod liar;
mod memory_meter;
mod packets;
mod plan;
mod program;
mod shrink;
mod violation;

use std::panic::{AssertUnwindSafe, catch_unwind};

use longhaul_reliable::Connection;
use longhaul_runtime::Shared;
use longhaul_sdr::QueuePair;
use longhaul_time::Instant;

pub use campaign::{MessageCampaign, MessageSummary, SEED_TIME_MAX};
pub use ends::{MakeConnection, MakeQueuePair, StartConnection};
pub use shrink::{Shrunk, shrink};
pub use violation::{Rule, Violation};

use ends::Makers;
use memory_meter::MemoryMeter;
use plan::Plan;
use program::Program;

/// Options of a run, apart from its seed.
#[derive(Clone)]
pub struct MessageSoakOptions {
    /// Only these items of the program, by number; all of them by default.
    pub only: Option<Vec<usize>>,
    /// Bytes that this thread has taken and not given back, if the program counts them: what a run takes is then held
    /// against a bound.
    pub bytes_in_use: Option<fn() -> isize>,
    /// Makes queue pairs; tests put mistakes into them here.
    pub make_queue_pair: MakeQueuePair,
    /// Makes connections; tests put mistakes into them here.
    pub make_connection: MakeConnection,
    /// Has connections driven; tests put mistakes into that here.
    pub start_connection: StartConnection,
}

impl Default for MessageSoakOptions {
    fn default() -> Self {
        MessageSoakOptions {
            only: None,
            bytes_in_use: None,
            make_queue_pair: QueuePair::create,
            make_connection: Connection::new,
            start_connection: Shared::start,
        }
    }
}

/// The outcome of one seed.
#[derive(Clone, Debug, Default)]
pub struct MessageSeedReport {
    /// The seed.
    pub seed: u64,
    /// Items that its program has, of all kinds.
    pub items: usize,
    /// Messages of which at least one half was posted.
    pub messages: u64,
    /// Receives that completed.
    pub received: u64,
    /// Halves of messages that failed.
    pub failed: u64,
    /// Packets that devices sent.
    pub packets: u64,
    /// Packets of attackers and liars.
    pub forged_packets: u64,
    /// Packets that links held back.
    pub held_packets: u64,
    /// The most memory that it took, where that is counted.
    pub memory_bytes_max: u64,
    /// Of all that the network did.
    pub trace_hash: u64,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

/// Items that the program of a seed has; they are numbered from 0.
pub fn item_count(seed: u64) -> usize {
    Plan::draw(seed).items.len()
}

/// Runs one seed.
pub fn run_message_seed(seed: u64, options: &MessageSoakOptions) -> MessageSeedReport {
    let mut plan = Plan::draw(seed);
    let items = plan.items.len();
    if let Some(only) = &options.only {
        let mut index = 0;
        plan.items.retain(|_| {
            index += 1;
            only.contains(&(index - 1))
        });
    }
    let makers = Makers {
        queue_pair: options.make_queue_pair,
        connection: options.make_connection,
        start: options.start_connection,
    };
    let meter = MemoryMeter::new(options.bytes_in_use);
    // A panic is a finding like any other: the seed is reported, and can be shrunk.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut program = Program::new(&plan, makers, meter.clone());
        finish::run(&mut program);
        let mut report = report(seed, items, &program);
        let ended = program.now();
        drop(program);
        report.violations.extend(meter.leak(ended));
        report
    }));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        let violation = Violation { rule: Rule::Panic, at: Instant::ZERO, text };
        MessageSeedReport { seed, items, violations: vec![violation], ..Default::default() }
    })
}

fn report(seed: u64, items: usize, program: &Program<'_>) -> MessageSeedReport {
    let posted = program.states.iter().filter(|state| state.posted_at.iter().any(Option::is_some));
    MessageSeedReport {
        seed,
        items,
        messages: posted.count() as u64,
        received: program.judge.succeeded,
        failed: program.judge.failed,
        packets: program.world.packet_count(),
        forged_packets: program.forged,
        held_packets: program.world.link_totals().held,
        memory_bytes_max: program.meter.most(),
        trace_hash: program.world.trace_hash(),
        violations: program.judge.violations.clone(),
    }
}
