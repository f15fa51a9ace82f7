//! `longhaul perf wan`: TCP, QUIC, RC and Longhaul over the same emulated link.

mod output;
mod plots;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul::with_sources;
use longhaul_units::{bytes_within, rate, seconds_within, share, whole_number};
use longhaul_wan::race::{self, Event, Kind, Race, RaceError, Report, System, Task, Verdict, Wanted};

use crate::link;
use crate::stop::{self, Stop};

/// Rows that were disturbed are run again for at most this long: quick, and with --all.
const AGAIN_MAX: Duration = Duration::from_secs(100);
const AGAIN_MAX_ALL: Duration = Duration::from_secs(1500);
const ALL_INVALID: &str = "nothing could be checked: the link was late in every row that a check uses; leave the machine \
                           idle, or choose a lower --rate, and run it again";
/// How this program becomes an end of the race.
const END_COMMAND: [&str; 2] = ["perf", "wan-end"];
const ROUND_TRIP_MS: std::ops::RangeInclusive<f64> = 0.1..=1000.0;

/// Race TCP, QUIC, RC and Longhaul over the same emulated link
///
/// Both ends on this machine, in two network namespaces with a link between them that limits the rate, delays, queues
/// and loses; needs root or user namespaces, as `longhaul link demo` does. Goodput: connections that never idle, with
/// start-up. Completion times: messages one at a time, from post until the receiver's program has the last byte. Shares:
/// two flows next to each other, as shares of a fair share. Without options that choose rows, a quick selection of at most
/// 15 minutes; --all takes up to 3 hours. Options that choose rows run every combination of what they name; what they do
/// not name has one value (25 ms, no loss, 1 connection, MTU 1500), or all with --all. A row in which the link was late
/// is run again. QUIC needs a build with the feature quic. Exit status 1: a check failed, or the link was late in every row
/// that is checked. docs/WIDE-AREA.md explains.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: longhaul perf wan --system sr:nack,tcp-bbr --rtt 100ms --loss 1e-3 --seconds 10")]
pub(crate) struct Arguments {
    /// Every combination
    #[arg(long)]
    all: bool,

    /// Only these systems: tcp-cubic, tcp-bbr, quic, quic:cubic, quic:bbr, rc, sr:nack, ec:mds
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    system: Vec<System>,

    /// Only these round trips
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = round_trip)]
    rtt: Vec<Duration>,

    /// Only these shares of packets lost
    #[arg(long, value_name = "SHARE", value_delimiter = ',', value_parser = share)]
    loss: Vec<f64>,

    /// Packets are lost in bursts of this length on average
    #[arg(long, value_name = "PACKETS", value_parser = whole_number(1_u32..=1000))]
    burst: Option<u32>,

    /// Only these numbers of connections
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', value_parser = whole_number(1_usize..=64))]
    connections: Vec<usize>,

    /// Only these MTUs of the link
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = whole_number(1280_u16..=9000))]
    mtu: Vec<u16>,

    /// Only these message sizes, in completion rows
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = bytes_within::<usize>(1..=256 << 20))]
    size: Vec<usize>,

    /// Only these kinds of rows [default: all, or bulk if options choose rows]
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_enum)]
    measure: Vec<Measure>,

    /// Length of each row [default: 30 s for bulk, 60 s for shares and defaults, 15 s for completion; --all: 10 s for most]
    #[arg(long, value_name = "SECONDS", value_parser = seconds_within(0.5..=600.0))]
    seconds: Option<f64>,

    /// Rate of the link
    #[arg(long, value_name = "RATE", default_value = "200M", value_parser = rate)]
    rate: u64,

    /// Also write rows to this file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Also draw the rows, into this directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Measure {
    /// Goodput
    Bulk,
    /// Completion times of messages, one at a time
    Completion,
    /// Two flows next to each other
    Shares,
    /// Longhaul's defaults for a minute, with the loss that they cause
    Defaults,
}

/// One end, in its namespace; started by `wan`
#[derive(Debug, clap::Args)]
pub(crate) struct EndArguments {}

fn round_trip(text: &str) -> Result<Duration, String> {
    let time = longhaul_units::duration(text).map_err(|error| error.to_string())?;
    match ROUND_TRIP_MS.contains(&(time.as_secs_f64() * 1e3)) {
        true => Ok(Duration::from_nanos(time.as_nanos() as u64)),
        false => Err("expected 100us to 1s".to_owned()),
    }
}

impl Arguments {
    fn wanted(&self) -> Result<Wanted, Stop> {
        if !(1_000_000..=20_000_000_000).contains(&self.rate) {
            return Err(Stop::Usage("--rate: expected 1M to 20G, in bits per second".to_owned()));
        }
        if self.loss.iter().any(|loss| *loss > 0.5) {
            return Err(Stop::Usage("--loss: expected at most 0.5, half of all packets".to_owned()));
        }
        let kind = |measure: &Measure| match measure {
            Measure::Bulk => Kind::Bulk,
            Measure::Completion => Kind::Completion,
            Measure::Shares => Kind::Shares,
            Measure::Defaults => Kind::Defaults,
        };
        Ok(Wanted {
            all: self.all,
            systems: self.system.clone(),
            connections: self.connections.clone(),
            round_trips: self.rtt.clone(),
            losses: self.loss.clone(),
            burst: self.burst,
            mtus: self.mtu.clone(),
            message_bytes: self.size.clone(),
            time: self.seconds.map(Duration::from_secs_f64),
            rate: self.rate,
            kinds: self.measure.iter().map(kind).collect(),
        })
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let tasks = arguments.wanted()?.tasks();
    try_files(arguments)?;
    let again_max = if arguments.all { AGAIN_MAX_ALL } else { AGAIN_MAX };
    let minutes = tasks.iter().map(Task::time).sum::<Duration>().as_secs_f64() / 60.0;
    eprintln!(
        "{} rows at {}, at most {minutes:.1} minutes, about a second more for each row, and what is run again",
        tasks.len(),
        rate_text(arguments.rate)
    );
    let report = Race { tasks, end_command: &END_COMMAND, again_max }.run(&mut show).map_err(stop_of)?;
    let verdict = race::judge(&report);
    let rate = arguments.rate;
    let told = stop::tell(
        arguments.json,
        || output::to_json(&report, &verdict, rate),
        || output::to_table(&report, &verdict, rate),
        wrong(&report, &verdict),
    );
    match (told, write_files(arguments, &report)) {
        (told, Ok(())) => told,
        // The result was printed; this only goes to standard error.
        (Ok(()), Err(unwritten)) => Err(unwritten.shown()),
        (told, Err(unwritten)) => {
            eprintln!("{unwritten}");
            told
        }
    }
}

/// What is wrong with a result.
fn wrong(report: &Report, verdict: &Verdict) -> Option<Stop> {
    let failed = verdict.checks.iter().filter(|check| !check.is_good).count();
    // Nothing at all was measured: what is missing is the answer.
    let nothing = report.rows.is_empty() && report.shares.is_empty();
    match report.unfinished.first() {
        Some(first) if nothing && first.is_missing => Some(Stop::Missing(first.why.clone())),
        Some(first) if nothing => Some(Stop::Failed(first.why.clone())),
        _ => Stop::checks_failed(failed, verdict.checks.len())
            .or_else(|| verdict.is_all_invalid.then(|| Stop::Failed(ALL_INVALID.to_owned()))),
    }
}

/// Fails before the race if its files could not be written after it. What is in them stays until then.
fn try_files(arguments: &Arguments) -> Result<(), Stop> {
    if let Some(file) = &arguments.csv {
        let opened = File::options().create(true).append(true).open(file);
        opened.map_err(|error| Stop::missing(format!("cannot write --csv {}", file.display()), error))?;
    }
    if let Some(directory) = &arguments.svg {
        let name = directory.display();
        let made = fs::create_dir_all(directory);
        made.map_err(|error| Stop::missing(format!("cannot make the directory --svg {name}"), error))?;
        let trial = directory.join(format!(".longhaul-{}", std::process::id()));
        let tried = File::create(&trial).and_then(|_| fs::remove_file(&trial));
        tried.map_err(|error| Stop::missing(format!("cannot write into the directory --svg {name}"), error))?;
    }
    Ok(())
}

fn write_files(arguments: &Arguments, report: &Report) -> Result<(), Stop> {
    if let Some(file) = &arguments.csv {
        write(file, &output::to_csv(report))?;
    }
    if let Some(directory) = &arguments.svg {
        for (name, svg) in plots::draw(report) {
            write(&directory.join(format!("{name}.svg")), &svg)?;
        }
    }
    Ok(())
}

fn rate_text(rate: u64) -> String {
    longhaul_units::rate_text(rate)
}

fn write(file: &Path, text: &str) -> Result<(), Stop> {
    fs::write(file, text).map_err(|error| Stop::missing(format!("cannot write {}", file.display()), error))
}

/// Progress, on standard error.
fn show(event: Event<'_>) {
    match event {
        Event::Begun { task, done, count } => eprintln!("{}/{count} {}", done + 1, output::describe(task)),
        Event::Again { lateness, .. } => {
            let [late, by_host] = [lateness.share(), lateness.share_by_host()].map(|share| 100.0 * share);
            eprintln!("  again: the link was late with {late:.2} % of the frames, the host with {by_host:.2} %");
        }
        Event::Unfinished(unfinished) => eprintln!("  no result: {}", unfinished.why),
    }
}

fn stop_of(error: RaceError) -> Stop {
    match error {
        RaceError::Namespace(error) => error.into(),
        RaceError::Link(error) => link::stop_of(error),
        RaceError::Plan(_) => Stop::Usage(with_sources(&error)),
        RaceError::Missing(_) | RaceError::Start(_) => Stop::Missing(with_sources(&error)),
        error => Stop::Failed(with_sources(&error)),
    }
}

/// Runs an end.
pub(crate) fn run_end(_: &EndArguments) -> Result<(), Stop> {
    race::run_end();
    Ok(())
}
