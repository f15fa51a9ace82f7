//! `longhaul plan validate`: the model against its twin, the protocol on virtual time, and the protocol on sockets.
//!
//! Options and progress are here, [`work`] and [`arrived`] do the comparing, [`report`] has the table and the JSON, and
//! [`plots`] draws.

mod arrived;
mod plots;
mod report;
mod work;

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use longhaul_scheme_testing::validation::SAMPLES_FOR_P999;
use longhaul_units::whole_number;
use work::Work;

use crate::pictures;
use crate::progress;
use crate::stop::{self, Stop};

/// The model against its stochastic twin, the protocol code on virtual time, and on UDP sockets
///
/// The model's mean must be within 5 % of the twin's, and its 99.9th percentile between the twin's 99.85th and 99.95th
/// at 100000 samples or more; within 10 % of the mean of the protocol on virtual time; and within 15 % on UDP sockets,
/// on this host's loopback, through the impaired port. Of bounded messages, the share that has arrived by the deadline
/// must be within 2 points of the model's on virtual time, and within 5 on sockets. Exit status 1 when one of these
/// bounds is broken. Three to four minutes on two cores that have nothing else to do. All but the sockets gives the same
/// figures every time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Compare only with these, with commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_enum, default_value = "twin,virtual,sockets")]
    only: Vec<With>,

    /// Samples of the twin at each point; with fewer than 100000 the 99.9th percentile is not judged
    #[arg(long, value_name = "NUMBER", default_value_t = SAMPLES_FOR_P999 as u32, value_parser = whole_number(1000..=10_000_000_u32))]
    samples: u32,

    /// Everything random comes from it
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number(0..=u64::MAX))]
    seed: u64,

    /// Threads; figures do not depend on it, but for those on sockets [default: all cores]
    #[arg(long, value_name = "NUMBER", value_parser = whole_number(1..=1024_u32))]
    threads: Option<u32>,

    /// Only bounded messages
    #[arg(long)]
    arrived: bool,

    /// Write a picture (SVG) of bounded messages into a directory
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What the model is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum With {
    /// The same protocols played through with dice
    Twin,
    /// The protocol code on a simulated link
    Virtual,
    /// The protocol code on UDP sockets
    Sockets,
}

/// Compares.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let begin = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let work = Work {
        samples: arguments.samples as usize,
        seed: arguments.seed,
        threads: arguments.threads.map_or(cores, |threads| threads as usize),
        with_twin: arguments.only.contains(&With::Twin),
        with_virtual_time: arguments.only.contains(&With::Virtual),
        with_sockets: arguments.only.contains(&With::Sockets),
        is_only_arrived: arguments.arrived,
    };
    if work.is_only_arrived && !(work.with_virtual_time || work.with_sockets) {
        let text =
            "--arrived with --only twin leaves nothing: bounded messages are compared on virtual time and on sockets";
        return Err(Stop::Usage(text.to_owned()));
    }
    arguments.svg.as_deref().map_or(Ok(()), pictures::make)?;
    // Its length is not known before the work is planned.
    let bar = progress::bar(1, "{bar:30} {percent} %, {eta} left, {msg}");
    let results = work.run(&bar);
    bar.finish_and_clear();
    let results = results.map_err(|error| Stop::Failed(error.to_string()))?;
    let seconds = begin.elapsed().as_secs_f64();
    if let Some(directory) = &arguments.svg {
        pictures::write(directory, vec![("bounded-arrived".to_owned(), plots::arrived(&results.arrived))])?;
    }
    let failures = results.failures().len();
    let wrong = (failures > 0).then(|| Stop::Failed(format!("number of bounds that do not hold: {failures}")));
    let value = || report::to_json(&results, &work, seconds);
    stop::tell(arguments.json, value, || report::to_table(&results, &work, seconds), wrong)
}
