//! A link that runs on a thread of its own.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_capture::{Capture, CaptureError, CaptureSummary};
use longhaul_forward::clock::Clock;
use longhaul_forward::names::is_above;
use longhaul_forward::offloads::OneByOne;
use longhaul_forward::ring::{self, Unfinished};
use longhaul_forward::running::{Running, RunningError, processor_time};
use longhaul_forward::{Counters, ForwardError, Forwarding, Interface, SourceCounters, tap};
use longhaul_impair::{Profile, ProfileError};
use thiserror::Error;

use crate::direction::DirectionOptions;
use crate::link::{Link, LinkCounters, Towards};

/// The two ends of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Two interfaces of this network namespace.
    Interfaces([String; 2]),
    /// Two taps, which are made, or are there and open nowhere else.
    Taps([String; 2]),
}

/// A link to be started.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Where its ends are.
    pub ports: Ports,
    /// From the first to the second.
    pub towards_second: DirectionOptions,
    /// From the second to the first.
    pub towards_first: DirectionOptions,
    /// Where all frames are recorded, at both ends.
    pub capture: Option<PathBuf>,
    /// The processor that it runs on; any, if there is none or it is not there.
    pub processor: Option<usize>,
}

/// Why a link cannot be started, or has ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Both ends are one interface.
    #[error("both ends of the link are {0}: a link joins two interfaces")]
    SameInterface(String),
    /// Both ends are one pair.
    #[error("{} and {} are the two ends of one pair: frames would circle between them; use one end each of two pairs", .0[0], .0[1])]
    Pair([String; 2]),
    /// Frames cannot be moved.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Nonsense was asked for.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// Frames cannot be recorded.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The file cannot be written.
    #[error("the capture {file} cannot be written")]
    File {
        /// Its name.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// An interface joins frames that it receives, and that cannot be switched off.
    #[error(
        "{interface} joins frames that it receives, and that cannot be switched off; loss would be of several frames at once"
    )]
    Joining {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its thread cannot be started, or has ended.
    #[error("the link does not run")]
    Running(#[source] RunningError),
}

impl From<RunningError> for LinkError {
    fn from(error: RunningError) -> Self {
        match error {
            RunningError::Forward(error) => LinkError::Forward(error),
            error => LinkError::Running(error),
        }
    }
}

/// What a running link has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunningCounters {
    /// What happened to frames.
    pub link: LinkCounters,
    /// What arrived at each end.
    pub arrived: [SourceCounters; 2],
    /// What left.
    pub forwarded: Counters,
    /// What its thread has used.
    pub processor_time: Duration,
}

/// A link on a thread of its own. Dropped, it ends.
pub struct RunningLink {
    running: Running<Link, Result<Option<CaptureSummary>, CaptureError>>,
}

impl RunningLink {
    /// Starts a link. It forwards when this returns.
    pub fn start(options: &LinkOptions) -> Result<Self, LinkError> {
        let clock = Clock::start();
        let names = match &options.ports {
            Ports::Interfaces(names) | Ports::Taps(names) => names,
        };
        if names[0] == names[1] {
            return Err(LinkError::SameInterface(names[0].clone()));
        }
        if is_above(&names[0], &names[1]) {
            return Err(LinkError::Pair(names.clone()));
        }
        let mut link = Link::new(&options.towards_second, &options.towards_first)?;
        let open = |name: &String| -> Result<Interface, LinkError> {
            match options.ports {
                Ports::Taps(_) => Ok(tap::open(name, clock)?),
                Ports::Interfaces(_) => Ok(ring::open(name, clock, Unfinished::Refuse)?),
            }
        };
        let interfaces = vec![open(&names[0])?, open(&names[1])?];
        let one_by_one =
            |name: &String| OneByOne::of(name).map_err(|source| LinkError::Joining { interface: name.clone(), source });
        let joining = match &options.ports {
            Ports::Taps(_) => Vec::new(),
            Ports::Interfaces(_) => names.iter().map(one_by_one).collect::<Result<_, _>>()?,
        };
        // Last: a mistake in the names must not cost an earlier capture.
        if let Some(path) = &options.capture {
            let file = std::fs::File::create(path)
                .map_err(|source| LinkError::File { file: path.display().to_string(), source })?;
            let mut capture = Capture::new(io::BufWriter::new(file))?;
            capture.set_origin(clock.origin_of_day());
            link.record(capture, [&names[0], &names[1]])?;
        }
        let forwarding = Forwarding::new(interfaces, link, clock);
        let finish = |forwarding: &mut Forwarding<Link>, _: BorrowedFd<'_>| Ok(forwarding.handler().end_capture());
        Ok(RunningLink { running: Running::start("link", options.processor, forwarding, joining, finish)? })
    }

    /// Whether its thread runs before all ordinary ones.
    pub fn has_priority(&self) -> bool {
        self.running.has_priority()
    }

    /// Change what happens to frames that enter from now on.
    pub fn set_profile(&self, towards: Towards, profile: Arc<Profile>) -> Result<(), LinkError> {
        let set = self.running.ask(move |forwarding| {
            let now = forwarding.clock().now();
            forwarding.handler().set_profile(towards, profile, now)
        });
        Ok(set??)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Result<RunningCounters, LinkError> {
        Ok(self.running.ask(|forwarding| RunningCounters {
            link: forwarding.handler().counters(),
            arrived: [0, 1].map(|port| forwarding.source_counters(port)),
            forwarded: forwarding.counters(),
            processor_time: processor_time(),
        })?)
    }

    /// Whether it has ended by itself; [`RunningLink::end`] says why.
    pub fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    /// End it. Frames in flight are lost. Says why it ended, if it did before, and what was recorded.
    pub fn end(self) -> Result<Option<CaptureSummary>, LinkError> {
        Ok(self.running.end()??)
    }
}
