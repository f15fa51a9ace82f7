//! What is run: rows of one system each, and two systems next to each other.

use std::time::Duration;

use longhaul_plan::link::{Link, Loss, PlanError};
use longhaul_plan::question::{Candidate, Objective, Question};

use super::system::{System, roce_payload};

/// Bytes of a message in bulk rows.
pub(super) const BULK_MESSAGE_BYTES: usize = 1 << 20;
/// Messages of which completion times are taken.
const MESSAGE_BYTES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Seconds of a bulk row: of a row that is judged, and of the others of `--all`.
const BULK_TIME: Duration = Duration::from_secs(30);
const BULK_TIME_SHORT: Duration = Duration::from_secs(10);
/// Of rows that show what defaults do, and of two systems next to each other.
const DEFAULTS_TIME: Duration = Duration::from_secs(60);
/// No completion row takes longer.
pub(super) const COMPLETION_TIME: Duration = Duration::from_secs(15);
/// Completion times are taken here only.
const COMPLETION_ROUND_TRIP: Duration = Duration::from_millis(25);
/// A bottleneck's queue holds what it sends in this time, or in this part of a round trip.
const QUEUE_MIN: Duration = Duration::from_millis(5);
const QUEUE_PART_OF_ROUND_TRIP: u32 = 5;
/// And at least this many full frames: a shorter one would drop what a path at a low rate could carry.
const QUEUE_FRAMES_MIN: u64 = 4;
/// Ethernet's header, which the link's rate counts.
const ETHERNET_BYTES: u32 = 14;

/// What a link does to packets in each direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// There and back.
    pub round_trip: Duration,
    /// Share of packets that is lost.
    pub loss: f64,
    /// Mean length of a burst of losses; 1 is each on its own.
    pub burst: u32,
    /// Bytes of the longest IP packet.
    pub mtu: u16,
    /// Bits a second.
    pub rate: u64,
}

impl Path {
    /// The time that a packet waits in a full queue.
    pub fn queue(&self) -> Duration {
        let frames = 8.0 * self.queue_frames_bytes() as f64 / self.rate.max(1) as f64;
        self.queue_wanted().max(Duration::from_secs_f64(frames))
    }

    /// Bytes that the queue holds.
    pub(super) fn queue_bytes(&self) -> u64 {
        self.bytes_in(self.queue_wanted()).max(self.queue_frames_bytes())
    }

    fn queue_wanted(&self) -> Duration {
        QUEUE_MIN.max(self.round_trip / QUEUE_PART_OF_ROUND_TRIP)
    }

    fn queue_frames_bytes(&self) -> u64 {
        QUEUE_FRAMES_MIN * (u64::from(self.mtu) + u64::from(ETHERNET_BYTES))
    }

    pub(super) fn bytes_in(&self, time: Duration) -> u64 {
        (self.rate as f64 / 8.0 * time.as_secs_f64()) as u64
    }
}

/// What is measured in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Goodput of connections that never idle.
    Bulk {
        /// Start-up included.
        time: Duration,
    },
    /// Completion times of messages, one at a time.
    Completion {
        /// At most this many.
        count: usize,
        /// And for this long.
        time: Duration,
    },
}

impl What {
    /// How long a row takes, at most.
    pub fn time(&self) -> Duration {
        let (What::Bulk { time } | What::Completion { time, .. }) = self;
        *time
    }
}

/// A row: one system alone on the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// What it is run for.
    pub kind: Kind,
    /// Which.
    pub system: System,
    /// Connections that carry the same at the same time.
    pub connections: usize,
    /// The link.
    pub path: Path,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// Goodput or times.
    pub what: What,
}

/// Two flows next to each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// In our place.
    pub ours: System,
    /// Next to it.
    pub peer: System,
    /// The link.
    pub path: Path,
    /// For how long.
    pub time: Duration,
}

/// Something to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    /// One system alone.
    Row(Point),
    /// Two next to each other.
    Share(Share),
}

impl Task {
    /// The link.
    pub fn path(&self) -> Path {
        match self {
            Task::Row(point) => point.path,
            Task::Share(share) => share.path,
        }
    }

    /// About how long it takes, at most.
    pub fn time(&self) -> Duration {
        match self {
            Task::Row(point) => point.what.time(),
            Task::Share(share) => share.time,
        }
    }
}

/// What a person wants to see. What is not said is the quick selection's, or that of all.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Everything; by default a quick selection, or one value of what is not said if something is.
    pub all: bool,
    /// Systems.
    pub systems: Vec<System>,
    /// Numbers of connections.
    pub connections: Vec<usize>,
    /// Round trips.
    pub round_trips: Vec<Duration>,
    /// Shares of packets that are lost.
    pub losses: Vec<f64>,
    /// Mean length of bursts.
    pub burst: Option<u32>,
    /// MTUs of the link.
    pub mtus: Vec<u16>,
    /// Bytes of messages whose completion times are taken.
    pub message_bytes: Vec<usize>,
    /// Length of a row.
    pub time: Option<Duration>,
    /// Bits a second.
    pub rate: u64,
    /// Kinds of rows.
    pub kinds: Vec<Kind>,
}

/// A kind of row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goodput.
    Bulk,
    /// Completion times.
    Completion,
    /// Two flows next to each other.
    Shares,
    /// Longhaul's defaults for a minute.
    Defaults,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Defaults, Kind::Shares, Kind::Bulk, Kind::Completion];

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bulk => "bulk",
            Kind::Completion => "completion",
            Kind::Shares => "shares",
            Kind::Defaults => "defaults",
        }
    }
}

/// The points of a race that is not quick.
struct Values {
    systems: Vec<System>,
    connections: Vec<usize>,
    round_trips: Vec<Duration>,
    losses: Vec<(f64, u32)>,
    mtus: Vec<u16>,
    message_bytes: Vec<usize>,
}

impl Wanted {
    fn is_restricted(&self) -> bool {
        let Wanted { systems, connections, round_trips, losses, burst, mtus, message_bytes, .. } = self;
        !systems.is_empty()
            || !connections.is_empty()
            || !round_trips.is_empty()
            || !losses.is_empty()
            || burst.is_some()
            || !mtus.is_empty()
            || !message_bytes.is_empty()
    }

    /// What to run, nothing twice; links of one MTU one after the other.
    pub fn tasks(&self) -> Vec<Task> {
        let is_quick = !self.all && !self.is_restricted();
        let kinds: &[Kind] = match &self.kinds[..] {
            [] if self.is_restricted() && !self.all => &[Kind::Bulk],
            [] => &Kind::ALL,
            kinds => kinds,
        };
        let values = self.values();
        let mut tasks: Vec<Task> = Vec::new();
        for kind in kinds {
            match (kind, is_quick) {
                (Kind::Bulk, true) => tasks.extend(self.quick_bulk()),
                (Kind::Bulk, false) => tasks.extend(self.bulk(&values)),
                (Kind::Completion, true) => tasks.extend(self.quick_completion()),
                (Kind::Completion, false) => tasks.extend(self.completion(&values)),
                (Kind::Shares, _) => tasks.extend(self.shares()),
                (Kind::Defaults, _) => tasks.extend(self.defaults()),
            }
        }
        tasks.sort_by_key(|task| task.path().mtu);
        // Who names something twice means it once.
        let mut once: Vec<Task> = Vec::with_capacity(tasks.len());
        for task in tasks {
            if !once.contains(&task) {
                once.push(task);
            }
        }
        once
    }

    fn values(&self) -> Values {
        fn or<T: Clone>(said: &[T], all: bool, every: &[T], one: &[T]) -> Vec<T> {
            match said {
                [] if all => every.to_vec(),
                [] => one.to_vec(),
                said => said.to_vec(),
            }
        }
        let millis = |count| Duration::from_millis(count);
        let burst = self.burst.unwrap_or(1);
        let losses = match (&self.losses[..], self.burst) {
            ([], None) if self.all => vec![(0.0, 1), (1e-4, 1), (1e-3, 1), (1e-2, 1), (1e-3, 8)],
            ([], Some(burst)) => vec![(1e-3, burst)],
            ([], None) => vec![(0.0, 1)],
            (losses, _) => losses.iter().map(|loss| (*loss, if *loss > 0.0 { burst } else { 1 })).collect(),
        };
        Values {
            systems: or(&self.systems, true, &System::DEFAULT, &[]),
            connections: or(&self.connections, self.all, &[1, 4, 16], &[1]),
            round_trips: or(&self.round_trips, self.all, &[1, 25, 100].map(millis), &[millis(25)]),
            losses,
            mtus: or(&self.mtus, self.all, &[1500, 4200], &[1500]),
            message_bytes: or(&self.message_bytes, self.all, &MESSAGE_BYTES, &MESSAGE_BYTES[..1]),
        }
    }

    fn path(&self, round_trip: Duration, (loss, burst): (f64, u32), mtu: u16) -> Path {
        Path { round_trip, loss, burst, mtu, rate: self.rate }
    }

    fn bulk_point(&self, kind: Kind, system: System, connections: usize, path: Path, time: Duration) -> Task {
        let what = What::Bulk { time: self.time.unwrap_or(time) };
        Task::Row(Point { kind, system, connections, path, message_bytes: BULK_MESSAGE_BYTES, what })
    }

    fn completion_point(&self, system: System, path: Path, message_bytes: usize) -> Task {
        let time = self.time.unwrap_or(COMPLETION_TIME);
        let what = What::Completion { count: message_count(message_bytes), time };
        Task::Row(Point { kind: Kind::Completion, system, connections: 1, path, message_bytes, what })
    }

    fn quick_bulk(&self) -> Vec<Task> {
        let path = self.path(Duration::from_millis(100), (1e-3, 1), 1500);
        System::DEFAULT.map(|system| self.bulk_point(Kind::Bulk, system, 1, path, BULK_TIME)).to_vec()
    }

    fn quick_completion(&self) -> Vec<Task> {
        let mut tasks = Vec::new();
        for message_bytes in [64 << 10, 1 << 20] {
            let point = |system, loss| {
                self.completion_point(system, self.path(COMPLETION_ROUND_TRIP, (loss, 1), 1500), message_bytes)
            };
            tasks.push(point(System::Erasure, 0.0));
            for loss in [1e-3, 1e-2] {
                let systems = [System::TcpBbr, System::Quic, System::SelectiveRepeat, System::Erasure];
                tasks.extend(systems.map(|system| point(system, loss)));
            }
        }
        tasks
    }

    fn bulk(&self, values: &Values) -> Vec<Task> {
        let mut tasks = Vec::new();
        for &mtu in &values.mtus {
            for &round_trip in &values.round_trips {
                for &loss in &values.losses {
                    for &connections in &values.connections {
                        let path = self.path(round_trip, loss, mtu);
                        // Start-up counts: what is judged gets the time that it needs.
                        let is_judged =
                            connections == 1 && loss == (1e-3, 1) && round_trip == Duration::from_millis(100);
                        let time = if is_judged || !self.all { BULK_TIME } else { BULK_TIME_SHORT };
                        let point = |system: &System| self.bulk_point(Kind::Bulk, *system, connections, path, time);
                        tasks.extend(values.systems.iter().map(point));
                    }
                }
            }
        }
        tasks
    }

    fn completion(&self, values: &Values) -> Vec<Task> {
        let mut tasks = Vec::new();
        // One round trip is enough, unless another is asked for.
        let round_trips =
            if self.round_trips.is_empty() { vec![COMPLETION_ROUND_TRIP] } else { values.round_trips.clone() };
        for &mtu in &values.mtus {
            for &round_trip in &round_trips {
                for &loss in &values.losses {
                    for &message_bytes in &values.message_bytes {
                        let path = self.path(round_trip, loss, mtu);
                        let point = |system: &System| self.completion_point(*system, path, message_bytes);
                        tasks.extend(values.systems.iter().map(point));
                    }
                }
            }
        }
        tasks
    }

    fn defaults(&self) -> Vec<Task> {
        let path = self.path(Duration::from_millis(25), (0.0, 1), 1500);
        [System::SelectiveRepeat, System::Erasure]
            .map(|system| self.bulk_point(Kind::Defaults, system, 1, path, DEFAULTS_TIME))
            .to_vec()
    }

    fn shares(&self) -> Vec<Task> {
        let path = self.path(Duration::from_millis(25), (0.0, 1), 1500);
        let time = self.time.unwrap_or(DEFAULTS_TIME);
        let share = |ours, peer| Task::Share(Share { ours, peer, path, time });
        vec![
            share(System::SelectiveRepeat, System::TcpCubic),
            share(System::SelectiveRepeat, System::TcpBbr),
            // What another gets in our place.
            share(System::TcpCubic, System::TcpBbr),
        ]
    }
}

/// Messages of a row; long ones are too few for a p99.
fn message_count(message_bytes: usize) -> usize {
    match message_bytes {
        0..=0x1_0000 => 400,
        0x1_0001..=0x10_0000 => 200,
        _ => 20,
    }
}

/// Longhaul's scheme for a row: for erasure coding, the code that the planner chooses for the link and the message.
pub(super) fn scheme(
    system: System,
    path: &Path,
    message_bytes: usize,
    what: What,
) -> Result<Option<String>, PlanError> {
    if system != System::Erasure {
        return Ok(system.is_longhaul().then(|| system.name().to_owned()));
    }
    let loss = match path.burst {
        0 | 1 => Loss::Independent(path.loss),
        burst => Loss::bursts(path.loss, f64::from(burst)),
    };
    let payload = roce_payload(path.mtu.into());
    let link = Link {
        packet_bytes: payload,
        frame_overhead_bytes: ETHERNET_BYTES,
        ..Link::new(path.rate as f64, path.round_trip.as_secs_f64(), loss)
    };
    let question = Question {
        // A packet, as the library has it by default.
        chunk_bytes: Some(payload),
        candidates: vec!["ec:mds".parse::<Candidate>()?],
        objective: match what {
            What::Bulk { .. } => Objective::Mean,
            What::Completion { .. } => Objective::P99,
        },
        ..Question::new(link, message_bytes as u64)
    };
    Ok(question.answer()?.rows.first().map(|row| row.scheme.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 200_000_000;

    fn total(wanted: &Wanted) -> Duration {
        wanted.tasks().iter().map(|task| task.time() + Duration::from_millis(1200)).sum()
    }

    #[test]
    fn selections_keep_their_time() {
        let quick = Wanted { rate: RATE, ..Wanted::default() };
        assert!(total(&quick) <= Duration::from_secs(15 * 60), "{:?}", total(&quick));
        let all = Wanted { rate: RATE, all: true, ..Wanted::default() };
        assert!(total(&all) <= Duration::from_secs(3 * 3600), "{:?}", total(&all));
        assert!(all.tasks().len() > 600);
    }

    #[test]
    fn what_is_named_is_run_and_no_more() {
        let second = Duration::from_secs(1);
        let wanted = Wanted {
            rate: RATE,
            systems: vec![System::Rc],
            losses: vec![1e-3],
            time: Some(second),
            ..Wanted::default()
        };
        let tasks = wanted.tasks();
        let [Task::Row(point)] = &tasks[..] else { panic!("{tasks:?}") };
        assert_eq!((point.system, point.path.loss, point.what), (System::Rc, 1e-3, What::Bulk { time: second }));
        assert_eq!((point.connections, point.path.mtu, point.path.queue()), (1, 1500, Duration::from_millis(5)));
        let shares = Wanted { rate: RATE, kinds: vec![Kind::Shares], ..Wanted::default() };
        assert_eq!(shares.tasks().len(), 3);
        let twice = Wanted { systems: vec![System::Rc, System::Rc], losses: vec![1e-3, 1e-3], ..wanted };
        assert_eq!(twice.tasks(), tasks, "named twice, run once");
    }

    #[test]
    fn a_queue_holds_a_few_frames() {
        let path =
            |rate, mtu, millis| Path { round_trip: Duration::from_millis(millis), loss: 0.0, burst: 1, mtu, rate };
        let slow = path(1_000_000, 1500, 25);
        assert_eq!(slow.queue_bytes(), 4 * 1514, "5 ms would be 625 bytes");
        assert_eq!(slow.queue().as_micros(), 48_448);
        assert_eq!((path(RATE, 1500, 25).queue_bytes(), path(RATE, 4200, 100).queue_bytes()), (125_000, 500_000));
        assert_eq!(path(RATE, 9000, 100).queue(), Duration::from_millis(20));
    }

    #[test]
    fn the_planner_chooses_the_code() {
        let path = |loss, burst| Path { round_trip: Duration::from_millis(25), loss, burst, mtu: 1500, rate: RATE };
        let of = |loss, burst| {
            let what = What::Completion { count: 1, time: Duration::ZERO };
            scheme(System::Erasure, &path(loss, burst), 1 << 20, what).expect("an answer").expect("a scheme")
        };
        assert!(
            of(0.0, 1).starts_with("ec:mds:")
                && of(1e-2, 1).starts_with("ec:mds:")
                && of(1e-3, 8).starts_with("ec:mds:")
        );
        assert_ne!(of(0.0, 1), of(1e-2, 1), "more loss, more parity");
        let bulk = What::Bulk { time: Duration::ZERO };
        assert_eq!(scheme(System::SelectiveRepeat, &path(0.0, 1), 1, bulk), Ok(Some("sr:nack".to_owned())));
        assert_eq!(scheme(System::Rc, &path(0.0, 1), 1, bulk), Ok(None));
    }
}
