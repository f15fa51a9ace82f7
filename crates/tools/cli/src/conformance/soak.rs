//! `longhaul conformance --soak`: the random programs of `longhaul sim soak`, and their judge, on a device.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use longhaul_conformance::soak::{Campaign, SoakOptions, SoakPort};

use crate::soak_report;
use crate::stop::{self, Stop};

/// Programs on real time wait most of the time, for datagrams and timeouts: this many for each core.
const PROGRAMS_PER_CORE: usize = 4;

/// Options of the soak.
#[derive(Debug)]
pub(super) struct Options<'a> {
    /// As the user called it.
    pub(super) device: &'a str,
    /// Addresses of UDP sockets; `None` is virtual time.
    pub(super) addresses: Option<Vec<IpAddr>>,
    pub(super) seconds: u64,
    pub(super) first_seed: u64,
    /// One seed, once.
    pub(super) seeds: Option<u64>,
    pub(super) capture: Option<PathBuf>,
    pub(super) json: bool,
}

pub(super) fn run(options: &Options<'_>) -> Result<(), Stop> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (port, thread_count) = match &options.addresses {
        None => (SoakPort::Virtual, cores),
        Some(addresses) => (SoakPort::Udp(addresses.clone()), PROGRAMS_PER_CORE * cores),
    };
    let seed_count = options.seeds.unwrap_or(u64::MAX);
    let time_limit = Duration::from_secs(options.seconds);
    let campaign = Campaign {
        first_seed: options.first_seed,
        seed_count,
        options: SoakOptions { port, capture: options.capture.clone(), ..SoakOptions::default() },
        thread_count: thread_count.min(usize::try_from(seed_count).unwrap_or(usize::MAX)),
        time_limit: Some(time_limit),
    };
    let begin = Instant::now();
    let style = ProgressStyle::with_template("{elapsed} of {msg}, {pos} seeds").expect("a valid template");
    let bar = ProgressBar::new_spinner().with_style(style).with_message(format!("{time_limit:?}"));
    let outcome = campaign.run(|_| bar.inc(1));
    bar.finish_and_clear();
    let summary = outcome.map_err(|error| {
        Stop::missing(format!("{} cannot be tested here", options.device), longhaul::with_sources(&error))
    })?;
    let (device, is_real) = (options.device, options.addresses.is_some());
    let again = |seed| {
        let hint = if is_real { " (real time: it may take several runs)" } else { "" };
        format!("longhaul conformance -d {device} --soak --seeds 1 --seed {seed} --capture soak-{seed}.pcapng{hint}")
    };
    eprint!("{}", soak_report::describe_failures(&summary, again));
    let elapsed = begin.elapsed();
    let value = || match is_real {
        true => soak_report::to_json_on_real_time(device, &summary, elapsed),
        false => soak_report::to_json(&summary, elapsed),
    };
    let table = || match is_real {
        true => soak_report::to_table(&summary, elapsed, &soak_report::real_rows(&summary)),
        false => soak_report::to_table(&summary, elapsed, &soak_report::virtual_rows(&summary)),
    };
    stop::tell(options.json, value, table, soak_report::wrong(summary.failing.len(), summary.seeds))
}
