//! Options that only the software RNIC has: its packets pass through this program.

use std::path::PathBuf;

use longhaul_perf::{DeviceChoice, SOFTNIC, SoftnicSettings};

use crate::impairment;
use crate::stop::Stop;

/// What is done to the packets of a software RNIC.
#[derive(Debug, clap::Args)]
pub(crate) struct SoftnicOptions {
    /// Emulate a bad network in process: loss=1%,delay=5ms,… (softnic only; `longhaul perf server --impair help` lists
    /// all settings)
    #[arg(long, value_name = "PROFILE")]
    impair: Option<String>,

    /// Write every packet to a pcapng file (softnic only)
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

impl SoftnicOptions {
    /// Says what is wrong, before anything is opened: with the device of that name, or in itself.
    pub(crate) fn check(&self, choice: &DeviceChoice, name: &str) -> Result<(), Stop> {
        let given = [(self.impair.is_some(), "--impair"), (self.capture.is_some(), "--capture")];
        if let Some((_, option)) = given.into_iter().find(|(is_given, _)| *is_given && !choice.is_softnic()) {
            return Err(Stop::Usage(format!(
                "{option} is for the software RNIC, whose packets pass through this program; those of {name} do not. Leave it out, or use -d {SOFTNIC}"
            )));
        }
        self.profile().map(drop)
    }

    /// `--impair help` was asked for, and is printed.
    pub(crate) fn prints_help(&self) -> bool {
        let is_wanted = self.impair.as_deref() == Some("help");
        if is_wanted {
            println!("{}", impairment::HELP);
        }
        is_wanted
    }

    fn profile(&self) -> Result<Option<longhaul_impair::Profile>, Stop> {
        let parse = |text: &String| impairment::parse(text).map_err(|error| Stop::Usage(format!("--impair: {error}")));
        self.impair.as_ref().map(parse).transpose()
    }

    /// What is done to the packets.
    pub(crate) fn settings(&self) -> Result<SoftnicSettings, Stop> {
        Ok(SoftnicSettings { impair: self.profile()?, capture: self.capture.clone() })
    }
}
