//! A race over one emulated link: TCP, QUIC, RC and Longhaul, each alone, and two next to each other.
//!
//! ```text
//!   sender (a process) ─▶ [left] ═ veth ═ link: rate, queue, delay, loss ═ veth ═ [right] ─▶ receiver (a process)
//! ```
//!
//! Every row has a link of its own and two processes of its own, which sleep when they have nothing to do. All
//! processes of the machine share the monotonic clock, so a completion time is exact: from just before a message is
//! posted at the sender until the receiver's program has its last byte. A message that is still open when its row ends
//! counts with its age. Goodput counts messages that have arrived whole between a start that both ends know and the end of
//! the row; connecting is not part of it, everything after is.
//!
//! A row says something only if the link kept its times: see [`LATE_SHARE_MAX`] and [`LATE_BY_HOST_SHARE_MAX`].

mod checks;
mod child;
mod end;
mod end_error;
mod ends;
mod ground;
mod host;
mod judged;
mod orders;
mod plan;
mod prepared;
mod report;
mod system;
mod tally;
mod watch;

use std::time::{Duration, Instant};

use longhaul::with_sources;
use longhaul_link::RunningCounters;

use self::ground::{Ground, Seen};
use self::orders::{Measure, Outcome, Work};

pub use self::checks::{Check, Verdict, judge};
pub use self::end::run_end;
pub use self::judged::Skipped;
pub use self::plan::{Kind, Path, Point, Share, Task, Wanted, What};
pub use self::report::{
    Completion, LATE_BY_HOST_SHARE_MAX, LATE_SHARE_MAX, Lateness, OptionsOf, P99_MESSAGES_MIN, RaceError, Report, Row,
    ShareRow, Unfinished,
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
    /// Runs everything. The process must have one thread only. What goes wrong after something was measured costs the row
    /// that it happens to, not the report.
    pub fn run(&self, tell: &mut dyn FnMut(Event<'_>)) -> Result<Report, RaceError> {
        let begun = Instant::now();
        let mut report = Report { options: report::options(&self.tasks), ..Report::default() };
        let (mut ground, mut again) = (None::<Ground<'_>>, Duration::ZERO);
        for (done, task) in self.tasks.iter().enumerate() {
            let result = self.ground(&mut ground, task.path().mtu).and_then(|ground| {
                if report.bbr_version.is_none() {
                    report.bbr_version = ground.within_sender(host::bbr_version)?;
                }
                tell(Event::Begun { task, done, count: self.tasks.len() });
                self.run_task(ground, task, &mut again, tell)
            });
            let is_first = report.rows.is_empty() && report.shares.is_empty();
            match result {
                Ok(Done::Row(row)) => report.rows.push(*row),
                Ok(Done::Share(share)) => report.shares.push(share),
                Err(error) if is_first && !error.is_of_a_row() => return Err(error),
                Err(error) => {
                    let is_missing = matches!(error, RaceError::Missing(_));
                    let unfinished = Unfinished { task: *task, is_missing, why: with_sources(&error) };
                    tell(Event::Unfinished(&unfinished));
                    report.unfinished.push(unfinished);
                }
            }
        }
        if let Some(ground) = ground {
            ground.remove();
        }
        report.elapsed = begun.elapsed();
        Ok(report)
    }

    /// The ground for an MTU; another one is removed.
    fn ground<'g, 'a>(&'a self, ground: &'g mut Option<Ground<'a>>, mtu: u16) -> Result<&'g Ground<'a>, RaceError> {
        if let Some(other) = ground.take_if(|ground| ground.mtu != mtu) {
            other.remove();
        }
        match ground {
            Some(ground) => Ok(ground),
            none => Ok(none.insert(Ground::make(mtu, self.end_command)?)),
        }
    }

    /// Runs a task, again if the link was late and time is left for that.
    fn run_task(
        &self,
        ground: &Ground<'_>,
        task: &Task,
        again: &mut Duration,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Done, RaceError> {
        for _ in 1..TRIES_MAX {
            let done = run(ground, task)?;
            let lateness = match &done {
                Done::Row(row) => row.lateness,
                Done::Share(share) => share.lateness,
            };
            if lateness.is_valid() || *again + task.time() > self.again_max {
                return Ok(done);
            }
            *again += task.time();
            tell(Event::Again { task, lateness });
        }
        run(ground, task)
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
    let &Point { system, connections, path, message_bytes, what, .. } = point;
    let work = work(system, &path, connections, message_bytes, what)?;
    let name = work.scheme.clone().unwrap_or_else(|| work.system.name().to_owned());
    let time = what.time();
    let seen = ground.run(&path, &[work], time)?;
    let [sent, received] = &seen.flows[0];
    let mut row = Row {
        point: *point,
        name,
        goodput: None,
        completion: None,
        caused_loss: caused_loss(&seen.counters),
        repeats: repeats(sent),
        lateness: lateness(&seen),
    };
    match what {
        What::Bulk { .. } => row.goodput = Some(seen.goodput(0)),
        What::Completion { .. } => {
            let (times, open) = message_times(sent, received, seen.until, path.round_trip / 2);
            row.completion = completion(times, open);
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
    Ok(ShareRow { share: *share, goodputs: [seen.goodput(0), seen.goodput(1)], lateness: lateness(&seen) })
}

/// What each message took, and the age of one that was posted and had not arrived when the row ended, in nanoseconds. A
/// sender that knows from answers may not have heard yet of a message that arrived within `answer` of the end.
fn message_times(sent: &Outcome, received: &Outcome, until: u64, answer: Duration) -> (Vec<u64>, Option<u64>) {
    let (times, known_until) = if sent.completions.is_empty() {
        let pairs = received.times.iter().zip(&sent.times);
        (pairs.map(|(arrived, posted)| arrived.saturating_sub(*posted)).collect(), until)
    } else {
        (sent.completions.clone(), until.saturating_sub(answer.as_nanos() as u64))
    };
    // One at a time: what follows the last that arrived is the only one that is open.
    let open = sent.times.get(times.len()).map(|posted| known_until.saturating_sub(*posted));
    (times, open)
}

/// Times without the first ones, sorted out. An open message will have taken at least its age: if that is less than the
/// median, it says nothing.
fn completion(mut nanos: Vec<u64>, open: Option<u64>) -> Option<Completion> {
    nanos.drain(..(nanos.len() / 10).min(WARM_UP_MAX));
    nanos.sort_unstable();
    let median = nanos.get(nanos.len() / 2).copied()?;
    nanos.extend(open.filter(|age| *age > median));
    nanos.sort_unstable();
    let has_p99 = nanos.len() >= P99_MESSAGES_MIN;
    let at = |share: f64| {
        let rank = (share * nanos.len() as f64).ceil() as usize;
        nanos.get(rank.saturating_sub(1)).map(|nanos| *nanos as f64 / 1e6)
    };
    let p99 = if has_p99 { at(0.99) } else { None };
    Some(Completion { messages: nanos.len(), p50: at(0.5)?, p99, longest: at(1.0)? })
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
        let got = completion(nanos, None).expect("times");
        assert_eq!((got.messages, got.p50, got.p99, got.longest), (100, 50.0, Some(99.0), 100.0));
        assert_eq!(completion(vec![5_000_000], None).map(|got| (got.p50, got.p99)), Some((5.0, None)));
        assert!(completion(Vec::new(), Some(1)).is_none());
    }

    #[test]
    fn few_messages_have_no_p99() {
        let of = |count: usize| completion(vec![1_000_000; count], None).expect("times");
        // The first ten do not count.
        assert_eq!((of(109).messages, of(109).p99), (99, None));
        assert_eq!((of(110).messages, of(110).p99), (100, Some(1.0)));
    }

    #[test]
    fn a_message_that_never_arrives_counts() {
        let outcome = |times: &[u64], completions: &[u64]| Outcome {
            times: times.to_vec(),
            completions: completions.to_vec(),
            ..Outcome::default()
        };
        let answer = Duration::from_nanos(100);
        // Posted at 1000, 2000 and 3000; the third is open at 9000.
        let sent = outcome(&[1000, 2000, 3000], &[]);
        assert_eq!(message_times(&sent, &outcome(&[1010, 2020], &[]), 9000, answer), (vec![10, 20], Some(6000)));
        assert_eq!(message_times(&sent, &outcome(&[1010, 2020, 3030], &[]), 9000, answer), (vec![10, 20, 30], None));
        // The sender hears of each from the receiver, and of the third perhaps a moment after the end.
        let answered = outcome(&[1000, 2000, 3000], &[10, 20]);
        assert_eq!(message_times(&answered, &Outcome::default(), 9000, answer), (vec![10, 20], Some(5900)));
        let stuck = completion(vec![15_000_000; 2], Some(10_000_000_000)).expect("times");
        assert_eq!((stuck.messages, stuck.p50, stuck.longest), (3, 15.0, 10_000.0));
        let young = completion(vec![15_000_000; 2], Some(1_000_000)).expect("times");
        assert_eq!((young.messages, young.longest), (2, 15.0), "posted just before the end");
    }
}
