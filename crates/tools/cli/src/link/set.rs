//! `longhaul link set`: changes a link that runs.

use longhaul_link::control::{Kind, Request, ask};

use super::options::{NAME, Settings};
use crate::stop::{self, Stop};

/// Change what happens to frames that enter a running link from now on
///
/// A direction that is not mentioned stays as it is; one that is mentioned has exactly what is said, and nothing of what it had
/// before. Frames in flight keep their time.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: longhaul link set --forth rate=100mbit,queue=50KiB")]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,

    /// Of this link
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,

    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if arguments.settings.prints_help() {
        return Ok(());
    }
    // What is wrong is said before the link is asked.
    arguments.settings.profiles()?;
    let [forth, back] = arguments.settings.texts().map(|text| text.map(str::to_owned));
    if forth.is_none() && back.is_none() {
        return Err(Stop::Usage("nothing to change: give --impair, --forth or --back".to_owned()));
    }
    let answer = ask(Kind::Link, &arguments.name, &Request::Set { forth, back })?;
    stop::tell(arguments.json, || answer, || format!("link \"{}\" changed\n", arguments.name), None)
}
