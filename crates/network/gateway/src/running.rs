//! A gateway that runs on a thread of its own.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_forward::clock::Clock;
use longhaul_forward::offloads::{self, OneByOne};
use longhaul_forward::{Counters, ForwardError, Forwarding, SourceCounters, Woken, priority, ring};
use longhaul_shim::{ConfigError, PathStatus};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use thiserror::Error;

use crate::bypass::{Bypass, BypassError};
use crate::gateway::{Gateway, GatewayState};
use crate::settings::{Settings, SettingsError};

/// The loop looks whether it is to end at least this often.
const TURN_MAX: Duration = Duration::from_millis(500);

/// Why a gateway cannot be started, or has ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// Both sides are one interface.
    #[error("site and wide are both {0}: a gateway stands between two interfaces")]
    SameInterface(String),
    /// Both sides are one pair.
    #[error("{} and {} are the two ends of one pair: frames would circle between them; use one end each of two pairs", .0[0], .0[1])]
    Pair([String; 2]),
    /// The configuration cannot be used here.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Nor by the shim.
    #[error(transparent)]
    Shim(#[from] ConfigError),
    /// Frames cannot be moved.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The kernel could not take over.
    #[error(transparent)]
    Bypass(#[from] BypassError),
    /// An interface joins frames that it receives, and that cannot be switched off.
    #[error(
        "{interface} joins frames that it receives, and that cannot be switched off: RDMA packets would not arrive one by one"
    )]
    Joining {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No thread, or no descriptor.
    #[error("the gateway cannot be started")]
    Start(#[source] io::Error),
    /// It has panicked, which is a mistake in it.
    #[error("the gateway's thread has panicked")]
    Panicked,
    /// It has ended.
    #[error("the gateway has ended")]
    Ended,
}

/// What a running gateway does and has counted.
#[derive(Clone, Debug, Default)]
pub struct RunningState {
    /// What happened to frames.
    pub gateway: GatewayState,
    /// With a code that follows the link: how it stands for each network of the peer.
    pub paths: Vec<PathStatus>,
    /// What arrived at each side.
    pub arrived: [SourceCounters; 2],
    /// What left.
    pub forwarded: Counters,
    /// What its thread has used.
    pub processor_time: Duration,
    /// How long it has run.
    pub running_time: Duration,
}

/// A gateway on a thread of its own. Dropped, it ends.
#[derive(Debug)]
pub struct RunningGateway {
    requests: Sender<Request>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<Result<(), GatewayError>>>,
    has_priority: bool,
    // Dropped after the thread has ended: then the kernel forwards.
    bypass: Option<Bypass>,
}

#[derive(Debug)]
enum Request {
    Tell(Sender<RunningState>),
    End,
}

impl RunningGateway {
    /// Starts a gateway. It forwards when this returns. The seed should be another one after a restart.
    pub fn start(settings: &Settings, seed: u64, processor: Option<usize>) -> Result<Self, GatewayError> {
        let clock = Clock::start();
        let names = [settings.site.clone(), settings.wide.clone()];
        if names[0] == names[1] {
            return Err(GatewayError::SameInterface(names[0].clone()));
        }
        if offloads::is_pair(&names[0], &names[1]) {
            return Err(GatewayError::Pair(names));
        }
        let interfaces = vec![ring::open(&names[0], clock)?, ring::open(&names[1], clock)?];
        let mtu = |name: &String| {
            offloads::mtu(name).map_err(|source| {
                let (interface, what) = (name.clone(), "its MTU cannot be read");
                GatewayError::Forward(ForwardError::Open { interface, what, source })
            })
        };
        let mut gateway = Gateway::new(settings.to_config(mtu(&names[0])?, mtu(&names[1])?)?, seed)?;
        let one_by_one = |name: &String| {
            OneByOne::of(name).map_err(|source| GatewayError::Joining { interface: name.clone(), source })
        };
        let joining = [one_by_one(&names[0])?, one_by_one(&names[1])?];
        let bypass = match &*settings.bridge {
            "" => None,
            bridge => Some(Bypass::hold(bridge, &names[0], &names[1])?),
        };
        // Before, the bridge has forwarded.
        gateway.begin_at(if bypass.is_some() { clock.now() } else { longhaul_time::Instant::ZERO });
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| GatewayError::Start(error.into()))?);
        let (requests, received) = mpsc::channel();
        let (prepared, is_prepared) = mpsc::channel();
        let waking = wake.clone();
        let thread = std::thread::Builder::new().name("gateway".to_owned());
        let thread = thread.spawn(move || {
            let _ = priority::wake_on_time();
            let _ = processor.map(priority::run_on);
            let has_priority = priority::run_before_others(priority::LINK).is_ok();
            let _ = prepared.send(has_priority);
            let _joining = joining;
            run(Forwarding::new(interfaces, gateway, clock), &waking, &received)
        });
        let thread = thread.map_err(GatewayError::Start)?;
        let has_priority = is_prepared.recv().unwrap_or(false);
        Ok(RunningGateway { requests, wake, thread: Some(thread), has_priority, bypass })
    }

    /// Whether its thread runs before all ordinary ones.
    pub fn has_priority(&self) -> bool {
        self.has_priority
    }

    /// Whether the kernel joins the interfaces when it ends.
    pub fn has_bypass(&self) -> bool {
        self.bypass.is_some()
    }

    /// What it does and what it has counted.
    pub fn state(&self) -> Result<RunningState, GatewayError> {
        let (answer, answered) = mpsc::channel();
        self.request(Request::Tell(answer))?;
        answered.recv().map_err(|_| GatewayError::Ended)
    }

    /// Whether it has ended by itself; [`RunningGateway::end`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it: what waits is handed on. Says why it ended, if it did before.
    pub fn end(mut self) -> Result<(), GatewayError> {
        self.end_thread().unwrap_or(Err(GatewayError::Ended))
    }

    fn request(&self, request: Request) -> Result<(), GatewayError> {
        self.requests.send(request).map_err(|_| GatewayError::Ended)?;
        // Its counter is full only if the loop has not looked for ages, and then it will.
        let _ = self.wake.write(1);
        Ok(())
    }

    fn end_thread(&mut self) -> Option<Result<(), GatewayError>> {
        let thread = self.thread.take()?;
        let _ = self.request(Request::End);
        Some(thread.join().unwrap_or(Err(GatewayError::Panicked)))
    }
}

impl Drop for RunningGateway {
    fn drop(&mut self) {
        self.end_thread();
    }
}

/// Forwards until it is told to end.
fn run(mut forwarding: Forwarding<Gateway>, wake: &EventFd, requests: &Receiver<Request>) -> Result<(), GatewayError> {
    loop {
        if forwarding.turn(wake.as_fd(), TURN_MAX)? == Woken::Other {
            let _ = wake.read();
        }
        for request in requests.try_iter() {
            match request {
                Request::Tell(answer) => {
                    let now = forwarding.clock().now();
                    let _ = answer.send(RunningState {
                        gateway: forwarding.handler().state(now),
                        paths: forwarding.handler().paths(),
                        arrived: [0, 1].map(|port| forwarding.source_counters(port)),
                        forwarded: forwarding.counters(),
                        processor_time: clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
                            .map_or(Duration::ZERO, Duration::from),
                        running_time: now.saturating_since(longhaul_time::Instant::ZERO),
                    });
                }
                Request::End => {
                    forwarding.handler().close();
                    forwarding.turn(wake.as_fd(), Duration::ZERO)?;
                    return Ok(());
                }
            }
        }
    }
}
