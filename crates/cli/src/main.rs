//! The `longhaul` command.

mod conformance;
mod exit;
mod sim;

use std::process::ExitCode;

use clap::Parser;

/// A software-defined reliability stack for RDMA
#[derive(Debug, Parser)]
#[command(name = "longhaul", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Conformance(conformance::Arguments),
    Sim(sim::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
    }
}
