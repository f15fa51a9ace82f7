//! Options that only the software RNIC has: its packets pass through this program.

use std::path::PathBuf;

use longhaul_congestion::ControllerName;
use longhaul_perf::{Congestion, DeviceChoice, SOFTNIC, SoftnicSettings};

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

    /// Congestion control: off, fixed:RATE, dcqcn, swift, wan or credit (softnic only) [default: wan to other hosts]
    ///
    /// For RC to other hosts, and for messages with a scheme, which cannot have off. credit is for messages only, and for
    /// many senders to one host: the receiver grants them credit in turn. UC and UD have no acknowledgements to control a
    /// rate by: fixed:RATE is theirs, too, otherwise 1 Gbit/s.
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    congestion: Option<Congestion>,
}

fn congestion(name: &str) -> Result<Congestion, String> {
    match name {
        "off" => Ok(Congestion::Off),
        _ => match name.parse() {
            Ok(name) => Ok(Congestion::By(name)),
            Err(_) if !name.starts_with("fixed:") => {
                Err(format!("unknown congestion control \"{name}\"; use off, wan, dcqcn, swift, credit or fixed:RATE"))
            }
            Err(error) => Err(error.to_string()),
        },
    }
}

impl SoftnicOptions {
    /// Says what is wrong, before anything is opened: with the device of that name, or in itself.
    pub(crate) fn check(&self, choice: &DeviceChoice, name: &str) -> Result<(), Stop> {
        let given = [
            (self.impair.is_some(), "--impair"),
            (self.capture.is_some(), "--capture"),
            (self.congestion.is_some(), "--congestion"),
        ];
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

    /// What only messages can have.
    pub(crate) fn check_without_messages(&self) -> Result<(), Stop> {
        match self.congestion {
            Some(Congestion::By(ControllerName::Credit)) => Err(Stop::Usage(
                "--congestion credit is for messages only: their receiver grants it, and RC's cannot; add --scheme SCHEME to perf client, or use wan"
                    .to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Congestion control, if the user has named it.
    pub(crate) fn congestion(&self) -> Option<Congestion> {
        self.congestion
    }

    /// What is done to the packets.
    pub(crate) fn settings(&self) -> Result<SoftnicSettings, Stop> {
        let (impair, capture) = (self.profile()?, self.capture.clone());
        Ok(SoftnicSettings { impair, capture, congestion: self.congestion.unwrap_or_default(), fec_gateway: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_for_messages_only() {
        let with = |congestion| SoftnicOptions { impair: None, capture: None, congestion };
        assert!(with(Some(Congestion::By(ControllerName::Wan))).check_without_messages().is_ok());
        let refused = with(Some(Congestion::By(ControllerName::Credit))).check_without_messages();
        assert!(matches!(refused, Err(Stop::Usage(text)) if text.contains("messages only")));
    }

    #[test]
    fn congestion_control_has_a_name_or_is_off() {
        assert_eq!(congestion("off"), Ok(Congestion::Off));
        assert_eq!(congestion("wan"), Ok(Congestion::By(ControllerName::Wan)));
        assert_eq!(congestion("fixed:2G"), Ok(Congestion::By(ControllerName::Fixed(2_000_000_000))));
        let refused = |name| congestion(name).expect_err("no controller");
        assert!(refused("cubic").ends_with("use off, wan, dcqcn, swift, credit or fixed:RATE"), "{}", refused("cubic"));
        assert!(refused("fixed:fast").contains("fixed:fast"), "{}", refused("fixed:fast"));
    }
}
