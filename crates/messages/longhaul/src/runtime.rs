//! What all connections of an endpoint share: registered memory's protection domain, and the threads that drive them.
//!
//! ```text
//!   program's threads ── letters ──┐
//!   completion queues ── events ───┼──▶ driver:  take what has come ─▶ each connection that needs it has a turn ─▶ wait
//!   peers, over TCP ── their end ──┘
//! ```
//!
//! A connection belongs to one driver, and costs no thread of its own, and no descriptor besides its TCP connection.

use std::cell::Cell;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant as Clock;

use longhaul_runtime::{Assembly, End, Engine, Granter, Letter, Letterbox as _, SPIN, Turn, catch, with_sources};
use longhaul_sdr::{Context, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Capabilities, CreateError, Device, ProtectionDomain, QueryError};
use thiserror::Error;

use crate::coding_pool::CodingPool;
use crate::mailbox::Mailbox;

/// How much later than asked for the kernel may wake a driver.
const TIMER_SLACK_NANOS: u64 = 1_000;
/// While some connections are busy, the others are polled this often.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// Why the connections of an endpoint cannot be driven.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// The device does not say what it can do.
    #[error("cannot query the capabilities of the device")]
    Query(#[from] QueryError),
    /// The device refused.
    #[error("the device refused to create the objects that all connections share")]
    Create(#[from] CreateError),
    /// The host has no thread, or no descriptors.
    #[error("cannot start a thread that drives connections")]
    Thread(#[from] io::Error),
}

pub(crate) struct Runtime {
    assembly: Assembly,
    drivers: Vec<Driver>,
    /// Who encodes and decodes; `None` if the drivers do.
    coding: Option<Arc<CodingPool>>,
}

struct Driver {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

thread_local! {
    static IS_DRIVER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread drives connections, of whatever endpoint: then it waits for nothing. Wakers of programs run on
/// it, and two drivers that waited for each other would wait for ever.
pub(crate) fn is_driver_thread() -> bool {
    IS_DRIVER.with(Cell::get)
}

impl Runtime {
    /// With this many driver threads, and at most this many coding threads. Credit is granted for a port with this rate.
    pub(crate) fn start(
        device: &Device,
        threads: NonZeroUsize,
        coding_threads: usize,
        credit_bits_per_second: Option<u64>,
    ) -> Result<Arc<Self>, StartError> {
        let has_events = device.attributes()?.capabilities.contains(Capabilities::COMPLETION_CHANNEL);
        // If a later one cannot be started, those before stop.
        let coding = NonZeroUsize::new(coding_threads).map(|threads| Arc::new(CodingPool::new(threads)));
        let assembly = Assembly::new(device)?.with_credit_rate(credit_bits_per_second);
        let granter = assembly.granter().clone();
        let mut runtime = Runtime { assembly, drivers: Vec::new(), coding };
        let origin = Clock::now();
        for _ in 0..threads.get() {
            let events = has_events.then(|| device.create_completion_channel()).transpose()?;
            // Without a descriptor nothing would wake the driver.
            let events = events.filter(|events| events.descriptor().is_some());
            runtime.drivers.push(Driver::start(Mailbox::new(events, origin)?, granter.clone())?);
        }
        Ok(Arc::new(runtime))
    }

    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.assembly.domain()
    }

    /// What a connection's queues are made in: it belongs to one of the drivers.
    pub(crate) fn create_context(
        &self,
        channels: usize,
        queue_pair: &QueuePairAttributes,
    ) -> Result<Context, CreateError> {
        let id = self.assembly.next_id();
        self.assembly.create_context(id, self.driver_of(id).mailbox.events(), channels, queue_pair)
    }

    /// Who encodes and decodes for its connections; `None` if the drivers do.
    pub(crate) fn coding(&self) -> Option<&Arc<CodingPool>> {
        self.coding.as_ref()
    }

    /// Connections take turns.
    fn driver_of(&self, id: u64) -> &Driver {
        &self.drivers[(id % self.drivers.len() as u64) as usize]
    }

    /// The mailbox of the driver that a connection with this context belongs to.
    pub(crate) fn mailbox_of(&self, context: &Context) -> &Arc<Mailbox> {
        &self.driver_of(context.token()).mailbox
    }

    /// Whether one of its threads has failed. Its connections have ended then, and it can drive no others.
    pub(crate) fn has_failed(&self) -> bool {
        self.drivers.iter().any(|driver| driver.mailbox.is_shut())
    }
}

impl Driver {
    fn start(mailbox: Arc<Mailbox>, granter: Arc<Granter>) -> io::Result<Self> {
        let own = mailbox.clone();
        let thread = thread::Builder::new().name("longhaul".to_owned()).spawn(move || {
            IS_DRIVER.with(|is_driver| is_driver.set(true));
            // By default the kernel may wake a thread 50 µs late, to wake several at a time. Deadlines are to be kept; a
            // kernel that refuses this costs only those 50 µs.
            let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NANOS);
            let mut engine = Engine::new(SPIN).with_granter(&granter);
            let end = match catch(|| drive(&mut engine, &own)) {
                Ok(Ok(())) => End::Closed,
                Ok(Err(error)) => End::Failed(Arc::new(error)),
                Err(panicked) => End::from(panicked),
            };
            if let End::Failed(error) = &end {
                tracing::error!("a thread that drives connections failed: {}", with_sources(&**error));
            }
            // Whatever happened, nobody waits for a connection that nobody drives.
            engine.end_all(&end);
            own.shut(&end);
        })?;
        Ok(Driver { mailbox, thread: Some(thread) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.mailbox.put(Letter::Stop);
        // The last connection may be let go by a driver's thread.
        if let Some(thread) = self.thread.take().filter(|_| !is_driver_thread()) {
            let _ = thread.join();
        }
    }
}

/// The driver's thread.
fn drive(engine: &mut Engine, mailbox: &Mailbox) -> io::Result<()> {
    let mut letters = Vec::new();
    let mut looked = Instant::ZERO;
    while !engine.is_stopped() {
        let now = mailbox.now();
        match engine.turn(now) {
            Turn::Again if now.saturating_since(looked) < LOOK_EVERY => thread::yield_now(),
            Turn::Again => {
                mailbox.take(&mut letters)?;
                looked = now;
                thread::yield_now();
            }
            Turn::Rest(at) => mailbox.wait(at.map(|at| at.saturating_since(mailbox.now())), &mut letters)?,
        }
        letters.drain(..).for_each(|letter| engine.take(letter));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};

    use super::*;
    use crate::device::{DeviceName, SOFTNIC};
    use crate::endpoint::{Endpoint, Towards};

    #[test]
    fn all_drivers_have_the_same_time() {
        let local: IpAddr = "127.0.0.1".parse().expect("an address");
        let mut udp = UdpConfig::default();
        udp.udp_port = UdpPortChoice::Free;
        let name: DeviceName = SOFTNIC.parse().expect("a name");
        let towards = Towards { local, peer: local, gid_index: None };
        let endpoint = Endpoint::open(&name, towards, udp).expect("it opens");
        let threads = NonZeroUsize::new(8).expect("not zero");
        let runtime = Runtime::start(endpoint.device(), threads, 0, None).expect("it starts");
        let times: Vec<Instant> = runtime.drivers.iter().map(|driver| driver.mailbox.now()).collect();
        assert!(times.is_sorted(), "one that was read later is later: {times:?}");
    }
}
