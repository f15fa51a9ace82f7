//! Receives that all reliable queue pairs of a node share, and the events that belong to them.

use longhaul_verbs::{AsyncEventKind, EventSource, ReceiveRequest, SharedReceiveQueueChange, Transport};

use super::ground::Ground;
use super::program::Program;
use super::state::{NodeReceives, SHARED_RECEIVE_ENTRIES, SHARED_RECEIVES};
use crate::checker::{EndNumber, Judge, PostedReceive, Rule};

/// The program keeps at most this many posted, except those that a send waits for.
const POSTED_MAX: usize = 48;

impl Program {
    /// The shared receive queue that an end takes from.
    pub(super) fn shared_receives(&self, end: EndNumber) -> Option<&NodeReceives> {
        let is_reliable = self.transport(end) == Transport::ReliableConnection;
        self.shared[self.node(end)].as_ref().filter(|_| is_reliable)
    }

    /// How many receives there is room for, of those that this end takes from.
    pub(super) fn free_receives(&self, end: EndNumber) -> usize {
        match self.shared_receives(end) {
            Some(shared) => (SHARED_RECEIVES as usize).saturating_sub(self.judge.used_shared_receives(shared.number)),
            None => self.pair(end).limits.receive_requests as usize - self.judge.used_receives(end),
        }
    }

    /// Posts some receives to a shared queue, and now and then asks for an event when few are left.
    pub(super) fn post_shared_receives(&mut self, end: EndNumber, ground: &dyn Ground) {
        let Some(shared) = self.shared_receives(end) else { return };
        let number = shared.number;
        let used = self.judge.used_shared_receives(number);
        if used >= POSTED_MAX || self.plan.has_late_receives && self.dice.chance(70) {
            return;
        }
        for _ in 0..self.dice.within(1..=(POSTED_MAX - used) as u64) {
            self.post_shared_receive(end);
        }
        if self.dice.chance(20) {
            self.poll_events(ground);
            let limit = self.dice.within(1..=32) as u32;
            let Some(shared) = self.shared_receives(end) else { return };
            let change = SharedReceiveQueueChange { limit: Some(limit), ..SharedReceiveQueueChange::default() };
            match shared.queue.modify(change) {
                Ok(()) => self.judge.wants_limit_event(number, limit as usize),
                Err(error) => {
                    let subject = format!("the limit of shared receive queue {}", number.0);
                    self.judge.accuse(Rule::Refusal, subject, "it to be taken", error.to_string());
                }
            }
        }
    }

    /// Posts one receive to the queue that an end shares with others.
    pub(super) fn post_shared_receive(&mut self, end: EndNumber) {
        let node = self.node(end);
        let capacity = self.message_bytes_max(end);
        let piece_count = self.dice.within(1..=u64::from(SHARED_RECEIVE_ENTRIES)) as usize;
        let Some(shared) = &mut self.shared[node] else { return };
        let (memory, judge, dice) = (&mut self.memory, &mut self.judge, &mut self.dice);
        let pieces = shared.arena.allocate_pieces(memory, judge, dice, capacity, piece_count);
        let entries: Vec<_> = pieces.iter().map(|piece| self.memory.entry(*piece)).collect();
        self.next_id += 1;
        let id = self.next_id | Judge::RECEIVE_ID;
        match shared.queue.post_receive(&[ReceiveRequest { id, local: &entries }]) {
            Ok(()) => {
                let receive = PostedReceive { id, pieces, null_bytes: 0, is_broken: false, posting: 0, index: 0 };
                self.judge.posted_shared_receive(shared.number, receive);
                self.tally.count_operation("shared_receive");
            }
            Err(error) => {
                self.accuse_refusal(end, "shared receive", &error);
                self.end_receive(pieces);
            }
        }
    }

    /// Takes all asynchronous events, and judges those of shared receive queues.
    pub(super) fn poll_events(&mut self, ground: &dyn Ground) {
        for node in 0..self.plan.node_count {
            let device = ground.device(node);
            while let Ok(Some(event)) = device.next_event() {
                match (event.kind, event.source) {
                    (AsyncEventKind::SharedReceiveQueueLimitReached, EventSource::SharedReceiveQueue(handle)) => {
                        let known = self.shared[node].as_ref().filter(|shared| shared.queue.handle() == handle);
                        if let Some(number) = known.map(|shared| shared.number) {
                            self.judge.limit_event(number);
                            self.tally.count_operation("limit_event");
                        }
                    }
                    (AsyncEventKind::LastWorkRequestReached, EventSource::QueuePair(queue_pair)) => {
                        self.tally.count_operation("last_work_request_event");
                        if let Some(end) = self.end_of(node, queue_pair) {
                            self.last_work_request_reached(end);
                        }
                    }
                    _ => {}
                }
            }
        }
        for number in self.shared.iter().flatten().map(NodeReceives::number).collect::<Vec<_>>() {
            self.judge.check_limit_event(number);
        }
    }

    fn last_work_request_reached(&mut self, end: EndNumber) {
        let has_cause = self.shared_receives(end).is_some() && self.judge.may_be_in_error(end);
        // On real time the event of a life that has ended may come late.
        let is_late = self.plan.network.is_slow;
        if !is_late && (!has_cause || self.ends[end.0].has_last_work_request_event) {
            let subject = format!("queue pair {} in {:?}", end.0, self.ends[end.0].queue_pair.state());
            let expected = "LastWorkRequestReached once, after a failure, on a shared receive queue";
            self.judge.accuse(Rule::Event, subject, expected, "another one");
        }
        self.ends[end.0].has_last_work_request_event = true;
    }

    /// A queue pair that was moved to ERR, and has flushed, must have raised its event if it shares receives.
    pub(super) fn check_last_work_request(&mut self, end: EndNumber, ground: &dyn Ground) {
        self.poll_events(ground);
        if self.shared_receives(end).is_some() && !self.ends[end.0].has_last_work_request_event {
            let subject = format!("queue pair {} in {:?}", end.0, self.ends[end.0].queue_pair.state());
            self.judge.accuse(Rule::Event, subject, "LastWorkRequestReached after its failure", "no such event");
        }
    }
}
