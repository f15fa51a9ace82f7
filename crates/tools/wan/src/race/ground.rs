//! The link that everybody runs on, with an end on each side.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use longhaul_impair::{Loss, Profile};
use longhaul_link::namespaces::{Namespaces, Side};
use longhaul_link::{DirectionOptions, LinkOptions, Ports, RunningCounters, RunningLink};

use super::child::Child;
use super::host;
use super::orders::{Contact, Order, Outcome, Work};
use super::plan::Path;
use super::report::RaceError;
use super::watch::Watch;
use crate::clock::now;

/// Where the link runs; the ends run anywhere.
const LINK_PROCESSOR: usize = 1;
/// An end prepares, or connects, within this time.
const PREPARE_PATIENCE: Duration = Duration::from_secs(20);
/// From the order to run until it begins: both ends have it by then.
const LEAD: Duration = Duration::from_millis(300);
/// An end answers within this time after its row has ended.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
const KEPT_BYTES_MAX: u64 = 256 << 20;

/// Namespaces for one MTU.
pub(super) struct Ground<'a> {
    namespaces: Namespaces,
    pub(super) mtu: u16,
    end_command: &'a [&'a str],
}

/// What was seen in a row.
pub(super) struct Seen {
    /// Of each flow: what its sender and its receiver saw.
    pub(super) flows: Vec<[Outcome; 2]>,
    /// What the link counted.
    pub(super) counters: RunningCounters,
    /// Late frames that the host is to blame for.
    pub(super) late_by_host: u64,
}

impl<'a> Ground<'a> {
    pub(super) fn make(mtu: u16, end_command: &'a [&'a str]) -> Result<Self, RaceError> {
        Ok(Ground { namespaces: Namespaces::make(mtu.into())?, mtu, end_command })
    }

    pub(super) fn remove(self) -> Result<(), RaceError> {
        Ok(self.namespaces.remove()?)
    }

    /// What the namespace of the senders offers to TCP.
    pub(super) fn within_sender<T>(&self, work: impl FnOnce() -> T) -> Result<T, RaceError> {
        Ok(self.namespaces.within(Side::Left, work)?)
    }

    /// Runs flows next to each other, with a link of their own.
    pub(super) fn run(&self, path: &Path, works: &[Work], time: Duration) -> Result<Seen, RaceError> {
        for side in Side::BOTH {
            self.namespaces.within(side, || host::set_buffers(path))?;
        }
        let link = start_link(path)?;
        let is_over = AtomicBool::new(false);
        let (ran, late_by_host) = std::thread::scope(|scope| {
            let watch = Watch::start(scope, &link, LINK_PROCESSOR, &is_over);
            (self.run_flows(path, works, time), watch.end())
        });
        let flows = ran?;
        let counters = link.counters()?;
        link.end()?;
        Ok(Seen { flows, counters, late_by_host })
    }

    fn run_flows(&self, path: &Path, works: &[Work], time: Duration) -> Result<Vec<[Outcome; 2]>, RaceError> {
        let mut children = Vec::new();
        for work in works {
            let start = |side, role: &str| {
                let name = format!("{role} of {}", work.system);
                Child::start(&self.namespaces, side, &name, self.end_command)
            };
            let mut receiver = start(Side::Right, "receiver")?;
            receiver.order(&Order::Receive(work.clone()))?;
            let contact: Contact = receiver.answer(PREPARE_PATIENCE)?;
            let mut sender = start(Side::Left, "sender")?;
            sender.order(&Order::Send(work.clone(), contact))?;
            sender.answer::<()>(PREPARE_PATIENCE)?;
            children.push([sender, receiver]);
        }
        let start = now() + LEAD + 2 * path.round_trip;
        let [from, until] = [start, start + time].map(|at| at.as_nanos() as u64);
        for child in children.iter_mut().flatten() {
            child.order(&Order::Run { start: from, until })?;
        }
        let mut flows = Vec::new();
        for pair in &mut children {
            let mut outcomes = [Outcome::default(), Outcome::default()];
            for (child, outcome) in pair.iter_mut().zip(&mut outcomes) {
                let patience = (start + time).saturating_sub(now()) + ANSWER_PATIENCE;
                *outcome = child.answer(patience)?;
            }
            flows.push(outcomes);
        }
        Ok(flows)
    }
}

fn start_link(path: &Path) -> Result<RunningLink, RaceError> {
    let loss = match (path.loss, path.burst) {
        (loss, _) if loss <= 0.0 => Loss::None,
        (probability, 0 | 1) => Loss::Independent { probability },
        (loss, burst) => Loss::bursts(loss, f64::from(burst)),
    };
    let profile = Profile::default()
        .with_propagation_delay(path.round_trip / 2)
        .with_rate_bits_per_second(path.rate)
        .with_queue_limit_bytes(path.bytes_in(path.queue()))
        .with_loss(loss);
    let seed = now().as_nanos() as u64;
    let direction =
        |seed| DirectionOptions { profile: Arc::new(profile.clone()), seed, kept_bytes_max: KEPT_BYTES_MAX };
    let options = LinkOptions {
        ports: Ports::Interfaces(Side::BOTH.map(|side| side.name().to_owned())),
        // Directions do not lose the same packets.
        towards_second: direction(seed),
        towards_first: direction(seed ^ 1),
        capture: None,
        processor: Some(LINK_PROCESSOR),
    };
    Ok(RunningLink::start(&options)?)
}
