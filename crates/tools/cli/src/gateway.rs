//! `longhaul gateway`: forward error correction in front of RDMA NICs as they are.

mod check;
mod init;
mod run;
mod status;

use crate::stop::Stop;

/// Forward error correction for RDMA NICs as they are, between two Ethernet interfaces of this host
///
/// A pair of gateways stands at the two ends of a lossy link. Each passes every packet as it is, and adds repair packets from which the
/// other one restores what was lost, so that the NICs do not notice. Everything that is not RoCEv2 is forwarded untouched. When the
/// process ends, however it ends, a bridge of the kernel's joins the interfaces. docs/GATEWAY.md leads to a working pair.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: longhaul gateway init > gateway.toml\n         longhaul gateway run gateway.toml")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Init(init::Arguments),
    Run(run::Arguments),
    Status(status::Arguments),
    Check(check::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.command {
        Command::Init(arguments) => init::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Check(arguments) => check::run(arguments),
    }
}
