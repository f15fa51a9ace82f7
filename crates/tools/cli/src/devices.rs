//! `longhaul devices`: what can be used here, what each device can do, what is wrong with the host and how to fix it.
//!
//! ```text
//!   host (facts) ─▶ problems ───┐
//!        ├────────▶ list ───────┤
//!        └────────▶ libibverbs ─┴─▶ report: table or JSON
//! ```
//!
//! Looking changes nothing: sockets are bound for a moment and never send.

mod host;
mod libibverbs;
mod link;
mod list;
mod netlink;
mod port_owner;
mod problems;
mod rdma_report;
mod report;

use longhaul_softnic_udp::UdpConfig;

use crate::stop::{self, Stop};

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
    let udp = UdpConfig::default();
    let facts = host::HostFacts::gather(udp.receive_buffer_bytes, udp.send_buffer_bytes)
        .map_err(|error| Stop::missing("the interfaces of this host cannot be listed", error))?;
    let (devices, mut problems) = list::devices(&facts);
    let (libibverbs, of_libibverbs) = libibverbs::look(&facts);
    problems.extend(of_libibverbs);
    problems.extend(problems::of_host(&facts));
    problems.sort_by_key(|problem| problem.severity);
    let report = report::Report { facts: &facts, devices: &devices, libibverbs: &libibverbs, problems: &problems };
    let is_usable =
        devices.iter().any(list::Entry::is_usable) || libibverbs.devices.iter().any(libibverbs::RdmaEntry::is_usable);
    let wrong = (!is_usable).then(|| Stop::Missing("no device of this host can be used".to_owned()));
    stop::tell(arguments.json, || report.to_json(), || report.to_text(arguments.verbose), wrong)
}
