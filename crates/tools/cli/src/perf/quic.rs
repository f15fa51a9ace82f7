//! `longhaul perf quic`: QUIC between two ends, such as those of a link.

#[cfg(feature = "quic")]
mod ends;

use std::net::IpAddr;
use std::path::PathBuf;

use longhaul_units::{bytes, bytes_within, seconds_within, whole_number};

use crate::stop::Stop;

/// Send over QUIC (quinn), as another system that crosses the same network
///
/// Without HOST this is the server: it writes its certificate to a file, waits for one client for at most ten minutes,
/// and ends when that client has finished. The client trusts this certificate and no other. By default it sends bulk,
/// one stream on each connection, and reports goodput; with -n, messages one at a time, each on a stream of its own, and
/// their completion times: from before a message is written until the server's program has its last byte, if both ends
/// are on one machine (else until the server's answer is back). Contents are verified. Needs a build with the feature
/// quic.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: longhaul link exec right -- longhaul perf quic --certificate /tmp/quic.der\n         \
                        longhaul link exec left -- longhaul perf quic 198.18.0.2 --certificate /tmp/quic.der -D 5"
)]
pub(crate) struct Arguments {
    /// Host that runs the server; without it, this end is the server
    host: Option<String>,

    /// Certificate of the server, in DER form: the server writes this file, the client reads it
    #[arg(long, value_name = "FILE")]
    certificate: PathBuf,

    /// UDP port of the server
    #[arg(short, long, value_name = "PORT", default_value_t = 4433)]
    port: u16,

    /// Address that the server listens at
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0", conflicts_with = "host")]
    address: IpAddr,

    /// Bytes that each connection sends, or of each message with -n
    #[arg(short, long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes_within::<u64>(1..=1 << 40))]
    size: u64,

    /// Send this many messages on each connection, one at a time, instead of bulk
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", value_parser = whole_number(1_usize..=1_000_000))]
    iterations: Option<usize>,

    /// Write bulk for this many seconds instead of a number of bytes; what is then in the send window arrives after it
    #[arg(short = 'D', long, value_name = "SECONDS", conflicts_with_all = ["size", "iterations"], value_parser = seconds_within(0.1..=600.0))]
    duration: Option<f64>,

    /// Number of connections
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number(1_usize..=1000))]
    connections: usize,

    /// Congestion control of the client
    #[arg(long, value_enum, default_value = "cubic")]
    congestion: Congestion,

    /// Bandwidth-delay product of the network; windows are twice as large. Give it to both ends
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = bytes)]
    bdp: u64,

    /// MTU of the network: packets are this long. Give it to both ends
    #[arg(short, long, value_name = "BYTES", default_value_t = 1500, value_parser = whole_number(1280_u16..=9000))]
    mtu: u16,

    /// Give up after this long without hearing from the other end
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds_within(0.01..=600.0))]
    patience: f64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Congestion {
    Cubic,
    Newreno,
    Bbr,
}

/// Runs the subcommand.
#[cfg(feature = "quic")]
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.host {
        Some(host) => ends::send(arguments, host),
        None => ends::receive(arguments),
    }
}

/// Says what is missing.
#[cfg(not(feature = "quic"))]
pub(crate) fn run(_: &Arguments) -> Result<(), Stop> {
    Err(Stop::Missing(
        "this longhaul was built without QUIC; build one that has it: cargo build --release --locked -p longhaul-cli \
         --features quic"
            .to_owned(),
    ))
}
