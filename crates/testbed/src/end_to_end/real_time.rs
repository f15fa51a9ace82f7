//! Ends on real time, over devices that are there: software RNICs on UDP sockets, or whatever libibverbs knows.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use longhaul_impair::Counters;
use longhaul_reliable::{Connection, Scheme};
use longhaul_sdr::Memory;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_softnic::Config;
use longhaul_softnic::udp::{Impair, UdpConfig, UdpDevice};
use longhaul_time::{Duration, Instant};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::end::{End, GroundOptions};
use super::{CaseError, Ground};
use crate::conformance::DeviceEnd;

/// Sleep this long at most when there is nothing to be woken by.
const BLIND_SLEEP: Duration = Duration::from_micros(100);
/// A message may take this long: hosts of tests are busy, and guests of virtual machines slow.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// One end: a connection, memory for its messages, and the clock that it lives by.
pub struct RealEnd {
    end: End,
    begin: std::time::Instant,
}

impl RealEnd {
    /// Make it on a device; `random` keeps it apart from every other.
    pub fn create(
        at: &DeviceEnd,
        options: &GroundOptions,
        random: u64,
        scheme: Arc<dyn Scheme>,
    ) -> Result<Self, CaseError> {
        let mut options = options.clone();
        options.connection.message_timeout = MESSAGE_TIMEOUT;
        Ok(RealEnd { end: End::create(at, &options, 0, random, true, scheme)?, begin: std::time::Instant::now() })
    }

    /// What the other end has to know.
    pub fn info(&self) -> Vec<u8> {
        self.end.connection.queue_pair().info().to_bytes()
    }

    /// Connect with the end whose info this is.
    pub fn connect(&self, peer: &[u8]) -> Result<(), CaseError> {
        let peer = QueuePairInfo::from_bytes(peer).map_err(CaseError::of_ground)?;
        self.end.connection.queue_pair().connect(&peer).map_err(CaseError::of_ground)
    }

    /// The time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }

    /// The connection, and its memory.
    pub fn parts(&mut self) -> (&mut Connection, &Memory) {
        (&mut self.end.connection, &self.end.memory)
    }

    /// Do what is due. If nothing is, sleep until something may have happened, `other` is readable, or `limit`.
    pub fn step(&mut self, limit: Instant, other: Option<BorrowedFd<'_>>) -> Result<(), CaseError> {
        step(std::slice::from_mut(self), limit, other)
    }

    /// Do what is due; how much has arrived or is over.
    fn poll(&mut self) -> Result<u64, CaseError> {
        let over_count = self.end.connection.over_count();
        let mut arrived = 0;
        loop {
            match self.end.context.poll().map_err(CaseError::of_ground)? {
                0 => break,
                count => arrived += count as u64,
            }
        }
        let now = self.now();
        self.end.connection.poll(now).map_err(CaseError::of_ground)?;
        Ok(arrived + self.end.connection.over_count() - over_count)
    }

    /// From now on the next thing that happens raises an event; those of what happened before are forgotten.
    fn arm(&self) -> Result<(), CaseError> {
        self.drain()?;
        self.end.context.request_notification().map_err(CaseError::of_ground)?;
        self.end.connection.queue_pair().request_notification().map_err(CaseError::of_ground)
    }

    fn drain(&self) -> Result<(), CaseError> {
        let Some(events) = self.end.context.events() else { return Ok(()) };
        while events.next_event().map_err(CaseError::of_ground)?.is_some() {}
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.end.context.events().and_then(|events| events.descriptor())
    }
}

/// Let ends do what is due. If nothing is, sleep until something may have happened.
fn step(ends: &mut [RealEnd], limit: Instant, other: Option<BorrowedFd<'_>>) -> Result<(), CaseError> {
    fn poll(ends: &mut [RealEnd]) -> Result<u64, CaseError> {
        ends.iter_mut().map(RealEnd::poll).sum()
    }
    if poll(ends)? > 0 {
        return Ok(());
    }
    // What completed before an event was asked for makes none: look once more.
    ends.iter().try_for_each(RealEnd::arm)?;
    if poll(ends)? > 0 {
        return Ok(());
    }
    let mut longest = limit.saturating_since(ends[0].now());
    let mut waits = Vec::with_capacity(ends.len() + 1);
    for end in ends.iter() {
        let now = end.now();
        if let Some(deadline) = end.end.connection.next_deadline(now) {
            longest = longest.min(deadline.saturating_since(now));
        }
        match end.descriptor() {
            Some(descriptor) => waits.push(PollFd::new(descriptor, PollFlags::POLLIN)),
            None => longest = longest.min(BLIND_SLEEP),
        }
    }
    waits.extend(other.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)));
    if longest.is_zero() {
        return Ok(());
    }
    match ppoll(&mut waits, Some(TimeSpec::from(longest)), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(CaseError::Ground(format!("cannot sleep until something happens: {error}"))),
    }
}

/// Two ends of one process on real time, both driven by one thread.
pub struct RealGround {
    ends: [RealEnd; 2],
    /// Of software RNICs only.
    udp: Vec<UdpDevice>,
}

impl RealGround {
    /// Two ends that are connected, on any two devices or twice on the same.
    pub fn between(at: &[DeviceEnd; 2], options: &GroundOptions, scheme: &Arc<dyn Scheme>) -> Result<Self, CaseError> {
        let create = |end: usize| RealEnd::create(&at[end], options, options.seed << 33 | end as u64, scheme.clone());
        let ends = [create(0)?, create(1)?];
        ends[0].connect(&ends[1].info())?;
        ends[1].connect(&ends[0].info())?;
        Ok(RealGround { ends, udp: Vec::new() })
    }

    /// Two software RNICs on UDP sockets. The first has the bad network in front of its sockets, both ways, if there is one:
    /// `options.link` counts when `is_impaired`.
    pub fn open(
        addresses: [IpAddr; 2],
        udp: &UdpConfig,
        options: &GroundOptions,
        is_impaired: bool,
        scheme: &Arc<dyn Scheme>,
    ) -> Result<Self, CaseError> {
        let open = |end: usize| {
            // Keys and numbers need not be secret here, only different.
            let mut random_seed = [0x5d; 32];
            random_seed[0] = end as u8;
            let mut udp = udp.clone();
            udp.impair =
                (is_impaired && end == 0).then(|| Impair { profile: options.link.clone(), seed: options.seed });
            let config = Config::new(format!("softnic{end}"), vec![addresses[end]], random_seed);
            UdpDevice::open(config, udp).map_err(CaseError::of_ground)
        };
        let udp = vec![open(0)?, open(1)?];
        let at = [&udp[0], &udp[1]].map(|device| DeviceEnd {
            device: device.verbs(),
            port: 1,
            gid_index: 0,
            udp_port: device.udp_port(),
        });
        Ok(RealGround { udp, ..RealGround::between(&at, options, scheme)? })
    }

    /// What the bad network did to what came and to what went, if there was one.
    pub fn impairment_counters(&self) -> Vec<Counters> {
        self.udp.iter().filter_map(UdpDevice::impairment_counters).flatten().collect()
    }
}

impl Ground for RealGround {
    fn now(&self) -> Instant {
        self.ends[0].now()
    }

    fn sender(&mut self) -> (&mut Connection, &Memory) {
        self.ends[0].parts()
    }

    fn receiver(&mut self) -> (&mut Connection, &Memory) {
        self.ends[1].parts()
    }

    fn step(&mut self, limit: Instant) -> Result<(), CaseError> {
        step(&mut self.ends, limit, None)
    }
}
