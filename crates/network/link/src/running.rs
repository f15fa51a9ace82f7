//! A link that runs on a thread of its own.

use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_capture::{Capture, CaptureError, CaptureSummary};
use longhaul_forward::clock::Clock;
use longhaul_forward::names::is_above;
use longhaul_forward::offloads::OneByOne;
use longhaul_forward::ring::{self, Unfinished};
use longhaul_forward::{Counters, ForwardError, Forwarding, Interface, SourceCounters, Woken, priority, tap};
use longhaul_impair::{Profile, ProfileError};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::direction::DirectionOptions;
use crate::link::{Link, LinkCounters, Towards};

/// The loop looks whether it is to end at least this often.
const TURN_MAX: Duration = Duration::from_millis(500);

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
    /// No thread, or no descriptor.
    #[error("the link cannot be started")]
    Start(#[source] io::Error),
    /// It has panicked, which is a mistake in it.
    #[error("the link's thread has panicked")]
    Panicked,
    /// It has ended.
    #[error("the link has ended")]
    Ended,
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
    requests: Sender<Request>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<Result<Option<CaptureSummary>, LinkError>>>,
    has_priority: bool,
}

enum Request {
    Set(Towards, Arc<Profile>, Sender<Result<(), ProfileError>>),
    Tell(Sender<RunningCounters>),
    End,
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
        let wake = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(start_failed)?);
        let (requests, received) = mpsc::channel();
        let (prepared, is_prepared) = mpsc::channel();
        let thread = std::thread::Builder::new().name("link".to_owned());
        let (waking, processor) = (wake.clone(), options.processor);
        let thread = thread.spawn(move || {
            // Without it frames leave up to 50 µs late.
            let _ = priority::wake_on_time();
            let _ = processor.map(priority::run_on);
            let has_priority = priority::run_before_others(priority::LINK).is_ok();
            let _ = prepared.send(has_priority);
            let _joining = joining;
            run(Forwarding::new(interfaces, link, clock), &waking, &received)
        });
        let thread = thread.map_err(LinkError::Start)?;
        let has_priority = is_prepared.recv().unwrap_or(false);
        Ok(RunningLink { requests, wake, thread: Some(thread), has_priority })
    }

    /// Whether its thread runs before all ordinary ones.
    pub fn has_priority(&self) -> bool {
        self.has_priority
    }

    /// Change what happens to frames that enter from now on.
    pub fn set_profile(&self, towards: Towards, profile: Arc<Profile>) -> Result<(), LinkError> {
        let (answer, answered) = mpsc::channel();
        self.request(Request::Set(towards, profile, answer))?;
        Ok(answered.recv().map_err(|_| LinkError::Ended)??)
    }

    /// What was counted so far.
    pub fn counters(&self) -> Result<RunningCounters, LinkError> {
        let (answer, answered) = mpsc::channel();
        self.request(Request::Tell(answer))?;
        answered.recv().map_err(|_| LinkError::Ended)
    }

    /// Whether it has ended by itself; [`RunningLink::end`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// End it. Frames in flight are lost. Says why it ended, if it did before, and what was recorded.
    pub fn end(mut self) -> Result<Option<CaptureSummary>, LinkError> {
        self.end_thread().unwrap_or(Err(LinkError::Ended))
    }

    fn request(&self, request: Request) -> Result<(), LinkError> {
        self.requests.send(request).map_err(|_| LinkError::Ended)?;
        // Its counter is full only if the loop has not looked for ages, and then it will.
        let _ = self.wake.write(1);
        Ok(())
    }

    fn end_thread(&mut self) -> Option<Result<Option<CaptureSummary>, LinkError>> {
        let thread = self.thread.take()?;
        let _ = self.request(Request::End);
        Some(thread.join().unwrap_or(Err(LinkError::Panicked)))
    }
}

impl Drop for RunningLink {
    fn drop(&mut self) {
        self.end_thread();
    }
}

fn start_failed(error: nix::Error) -> LinkError {
    LinkError::Start(error.into())
}

/// Forwards until it is told to end.
fn run(
    mut forwarding: Forwarding<Link>,
    wake: &EventFd,
    requests: &Receiver<Request>,
) -> Result<Option<CaptureSummary>, LinkError> {
    loop {
        if forwarding.turn(wake.as_fd(), TURN_MAX)? == Woken::Other {
            let _ = wake.read();
        }
        for request in requests.try_iter() {
            match request {
                Request::Set(towards, profile, answer) => {
                    let now = forwarding.clock().now();
                    let _ = answer.send(forwarding.handler().set_profile(towards, profile, now));
                }
                Request::Tell(answer) => {
                    let arrived = [0, 1].map(|port| forwarding.source_counters(port));
                    let link = forwarding.handler().counters();
                    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
                    let forwarded = forwarding.counters();
                    let _ = answer.send(RunningCounters { link, arrived, forwarded, processor_time: used });
                }
                Request::End => return Ok(forwarding.handler().end_capture()?),
            }
        }
    }
}
