//! `longhaul devices`: prints a host's diagnosis (`longhaul_host`), as a table or as JSON.

mod form;
mod rdma_report;
mod report;

use longhaul::with_sources;
use longhaul_host::Diagnosis;

use crate::stop::{self, Stop};

pub(crate) use report::to_json;

/// Show the devices of this host, and problems of its configuration
///
/// The first column is the name to give to `--device` of other commands. The exit status is 0, even with warnings, or 3
/// if no device can be used.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Also show addresses, capabilities, limits and counters
    #[arg(short, long)]
    verbose: bool,

    /// Print one line of JSON, with everything that --verbose shows
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let diagnosis = Diagnosis::of_this_host().map_err(|error| Stop::Missing(with_sources(&error)))?;
    let wrong = (!diagnosis.is_usable()).then(|| Stop::Missing("no device of this host can be used".to_owned()));
    let text = || report::to_text(&diagnosis, arguments.verbose);
    stop::tell(arguments.json, || report::to_json(&diagnosis), text, wrong)
}
