//! `longhaul sim lowar`: RC over a long link that loses, with and without forward error correction below it.

mod output;
mod plots;

use std::path::PathBuf;
use std::time::Instant;

use longhaul_impair::Loss;
use longhaul_time::Duration;
use longhaul_world::lowar::{Check, Figure, Measured, Outcome, Point, Recovery, RecoveryPoint, Row, Scenario, Scheme};
use longhaul_world::lowar::{checks, paper};

use crate::parallel;
use crate::pictures;
use crate::progress;
use crate::stop::{self, Stop};

/// Show what forward error correction below RC (LoWAR) reaches on a long link that loses
///
/// Two software RNICs on virtual time, WRITEs without payload, MTU 1024; no congestion control, as in the paper. Packets are
/// lost in both directions. By default one link, with each scheme; `--paper` runs figures 9 to 13 of the paper, prints what its
/// text says next to our figures, and checks them: exit status 1 if a check fails. docs/LOWAR.md explains the figures. The same
/// seed gives the same figures, on any number of threads.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run the points of the paper's figures 9 to 13 and check them: takes minutes
    #[arg(long, conflicts_with_all = ["rtt", "loss", "burst", "connections", "size", "depth", "scheme", "rate", "seconds"])]
    paper: bool,

    /// With --paper: only points that need little time for sharp figures
    #[arg(long, requires = "paper")]
    quick: bool,

    /// Round-trip time
    #[arg(long, value_name = "TIME", default_value = "40ms", value_parser = longhaul_units::duration)]
    rtt: Duration,

    /// Fraction of packets lost, such as 1e-4
    #[arg(long, value_name = "SHARE", default_value = "1e-4", value_parser = longhaul_units::share)]
    loss: f64,

    /// Packets lost in a row, in the mean; 1: each packet is lost on its own
    #[arg(long, value_name = "PACKETS", default_value_t = 1, value_parser = longhaul_units::whole_number(1_u32..=1_000_000))]
    burst: u32,

    /// Queue pairs that send
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = longhaul_units::whole_number(1_u32..=1024))]
    connections: u32,

    /// Message size
    #[arg(long, value_name = "BYTES", default_value = "1MiB", value_parser = longhaul_units::bytes)]
    size: u64,

    /// Messages of each connection that are posted at once [default: as many as keep the link full]
    #[arg(long, value_name = "NUMBER", value_parser = longhaul_units::whole_number(1_u32..=100_000))]
    depth: Option<u32>,

    /// Schemes, separated by commas: rc, lowar:R,C (XOR as in the paper), lowar:mds:R,C (Reed–Solomon)
    #[arg(long, value_name = "SCHEMES", default_value = "rc,lowar:32,1,lowar:mds:64,8")]
    scheme: String,

    /// Link rate, in bits per second
    #[arg(long, value_name = "RATE", default_value = "10G", value_parser = longhaul_units::rate)]
    rate: u64,

    /// Simulated seconds that count, after the first two round trips
    #[arg(long, value_name = "NUMBER", default_value_t = 2.0)]
    seconds: f64,

    /// Seed of everything random
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = longhaul_units::whole_number(0_u64..=1_000_000_000_000))]
    seed: u64,

    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Write pictures (SVG) into a directory
    #[arg(long, value_name = "DIR", requires = "paper", conflicts_with = "quick")]
    svg: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// All that was measured.
struct Report {
    rows: Vec<Row>,
    recoveries: Vec<Recovery>,
    checks: Vec<Check>,
    seed: u64,
    seconds: f64,
}

/// One thing for a thread to do.
enum Work {
    Run { point: usize, scenario: Box<Scenario> },
    Recover(RecoveryPoint),
}

enum Done {
    Ran(usize, Box<Outcome>),
    Recovered(Recovery),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if let Some(directory) = &arguments.svg {
        // Not after minutes of work.
        pictures::make(directory)?;
    }
    let report = measure(arguments, points(arguments)?);
    if let Some(directory) = &arguments.svg {
        pictures::write(directory, plots::draw(&report))?;
    }
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let stop = Stop::checks_failed(failed, report.checks.len());
    stop::tell(arguments.json, || output::to_json(&report), || output::to_table(&report), stop)
}

fn points(arguments: &Arguments) -> Result<Vec<Point>, Stop> {
    if arguments.paper {
        let selection = if arguments.quick { paper::Selection::Quick } else { paper::Selection::Paper };
        return Ok(paper::points(selection));
    }
    let usage = |text: String| Err(Stop::Usage(text));
    let schemes = Scheme::list(&arguments.scheme).map_err(|error| Stop::Usage(format!("--scheme: {error}")))?;
    if !(Duration::from_micros(1)..=Duration::from_secs(10)).contains(&arguments.rtt) {
        return usage(format!("--rtt {:?} is out of range: use 1us to 10s", arguments.rtt));
    }
    if !(1..=64 << 20).contains(&arguments.size) {
        return usage(format!("--size {} bytes is out of range: use 1 byte to 64 MiB", arguments.size));
    }
    if !(arguments.seconds > 0.0 && arguments.seconds <= 10_000.0) {
        return usage(format!("--seconds {} is out of range: use 0.001 to 10000", arguments.seconds));
    }
    if !(1_000_000..=400_000_000_000).contains(&arguments.rate) {
        return usage(format!("--rate {} bit/s is out of range: use 1M to 400G", arguments.rate));
    }
    if arguments.loss > 0.5 {
        return usage(format!("--loss {} leaves nothing to measure: use at most 0.5", arguments.loss));
    }
    let loss = match arguments.burst {
        1 => paper::independent(arguments.loss),
        _ if arguments.loss == 0.0 => Loss::None,
        burst => Loss::bursts(arguments.loss, f64::from(burst)),
    };
    let point = |scheme| Point {
        bits_per_second: arguments.rate,
        connections: arguments.connections as usize,
        message_bytes: arguments.size as usize,
        depth: arguments.depth.map(|depth| depth as usize),
        lasts: Duration::from_secs_f64(arguments.seconds),
        ..Point::new(Figure::None, arguments.rtt, loss.clone(), scheme)
    };
    Ok(schemes.into_iter().map(point).collect())
}

fn measure(arguments: &Arguments, points: Vec<Point>) -> Report {
    let begin = Instant::now();
    let mut work: Vec<Work> = Vec::new();
    for (point, of) in points.iter().enumerate() {
        let runs = of.scenarios(arguments.seed).into_iter();
        work.extend(runs.map(|scenario| Work::Run { point, scenario: Box::new(scenario) }));
    }
    if arguments.paper {
        work.extend(RecoveryPoint::all().into_iter().map(Work::Recover));
    }
    // The longest first, so that no thread is left with one at the end.
    work.sort_by(|one, other| other.cost().total_cmp(&one.cost()));
    let total: f64 = work.iter().map(Work::cost).sum();
    let bar = progress::bar((total * 1000.0) as u64, "{bar:30} {percent} %, {eta} left");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let done = parallel::on_threads(arguments.threads.map_or(cores, usize::from), &work, |item| {
        let done = item.run();
        bar.inc((item.cost() * 1000.0) as u64);
        done
    });
    bar.finish_and_clear();
    let mut outcomes: Vec<Vec<Outcome>> = points.iter().map(|_| Vec::new()).collect();
    let mut recoveries = Vec::new();
    for done in done {
        match done {
            Done::Ran(point, outcome) => outcomes[point].push(*outcome),
            Done::Recovered(recovery) => recoveries.push(recovery),
        }
    }
    let measured = points.into_iter().zip(outcomes).map(|(point, outcomes)| (point, Measured::of(&outcomes)));
    let rows = Row::all(measured.collect());
    let checks = if arguments.paper { checks(&rows, &recoveries) } else { Vec::new() };
    Report { rows, recoveries, checks, seed: arguments.seed, seconds: begin.elapsed().as_secs_f64() }
}

impl Work {
    fn run(&self) -> Done {
        match self {
            Work::Run { point, scenario } => Done::Ran(*point, Box::new(scenario.run())),
            Work::Recover(point) => Done::Recovered(point.run()),
        }
    }

    /// About the seconds that it takes, for the order and the progress.
    fn cost(&self) -> f64 {
        match self {
            Work::Run { scenario, .. } => scenario.cost_seconds(),
            Work::Recover(_) => 1.0,
        }
    }
}
