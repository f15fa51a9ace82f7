//! A gateway that runs on a thread of its own.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use longhaul_forward::clock::Clock;
use longhaul_forward::offloads::{self, OneByOne};
use longhaul_forward::ring::{self, Unfinished};
use longhaul_forward::running::{Running, RunningError, processor_time};
use longhaul_forward::{Counters, ForwardError, Forwarding, Interface, SourceCounters};
use longhaul_shim::{ConfigError, PathStatus};
use thiserror::Error;

use crate::bypass::{Bypass, BypassError};
use crate::gateway::{Gateway, GatewayState, SITE, WIDE};
use crate::interfaces::{self, InterfaceError};
use crate::settings::{Settings, SettingsError};

/// At the end, the rings are emptied for at most this long, twice.
const EMPTIED_FOR: Duration = Duration::from_millis(25);

/// Why a gateway cannot be started, or has ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The interfaces are not for a gateway.
    #[error(transparent)]
    Interface(InterfaceError),
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
        "{interface} joins frames that it receives, and that cannot be switched off: RDMA packets would not arrive one by one; switch it \
         off by hand (ethtool -K {interface} gro off), or use an interface whose driver can"
    )]
    Joining {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its thread cannot be started, or has ended.
    #[error("the gateway does not run")]
    Running(#[source] RunningError),
}

impl From<InterfaceError> for GatewayError {
    fn from(error: InterfaceError) -> Self {
        match error {
            InterfaceError::Ip(error) => GatewayError::Bypass(error.into()),
            InterfaceError::Forward(error) => GatewayError::Forward(error),
            error => GatewayError::Interface(error),
        }
    }
}

impl From<RunningError> for GatewayError {
    fn from(error: RunningError) -> Self {
        match error {
            RunningError::Forward(error) => GatewayError::Forward(error),
            error => GatewayError::Running(error),
        }
    }
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
    running: Running<Gateway, ()>,
    has_bypass: bool,
}

impl RunningGateway {
    /// Starts a gateway. It forwards when this returns. The seed should be another one after a restart.
    pub fn start(settings: &Settings, seed: u64, processor: Option<usize>) -> Result<Self, GatewayError> {
        let clock = Clock::start();
        let settings = interfaces::checked(settings)?;
        let names = [settings.site.clone(), settings.wide.clone()];
        // Single frames that are not finished cost these frames only.
        let open = |name: &String| ring::open(name, clock, Unfinished::Drop);
        let mut interfaces = vec![open(&names[0])?, open(&names[1])?];
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
        if let Some(bypass) = &bypass {
            // What has arrived before was the bridge's.
            gateway.begin_at(clock.now());
            interfaces.iter_mut().try_for_each(Interface::discard)?;
            bypass.join()?;
        }
        let has_bypass = bypass.is_some();
        // The bypass is dropped when the thread ends, for whatever reason: then the kernel forwards.
        let kept = (joining, bypass);
        let forwarding = Forwarding::new(interfaces, gateway, clock);
        Ok(RunningGateway { running: Running::start("gateway", processor, forwarding, kept, finish)?, has_bypass })
    }

    /// Whether its thread runs before all ordinary ones.
    pub fn has_priority(&self) -> bool {
        self.running.has_priority()
    }

    /// Whether the kernel joins the interfaces when it ends.
    pub fn has_bypass(&self) -> bool {
        self.has_bypass
    }

    /// What it does and what it has counted.
    pub fn state(&self) -> Result<RunningState, GatewayError> {
        Ok(self.running.ask(|forwarding| {
            let now = forwarding.clock().now();
            RunningState {
                gateway: forwarding.handler().state(now),
                paths: forwarding.handler().paths(),
                arrived: [0, 1].map(|port| forwarding.source_counters(port)),
                forwarded: forwarding.counters(),
                processor_time: processor_time(),
                running_time: now.saturating_since(longhaul_time::Instant::ZERO),
            }
        })?)
    }

    /// Whether it has ended by itself; [`RunningGateway::end`] says why.
    pub fn has_ended(&self) -> bool {
        self.running.has_ended()
    }

    /// Ends it: what waits is handed on. Says why it ended, if it did before.
    pub fn end(self) -> Result<(), GatewayError> {
        Ok(self.running.end()?)
    }
}

/// Moves what has arrived, hands on what waits, and lets pass what arrives meanwhile.
fn finish(forwarding: &mut Forwarding<Gateway>, wake: BorrowedFd<'_>) -> Result<(), ForwardError> {
    empty(forwarding, wake)?;
    forwarding.handler().close();
    empty(forwarding, wake)
}

/// Turns until nothing more arrives, but not for ever.
fn empty(forwarding: &mut Forwarding<Gateway>, wake: BorrowedFd<'_>) -> Result<(), ForwardError> {
    let begun = forwarding.clock().now();
    loop {
        let arrived = |forwarding: &mut Forwarding<Gateway>| {
            [SITE, WIDE].map(|port| forwarding.source_counters(port).frames).iter().sum::<u64>()
        };
        let before = arrived(forwarding);
        forwarding.turn(wake, Duration::ZERO)?;
        if arrived(forwarding) == before || forwarding.clock().now() - begun > EMPTIED_FOR {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::{Arc, Mutex};

    use longhaul_forward::{Arrival, Sink, Source};
    use longhaul_shim::Config;
    use nix::sys::eventfd::EventFd;

    use super::*;
    use crate::gateway::GatewayConfig;

    /// Frames that have arrived.
    struct Given {
        ready: EventFd,
        frames: Vec<Vec<u8>>,
        taken: usize,
    }

    impl Source for Given {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.ready.as_fd()
        }

        fn receive<'a>(&'a mut self, most: usize, arrivals: &mut Vec<Arrival<'a>>) -> Result<(), ForwardError> {
            let at = longhaul_time::Instant::ZERO;
            let before = arrivals.len();
            arrivals.extend(self.frames[self.taken..].iter_mut().take(most).map(|bytes| Arrival { bytes, at }));
            self.taken += arrivals.len() - before;
            Ok(())
        }

        fn check(&mut self) -> Result<(), ForwardError> {
            Ok(())
        }

        fn counters(&mut self) -> SourceCounters {
            SourceCounters { frames: self.taken as u64, ..SourceCounters::default() }
        }
    }

    struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Sink for Kept {
        fn send(&mut self, frames: &[&[u8]]) -> Result<u64, ForwardError> {
            self.0.lock().unwrap().extend(frames.iter().map(|frame| frame.to_vec()));
            Ok(0)
        }
    }

    fn interface(frames: &[Vec<u8>], kept: &Arc<Mutex<Vec<Vec<u8>>>>) -> Interface {
        let ready = EventFd::from_value(1).expect("a descriptor");
        Interface {
            source: Box::new(Given { ready, frames: frames.to_vec(), taken: 0 }),
            sink: Box::new(Kept(kept.clone())),
        }
    }

    #[test]
    fn a_gateway_that_ends_leaves_nothing_in_the_ring() {
        let frames: Vec<Vec<u8>> = (0..1000_u32).map(|number| number.to_be_bytes().repeat(16)).collect();
        let (site, wide) = (Arc::default(), Arc::default());
        let interfaces = vec![interface(&frames, &site), interface(&frames[..300], &wide)];
        let gateway = Gateway::new(GatewayConfig::new(Config::new("xor:8,1".parse().unwrap())), 1).expect("a gateway");
        let mut forwarding = Forwarding::new(interfaces, gateway, Clock::start());
        let wake = EventFd::new().expect("a descriptor");
        finish(&mut forwarding, wake.as_fd()).expect("it ends in order");
        assert!(*wide.lock().unwrap() == frames && *site.lock().unwrap() == frames[..300]);
    }

    #[test]
    fn what_has_arrived_can_be_discarded() {
        let frames: Vec<Vec<u8>> = vec![vec![7; 64]; 5000];
        let kept = Arc::default();
        let mut interface = interface(&frames, &kept);
        interface.discard().expect("it is there");
        let mut arrivals = Vec::new();
        interface.source.receive(64, &mut arrivals).expect("it is there");
        assert!(arrivals.is_empty());
    }
}
