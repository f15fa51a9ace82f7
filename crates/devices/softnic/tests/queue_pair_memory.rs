//! What a queue pair costs while it does nothing, counted by the allocator: bytes asked for and not given back.
//!
//! The figure is the growth while 100,000 queue pairs are made and brought to RTS, divided by their number. Everything that the
//! device keeps for one is in it: its state, its entries in the tables that find it, and the object that the program holds.
//! Only the program's own table of them is not, because its memory is taken before.
#![allow(unsafe_code, reason = "an allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use longhaul_congestion::ControllerName;
use longhaul_softnic::{Config, Device, Outgoing, Route, TransmitSink};
use longhaul_time::Instant;
use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{
    Access, Gid, Mtu, PathAttributes, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairState,
    ReceiveRequest, ScatterGatherEntry, SendOperation, SendRequest, Transport,
};

const QUEUE_PAIRS: usize = 100_000;
const DEPTH: u32 = 128;
/// What an idle queue pair may cost.
const UNRELIABLE_BYTES_MAX: f64 = 256.0;
const RELIABLE_BYTES_MAX: f64 = 1024.0;

thread_local! {
    /// Bytes that this thread has asked for and not given back. Of each thread, because tests run side by side.
    static BYTES_IN_USE: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    BYTES_IN_USE.with(|in_use| in_use.set(in_use.get() + bytes));
}

fn bytes_in_use() -> isize {
    BYTES_IN_USE.with(Cell::get)
}

struct CountingAllocator;

// SAFETY: everything is left to the system's allocator; counting touches no memory of the caller's, and the counter, which has
// no destructor and begins with a constant, allocates nothing itself.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the one that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The wire of queue pairs that send nothing.
struct NoPackets;

impl TransmitSink for NoPackets {
    fn has_room(&self) -> bool {
        true
    }

    fn transmit(&mut self, _: &Route, _: &Outgoing<'_>) {
        panic!("an idle queue pair sends nothing");
    }
}

/// What queue pairs are made from. Raw objects, so that nothing but the device's own cost is counted.
struct Ground {
    device: Device,
    domain: Arc<dyn raw::ProtectionDomain>,
    completions: Arc<dyn raw::CompletionQueue>,
}

impl Ground {
    fn new(change: impl FnOnce(&mut Config)) -> Ground {
        let mut config = Config::new("softnic", vec!["10.0.0.1".parse().expect("an address")], [7; 32]);
        change(&mut config);
        let device = Device::new(config, || ());
        let domain = raw::Device::allocate_protection_domain(&device).expect("a new device has room");
        let completions = raw::Device::create_completion_queue(&device, 1 << 16, None).expect("a new device has room");
        Ground { device, domain, completions }
    }

    /// A queue pair in state RTS, connected to one at another host.
    fn ready_to_send(&self, transport: Transport, depth: u32) -> Arc<dyn raw::QueuePair> {
        let limits = QueuePairLimits { send_requests: depth, receive_requests: depth, ..Default::default() };
        let init = QueuePairInit {
            transport,
            send_queue: &*self.completions,
            receive_queue: &*self.completions,
            shared_receive_queue: None,
            limits,
            signal_all: false,
        };
        let queue_pair = self.domain.create_queue_pair(&init).expect("room for another");
        connect(&*queue_pair);
        // As the driver of a device does after a call: what became ready to send gets its turn, and leaves the list of
        // those that wait for one.
        self.device.nic().poll(Instant::ZERO, &mut NoPackets);
        queue_pair
    }

    /// `count` of them, and the bytes that they took.
    fn many(&self, transport: Transport, count: usize) -> (Vec<Arc<dyn raw::QueuePair>>, isize) {
        let mut queue_pairs = Vec::with_capacity(count);
        let before = bytes_in_use();
        queue_pairs.extend((0..count).map(|_| self.ready_to_send(transport, DEPTH)));
        (queue_pairs, bytes_in_use() - before)
    }
}

fn connect(queue_pair: &dyn raw::QueuePair) {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let path = PathAttributes::to(Gid::from_ip("10.0.0.2".parse().expect("an address")));
    let mut receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, QueuePairNumber::new(0x1234), 0);
    let mut send = QueuePairAttributes::ready_to_send(0);
    if queue_pair.transport() == Transport::ReliableConnection {
        receive = receive.reliable_receive(0, 12);
        send = send.reliable_send(14, 7, 7, 0);
    }
    queue_pair.modify(&QueuePairAttributes::init_connected(access)).expect("INIT follows RESET");
    queue_pair.modify(&receive).expect("RTR follows INIT");
    queue_pair.modify(&send).expect("RTS follows RTR");
    assert_eq!(queue_pair.state(), QueuePairState::ReadyToSend);
}

/// Bytes for each of 100,000 idle queue pairs.
fn idle_bytes(transport: Transport, change: impl FnOnce(&mut Config)) -> f64 {
    let ground = Ground::new(change);
    let (queue_pairs, growth) = ground.many(transport, QUEUE_PAIRS);
    assert_eq!(queue_pairs.len(), QUEUE_PAIRS);
    growth as f64 / QUEUE_PAIRS as f64
}

#[test]
fn an_idle_unreliable_connection_costs_at_most_256_bytes() {
    let bytes = idle_bytes(Transport::UnreliableConnection, |_| ());
    println!("UC: {bytes:.1} bytes for each of {QUEUE_PAIRS} idle queue pairs");
    assert!(bytes <= UNRELIABLE_BYTES_MAX, "expected at most {UNRELIABLE_BYTES_MAX} bytes, got {bytes:.1}");
}

#[test]
fn an_idle_reliable_connection_costs_at_most_1024_bytes() {
    let bytes = idle_bytes(Transport::ReliableConnection, |_| ());
    println!("RC: {bytes:.1} bytes for each of {QUEUE_PAIRS} idle queue pairs");
    assert!(bytes <= RELIABLE_BYTES_MAX, "expected at most {RELIABLE_BYTES_MAX} bytes, got {bytes:.1}");
}

/// As on sockets: the connections to a peer share a window, and each is a member of it; off the host they are paced.
#[test]
fn windows_and_pacing_are_within_the_same_bound() {
    let bytes = idle_bytes(Transport::ReliableConnection, |config| {
        config.peer_window_bytes = Some(4 << 20);
        config.congestion = Some(ControllerName::Fixed(1_000_000_000));
    });
    println!("RC, with a window for the peer and a rate: {bytes:.1} bytes");
    assert!(bytes <= RELIABLE_BYTES_MAX, "expected at most {RELIABLE_BYTES_MAX} bytes, got {bytes:.1}");
}

/// What a device keeps after its queue pairs are gone is the room in its tables, and the next ones move into it.
#[test]
fn destroying_gives_everything_back_but_the_room_in_tables() {
    const COUNT: usize = 10_000;
    for transport in [Transport::UnreliableConnection, Transport::ReliableConnection] {
        let ground = Ground::new(|_| ());
        let before = bytes_in_use();
        let (queue_pairs, growth) = ground.many(transport, COUNT);
        drop(queue_pairs);
        let kept = bytes_in_use() - before;
        assert!(kept < growth, "expected the objects to be freed, got {kept} of {growth} bytes kept");
        for _ in 0..2 {
            let (queue_pairs, _) = ground.many(transport, COUNT);
            for queue_pair in &queue_pairs {
                queue_pair.destroy().expect("it is there");
            }
            drop(queue_pairs);
            assert_eq!(bytes_in_use() - before, kept, "queue pairs made again and destroyed leave nothing more");
        }
        let with_device = bytes_in_use();
        let Ground { device, domain, completions } = ground;
        drop((device, domain, completions));
        assert!(bytes_in_use() <= with_device - kept, "the tables go with the device");
        // Only now: what is printed is kept by the test harness, in memory of this thread.
        println!("{transport:?}: {growth} bytes for {COUNT} queue pairs, {kept} of them are room in tables that stays");
    }
}

/// A deep queue costs what a shallow one does until it is used, and reset gives its memory back.
#[test]
fn queues_take_memory_when_they_are_used() {
    for transport in [Transport::UnreliableConnection, Transport::ReliableConnection] {
        let ground = Ground::new(|_| ());
        // The tables' first room.
        drop(ground.ready_to_send(transport, DEPTH));
        let growth_of = |depth| {
            let before = bytes_in_use();
            let queue_pair = ground.ready_to_send(transport, depth);
            let growth = bytes_in_use() - before;
            drop(queue_pair);
            growth
        };
        assert_eq!(growth_of(1), growth_of(1 << 16), "the depth of {transport:?} queues is a limit, not an allocation");

        let queue_pair = ground.ready_to_send(transport, DEPTH);
        let idle = bytes_in_use();
        let entry = [ScatterGatherEntry { address: 0, length: 64, local_key: 0 }];
        let receives = vec![ReceiveRequest { id: 1, local: &entry }; DEPTH as usize];
        let sends = vec![SendRequest::new(2, SendOperation::Send, &entry); DEPTH as usize];
        let with_lists = bytes_in_use();
        // SAFETY: nothing is inline, and the device is not driven any more, so that it looks at no entry.
        unsafe {
            queue_pair.post_receive(&receives).expect("an empty queue has room");
            queue_pair.post_send(&sends).expect("an empty queue has room");
        }
        let used = bytes_in_use() - with_lists;
        // Each request has at least its id, an entry and a length.
        assert!(used >= 2 * isize::try_from(DEPTH).expect("small") * 24, "expected full queues, got {used} bytes");
        drop((receives, sends));
        queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).expect("any state may be reset");
        let after_reset = bytes_in_use() - idle;
        // What is left is small: its place in the device's list of those that have something to send, and the state
        // next to the queues, which has the entry among the device's timers.
        assert!(after_reset <= 256, "expected the queues to be given back, got {after_reset} bytes kept");
        println!("{transport:?}: {used} bytes for {DEPTH} receives and {DEPTH} sends");
    }
}
