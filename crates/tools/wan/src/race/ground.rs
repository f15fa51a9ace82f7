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
    /// When the row was to end, by the monotonic clock in nanoseconds.
    pub(super) until: u64,
    /// What the link counted.
    pub(super) counters: RunningCounters,
    /// Late frames that the host is to blame for.
    pub(super) late_by_host: u64,
}

impl<'a> Ground<'a> {
    pub(super) fn make(mtu: u16, end_command: &'a [&'a str]) -> Result<Self, RaceError> {
        Ok(Ground { namespaces: Namespaces::make(mtu.into())?, mtu, end_command })
    }

    pub(super) fn remove(self) {
        // What stays goes with the namespaces, at the latest when this process ends; results matter more.
        let _ = self.namespaces.remove();
    }

    /// What the namespace of the senders offers to TCP.
    pub(super) fn within_sender<T>(&self, work: impl FnOnce() -> T) -> Result<T, RaceError> {
        Ok(self.namespaces.within(Side::Left, work)?)
    }

    /// Runs flows next to each other, with a link of their own.
    pub(super) fn run(&self, path: &Path, works: &[Work], time: Duration) -> Result<Seen, RaceError> {
        let is_tcp = works.iter().any(|work| work.system.tcp_congestion().is_some());
        for side in Side::BOTH {
            let set = self.namespaces.within(side, || host::set_buffers(path))?;
            if is_tcp {
                set.map_err(RaceError::Missing)?;
            }
        }
        let link = start_link(path)?;
        let is_over = AtomicBool::new(false);
        let (ran, late_by_host) = std::thread::scope(|scope| {
            let watch = Watch::start(scope, &link, LINK_PROCESSOR, &is_over);
            (self.run_flows(path, works, time), watch.end())
        });
        let (flows, until) = ran?;
        let counters = link.counters()?;
        link.end()?;
        Ok(Seen { flows, until, counters, late_by_host })
    }

    /// What each flow's ends saw, and when they were to end.
    fn run_flows(&self, path: &Path, works: &[Work], time: Duration) -> Result<(Vec<[Outcome; 2]>, u64), RaceError> {
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
        Ok((flows, until))
    }
}

impl Seen {
    /// Payload of a flow that arrived, bits a second: over the time that its bytes really had.
    pub(super) fn goodput(&self, flow: usize) -> f64 {
        let [sent, received] = &self.flows[flow];
        let nanos = received.ended.saturating_sub(sent.begun).max(1);
        8e9 * received.whole_bytes as f64 / nanos as f64
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
        .with_queue_limit_bytes(path.queue_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goodput_is_over_the_time_that_bytes_had() {
        let second = 1_000_000_000;
        let sent = Outcome { begun: 5 * second, ended: 6 * second, ..Outcome::default() };
        // Asked for 2 s, counted half a second late.
        let received =
            Outcome { begun: 0, ended: 7 * second + second / 2, whole_bytes: 1_000_000, ..Outcome::default() };
        let seen = Seen {
            flows: vec![[sent, received]],
            until: 7 * second,
            counters: RunningCounters::default(),
            late_by_host: 0,
        };
        assert_eq!(seen.goodput(0), 8e6 / 2.5);
    }
}
