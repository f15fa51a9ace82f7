//! `longhaul perf`: bandwidth and latency as perftest users know them, next to the limit of the host.
//!
//! What is measured, and how, is in `longhaul_perf`; here are the options and what is printed.

mod bitmap;
mod client;
mod coding;
mod compare;
mod connections;
mod fec_options;
mod hadamard;
mod options;
mod pingpong;
mod quic;
mod scheme_table;
mod sdr;
mod server;
mod table;
mod wan;

pub(crate) use options::mtu;

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
    Pingpong(pingpong::Arguments),
    Compare(compare::Arguments),
    Coding(coding::Arguments),
    Hadamard(hadamard::Arguments),
    Bitmap(bitmap::Arguments),
    Sdr(sdr::Arguments),
    Connections(connections::Arguments),
    Quic(quic::Arguments),
    Wan(wan::Arguments),
    #[command(hide = true)]
    End(compare::EndArguments),
    #[command(hide = true)]
    ConnectionsEnd(connections::EndArguments),
    #[command(hide = true)]
    WanEnd(wan::EndArguments),
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.command {
        Command::Server(arguments) => server::run(arguments),
        Command::Client(arguments) => client::run(arguments),
        Command::Pingpong(arguments) => pingpong::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Coding(arguments) => coding::run(arguments),
        Command::Hadamard(arguments) => hadamard::run(arguments),
        Command::Bitmap(arguments) => bitmap::run(arguments),
        Command::Sdr(arguments) => sdr::run(arguments),
        Command::Connections(arguments) => connections::run(arguments),
        Command::Quic(arguments) => quic::run(arguments),
        Command::Wan(arguments) => wan::run(arguments),
        Command::WanEnd(arguments) => wan::run_end(arguments),
        Command::End(arguments) => compare::run_end(arguments),
        Command::ConnectionsEnd(arguments) => connections::run_end(arguments),
    }
}
