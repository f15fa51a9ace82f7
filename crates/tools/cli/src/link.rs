//! `longhaul link`: a wide-area link between two network interfaces.

mod check;
mod clean;
mod demo;
mod exec;
mod options;
mod run;
mod serve;
mod set;
mod show;

pub(crate) use options::stop_of;
pub(crate) use serve::Signals;

use crate::stop::Stop;

/// A wide-area link between two network interfaces of this host, for real frames of any protocol
///
/// Everything that crosses it (TCP, QUIC, RoCE, anything on Ethernet) meets the rate, the delay, the queue and the losses that were
/// set, each direction on its own, repeatable from a seed. It needs no kernel module. `longhaul link demo` is the quickest way to try
/// it: two network namespaces with a link between them, without root where user namespaces are allowed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: longhaul link demo --impair rate=1gbit,delay=50ms,loss=1%\n         \
                        longhaul link exec left -- ping -c 3 198.18.0.2")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(run::Arguments),
    Demo(demo::Arguments),
    Exec(exec::Arguments),
    Set(set::Arguments),
    Show(show::Arguments),
    Clean(clean::Arguments),
    Check(check::Arguments),
    #[command(hide = true)]
    Hold(demo::HoldArguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Set(arguments) => set::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Clean(arguments) => clean::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Hold(arguments) => demo::hold(arguments),
    }
}
