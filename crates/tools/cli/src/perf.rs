//! `longhaul perf`: bandwidth and latency as perftest users know them, next to the limit of the host.
//!
//! The modules are in the order in which a measurement comes about.

mod bitmap;
mod checksum;
mod child;
mod client;
mod coding;
mod compare;
mod connections;
mod ibv_pingpong;
mod options;
mod sdr;
mod server;

mod control;
pub(crate) mod impairment;
pub(crate) mod meeting;
mod path;
mod patience;
mod session;
mod silence;

mod answers;
mod arrivals;
mod connection;
mod nic;
mod operation;
mod pacer;
mod pattern;
mod ping_pong;
mod round_trips;

mod in_flight;
mod scheme_client;
mod scheme_end;
mod scheme_server;
mod scheme_stream;
mod stream;

mod histogram;
mod peak;
mod processor;
mod statistics;
mod table;

pub(crate) use coding::encoding_bytes_per_second;
pub(crate) use options::mtu;
pub(crate) use processor::thread_time_used;

use crate::stop::Stop;

/// Measure bandwidth and latency
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Server(options::ServerArguments),
    Client(options::ClientArguments),
    Pingpong(ibv_pingpong::Arguments),
    Compare(compare::Arguments),
    Coding(coding::Arguments),
    Bitmap(bitmap::Arguments),
    Sdr(sdr::Arguments),
    Connections(connections::Arguments),
    #[command(hide = true)]
    End(compare::EndArguments),
    #[command(hide = true)]
    ConnectionsEnd(connections::EndArguments),
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.command {
        Command::Server(arguments) => server::run(arguments),
        Command::Client(arguments) => client::run(arguments),
        Command::Pingpong(arguments) => ibv_pingpong::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Coding(arguments) => coding::run(arguments),
        Command::Bitmap(arguments) => bitmap::run(arguments),
        Command::Sdr(arguments) => sdr::run(arguments),
        Command::Connections(arguments) => connections::run(arguments),
        Command::End(arguments) => compare::run_end(arguments),
        Command::ConnectionsEnd(arguments) => connections::run_end(arguments),
    }
}
