//! The program under test: queue pairs on all nodes, what they use, and the loop that lets time pass and polls.

use std::collections::BTreeMap;

use longhaul_shim::Agreement;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, AddressHandle, Capabilities, CompletionQueue, NullRegion, PathAttributes, ProtectionDomain, QueuePair,
    QueuePairAttributes, QueuePairNumber, QueuePairOptions, QueuePairState, RemoteMemory, ScatterGatherEntry,
    Transport, WorkCompletion,
};
use longhaul_wire::aeth::rnr_timer_duration;
use longhaul_world::Dice;

use super::fault_plan::ActiveFaults;
use super::ground::Ground;
use super::memory::{Arena, ProgramMemory};
use super::plan::{CompletionQueueSharing, PairPlan, Plan};
use super::state::{EndSlots, EndWindow, NodeReceives, NodeWords};
use super::tally::Tally;
use crate::checker::{EndFacts, EndNumber, Ending, Judge, MessageNumber, Observation, Piece, Rule};

/// The key that all datagram queue pairs demand.
pub(super) const QUEUE_KEY: u32 = 0x1111_2222;

/// Room in each completion queue: more than all queue pairs together can fill.
const COMPLETION_QUEUE_ROOM: u32 = 4096;

/// Tries to find the devices at rest. On real time and with much traffic one look at all memory may fail; the next will
/// not.
const MEMORY_LOOKS_MAX: usize = 200;

const HAS_ADDRESSES: &str = "each node has an IPv4 and an IPv6 address";

/// One queue pair and what belongs to it.
pub(super) struct End {
    pub(super) queue_pair: QueuePair,
    pub(super) pair: usize,
    /// Which of the pair's two it is.
    pub(super) side: usize,
    pub(super) completion_queues: [usize; 2],
    pub(super) send_psn: u32,
    pub(super) reconnect_count: u32,
    /// It has reported that it takes no more from a shared receive queue.
    pub(super) has_last_work_request_event: bool,
    /// UD: the path to the other end.
    pub(super) address_handle: Option<AddressHandle>,
    /// What it sends from. (Memory that peers may hear of counts its addresses from zero: where this process keeps it
    /// must not show in the packets, or a run would not repeat.)
    pub(super) sources: Arena,
    /// What it receives into.
    pub(super) receives: Arena,
    /// What its peer writes to, and reads back.
    pub(super) targets: Arena,
    /// What its peer reads.
    pub(super) exposed: Arena,
    /// What READs and atomics bring their bytes to.
    pub(super) responses: Arena,
    /// What windows of its are bound to.
    pub(super) windowed: Arena,
    pub(super) window: Option<EndWindow>,
    /// What slots of its are bound to.
    pub(super) slotted: Arena,
    pub(super) slots: Option<EndSlots>,
    /// Places that its peer could write to until their key was revoked, and the bytes from there to the region's end.
    pub(super) revoked: Vec<(RemoteMemory, usize)>,
}

impl End {
    /// All memory of it.
    pub(super) fn arenas(&mut self) -> [&mut Arena; 7] {
        let End { sources, receives, targets, exposed, responses, windowed, slotted, .. } = self;
        [sources, receives, targets, exposed, responses, windowed, slotted]
    }
}

/// The memory of a message.
#[derive(Default)]
pub(super) struct MessageMemory {
    pub(super) sources: Vec<Piece>,
    pub(super) target: Option<Piece>,
    pub(super) is_reliable: bool,
}

/// The program.
pub(super) struct Program {
    pub(super) plan: Plan,
    pub(super) dice: Dice,
    pub(super) judge: Judge,
    pub(super) memory: ProgramMemory,
    pub(super) ends: Vec<End>,
    pub(super) messages: Vec<MessageMemory>,
    pub(super) tally: Tally,
    pub(super) next_id: u64,
    /// Different for every range that is filled anew.
    pub(super) epoch: u32,
    /// What the devices can do.
    capabilities: Capabilities,
    /// The most READs and atomics that a queue pair can have in flight.
    read_atomic_max: u8,
    /// The words of each node that atomics are used on.
    pub(super) words: Vec<NodeWords>,
    /// The shared receive queue of each node, if this run has them.
    pub(super) shared: Vec<Option<NodeReceives>>,
    pub(super) faults: ActiveFaults,
    /// Requests that bind or end windows, and whose.
    pub(super) window_requests: BTreeMap<MessageNumber, EndNumber>,
    domains: Vec<ProtectionDomain>,
    /// One for each node that has used it.
    null_regions: Vec<Option<NullRegion>>,
    completion_queues: Vec<(usize, CompletionQueue)>,
    numbers: BTreeMap<(usize, QueuePairNumber), EndNumber>,
    polled: Vec<Observation>,
    /// Of each pair: on which node, and with whom.
    pub(super) agreements: Vec<Vec<(usize, Agreement)>>,
}

impl Program {
    pub(super) fn new(plan: Plan, seed: u64, ground: &mut dyn Ground) -> Program {
        let domains = (0..plan.node_count)
            .map(|node| ground.device(node).allocate_protection_domain().expect("each node has a domain"))
            .collect::<Vec<ProtectionDomain>>();
        let attributes = ground.device(0).attributes().expect("a software RNIC reports its attributes");
        let words = domains.iter().map(NodeWords::new).collect();
        let mut program = Program {
            dice: Dice::new(seed ^ 0x7072_6f67),
            judge: Judge::new(plan.network),
            memory: ProgramMemory::default(),
            ends: Vec::new(),
            messages: Vec::new(),
            tally: Tally::default(),
            next_id: 1,
            epoch: 1000,
            capabilities: attributes.capabilities,
            read_atomic_max: attributes.max_read_atomic.min(attributes.max_destination_read_atomic),
            words,
            shared: domains.iter().map(|_| None).collect(),
            faults: ActiveFaults::default(),
            window_requests: BTreeMap::new(),
            null_regions: domains.iter().map(|_| None).collect(),
            domains,
            completion_queues: Vec::new(),
            numbers: BTreeMap::new(),
            polled: Vec::new(),
            agreements: vec![Vec::new(); plan.pairs.len()],
            plan,
        };
        if ground.has_guesses() {
            program.judge.expect_guesses();
        }
        program.create_completion_queues(ground);
        for node in 0..program.plan.node_count {
            program.create_shared_receives(node);
        }
        for pair in 0..program.plan.pairs.len() {
            for side in 0..2 {
                program.create_end(pair, side, ground);
            }
            let [one, other] = [EndNumber(2 * pair), EndNumber(2 * pair + 1)];
            program.judge.connect(one, other);
            program.connect_pair(pair, ground);
        }
        program
    }

    /// Whether the devices can do this.
    pub(super) fn has(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    /// What belongs together on a node.
    pub(super) fn domain(&self, node: usize) -> &ProtectionDomain {
        &self.domains[node]
    }

    /// A node has a new device: a domain and completion queues are made on it. Queue pairs and memory are the caller's.
    pub(super) fn renew_node(&mut self, node: usize, ground: &dyn Ground) {
        let device = ground.device(node);
        self.domains[node] = device.allocate_protection_domain().expect("each node has a domain");
        self.null_regions[node] = None;
        for (_, queue) in self.completion_queues.iter_mut().filter(|(owner, _)| *owner == node) {
            *queue =
                device.create_completion_queue(COMPLETION_QUEUE_ROOM).expect("a few completion queues can be made");
        }
        for end in 0..self.ends.len() {
            if self.node(EndNumber(end)) == node {
                for arena in self.ends[end].arenas() {
                    arena.domain = self.domains[node].clone();
                }
            }
        }
    }

    pub(super) fn pair(&self, end: EndNumber) -> &PairPlan {
        &self.plan.pairs[self.ends[end.0].pair]
    }

    pub(super) fn peer(&self, end: EndNumber) -> EndNumber {
        EndNumber(end.0 ^ 1)
    }

    pub(super) fn transport(&self, end: EndNumber) -> Transport {
        self.pair(end).transport
    }

    pub(super) fn all_ends(&self) -> impl Iterator<Item = EndNumber> + use<> {
        (0..self.ends.len()).map(EndNumber)
    }

    pub(super) fn create_shared_receives(&mut self, node: usize) {
        if self.plan.has_shared_receives && self.has(Capabilities::SHARED_RECEIVE_QUEUE) {
            let number = self.shared[node].as_ref().map(NodeReceives::number);
            let number = number.unwrap_or_else(|| self.judge.add_shared_queue());
            let domain = &self.domains[node];
            let region_bytes = 4 * self.plan.message_bytes_max;
            let arena =
                Arena { domain: domain.clone(), access: Access::LOCAL_WRITE, region_bytes, regions: Vec::new() };
            self.shared[node] = Some(NodeReceives::new(domain, number, arena));
        }
    }

    /// The queue pair with a number.
    pub(super) fn end_of(&self, node: usize, queue_pair: QueuePairNumber) -> Option<EndNumber> {
        self.numbers.get(&(node, queue_pair)).copied()
    }

    fn create_completion_queues(&mut self, ground: &dyn Ground) {
        let room = COMPLETION_QUEUE_ROOM;
        let count_of = |sharing| match sharing {
            CompletionQueueSharing::Node => 1,
            CompletionQueueSharing::NodeAndDirection => 2,
            CompletionQueueSharing::QueuePair => 0,
        };
        for node in 0..self.plan.node_count {
            for _ in 0..count_of(self.plan.sharing) {
                self.add_completion_queue(ground.device(node).create_completion_queue(room), node);
            }
        }
        if self.plan.sharing == CompletionQueueSharing::QueuePair {
            let nodes: Vec<usize> = self.plan.pairs.iter().flat_map(|pair| pair.nodes).collect();
            for node in nodes {
                for _ in 0..2 {
                    self.add_completion_queue(ground.device(node).create_completion_queue(room), node);
                }
            }
        }
    }

    fn add_completion_queue(&mut self, queue: Result<CompletionQueue, longhaul_verbs::CreateError>, node: usize) {
        self.completion_queues.push((node, queue.expect("a few completion queues can be made")));
    }

    fn create_end(&mut self, pair: usize, side: usize, ground: &dyn Ground) {
        let plan = self.plan.pairs[pair].clone();
        let node = plan.nodes[side];
        let completion_queues = match self.plan.sharing {
            CompletionQueueSharing::Node => [node, node],
            CompletionQueueSharing::NodeAndDirection => [2 * node, 2 * node + 1],
            CompletionQueueSharing::QueuePair => [2 * self.ends.len(), 2 * self.ends.len() + 1],
        };
        let queue_pair = self.create_queue_pair(&plan, side, completion_queues);
        let number = self.judge.add_end(EndFacts {
            transport: plan.transport,
            queue_pair: queue_pair.number(),
            address: ground.device(node).gid(1, plan.gid_index.into()).expect(HAS_ADDRESSES).gid.to_ip(),
            packet_bytes: plan.mtu.byte_count() as usize,
            acknowledge_timeout: plan.acknowledge_timeout(),
            retry_count: plan.retry_count,
            receiver_not_ready_retry: plan.receiver_not_ready_retry,
            receiver_not_ready_delay: rnr_timer_duration(plan.receiver_not_ready_timer),
            signals_all: plan.signals_all,
            send_completion_queue: completion_queues[0],
            receive_completion_queue: completion_queues[1],
            shared_queue: match plan.transport {
                Transport::ReliableConnection => self.shared[node].as_ref().map(NodeReceives::number),
                _ => None,
            },
        });
        self.numbers.insert((node, queue_pair.number()), number);
        let domain = &self.domains[node];
        let arena = |access, region_bytes| Arena { domain: domain.clone(), access, region_bytes, regions: Vec::new() };
        let bytes_max = self.plan.message_bytes_max;
        self.ends.push(End {
            queue_pair,
            pair,
            side,
            completion_queues,
            send_psn: plan.first_psn[side],
            reconnect_count: 0,
            has_last_work_request_event: false,
            address_handle: None,
            sources: arena(Access::empty(), 2 * bytes_max),
            receives: arena(Access::LOCAL_WRITE | Access::ZERO_BASED, 2 * bytes_max + 80),
            targets: arena(
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::ZERO_BASED,
                4 * bytes_max,
            ),
            exposed: arena(Access::REMOTE_READ | Access::ZERO_BASED, bytes_max),
            responses: arena(Access::LOCAL_WRITE, bytes_max),
            windowed: arena(Access::LOCAL_WRITE | Access::WINDOW_BIND | Access::ZERO_BASED, 2 * bytes_max),
            window: None,
            slotted: arena(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ZERO_BASED, 2 * bytes_max),
            slots: None,
            revoked: Vec::new(),
        });
    }

    fn create_queue_pair(&self, plan: &PairPlan, side: usize, completion_queues: [usize; 2]) -> QueuePair {
        let shared = self.shared[plan.nodes[side]].as_ref();
        let shared = shared.filter(|_| plan.transport == Transport::ReliableConnection);
        let options = QueuePairOptions {
            limits: plan.limits,
            signal_all: plan.signals_all,
            shared_receive_queue: shared.map(|shared| shared.queue.clone()),
        };
        let [send, receive] = completion_queues.map(|queue| &self.completion_queues[queue].1);
        let domain = &self.domains[plan.nodes[side]];
        let made = domain.create_queue_pair(plan.transport, send, receive, &options);
        made.expect("a few queue pairs can be made")
    }

    /// Destroys the queue pair; its last completions may still be in their queues.
    pub(super) fn destroy_queue_pair(&mut self, end: EndNumber) {
        if let Err(error) = self.ends[end.0].queue_pair.destroy() {
            let subject = format!("destroying queue pair {}", end.0);
            self.judge.accuse(Rule::Refusal, subject, "it to be possible", error.to_string());
        }
    }

    /// Makes another queue pair in place of one that was destroyed.
    pub(super) fn replace_queue_pair(&mut self, end: EndNumber) {
        let plan = self.pair(end).clone();
        let (side, completion_queues) = (self.ends[end.0].side, self.ends[end.0].completion_queues);
        let node = plan.nodes[side];
        self.numbers.remove(&(node, self.ends[end.0].queue_pair.number()));
        let new = self.create_queue_pair(&plan, side, completion_queues);
        self.judge.set_queue_pair(end, new.number());
        self.numbers.insert((node, new.number()), end);
        self.ends[end.0].queue_pair = new;
    }

    /// From RESET to RTS, both.
    pub(super) fn connect_pair(&mut self, pair: usize, ground: &mut dyn Ground) {
        self.protect_pair(pair, ground);
        for side in 0..2 {
            let [end, peer] = [EndNumber(2 * pair + side), EndNumber(2 * pair + 1 - side)];
            let plan = self.pair(end).clone();
            let peer_gid = ground.device(plan.nodes[1 - side]).gid(1, plan.gid_index.into());
            let path = PathAttributes {
                source_gid_index: plan.gid_index,
                udp_port: ground.udp_port(plan.nodes[1 - side]),
                ..PathAttributes::to(peer_gid.expect(HAS_ADDRESSES).gid)
            };
            let (send_psn, receive_psn) = (self.ends[end.0].send_psn, self.ends[peer.0].send_psn);
            let peer_number = self.ends[peer.0].queue_pair.number();
            let ready = QueuePairAttributes::ready_to_receive(path, plan.mtu, peer_number, receive_psn);
            let send = QueuePairAttributes::ready_to_send(send_psn);
            let read_atomic = plan.read_atomic_max.min(self.read_atomic_max).max(1);
            let mut access = Access::REMOTE_WRITE;
            access.set(Access::REMOTE_READ, self.has(Capabilities::READ));
            access.set(Access::REMOTE_ATOMIC, self.has(Capabilities::ATOMICS));
            let steps = match plan.transport {
                Transport::UnreliableDatagram => [
                    QueuePairAttributes::init_datagram(QUEUE_KEY),
                    QueuePairAttributes::to_state(QueuePairState::ReadyToReceive),
                    send,
                ],
                Transport::UnreliableConnection => {
                    [QueuePairAttributes::init_connected(Access::REMOTE_WRITE), ready, send]
                }
                _ => [
                    QueuePairAttributes::init_connected(access),
                    ready.reliable_receive(read_atomic, plan.receiver_not_ready_timer),
                    send.reliable_send(plan.timeout, plan.retry_count, plan.receiver_not_ready_retry, read_atomic),
                ],
            };
            for step in steps {
                self.modify(end, &step);
            }
            if plan.transport == Transport::UnreliableDatagram && self.ends[end.0].address_handle.is_none() {
                let handle = self.domains[plan.nodes[side]].create_address_handle(&path);
                self.ends[end.0].address_handle = Some(handle.expect("a few address handles can be made"));
            }
        }
    }

    /// An entry that takes this many bytes and keeps none.
    pub(super) fn null_entry(&mut self, end: EndNumber, length: u32) -> ScatterGatherEntry {
        let node = self.pair(end).nodes[self.ends[end.0].side];
        let domain = &self.domains[node];
        let region = self.null_regions[node]
            .get_or_insert_with(|| domain.allocate_null_region().expect("each node can have a null region"));
        region.entry(length)
    }

    /// Changes a queue pair in a way that is always allowed.
    pub(super) fn modify(&mut self, end: EndNumber, attributes: &QueuePairAttributes) {
        if let Err(error) = self.ends[end.0].queue_pair.modify(attributes) {
            self.judge.accuse(
                Rule::Refusal,
                format!("queue pair {} to {:?}", end.0, attributes.state),
                "a step that the state diagram allows",
                error.to_string(),
            );
        }
    }

    /// Lets time pass; polls after every event, and judges what arrived immediately.
    pub(super) fn advance(&mut self, ground: &mut dyn Ground, duration: Duration) {
        let deadline = ground.now() + duration;
        self.advance_until(ground, deadline, |_| false);
    }

    /// The same until something is true of the program; whether it became true.
    pub(super) fn advance_until(
        &mut self,
        ground: &mut dyn Ground,
        deadline: Instant,
        mut is_done: impl FnMut(&Program) -> bool,
    ) -> bool {
        loop {
            self.poll(None);
            self.judge_polled(ground.now());
            if is_done(self) {
                return true;
            }
            let has_polled = ground.run_until(deadline, &mut || self.poll(None));
            self.judge_polled(ground.now());
            if !has_polled {
                return is_done(self);
            }
        }
    }

    /// Takes what had completed when queue pairs were reset or destroyed, which nobody can ask for their states any
    /// more.
    pub(super) fn take_last_completions(&mut self, now: Instant) {
        self.poll(Some(QueuePairState::Error));
        self.judge_polled(now);
    }

    /// Judges all memory, at a moment at which the devices do nothing and no completion waits that would explain it.
    pub(super) fn check_all_memory(&mut self, ground: &dyn Ground) {
        for _ in 0..MEMORY_LOOKS_MAX {
            let activity = ground.activity();
            self.poll(None);
            self.judge_polled(ground.now());
            let (judge, memory) = (&mut self.judge, &self.memory);
            if ground.look_at_rest(&activity, &mut || judge.check_all_memory(memory)) {
                return;
            }
        }
    }

    /// Takes all completions; whether there were any. Says of queue pairs that they were in `state`, or else asks them.
    fn poll(&mut self, state: Option<QueuePairState>) -> bool {
        // On real time one queue fills while another is looked at. A second look finds what happened before what the
        // first has found: a receive completes before its send does.
        while self.poll_once(state) {}
        !self.polled.is_empty()
    }

    fn poll_once(&mut self, known_state: Option<QueuePairState>) -> bool {
        let polled_before = self.polled.len();
        let mut completions = [WorkCompletion::default(); 16];
        for (index, (node, queue)) in self.completion_queues.iter().enumerate() {
            loop {
                let count = match queue.poll(&mut completions) {
                    Ok(count) => count,
                    Err(error) => {
                        let subject = format!("completion queue {index}");
                        self.judge.accuse(Rule::ExactlyOnce, subject, "completions", error.to_string());
                        break;
                    }
                };
                for completion in &completions[..count] {
                    let Some(end) = self.numbers.get(&(*node, completion.queue_pair)) else {
                        let subject = format!("completion queue {index}");
                        let got = format!("{completion:?}");
                        self.judge.accuse(Rule::ExactlyOnce, subject, "completions of known queue pairs", got);
                        continue;
                    };
                    let state = |end: usize| known_state.unwrap_or_else(|| self.ends[end].queue_pair.state());
                    self.polled.push(Observation {
                        end: *end,
                        completion_queue: index,
                        completion: *completion,
                        state: state(end.0),
                        peer_state: state(end.0 ^ 1),
                    });
                }
                if count < completions.len() {
                    break;
                }
            }
        }
        self.polled.len() > polled_before
    }

    fn judge_polled(&mut self, now: Instant) {
        self.judge.set_now(now);
        if self.polled.is_empty() {
            return;
        }
        let polled = std::mem::take(&mut self.polled);
        let ended = self.judge.observe(&polled, &self.memory);
        self.tally.received += polled
            .iter()
            .filter(|observation| {
                observation.completion.is_success() && Judge::is_receive_id(observation.completion.id)
            })
            .count() as u64;
        for key in ended.keys {
            self.window_ended(key);
        }
        for (message, ending) in ended.sends {
            self.end_message(message, ending);
        }
        for (_, receive) in ended.receives {
            self.end_receive(receive.pieces);
        }
        self.polled = polled;
        self.polled.clear();
    }

    /// The memory of a send is the program's again. It is used for something else at once: a device that still reads
    /// it would send the wrong bytes.
    pub(super) fn end_message(&mut self, message: MessageNumber, ending: Ending) {
        use longhaul_verbs::CompletionStatus::{FlushedError, RetryExceededError};
        let memory = std::mem::take(&mut self.messages[message as usize]);
        self.window_request_ended(message, ending);
        for piece in memory.sources {
            self.epoch += 1;
            self.memory.refill_and_release(&mut self.judge, piece, self.epoch);
        }
        match ending {
            Ending::Succeeded => self.tally.succeeded += 1,
            Ending::Failed(RetryExceededError) => self.tally.retries_exceeded += 1,
            Ending::Failed(FlushedError) | Ending::Unknown => self.tally.flushed += 1,
            Ending::Failed(_) => self.tally.refused += 1,
        }
        // A repeated reliable write is not executed again, so its place can be written by others. With UC it could be.
        if let Some(target) = memory.target
            && memory.is_reliable
            && ending == Ending::Succeeded
        {
            self.memory.release(target);
        }
    }

    /// The memory of a receive is the program's again.
    pub(super) fn end_receive(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            self.epoch += 1;
            self.memory.refill_and_release(&mut self.judge, piece, self.epoch);
        }
    }
}
