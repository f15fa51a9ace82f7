//! Tests on a real device: the one that the environment variable `LONGHAUL_RDMA_DEVICE` names, for example an `rxe0`.
//! Without it they say that they were skipped. Both ends are queue pairs of that device. Run them with
//!
//! ```text
//! LONGHAUL_RDMA_DEVICE=rxe0 cargo test -p longhaul-rdmacore device_tests -- --nocapture
//! ```
#![allow(unsafe_code, reason = "posts through the raw layer, to choose the post function")]

mod connections;
mod datagrams;
mod ends;
mod refusals;
mod shared_receives;
mod windows;

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_verbs::raw;
use longhaul_verbs::{
    Access, AsyncEvent, CompletionQueue, CompletionStatus, Device, GidType, MemoryRegion, Mtu, PathAttributes,
    ProtectionDomain, QueuePairAttributes, QueuePairLimits, QueuePairState, ReceiveRequest, SendRequest, Transport,
    WorkCompletion, WriteBurst,
};

use crate::RdmaDevice;
use crate::queue_pair::QueuePair;

const VARIABLE: &str = "LONGHAUL_RDMA_DEVICE";
/// A slow emulation of a slow machine still gets there.
const PATIENCE: Duration = Duration::from_secs(20);
const QUEUE_KEY: u32 = 0x1234_5678;
const REGION_BYTES: usize = 64 << 10;
const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::WINDOW_BIND);

/// How sends are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lists,
    Calls,
}

const BOTH_WAYS: [Way; 2] = [Way::Lists, Way::Calls];

/// The device, and what all queue pairs of a test share.
struct Bench {
    device: Device,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    /// From the device to itself.
    path: PathAttributes,
}

/// The bench of a test, or `None` and a line that says so.
fn bench(test: &str) -> Option<Bench> {
    let Ok(name) = std::env::var(VARIABLE) else {
        eprintln!("SKIPPED {test}: set {VARIABLE} to the name of an RDMA device");
        return None;
    };
    Some(Bench::open(&name))
}

impl Bench {
    fn open(name: &str) -> Self {
        let device = RdmaDevice::open(name).unwrap_or_else(|error| panic!("{name}: {error}")).verbs();
        let domain = device.allocate_protection_domain().unwrap();
        let queue = device.create_completion_queue(1024).unwrap();
        let rows = device.port_attributes(1).unwrap().gid_table_length;
        let gid = (0..rows)
            .filter_map(|index| device.gid(1, index).ok())
            .find(|row| row.gid_type == GidType::RoceV2 && row.gid.to_ip().is_ipv4())
            .expect("an address of version 4 for RoCEv2");
        let path = PathAttributes { source_gid_index: gid.index as u8, ..PathAttributes::to(gid.gid) };
        Bench { device, domain, queue, path }
    }

    fn region(&self) -> MemoryRegion {
        self.domain.register_zeroed(REGION_BYTES, ALL_ACCESS).unwrap()
    }

    fn end(&self, transport: Transport, way: Way) -> End {
        self.end_with(transport, way, QueuePairLimits::default(), None)
    }

    fn end_with(
        &self,
        transport: Transport,
        way: Way,
        limits: QueuePairLimits,
        shared_receive_queue: Option<&dyn raw::SharedReceiveQueue>,
    ) -> End {
        let domain: &dyn Any = &**self.domain.raw();
        let domain = domain.downcast_ref::<crate::domain::ProtectionDomain>().unwrap().domain();
        let init = raw::QueuePairInit {
            transport,
            send_queue: &**self.queue.raw(),
            receive_queue: &**self.queue.raw(),
            shared_receive_queue,
            limits,
            signal_all: false,
        };
        let queue_pair = Arc::new(QueuePair::create_with(domain, &init, way == Way::Calls).unwrap());
        End { queue_pair, region: self.region(), path: self.path }
    }

    /// Two ends that are ready to send to each other.
    fn pair(&self, transport: Transport, way: Way) -> [End; 2] {
        let ends = [self.end(transport, way), self.end(transport, way)];
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        ends
    }

    fn next_completion(&self) -> WorkCompletion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.queue.poll_one().unwrap() {
                return completion;
            }
            assert!(start.elapsed() < PATIENCE, "no completion arrived");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// This many completions, in the order in which they arrived; all of them successful.
    fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let completions: Vec<_> = (0..count).map(|_| self.next_completion()).collect();
        for completion in &completions {
            assert_eq!(completion.status, CompletionStatus::Success, "{completion:?}");
        }
        completions
    }

    /// Both completions of a message: the sender's, then the receiver's.
    fn message(&self, id_of_send: u64) -> (WorkCompletion, WorkCompletion) {
        let both = self.completions(2);
        let is_first = both[0].id == id_of_send;
        if is_first { (both[0], both[1]) } else { (both[1], both[0]) }
    }

    fn no_completion(&self) {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(self.queue.poll_one().unwrap(), None);
    }

    fn next_event(&self) -> AsyncEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = self.device.next_event().unwrap() {
                return event;
            }
            assert!(start.elapsed() < PATIENCE, "no event arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A queue pair and memory for it.
struct End {
    queue_pair: Arc<QueuePair>,
    region: MemoryRegion,
    path: PathAttributes,
}

impl End {
    fn raw(&self) -> &dyn raw::QueuePair {
        &*self.queue_pair
    }

    fn connect(&self, peer: &End) {
        let queue_pair = self.raw();
        let transport = queue_pair.transport();
        let (init, receive, send) = match transport {
            Transport::UnreliableDatagram => (
                QueuePairAttributes::init_datagram(QUEUE_KEY),
                QueuePairAttributes::to_state(QueuePairState::ReadyToReceive),
                QueuePairAttributes::ready_to_send(0),
            ),
            _ => {
                let init = QueuePairAttributes::init_connected(ALL_ACCESS - Access::WINDOW_BIND);
                let peer = peer.raw().number();
                let receive = QueuePairAttributes::ready_to_receive(self.path, Mtu::Bytes1024, peer, 0);
                (init, receive, QueuePairAttributes::ready_to_send(0))
            }
        };
        let (receive, send) = match transport {
            Transport::ReliableConnection => (receive.reliable_receive(4, 12), send.reliable_send(14, 7, 7, 4)),
            _ => (receive, send),
        };
        for step in [init, receive, send] {
            queue_pair.modify(&step).unwrap();
        }
        assert_eq!(queue_pair.state(), QueuePairState::ReadyToSend);
    }

    fn try_post(&self, requests: &[SendRequest<'_>]) -> Result<(), longhaul_verbs::PostError> {
        // SAFETY: tests with inline data give entries that are readable.
        unsafe { self.raw().post_send(requests) }
    }

    fn post(&self, request: SendRequest<'_>) {
        self.try_post(&[request]).unwrap();
    }

    fn burst(&self, burst: &WriteBurst<'_>) -> Result<(), longhaul_verbs::PostError> {
        // SAFETY: never inline.
        unsafe { self.raw().post_write_burst(burst) }
    }

    /// A receive for the region's bytes in this range.
    fn receive(&self, id: u64, range: std::ops::Range<usize>) {
        let entry = [self.region.entry(range)];
        // SAFETY: the device checks the entries.
        unsafe { self.raw().post_receive(&[ReceiveRequest { id, local: &entry }]) }.unwrap();
    }
}

/// Bytes that encode their offset.
fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
