//! Many software RNICs at once: is the event loop fit for ten thousand nodes, and does everything arrive? Every node
//! has a few queue pairs, alternating RC and UC, each connected to one of a node that the seed chose. Over each of them
//! both ends send messages, alternating WRITEs and SENDs, a few at a time. The network is healthy: every message must
//! complete, in order, at both ends where it completes at both, and none in error. With payload carried, the bytes that
//! arrived are compared with those that were sent.
//!
//! The programs of all nodes look at their completion queues once in a slice of virtual time, and only while they wait
//! for something. Asking after each event, as [`World::run_until`] does, would cost ten thousand looks an event.
//!
//! No clock is read here. The caller makes the nodes ([`Scale::new`]), connects them ([`Scale::connect`]) and runs the
//! traffic ([`Scale::run`]), and can take the time and the memory of each.

mod options;

use std::fmt;

use longhaul_netsim::SimulationLimits;
use longhaul_softnic::PayloadMode;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionOperation, CompletionQueue, MemoryRegion, Mtu, PathAttributes, ProtectionDomain, QueuePair,
    QueuePairAttributes, QueuePairLimits, QueuePairOptions, ReceiveRequest, SendOperation, SendRequest, Transport,
    WorkCompletion,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use options::{ScaleFabric, ScaleOptions};

use crate::world::{World, WorldConfig};
use options::consumed_receives;

/// Messages of one direction of a connection that are in flight at most.
const WINDOW: u32 = 4;

/// Depth of the queues, as programs choose it. (Only [`WINDOW`] requests are ever in one.)
const QUEUE_DEPTH: u32 = 128;

/// How often programs look at their completion queues. Ten thousand nodes send more than a hundred thousand packets in
/// that time, so that looking costs little.
const SLICE: Duration = Duration::from_micros(5);

/// The slice when nothing has completed in the last ones, and the time without any completion after which the run is
/// over: longer than RC takes to give up.
const SLICE_MAX: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(2);

/// Room for the headers of a packet: without payload frames are nothing else, and lie in far fewer pages.
const HEADER_BYTES_MAX: usize = 128;

/// Failures that are described; the others are only counted.
const FAILURES_KEPT: usize = 10;

/// The transport of the queue pair with this index.
fn transport_of(index: usize) -> Transport {
    match index % 2 {
        0 => Transport::ReliableConnection,
        _ => Transport::UnreliableConnection,
    }
}

/// Alternating WRITEs and SENDs. On UC the WRITEs have an immediate, because nothing else says that one has arrived;
/// RC's sender knows it by its own completion.
fn is_write(number: u32) -> bool {
    number.is_multiple_of(2)
}

/// The message that consumes the receive with this number.
fn message_of_receive(transport: Transport, receive: u32) -> u32 {
    match transport {
        Transport::ReliableConnection => 2 * receive + 1,
        _ => receive,
    }
}

/// A queue pair of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EndId {
    node: u32,
    index: u32,
}

/// One end of a connection: the queue pair, and how far its messages are.
struct End {
    queue_pair: QueuePair,
    peer: EndId,
    transport: Transport,
    /// Messages posted, and those whose send has completed.
    posted: u32,
    sent: u32,
    /// Receives posted, and those that have completed.
    receives_posted: u32,
    received: u32,
}

impl End {
    fn is_done(&self, options: &ScaleOptions) -> bool {
        self.sent == options.messages && self.received == options.receives(self.transport)
    }
}

struct ScaleNode {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    region: MemoryRegion,
    /// In the order of their indices; empty until they are connected.
    ends: Vec<End>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleOutcome {
    /// Messages that were sent, arrived and completed.
    pub messages: u64,
    /// Completions, of sends and of receives.
    pub completions: u64,
    /// Packets that the devices sent.
    pub packets: u64,
    /// Arrivals at nodes and switches, and wake-ups of nodes.
    pub events: u64,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// The hash of every delivery.
    pub trace_hash: u64,
    /// What was not as it should be.
    pub failures: Failures,
}

/// What was not as it should be: the first few in words, and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    kept: Vec<String>,
    count: u64,
}

impl Failures {
    fn add(&mut self, failure: impl fmt::Display) {
        self.count += 1;
        if self.kept.len() < FAILURES_KEPT {
            self.kept.push(failure.to_string());
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first few.
    pub fn kept(&self) -> &[String] {
        &self.kept
    }
}

/// Nodes, their connections, and their traffic.
pub struct Scale {
    options: ScaleOptions,
    world: World,
    nodes: Vec<ScaleNode>,
    outcome: ScaleOutcome,
}

impl Scale {
    /// The nodes, each with a protection domain, a completion queue and memory, but without queue pairs. Panics when
    /// the link's profile is not valid or the memory is more than a machine has.
    pub fn new(options: ScaleOptions) -> Scale {
        let mut config = WorldConfig {
            seed: options.seed,
            nodes: options.nodes,
            topology: options.fabric.of(options.nodes),
            link: options.link.clone(),
            ..Default::default()
        };
        config.nic.payload = options.payload;
        if options.payload == PayloadMode::Elided {
            config.limits = SimulationLimits { pool_buffer_bytes: HEADER_BYTES_MAX, ..config.limits };
        }
        let world = World::new(config);
        let region_bytes = usize::try_from(options.region_bytes_per_node()).expect("memory that fits into a machine");
        let entries = 2 * WINDOW * options.queue_pairs_per_node as u32;
        let nodes = (0..options.nodes)
            .map(|node| {
                let device = world.device(node);
                let domain = device.allocate_protection_domain().expect("a new device has room");
                let completions = device.create_completion_queue(entries).expect("a new device has room");
                // Zero-based: packets name addresses, and those of this process are different in every run.
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED;
                let region = domain.register_zeroed(region_bytes, access).expect("a new device has room");
                ScaleNode { domain, completions, region, ends: Vec::with_capacity(options.queue_pairs_per_node) }
            })
            .collect();
        Scale { options, world, nodes, outcome: ScaleOutcome::default() }
    }

    /// The queue pairs, connected and ready to send.
    pub fn connect(&mut self) {
        let limits =
            QueuePairLimits { send_requests: QUEUE_DEPTH, receive_requests: QUEUE_DEPTH, ..Default::default() };
        let queue_pair_options = QueuePairOptions { limits, ..Default::default() };
        let mut random = ChaCha8Rng::seed_from_u64(self.options.seed);
        for index in 0..self.options.queue_pairs_per_node {
            let transport = transport_of(index);
            let peers = pairs(self.options.nodes, &mut random);
            for (node, &peer) in self.nodes.iter_mut().zip(&peers) {
                let queue_pair = node
                    .domain
                    .create_queue_pair(transport, &node.completions, &node.completions, &queue_pair_options)
                    .expect("room for the queue pairs");
                let peer = EndId { node: peer, index: index as u32 };
                node.ends.push(End {
                    queue_pair,
                    peer,
                    transport,
                    posted: 0,
                    sent: 0,
                    receives_posted: 0,
                    received: 0,
                });
            }
            for node in &self.nodes {
                self.make_ready(&node.ends[index]);
            }
        }
    }

    fn make_ready(&self, end: &End) {
        let peer = self.end(end.peer).queue_pair.number();
        let path = PathAttributes::to(self.world.gid(end.peer.node as usize));
        let mut receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, peer, 0);
        let mut send = QueuePairAttributes::ready_to_send(0);
        if end.transport == Transport::ReliableConnection {
            receive = receive.reliable_receive(0, 12);
            send = send.reliable_send(14, 7, 7, 0);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        end.queue_pair.modify(&QueuePairAttributes::init_connected(access)).expect("INIT follows RESET");
        end.queue_pair.modify(&receive).expect("RTR follows INIT");
        end.queue_pair.modify(&send).expect("RTS follows RTR");
    }

    /// The traffic, after [`Scale::connect`]. `progress` is called now and then with the number of completed messages.
    pub fn run(mut self, mut progress: impl FnMut(u64)) -> ScaleOutcome {
        if self.options.payload == PayloadMode::Carried {
            self.write_contents();
        }
        self.post_first();
        let mut unfinished: Vec<u32> = (0..self.options.nodes as u32).collect();
        let mut slice = SLICE;
        let mut last_completion = self.world.now();
        while !unfinished.is_empty() && self.world.now() - last_completion < PATIENCE {
            self.world.run_for(slice);
            let before = self.outcome.completions;
            unfinished.retain(|&node| {
                self.take_completions(node);
                !self.nodes[node as usize].ends.iter().all(|end| end.is_done(&self.options))
            });
            if self.outcome.completions > before {
                last_completion = self.world.now();
                slice = SLICE;
                progress(self.outcome.messages);
            } else {
                slice = (2 * slice).min(SLICE_MAX);
            }
        }
        self.finish(&unfinished)
    }

    /// What is still in flight arrives; then nothing may be missing or duplicated.
    fn finish(mut self, unfinished: &[u32]) -> ScaleOutcome {
        for &node in unfinished {
            for (index, end) in self.nodes[node as usize].ends.iter().enumerate() {
                if !end.is_done(&self.options) {
                    let messages = self.options.messages;
                    let receives = self.options.receives(end.transport);
                    self.outcome.failures.add(format_args!(
                        "node {node}, queue pair {index} ({:?}): expected {messages} sends and {receives} receives to complete, \
                         got {} and {}",
                        end.transport, end.sent, end.received,
                    ));
                }
            }
        }
        self.world.run_for(SLICE_MAX);
        for node in 0..self.options.nodes as u32 {
            self.take_completions(node);
        }
        self.outcome.packets = self.world.packet_count();
        self.outcome.events = self.world.event_count();
        self.outcome.virtual_time = self.world.now() - Instant::ZERO;
        self.outcome.trace_hash = self.world.trace_hash();
        self.outcome
    }

    fn end(&self, id: EndId) -> &End {
        &self.nodes[id.node as usize].ends[id.index as usize]
    }

    fn end_mut(&mut self, id: EndId) -> &mut End {
        &mut self.nodes[id.node as usize].ends[id.index as usize]
    }

    fn all_ends(&self) -> impl Iterator<Item = EndId> + use<> {
        let indices = self.options.queue_pairs_per_node as u32;
        (0..self.options.nodes as u32).flat_map(move |node| (0..indices).map(move |index| EndId { node, index }))
    }

    /// Receives everywhere before the first send: UC drops what finds none.
    fn post_first(&mut self) {
        for id in self.all_ends() {
            for _ in 0..WINDOW {
                self.post_receive(id);
            }
        }
        for id in self.all_ends() {
            self.post_sends(id);
        }
    }

    fn post_receive(&mut self, id: EndId) {
        let ScaleNode { region, ends, .. } = &mut self.nodes[id.node as usize];
        let end = &mut ends[id.index as usize];
        if end.receives_posted == self.options.receives(end.transport) {
            return;
        }
        let number = message_of_receive(end.transport, end.receives_posted);
        let offset = self.options.receive_offset(id.index, number);
        let local = [region.entry(offset..offset + self.options.message_length())];
        let request = ReceiveRequest { id: request_id(id, number), local: &local };
        end.queue_pair.post_receive(&[request]).expect("a queue deeper than the window has room");
        end.receives_posted += 1;
    }

    /// Post messages as far as the window and the peer's receives allow.
    fn post_sends(&mut self, id: EndId) {
        loop {
            let end = self.end(id);
            let number = end.posted;
            let peer = self.end(end.peer);
            let is_allowed = number < self.options.messages
                && number - end.sent < WINDOW
                && consumed_receives(end.transport, number + 1) <= peer.received + WINDOW;
            if !is_allowed {
                return;
            }
            let remote =
                self.nodes[end.peer.node as usize].region.remote(self.options.receive_offset(id.index, number) as u64);
            let operation = match (is_write(number), end.transport) {
                (true, Transport::ReliableConnection) => SendOperation::Write(remote),
                (true, _) => SendOperation::WriteWithImmediate(remote, number),
                (false, _) => SendOperation::Send,
            };
            let offset = self.options.send_offset(id.index, number);
            let local = [self.nodes[id.node as usize].region.entry(offset..offset + self.options.message_length())];
            let request = SendRequest::new(request_id(id, number), operation, &local);
            end.queue_pair.post_send(&[request]).expect("a queue deeper than the window has room");
            self.end_mut(id).posted += 1;
        }
    }

    /// Look at a node's completions, and post what they make room for.
    fn take_completions(&mut self, node: u32) {
        let mut completions = [WorkCompletion::default(); 16];
        loop {
            let count = match self.nodes[node as usize].completions.poll(&mut completions) {
                Ok(count) => count,
                Err(error) => {
                    self.outcome.failures.add(format_args!("node {node}: {error}"));
                    return;
                }
            };
            for completion in &completions[..count] {
                self.take_completion(node, completion);
            }
            if count < completions.len() {
                return;
            }
        }
    }

    fn take_completion(&mut self, node: u32, completion: &WorkCompletion) {
        self.outcome.completions += 1;
        let (index, number) = ((completion.id >> 32) as u32, completion.id as u32);
        let id = EndId { node, index };
        let is_ours = (index as usize) < self.options.queue_pairs_per_node
            && self.end(id).queue_pair.number() == completion.queue_pair;
        if !is_ours || !completion.is_success() {
            self.outcome.failures.add(format_args!("node {node}: expected success, got {completion:?}"));
            return;
        }
        let end = self.end(id);
        let (transport, peer) = (end.transport, end.peer);
        match completion.operation {
            CompletionOperation::Send | CompletionOperation::Write => {
                let expected = if is_write(end.sent) { CompletionOperation::Write } else { CompletionOperation::Send };
                if number != end.sent || completion.operation != expected {
                    let next = end.sent;
                    self.fail(id, format_args!("expected the completion of {expected:?} {next}, got {completion:?}"));
                }
                self.end_mut(id).sent += 1;
                if transport == Transport::ReliableConnection && is_write(number) {
                    self.check_arrived(peer, id, number);
                }
                self.post_sends(id);
            }
            _ => {
                let expected = message_of_receive(transport, end.received);
                let operation = match (is_write(expected), transport) {
                    (true, Transport::UnreliableConnection) => CompletionOperation::ReceiveWriteWithImmediate,
                    _ => CompletionOperation::Receive,
                };
                let immediate = (operation == CompletionOperation::ReceiveWriteWithImmediate).then_some(expected);
                let is_right = number == expected
                    && completion.operation == operation
                    && completion.immediate() == immediate
                    && completion.byte_count == self.options.message_bytes;
                if !is_right {
                    self.fail(id, format_args!("expected message {expected} ({operation:?}), got {completion:?}"));
                }
                self.end_mut(id).received += 1;
                self.check_arrived(id, peer, number);
                self.post_receive(id);
                self.post_sends(peer);
            }
        }
    }

    fn fail(&mut self, id: EndId, failure: fmt::Arguments<'_>) {
        self.outcome.failures.add(format_args!("node {}, queue pair {}: {failure}", id.node, id.index));
    }

    /// A message has arrived at `receiver`: count it, and compare its bytes, if it has any.
    fn check_arrived(&mut self, receiver: EndId, sender: EndId, number: u32) {
        self.outcome.messages += 1;
        if self.options.payload == PayloadMode::Elided || number >= self.options.messages {
            return;
        }
        let offset = self.options.receive_offset(receiver.index, number);
        let bytes = self.nodes[receiver.node as usize].region.to_vec(offset..offset + self.options.message_length());
        if bytes != contents(sender, number, self.options.message_length()) {
            self.fail(receiver, format_args!("the bytes of message {number} are not those that were sent"));
        }
    }

    fn write_contents(&mut self) {
        for id in self.all_ends() {
            for number in 0..self.options.messages {
                let bytes = contents(id, number, self.options.message_length());
                let offset = self.options.send_offset(id.index, number);
                self.nodes[id.node as usize].region.copy_in(offset, &bytes);
            }
        }
    }
}

/// A request's id: which queue pair of the node, and which message.
fn request_id(end: EndId, number: u32) -> u64 {
    (u64::from(end.index) << 32) | u64::from(number)
}

/// The bytes of a message: of no other message, and of no other part of it, the same.
fn contents(sender: EndId, number: u32, length: usize) -> Vec<u8> {
    let begin = (u64::from(sender.node) << 40) ^ (u64::from(sender.index) << 28) ^ u64::from(number);
    let mixed = begin.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..length.div_ceil(8) as u64).map(|word| mixed ^ word.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// A partner for each node, drawn at random. Of an odd number of nodes one is its own.
fn pairs(nodes: usize, random: &mut impl Rng) -> Vec<u32> {
    let mut order: Vec<u32> = (0..nodes as u32).collect();
    for last in (1..order.len()).rev() {
        let other = (u128::from(random.next_u64()) * (last as u128 + 1)) >> 64;
        order.swap(last, other as usize);
    }
    let mut peers: Vec<u32> = (0..nodes as u32).collect();
    for pair in order.chunks_exact(2) {
        peers[pair[0] as usize] = pair[1];
        peers[pair[1] as usize] = pair[0];
    }
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_each_others() {
        for nodes in [1, 2, 7, 100] {
            let peers = pairs(nodes, &mut ChaCha8Rng::seed_from_u64(3));
            assert!(peers.iter().enumerate().all(|(node, &peer)| peers[peer as usize] == node as u32));
            let alone = peers.iter().enumerate().filter(|(node, peer)| **peer == *node as u32).count();
            assert_eq!(alone, nodes % 2);
        }
    }

    #[test]
    fn receives_and_messages_agree() {
        for transport in [Transport::ReliableConnection, Transport::UnreliableConnection] {
            for messages in 1..20 {
                for receive in 0..consumed_receives(transport, messages) {
                    let message = message_of_receive(transport, receive);
                    assert!(message < messages);
                    assert_eq!(consumed_receives(transport, message + 1), receive + 1);
                }
            }
        }
    }

    #[test]
    fn contents_differ() {
        let end = |node, index| EndId { node, index };
        let different = [
            contents(end(1, 0), 0, 4096),
            contents(end(0, 1), 0, 4096),
            contents(end(0, 0), 1, 4096),
            contents(end(0, 0), 0, 4096),
        ];
        let mut pieces: Vec<&[u8]> = different.iter().flat_map(|bytes| bytes.chunks(8)).collect();
        pieces.sort_unstable();
        pieces.dedup();
        assert_eq!(pieces.len(), 4 * 512);
        assert_eq!(contents(end(1, 1), 1, 13).len(), 13);
    }
}
