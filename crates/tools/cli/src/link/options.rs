//! What a link does to frames, on the command line.

use std::path::PathBuf;
use std::sync::Arc;

use longhaul::with_sources;
use longhaul_impair::Profile;
use longhaul_link::control::ControlError;
use longhaul_link::namespaces::NamespaceError;
use longhaul_link::{DirectionOptions, LinkError, LinkOptions, Ports};
use longhaul_perf::random_number;
use longhaul_units::bytes_within;

use crate::impairment;
use crate::stop::Stop;

/// The link that is meant when nobody names one.
pub(crate) const NAME: &str = "link";

/// What happens to frames.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Settings {
    /// What happens to frames in both directions: delay=50ms,loss=1%,… (`help` lists all settings)
    #[arg(long, value_name = "SETTINGS", conflicts_with_all = ["forth", "back"])]
    impair: Option<String>,

    /// What happens to frames from the first end to the second
    #[arg(long, value_name = "SETTINGS")]
    forth: Option<String>,

    /// What happens to frames from the second end to the first
    #[arg(long, value_name = "SETTINGS")]
    back: Option<String>,
}

/// A new link.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct New {
    #[command(flatten)]
    pub(crate) settings: Settings,

    /// Decides which frames are lost, held back and so on: the same frames meet the same fate [default: random, and printed]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Bytes of frames that each direction may keep until their time has come; more are dropped
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = bytes_within::<u64>(64_u64 << 10..=64_u64 << 30))]
    memory: u64,

    /// Write all frames, at both ends, to a pcapng file
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// What `longhaul link set`, `show` and `clean` know it by
    #[arg(long, value_name = "NAME", default_value = NAME)]
    pub(crate) name: String,
}

impl Settings {
    /// `help` was asked for, and is printed.
    pub(crate) fn prints_help(&self) -> bool {
        let is_wanted = [&self.impair, &self.forth, &self.back].into_iter().any(|text| text.as_deref() == Some("help"));
        if is_wanted {
            println!("{}", impairment::HELP);
        }
        is_wanted
    }

    /// For each direction, as text, if it is said.
    pub(crate) fn texts(&self) -> [Option<&str>; 2] {
        [&self.forth, &self.back].map(|own| own.as_deref().or(self.impair.as_deref()))
    }

    /// For each direction, with what is wrong about it.
    pub(crate) fn profiles(&self) -> Result<[Option<Profile>; 2], Stop> {
        let [forth, back] = self.texts();
        let parse = |text: Option<&str>| text.map(profile).transpose().map_err(Stop::Usage);
        Ok([parse(forth)?, parse(back)?])
    }
}

/// Reads settings of one direction.
pub(crate) fn profile(text: &str) -> Result<Profile, String> {
    impairment::parse(text)
}

impl New {
    /// The link, and its seed.
    pub(crate) fn link(&self, ports: Ports) -> Result<(LinkOptions, u64), Stop> {
        let seed = self.seed.map_or_else(random_number, Ok)?;
        let [forth, back] = self.settings.profiles()?;
        let direction = |profile: Option<Profile>, seed| DirectionOptions {
            profile: Arc::new(profile.unwrap_or_default()),
            seed,
            kept_bytes_max: self.memory,
        };
        // Directions do not lose the same frames.
        let (towards_second, towards_first) = (direction(forth, seed), direction(back, seed ^ 1));
        Ok((LinkOptions { ports, towards_second, towards_first, capture: self.capture.clone(), processor: None }, seed))
    }

    /// As arguments for another process.
    pub(crate) fn to_arguments(&self, seed: u64) -> Vec<String> {
        let mut arguments =
            vec![format!("--name={}", self.name), format!("--seed={seed}"), format!("--memory={}", self.memory)];
        let [forth, back] = self.settings.texts();
        arguments.extend(forth.map(|text| format!("--forth={text}")));
        arguments.extend(back.map(|text| format!("--back={text}")));
        arguments.extend(self.capture.as_ref().map(|path| format!("--capture={}", path.display())));
        arguments
    }
}

/// Why a link could not be started or has ended, with the exit status that it deserves.
pub(crate) fn stop_of(error: LinkError) -> Stop {
    use longhaul_forward::ForwardError;
    let is_missing = matches!(
        error,
        LinkError::Forward(
            ForwardError::NotAllowed { .. }
                | ForwardError::NoInterface(_)
                | ForwardError::Open { .. }
                | ForwardError::Offloaded { .. }
        )
    );
    match (is_missing, &error) {
        (true, _) => Stop::Missing(with_sources(&error)),
        (false, LinkError::SameInterface(_) | LinkError::Pair(_) | LinkError::Profile(_)) => {
            Stop::Usage(with_sources(&error))
        }
        (false, _) => Stop::Failed(with_sources(&error)),
    }
}

impl From<ControlError> for Stop {
    fn from(error: ControlError) -> Self {
        let text = with_sources(&error);
        match error {
            ControlError::Name(..) => Stop::Usage(text),
            ControlError::NotRunning { .. } | ControlError::NoFolder(_) | ControlError::Make { .. } => {
                Stop::Missing(text)
            }
            _ => Stop::Failed(text),
        }
    }
}

impl From<NamespaceError> for Stop {
    fn from(error: NamespaceError) -> Self {
        Stop::Missing(with_sources(&error))
    }
}
