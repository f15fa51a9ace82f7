//! What was measured, and why it could not be.

use std::io;
use std::time::Duration;

use longhaul::softnic::UdpConfig;
use longhaul_link::LinkError;
use longhaul_link::namespaces::NamespaceError;
use longhaul_plan::link::PlanError;
use thiserror::Error;

use super::host;
use super::plan::{Point, Share, Task};
use super::system::System;

/// A row with a larger share of frames that left more than a millisecond late by the link's own fault, or that the link could not
/// take, is run again.
pub const LATE_SHARE_MAX: f64 = 1e-3;
/// So is one with a larger share of frames that were late because the host took the processor away: that is not the link's
/// fault and hits all systems alike, but too much of it hides everything else.
pub const LATE_BY_HOST_SHARE_MAX: f64 = 1e-2;

/// A p99 of fewer messages would be that of one or none of them.
pub const P99_MESSAGES_MIN: usize = 100;

/// Why a race, or a row of it, has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RaceError {
    /// No namespaces.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// No link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The planner has no code for such a link.
    #[error("the planner chooses no code for this link")]
    Plan(#[from] PlanError),
    /// No process.
    #[error("an end of the race cannot be started")]
    Start(#[source] io::Error),
    /// This host or this build does not have it.
    #[error("{0}")]
    Missing(String),
    /// An end has failed.
    #[error("the {end}: {why}")]
    End {
        /// Which.
        end: String,
        /// What it said.
        why: String,
    },
    /// An end did not answer.
    #[error("the {end} did not answer within {patience:?}")]
    OutOfTime {
        /// Which.
        end: String,
        /// How long it had.
        patience: Duration,
    },
}

impl RaceError {
    /// Whether it says something about one row only, not about the host.
    pub(super) fn is_of_a_row(&self) -> bool {
        matches!(self, RaceError::Missing(_) | RaceError::End { .. } | RaceError::OutOfTime { .. })
    }
}

/// Whether the link kept its times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    /// Frames that left.
    pub frames: u64,
    /// Of them, more than a millisecond after they were due.
    pub late: u64,
    /// Of those, because the host took the processor away.
    pub late_by_host: u64,
    /// Frames that were lost for want of time or memory.
    pub dropped: u64,
}

impl Lateness {
    /// Share of frames that were late by the link's own fault, or lost.
    pub fn share(&self) -> f64 {
        (self.late.saturating_sub(self.late_by_host) + self.dropped) as f64 / self.frames.max(1) as f64
    }

    /// Share of frames that were late because the host took the processor away.
    pub fn share_by_host(&self) -> f64 {
        self.late_by_host as f64 / self.frames.max(1) as f64
    }

    /// Why a row says nothing.
    pub(super) fn why_invalid(&self) -> Option<String> {
        let [late, by_host] = [self.share(), self.share_by_host()].map(|share| 100.0 * share);
        (!self.is_valid()).then(|| {
            format!("not valid: the link was late with {late:.2} % of the frames, the host with {by_host:.2} %")
        })
    }

    /// Whether a row says something.
    pub fn is_valid(&self) -> bool {
        self.share() <= LATE_SHARE_MAX && self.share_by_host() <= LATE_BY_HOST_SHARE_MAX
    }
}

/// Completion times, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// How many counted; with one that was still open when the row ended, if it was older than half of them.
    pub messages: usize,
    /// The median.
    pub p50: f64,
    /// 99 of 100 take no longer; not of fewer than [`P99_MESSAGES_MIN`].
    pub p99: Option<f64>,
    /// The longest.
    pub longest: f64,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was run.
    pub point: Point,
    /// The system, with its code if it has one.
    pub name: String,
    /// Payload that arrived, bits a second.
    pub goodput: Option<f64>,
    /// Completion times.
    pub completion: Option<Completion>,
    /// Share of frames that found the queue full.
    pub caused_loss: f64,
    /// Share of repeats in the packets that were sent, where it is counted.
    pub repeats: Option<f64>,
    /// Whether the link kept its times.
    pub lateness: Lateness,
}

impl Row {
    /// Goodput over what full packets of this system could carry.
    pub fn goodput_of_link(&self) -> Option<f64> {
        let Point { system, path, .. } = self.point;
        let most = path.rate as f64 * system.payload_share(path.mtu.into());
        self.goodput.map(|goodput| goodput / most)
    }

    /// Share of data in data and parity; 1 without parity.
    pub fn data_share(&self) -> f64 {
        data_share(&self.name)
    }
}

fn data_share(name: &str) -> f64 {
    let numbers = name.strip_prefix("ec:mds:").and_then(|code| code.split_once(','));
    let parsed = numbers.and_then(|(data, parity)| Some((data.parse::<f64>().ok()?, parity.parse::<f64>().ok()?)));
    parsed.map_or(1.0, |(data, parity)| data / (data + parity))
}

/// Two flows next to each other.
#[derive(Clone, Copy, Debug)]
pub struct ShareRow {
    /// What was run.
    pub share: Share,
    /// Payload that arrived, bits a second: in our place, and of the peer.
    pub goodputs: [f64; 2],
    /// Whether the link kept its times.
    pub lateness: Lateness,
}

impl ShareRow {
    /// Of a fair share, which is half of what full packets could carry: in our place, and of the peer.
    pub fn of_fair_share(&self) -> [f64; 2] {
        let Share { ours, peer, path, .. } = self.share;
        let of =
            |system: System, goodput: f64| goodput / (path.rate as f64 * system.payload_share(path.mtu.into()) / 2.0);
        [of(ours, self.goodputs[0]), of(peer, self.goodputs[1])]
    }
}

/// What has no result.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// What was to run.
    pub task: Task,
    /// The host or the build does not have it; otherwise it has failed.
    pub is_missing: bool,
    /// Why.
    pub why: String,
}

/// What a system was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionsOf {
    /// Which.
    pub system: System,
    /// In words.
    pub options: String,
}

/// A race.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One system alone.
    pub rows: Vec<Row>,
    /// Two next to each other.
    pub shares: Vec<ShareRow>,
    /// What has no result.
    pub unfinished: Vec<Unfinished>,
    /// What each system was given.
    pub options: Vec<OptionsOf>,
    /// Which bbr the kernel has.
    pub bbr_version: Option<String>,
    /// All of it.
    pub elapsed: Duration,
}

/// What the systems of these tasks are given.
pub(super) fn options(tasks: &[Task]) -> Vec<OptionsOf> {
    let mut systems: Vec<System> = tasks
        .iter()
        .flat_map(|task| match task {
            Task::Row(point) => vec![point.system],
            Task::Share(share) => vec![share.ours, share.peer],
        })
        .collect();
    systems.sort_unstable();
    systems.dedup();
    let buffers = tasks.iter().map(|task| host::buffer_bytes(&task.path())).max().unwrap_or_default() >> 20;
    let options = |system: System| match system {
        System::TcpCubic | System::TcpBbr => {
            let pacing = if system == System::TcpBbr { "; paced by TCP itself, as without fq" } else { "" };
            format!(
                "TCP_CONGESTION {}; tcp_rmem and tcp_wmem up to {buffers} MiB (4 bandwidth-delay products at least); \
                 TCP_NODELAY; tcp_no_metrics_save 1, so that rows do not learn from each other{pacing}",
                system.tcp_congestion().unwrap_or_default()
            )
        }
        System::Quic | System::QuicCubic | System::QuicBbr => {
            let name = match system {
                System::QuicCubic => "cubic, its default",
                System::QuicBbr => "BBR, which it calls experimental",
                _ => "the better of its controllers: cubic without loss, BBR with loss",
            };
            format!(
                "quinn with {name}; stream, receive and send windows of 2 bandwidth-delay products, 1 MiB at least; \
                 packets of the link's MTU from the start; socket buffers of 4 MiB at least"
            )
        }
        System::Rc => {
            let congestion = UdpConfig::default().off_host_congestion;
            format!(
                "softnic with its defaults (congestion control {}); SENDs; time-out of two round trips and queues, \
                 7 retries; threads sleep until a completion",
                congestion.map_or_else(|| "none".to_owned(), |name| name.to_string())
            )
        }
        System::SelectiveRepeat | System::Erasure => {
            let code = if system == System::Erasure {
                "; the code that `longhaul plan` chooses for the link and the message (bulk: mean, messages: p99)"
            } else {
                ""
            };
            format!("longhaul::connect and Listener::bind with the scheme and nothing else set{code}; threads sleep")
        }
    };
    systems.into_iter().map(|system| OptionsOf { system, options: options(system) }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Kind, Path, What};
    use super::*;

    #[test]
    fn parity_is_read_from_the_name() {
        assert_eq!(data_share("ec:mds:32,8"), 0.8);
        assert_eq!((data_share("sr:nack"), data_share("tcp-bbr")), (1.0, 1.0));
    }

    #[test]
    fn options_are_those_of_the_build() {
        let path = Path { round_trip: Duration::from_millis(1), loss: 0.0, burst: 1, mtu: 1500, rate: 1_000_000 };
        let what = What::Bulk { time: Duration::ZERO };
        let system = System::Rc;
        let point = Point { kind: Kind::Bulk, system, connections: 1, path, message_bytes: 1, what };
        let [OptionsOf { options, .. }] = &options(&[Task::Row(point)])[..] else { panic!("one system") };
        assert!(options.contains("congestion control wan") && !options.contains("Gbit/s"), "{options}");
    }

    #[test]
    fn a_late_row_is_not_valid() {
        let lateness = |late, dropped| Lateness { frames: 10_000, late, late_by_host: 0, dropped };
        let by_host = |late, late_by_host| Lateness { late_by_host, ..lateness(late, 0) };
        assert!(lateness(10, 0).is_valid() && lateness(5, 5).is_valid());
        assert!(!lateness(11, 0).is_valid() && !lateness(0, 11).is_valid());
        assert!(by_host(110, 100).is_valid() && !by_host(110, 99).is_valid() && !by_host(101, 101).is_valid());
    }
}
