//! A race over one emulated link: TCP, QUIC, RC and Longhaul, each alone, and two next to each other.
//!
//! ```text
//!   sender (a process) ─▶ [left] ═ veth ═ link: rate, queue, delay, loss ═ veth ═ [right] ─▶ receiver (a process)
//! ```
//!
//! Every row has a link of its own and two processes of its own, which sleep when they have nothing to do. All
//! processes of the machine share the monotonic clock, so a completion time is exact: from just before a message is
//! posted at the sender until the receiver's program has its last byte. Goodput counts messages that have arrived
//! whole between a start that both ends know and the end of the row; connecting is not part of it, everything after is.
//!
//! A row says something only if the link kept its times: see [`LATE_SHARE_MAX`] and [`LATE_BY_HOST_SHARE_MAX`].

mod checks;
mod child;
mod end;
mod end_error;
mod ends;
mod ground;
mod host;
mod orders;
mod plan;
mod prepared;
mod report;
mod system;
mod tally;
mod watch;

use std::time::{Duration, Instant};

use longhaul_link::RunningCounters;

use self::ground::{Ground, Seen};
use self::orders::{Measure, Work};

pub use self::checks::{Check, checks};
pub use self::end::run_end;
pub use self::plan::{Kind, Path, Point, Share, Task, Wanted, What};
pub use self::report::{
    Completion, LATE_BY_HOST_SHARE_MAX, LATE_SHARE_MAX, Lateness, OptionsOf, RaceError, Report, Row, ShareRow,
    Unfinished,
};
pub use self::system::{System, UnknownSystem};

/// How often a row is run, at most.
const TRIES_MAX: u32 = 3;
/// Messages at the beginning whose times do not count: connections warm up. A tenth of them, at most this many.
const WARM_UP_MAX: usize = 10;

/// What happens while it runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// This is run next; how many have been, and how many there are.
    Begun {
        /// What.
        task: &'a Task,
        /// Before it.
        done: usize,
        /// All.
        count: usize,
    },
    /// Frames were late; it is run again.
    Again {
        /// What.
        task: &'a Task,
        /// How many, and by whose fault.
        lateness: Lateness,
    },
    /// It has no result.
    Unfinished(&'a Unfinished),
}

/// A race to be run.
#[derive(Debug)]
pub struct Race<'a> {
    /// What to run, sorted by MTU.
    pub tasks: Vec<Task>,
    /// Arguments with which this program becomes an end, and calls [`run_end`].
    pub end_command: &'a [&'a str],
    /// No row is run again if that would take longer than this in all.
    pub again_max: Duration,
}

impl Race<'_> {
    /// Runs everything. The process must have one thread only.
    pub fn run(&self, tell: &mut dyn FnMut(Event<'_>)) -> Result<Report, RaceError> {
        let begun = Instant::now();
        let mut report = Report { options: report::options(&self.tasks), ..Report::default() };
        let (mut ground, mut again) = (None::<Ground<'_>>, Duration::ZERO);
        for (done, task) in self.tasks.iter().enumerate() {
            let mtu = task.path().mtu;
            if ground.as_ref().is_none_or(|ground| ground.mtu != mtu) {
                ground.take().map(Ground::remove).transpose()?;
            }
            let ground = match &mut ground {
                Some(ground) => ground,
                none => none.insert(Ground::make(mtu, self.end_command)?),
            };
            if report.bbr_version.is_none() {
                report.bbr_version = ground.within_sender(host::bbr_version)?;
            }
            tell(Event::Begun { task, done, count: self.tasks.len() });
            for tries in 1.. {
                let result = run(ground, task);
                let lateness = match &result {
                    Ok(Done::Row(row)) => row.lateness,
                    Ok(Done::Share(share)) => share.lateness,
                    Err(_) => Lateness::default(),
                };
                if !lateness.is_valid() && tries < TRIES_MAX && again + task.time() <= self.again_max {
                    again += task.time();
                    tell(Event::Again { task, lateness });
                    continue;
                }
                match result {
                    Ok(Done::Row(row)) => report.rows.push(*row),
                    Ok(Done::Share(share)) => report.shares.push(share),
                    Err(error @ (RaceError::Missing(_) | RaceError::End { .. } | RaceError::OutOfTime { .. })) => {
                        let is_missing = matches!(error, RaceError::Missing(_));
                        let unfinished = Unfinished { task: *task, is_missing, why: error.to_string() };
                        tell(Event::Unfinished(&unfinished));
                        report.unfinished.push(unfinished);
                    }
                    Err(error) => return Err(error),
                }
                break;
            }
        }
        ground.take().map(Ground::remove).transpose()?;
        report.elapsed = begun.elapsed();
        Ok(report)
    }
}

enum Done {
    Row(Box<Row>),
    Share(ShareRow),
}

fn run(ground: &Ground<'_>, task: &Task) -> Result<Done, RaceError> {
    match task {
        Task::Row(point) => Ok(Done::Row(Box::new(run_point(ground, point)?))),
        Task::Share(share) => Ok(Done::Share(run_share(ground, share)?)),
    }
}

fn work(system: System, path: &Path, connections: usize, message_bytes: usize, what: What) -> Result<Work, RaceError> {
    Ok(Work {
        system: system.on_link(path.loss),
        scheme: plan::scheme(system, path, message_bytes, what)?,
        connections,
        message_bytes,
        mtu: path.mtu,
        bandwidth_delay_bytes: path.bytes_in(path.round_trip + path.queue()),
        round_trip_max_nanos: (path.round_trip + path.queue()).as_nanos() as u64,
        measure: match what {
            What::Bulk { .. } => Measure::Bulk,
            What::Completion { count, .. } => Measure::Completion(count),
        },
    })
}

fn run_point(ground: &Ground<'_>, point: &Point) -> Result<Row, RaceError> {
    let &Point { system, connections, path, message_bytes, what } = point;
    let work = work(system, &path, connections, message_bytes, what)?;
    let name = work.scheme.clone().unwrap_or_else(|| work.system.name().to_owned());
    let (What::Bulk { time } | What::Completion { time, .. }) = what;
    let seen = ground.run(&path, &[work], time)?;
    let Seen { flows, counters, .. } = &seen;
    let [sent, received] = &flows[0];
    let mut row = Row {
        point: *point,
        name,
        goodput: None,
        completion: None,
        caused_loss: caused_loss(counters),
        repeats: repeats(sent),
        lateness: lateness(&seen),
    };
    match what {
        What::Bulk { .. } => row.goodput = Some(8.0 * received.whole_bytes as f64 / time.as_secs_f64()),
        What::Completion { .. } => {
            let joined = || {
                let pairs = received.times.iter().zip(&sent.times);
                pairs.map(|(arrived, posted)| arrived.saturating_sub(*posted)).collect()
            };
            let times = if sent.completions.is_empty() { joined() } else { sent.completions.clone() };
            row.completion = completion(times, plan::has_p99(message_bytes));
            if row.completion.is_none() {
                let why = format!("no message of {message_bytes} bytes arrived within {time:?}");
                return Err(RaceError::End { end: system.to_string(), why });
            }
        }
    }
    Ok(row)
}

fn run_share(ground: &Ground<'_>, share: &Share) -> Result<ShareRow, RaceError> {
    let &Share { ours, peer, path, time } = share;
    let flow = |system| work(system, &path, 1, plan::BULK_MESSAGE_BYTES, What::Bulk { time });
    let seen = ground.run(&path, &[flow(ours)?, flow(peer)?], time)?;
    let goodput = |index: usize| 8.0 * seen.flows[index][1].whole_bytes as f64 / time.as_secs_f64();
    Ok(ShareRow { share: *share, goodputs: [goodput(0), goodput(1)], lateness: lateness(&seen) })
}

/// Times without the first ones, sorted out.
fn completion(mut nanos: Vec<u64>, has_p99: bool) -> Option<Completion> {
    nanos.drain(..(nanos.len() / 10).min(WARM_UP_MAX));
    nanos.sort_unstable();
    let at = |share: f64| {
        let rank = (share * nanos.len() as f64).ceil() as usize;
        nanos.get(rank.saturating_sub(1)).map(|nanos| *nanos as f64 / 1e6)
    };
    Some(Completion { messages: nanos.len(), p50: at(0.5)?, p99: if has_p99 { at(0.99) } else { None } })
}

/// Share of the frames towards the receiver that found the queue full.
fn caused_loss(counters: &RunningCounters) -> f64 {
    let forth = counters.link.towards_second.impaired;
    forth.queue_full as f64 / forth.packets.max(1) as f64
}

/// Share of repeats in what a sender of Longhaul has sent.
fn repeats(sent: &orders::Outcome) -> Option<f64> {
    let data = sent.counter("reliable.data_packets_sent");
    let all = data + sent.counter("reliable.parity_packets_sent");
    (all > 0).then(|| sent.counter("reliable.data_packets_repeated") as f64 / all as f64)
}

fn lateness(seen: &Seen) -> Lateness {
    let counters = &seen.counters;
    let directions = [counters.link.towards_second, counters.link.towards_first];
    let no_memory: u64 = directions.iter().map(|direction| direction.no_memory).sum();
    let no_room: u64 = counters.arrived.iter().map(|source| source.no_room).sum();
    Lateness {
        frames: counters.forwarded.sent,
        late: counters.forwarded.late,
        late_by_host: seen.late_by_host,
        dropped: counters.forwarded.refused + no_memory + no_room,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_times_do_not_count() {
        let millis = |numbers: std::ops::RangeInclusive<u64>| numbers.map(|number| number * 1_000_000);
        // Ten slow ones at first, then 1 to 100.
        let nanos: Vec<u64> = millis(1000..=1009).chain(millis(1..=100)).collect();
        let got = completion(nanos, true).expect("times");
        assert_eq!((got.messages, got.p50, got.p99), (100, 50.0, Some(99.0)));
        assert_eq!(completion(vec![5_000_000], false).map(|got| (got.p50, got.p99)), Some((5.0, None)));
        assert!(completion(Vec::new(), true).is_none());
    }
}
