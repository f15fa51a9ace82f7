//! `longhaul sim`: scenarios on virtual time, from a seed. One file a scenario.

mod completion;
mod congestion;
mod lowar;
mod message_soak;
mod scale;
mod soak;
mod throughput;
mod timeout;

use crate::stop::Stop;

/// Run a scenario on virtual time; the same seed gives the same result
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Debug, clap::Subcommand)]
enum Scenario {
    Completion(completion::Arguments),
    Congestion(congestion::Arguments),
    Lowar(lowar::Arguments),
    Scale(scale::Arguments),
    Soak(soak::Arguments),
    Throughput(throughput::Arguments),
    Timeout(timeout::Arguments),
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.scenario {
        Scenario::Completion(arguments) => completion::run(arguments),
        Scenario::Congestion(arguments) => congestion::run(arguments),
        Scenario::Lowar(arguments) => lowar::run(arguments),
        Scenario::Scale(arguments) => scale::run(arguments),
        Scenario::Soak(arguments) => soak::run(arguments),
        Scenario::Throughput(arguments) => throughput::run(arguments),
        Scenario::Timeout(arguments) => timeout::run(arguments),
    }
}
