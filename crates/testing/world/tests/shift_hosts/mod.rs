//! Two hosts with two NICs each, on virtual time, for tests of what happens when a NIC fails and another one takes
//! over.
//!
//! ```text
//!   sender                        receiver
//!     NIC 0 ─────── rail 0 ─────── NIC 0
//!     NIC 1 ─────── rail 1 ─────── NIC 1
//! ```
//!
//! The rails are separate links, and the NICs know nothing of each other: what NIC 0 has seen, NIC 1 has not. Only the
//! memory is the host's, registered on both of its NICs. An RC queue pair leads along each rail.
#![allow(unsafe_code, reason = "the same memory is registered on two devices, which the safe layer cannot express")]
#![allow(dead_code, reason = "each test file uses a part of it")]

mod naive;

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longhaul_impair::Profile;
use longhaul_netsim::capture::Capture;
use longhaul_netsim::{Direction, Fault, LinkId, NodeId, Simulation};
use longhaul_softnic::{Config, Counters, Device};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, AsyncEvent, CompletionQueue, Gid, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairOptions,
    RemoteMemory, ScatterGatherEntry, Transport, raw,
};
use longhaul_world::VirtualNic;

pub(crate) use self::naive::{Finished, NaiveFailover, NaiveReceives, Operation, Policy, Request};

/// NICs of a host, and links between the two hosts.
pub(crate) const RAILS: usize = 2;
/// Eight-byte words of memory that each host has.
const WORDS: usize = 64;
/// Where work requests find the memory. Chosen, so that packets are the same in every run.
const FIRST_ADDRESS: u64 = 0x10_0000;
/// One way along a rail.
const DELAY: Duration = Duration::from_micros(10);
/// Acknowledgement time-out, 4.096 µs · 2^8: about a millisecond.
const TIMEOUT: u8 = 8;
/// Times to send again before the request fails.
const RETRIES: u8 = 3;
/// Time enough for anything in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// The memory of a host, registered on both of its NICs under different keys.
pub(crate) struct Words {
    /// Atomics, so that it is no conflict when devices write here through their pointers.
    memory: Box<[AtomicU64]>,
    regions: [Arc<dyn raw::MemoryRegion>; RAILS],
}

impl Words {
    fn register(domains: [&Arc<dyn raw::ProtectionDomain>; RAILS]) -> Words {
        let memory: Box<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let regions = domains.map(|domain| {
            let first = memory.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: the words are freed only after both devices have let go of them (`drop`), and may be written
            // through a shared pointer because they are atomics. Everything runs on one thread.
            let region = unsafe { domain.register_memory(first, WORDS * 8, FIRST_ADDRESS, access()) };
            region.expect("a new device has room")
        });
        Words { memory, regions }
    }

    pub(crate) fn get(&self, word: usize) -> u64 {
        self.memory[word].load(Ordering::Relaxed)
    }

    /// The host's own program writes a word.
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.memory[word].store(value, Ordering::Relaxed);
    }

    /// A word, for requests to the NIC of this rail.
    pub(crate) fn entry(&self, rail: usize, word: usize) -> ScatterGatherEntry {
        let local_key = self.regions[rail].local_key();
        ScatterGatherEntry { address: FIRST_ADDRESS + 8 * word as u64, length: 8, local_key }
    }

    /// A word, for the peer's requests along this rail.
    pub(crate) fn remote(&self, rail: usize, word: usize) -> RemoteMemory {
        RemoteMemory { address: FIRST_ADDRESS + 8 * word as u64, key: self.regions[rail].remote_key() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        for region in &self.regions {
            region.deregister().expect("a region without windows can be deregistered");
        }
    }
}

fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// One NIC of a host, with the queue pair along its rail.
pub(crate) struct Nic {
    pub(crate) device: Device,
    pub(crate) completions: CompletionQueue,
    pub(crate) queue_pair: QueuePair,
    address: IpAddr,
}

impl Nic {
    fn new(address: [u8; 4], wake: impl Fn() + Send + Sync + 'static) -> Nic {
        let address = IpAddr::from(address);
        let mut random_seed = [0; 32];
        random_seed[..16].copy_from_slice(&Gid::from_ip(address).0);
        let device = Device::new(Config::new("softnic", vec![address], random_seed), wake);
        let verbs = device.verbs();
        let domain = verbs.allocate_protection_domain().expect("a new device has room");
        let completions = verbs.create_completion_queue(64).expect("a new device has room");
        let options = QueuePairOptions::default();
        let transport = Transport::ReliableConnection;
        let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options);
        Nic { device, completions, queue_pair: queue_pair.expect("a new device has room"), address }
    }

    fn connect(&self, peer: &Nic) {
        let path = PathAttributes::to(Gid::from_ip(peer.address));
        let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, peer.queue_pair.number(), 0);
        let states = [
            QueuePairAttributes::init_connected(access()),
            receive.reliable_receive(4, 12),
            QueuePairAttributes::ready_to_send(0).reliable_send(TIMEOUT, RETRIES, 7, 4),
        ];
        for state in states {
            self.queue_pair.modify(&state).expect("each state follows from the one before");
        }
    }
}

/// A host.
pub(crate) struct Host {
    /// First, so that it is deregistered while its devices are there.
    pub(crate) words: Words,
    pub(crate) nics: [Nic; RAILS],
}

impl Host {
    fn new(nics: [Nic; RAILS]) -> Host {
        let words = Words::register(nics.each_ref().map(|nic| nic.queue_pair.domain().raw()));
        Host { words, nics }
    }
}

/// Everything that the sending host can see of its NIC 0 and of the wire in front of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SenderView {
    pub(crate) finished: Vec<Finished>,
    pub(crate) queue_pair: QueuePairAttributes,
    pub(crate) events: Vec<AsyncEvent>,
    pub(crate) counters: Counters,
    /// A capture at the NIC's port: every packet, either way, with its time.
    pub(crate) packets: Vec<u8>,
}

/// The two hosts and the links between them.
pub(crate) struct Hosts {
    simulation: Simulation<VirtualNic>,
    /// The senders' nodes, then the receivers'.
    nodes: Vec<NodeId>,
    rails: [LinkId; RAILS],
    /// Nodes that a verbs call has given work.
    news: Arc<Mutex<Vec<usize>>>,
    captured: Captured,
    pub(crate) sender: Rc<Host>,
    pub(crate) receiver: Rc<Host>,
}

impl Hosts {
    /// Two hosts, connected along both rails.
    pub(crate) fn new() -> Hosts {
        let news = Arc::new(Mutex::new(Vec::new()));
        let nic = |host: u8, rail: u8| {
            let (news, node) = (news.clone(), usize::from(host) * RAILS + usize::from(rail));
            Nic::new([10, 0, rail, host + 1], move || news.lock().expect("nothing panics with it").push(node))
        };
        let [sender, receiver] = [0, 1].map(|host| Rc::new(Host::new([nic(host, 0), nic(host, 1)])));
        for (one, other) in sender.nics.iter().zip(&receiver.nics) {
            one.connect(other);
            other.connect(one);
        }
        let mut simulation = Simulation::new(0);
        let all = sender.nics.iter().chain(&receiver.nics);
        let nodes: Vec<_> = all.map(|nic| simulation.add_node(VirtualNic::new(nic.device.clone()))).collect();
        let rails = [0, 1].map(|rail| {
            let ends = (nodes[rail].port(0), nodes[RAILS + rail].port(0));
            let good = Profile::default().with_propagation_delay(DELAY);
            simulation.connect(ends.0, ends.1, good.clone(), good).expect("free ports")
        });
        let captured = Captured::default();
        simulation.start_capture(Capture::new(captured.clone()).expect("memory takes everything"));
        simulation.capture_node(nodes[0], "nic0").expect("a capture has begun");
        Hosts { simulation, nodes, rails, news, captured, sender, receiver }
    }

    pub(crate) fn now(&self) -> Instant {
        self.simulation.now()
    }

    /// From now on requests along a rail take this long to arrive.
    pub(crate) fn hold_back(&mut self, rail: usize, delay: Duration) {
        let profile = Profile::default().with_propagation_delay(delay);
        self.simulation.set_profile(self.rails[rail], Direction::Forward, profile).expect("a valid profile");
    }

    /// The receiver's NIC dies: what is in flight from it and to it is lost, and it does nothing any more.
    pub(crate) fn kill_receiver(&mut self, rail: usize) {
        for direction in [Direction::Forward, Direction::Backward] {
            self.simulation.apply(Fault::Cut(self.rails[rail], direction));
        }
        self.simulation.apply(Fault::Stop(self.nodes[RAILS + rail]));
    }

    /// Until a packet has reached the receiver's NIC and has been dealt with there; what it answers is in flight.
    #[track_caller]
    pub(crate) fn run_until_executed(&mut self, rail: usize) {
        let device = self.receiver.nics[rail].device.clone();
        let deadline = self.now() + PATIENCE;
        assert!(self.run_until(deadline, || device.nic().counters().rcvd_pkts > 0), "nothing has come");
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.run_until(self.now() + duration, || false);
    }

    /// Until the condition holds, which is asked after each event. It may make verbs calls. Returns whether it holds.
    pub(crate) fn run_until(&mut self, deadline: Instant, mut condition: impl FnMut() -> bool) -> bool {
        loop {
            if condition() {
                return true;
            }
            let mut news = std::mem::take(&mut *self.news.lock().expect("nothing panics with it"));
            news.sort_unstable();
            news.dedup();
            for node in news {
                self.simulation.wake(self.nodes[node]);
            }
            if !self.simulation.step_until(deadline) {
                self.simulation.run_until(deadline);
                return condition();
            }
        }
    }

    /// Until the sender has an answer for everything that it was asked.
    #[track_caller]
    pub(crate) fn finish(&mut self, sender: &mut NaiveFailover) {
        let deadline = self.now() + PATIENCE;
        assert!(self.run_until(deadline, || sender.is_idle()), "still waiting after {PATIENCE:?}");
    }

    /// What the sender has seen so far.
    pub(crate) fn sender_view(&self, sender: &NaiveFailover) -> SenderView {
        let nic = &self.sender.nics[0];
        let verbs = nic.device.verbs();
        SenderView {
            finished: sender.finished.clone(),
            queue_pair: nic.queue_pair.query().expect("the queue pair is there"),
            events: std::iter::from_fn(|| verbs.next_event().expect("events can be asked for")).collect(),
            counters: nic.device.nic().counters(),
            packets: self.captured.0.lock().expect("nothing panics with it").clone(),
        }
    }

    /// Requests that the receiver's NIC of this rail has been asked a second time.
    pub(crate) fn duplicates_at(&self, rail: usize) -> u64 {
        self.receiver.nics[rail].device.nic().counters().duplicate_request
    }
}

/// A capture in memory.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nothing panics with it").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
