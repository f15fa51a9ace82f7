//! The `longhaul` command.

mod conformance;
mod counting_allocator;
mod device_report;
mod devices;
mod exit;
mod gateway;
mod impairment;
mod interop;
mod judged;
mod link;
mod log;
mod output;
mod parallel;
mod perf;
mod pictures;
mod plan;
mod port_broker;
mod progress;
mod report;
mod run;
mod sim;
mod soak_report;
mod softnic_options;
mod stop;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use counting_allocator::CountingAllocator;
use stop::Stop;

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
    Gateway(gateway::Arguments),
    Interop(interop::Arguments),
    Link(link::Arguments),
    Perf(perf::Arguments),
    Plan(plan::Arguments),
    PortBroker(port_broker::Arguments),
    Report(report::Arguments),
    Run(run::Arguments),
    Sim(sim::Arguments),
}

fn main() -> ExitCode {
    log::install();
    // Also where the arguments are wrong, and nothing has parsed it.
    let json = std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    let command = match parse() {
        Ok(arguments) => arguments.command,
        // Help and the version are what was asked for.
        Err(answer) if !answer.use_stderr() || !json => answer.exit(),
        Err(error) => {
            let text = error.to_string();
            let text = text.trim_start_matches("error: ").trim_end().to_owned();
            return stop::exit_code(Err(Stop::Usage(text)), json);
        }
    };
    output::end_without_panic(move || stop::exit_code(run(&command), json))
}

/// Reads the command line.
fn parse() -> Result<Arguments, clap::Error> {
    let mut matches = with_negative_numbers(Arguments::command()).try_get_matches()?;
    let arguments = Arguments::from_arg_matches_mut(&mut matches);
    arguments.map_err(|error| error.format(&mut Arguments::command()))
}

/// `--seeds -1` is a wrong value of `--seeds`, not an option that nobody knows.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |argument: clap::Arg| {
        let takes_value = !argument.is_positional() && argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_value)
    };
    command.mut_args(allow).mut_subcommands(with_negative_numbers)
}

fn run(command: &Command) -> Result<(), Stop> {
    match command {
        Command::Conformance(arguments) => conformance::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Gateway(arguments) => gateway::run(arguments),
        Command::Interop(arguments) => interop::run(arguments),
        Command::Link(arguments) => link::run(arguments),
        Command::Perf(arguments) => perf::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::PortBroker(arguments) => port_broker::run(arguments),
        Command::Report(arguments) => report::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Sim(arguments) => sim::run(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent_and_take_negative_numbers_as_values() {
        let command = with_negative_numbers(Arguments::command());
        command.clone().debug_assert();
        for arguments in ["sim soak --seeds -1", "perf client host --rate -1", "plan --coding-speed -1"] {
            let arguments = std::iter::once("longhaul").chain(arguments.split(' '));
            let error = command.clone().try_get_matches_from(arguments).expect_err("no such value").to_string();
            assert!(error.contains("invalid value '-1' for '--"), "{error}");
        }
    }
}
