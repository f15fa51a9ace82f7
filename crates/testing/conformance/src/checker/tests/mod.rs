//! A judge that never caught anything is not yet a judge: each rule, broken by hand.

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, QueuePairState, Transport, WorkCompletion,
};

use super::*;

mod completions;
mod keys;
mod memory;
mod responses;
mod shared_receives;

const A: EndNumber = EndNumber(0);
const B: EndNumber = EndNumber(1);
const PACKET: usize = 256;
const RECEIVE: u64 = Judge::RECEIVE_ID;
const TIMEOUT: Duration = Duration::from_micros(500);
const NOT_READY_DELAY: Duration = Duration::from_micros(80);

/// A program of two connected queue pairs: A sends, B receives and is written to. Memory is plain vectors.
struct Bench {
    judge: Judge,
    memory: Hand,
    transport: Transport,
}

struct Hand(Vec<Vec<u8>>);

impl ReadMemory for Hand {
    fn read(&self, place: Place, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[place.region.0][place.offset..place.offset + bytes.len()]);
    }
}

/// B's memory for writes, and for receives.
const TARGETS: RegionNumber = RegionNumber(0);
const BUFFERS: RegionNumber = RegionNumber(1);

fn bench(transport: Transport) -> Bench {
    bench_on(transport, NetworkFacts::default())
}

fn bench_on(transport: Transport, network: NetworkFacts) -> Bench {
    let mut judge = Judge::new(network);
    let mut memory = Hand(Vec::new());
    for end in 0..2 {
        judge.add_end(EndFacts {
            transport,
            queue_pair: QueuePairNumber::new(100 + end),
            address: [10, 0, 0, end as u8].into(),
            packet_bytes: PACKET,
            acknowledge_timeout: TIMEOUT,
            retry_count: 7,
            receiver_not_ready_retry: 6,
            receiver_not_ready_delay: NOT_READY_DELAY,
            signals_all: false,
            send_completion_queue: 0,
            receive_completion_queue: 1,
            shared_queue: None,
        });
        let mut bytes = vec![0; 8192];
        fill_untouched(end, &mut bytes);
        memory.0.push(bytes.clone());
        judge.register(bytes);
    }
    judge.connect(A, B);
    Bench { judge, memory, transport }
}

fn send(id: u64, length: usize) -> SendFacts {
    SendFacts {
        id,
        to: B,
        kind: Kind::Send,
        length,
        has_immediate: false,
        target: None,
        mistake: None,
        is_signaled: true,
        through: None,
        ends_key: None,
    }
}

fn write(id: u64, length: usize, offset: usize) -> SendFacts {
    SendFacts { kind: Kind::Write, target: Some(Place { region: TARGETS, offset }), ..send(id, length) }
}

impl Bench {
    /// Message `message` arrives whole at an offset of a region.
    fn place(&mut self, region: RegionNumber, offset: usize, message: MessageNumber, length: usize) {
        self.memory.0[region.0][offset..offset + length].copy_from_slice(&message_bytes(message, length));
    }

    /// Receive `slot` covers bytes `1024 · slot` and on, in two pieces.
    fn receive(&mut self, slot: usize, length: usize) {
        let piece = |offset, length| Piece { place: Place { region: BUFFERS, offset }, length };
        let receive = PostedReceive {
            id: RECEIVE + slot as u64,
            pieces: vec![piece(1024 * slot, 100), piece(1024 * slot + 100, length - 100)],
            null_bytes: 0,
            is_broken: false,
            posting: 0,
            index: 0,
        };
        self.judge.posted_receive(B, receive);
    }

    /// So much time since the beginning has passed.
    fn wait(&mut self, duration: Duration) {
        self.judge.set_now(Instant::ZERO + duration);
    }

    fn observe(&mut self, observation: Observation) -> Ended {
        self.judge.observe(&[observation], &self.memory)
    }

    fn sent(&mut self, id: u64, operation: CompletionOperation) {
        self.observe(Observation {
            end: A,
            completion_queue: 0,
            completion: WorkCompletion { id, operation, ..Default::default() },
            state: QueuePairState::ReadyToSend,
            peer_state: QueuePairState::ReadyToSend,
        });
    }

    fn failed(&mut self, end: EndNumber, id: u64, status: CompletionStatus, state: QueuePairState) {
        self.observe(Observation {
            end,
            completion_queue: usize::from(Judge::is_receive_id(id)),
            completion: WorkCompletion { id, status, ..Default::default() },
            state,
            peer_state: state,
        });
    }

    /// The completion that receive `slot` should have for a message.
    fn received(&self, slot: usize, message: MessageNumber, facts: SendFacts) -> WorkCompletion {
        let is_datagram = self.transport == Transport::UnreliableDatagram;
        let mut flags = CompletionFlags::empty();
        flags.set(CompletionFlags::IMMEDIATE, facts.has_immediate);
        flags.set(CompletionFlags::GLOBAL_ROUTE_HEADER, is_datagram);
        WorkCompletion {
            id: RECEIVE + slot as u64,
            operation: match facts.kind {
                Kind::Send => CompletionOperation::Receive,
                _ => CompletionOperation::ReceiveWriteWithImmediate,
            },
            flags,
            byte_count: (facts.length + if is_datagram { 40 } else { 0 }) as u32,
            immediate_or_key: if facts.has_immediate { immediate(message) } else { 0 },
            queue_pair: QueuePairNumber::new(101),
            source_queue_pair: QueuePairNumber::new(100),
            ..Default::default()
        }
    }

    fn deliver(&mut self, completion: WorkCompletion) {
        let start = 1024 * (completion.id - RECEIVE) as usize;
        if self.transport == Transport::UnreliableDatagram {
            let header = &mut self.memory.0[BUFFERS.0][start..start + 40];
            header[20] = 0x45;
            header[32..].copy_from_slice(&[10, 0, 0, 0, 10, 0, 0, 1]);
        }
        self.deliver_as_is(completion);
    }

    /// Without a route header.
    fn deliver_as_is(&mut self, completion: WorkCompletion) {
        self.observe(Observation {
            end: B,
            completion_queue: 1,
            completion,
            state: QueuePairState::ReadyToSend,
            peer_state: QueuePairState::ReadyToSend,
        });
    }

    /// The program uses the memory of a receive that has ended for something else.
    fn refill(&mut self, offset: usize, length: usize) {
        let mut bytes = vec![0; length];
        fill_untouched(77, &mut bytes);
        self.memory.0[BUFFERS.0][offset..offset + length].copy_from_slice(&bytes);
        let place = Place { region: BUFFERS, offset };
        self.judge.program_wrote(place, &bytes);
    }

    fn check(&mut self) {
        self.judge.check_all_memory(&self.memory);
    }

    #[track_caller]
    fn assert_clean(&self) {
        assert_eq!(self.judge.violations().kept(), []);
    }

    /// Exactly this rule was broken, once.
    #[track_caller]
    fn assert_broken(&self, rule: Rule) {
        let kept = self.judge.violations().kept();
        let rules: Vec<Rule> = kept.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, [rule], "{kept:#?}");
    }
}
