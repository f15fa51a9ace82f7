//! `longhaul link exec`: runs a program at an end of a link.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use longhaul_link::control::{Kind, Request, ask};
use longhaul_link::namespaces::enter;

use super::options::NAME;
use crate::stop::Stop;

/// Run a program in the left or the right namespace of `longhaul link demo`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: longhaul link exec right -- iperf3 -s")]
pub(crate) struct Arguments {
    /// Where
    side: Side,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Of this link
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Side {
    Left,
    Right,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let shown = ask(Kind::Link, &arguments.name, &Request::Show)?;
    let descriptor = shown["namespaces"][arguments.side as usize].as_i64();
    let (Some(process), Some(descriptor)) = (shown["process"].as_u64(), descriptor) else {
        return Err(Stop::Usage(format!(
            "the link {} is not between namespaces of its own: run programs where its interfaces are",
            arguments.name
        )));
    };
    enter(process as u32, descriptor as i32)?;
    let (program, rest) = arguments.command.split_first().expect("clap has asked for it");
    // Returns only if it could not.
    let error = Command::new(program).args(rest).exec();
    Err(Stop::missing(format!("{} cannot be run", program.to_string_lossy()), error))
}
