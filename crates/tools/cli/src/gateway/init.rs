//! `longhaul gateway init`: a configuration to begin with.

use longhaul_gateway::settings::template;

use crate::stop::Stop;

/// Print a configuration with every key, its default and what it means
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {}

pub(super) fn run(_arguments: &Arguments) -> Result<(), Stop> {
    print!("{}", template());
    Ok(())
}
