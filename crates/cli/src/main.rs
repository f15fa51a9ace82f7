//! The `longhaul` command.

mod broken_pipe;
mod conformance;
mod counting_allocator;
mod devices;
mod exit;
mod interop;
mod message;
mod opened_device;
mod parallel;
mod perf;
mod plan;
mod progress;
mod quantity;
mod randomness;
mod sim;
mod soak_report;
mod softnic_options;
mod stop;

use std::process::ExitCode;

use clap::Parser;

use counting_allocator::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

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
    Devices(devices::Arguments),
    Interop(interop::Arguments),
    Perf(perf::Arguments),
    Plan(plan::Arguments),
    Sim(sim::Arguments),
}

fn main() -> ExitCode {
    // What the libraries have to say, to standard error: standard output is for results.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::WARN)
        .without_time()
        .with_target(false)
        .init();
    let command = Arguments::parse().command;
    broken_pipe::end_quietly(move || match command {
        Command::Conformance(arguments) => conformance::run(&arguments),
        Command::Devices(arguments) => devices::run(&arguments),
        Command::Interop(arguments) => interop::run(&arguments),
        Command::Perf(arguments) => perf::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
    })
}
