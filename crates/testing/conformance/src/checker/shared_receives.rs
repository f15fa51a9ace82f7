//! Shared receive queues: receives that several queue pairs take from.
//!
//! Which queue pair takes which receive is the device's affair; each is used once, and each connection's messages come
//! in order. What may be in the memory of a receive that has not completed is a part of the next message of one of the
//! queue pairs.

use longhaul_verbs::{CompletionStatus, WorkCompletion};

use super::facts::EndNumber;
use super::judge::Judge;
use super::memory::ReadMemory;
use super::receive_queue::{PostedReceive, ReceiveFault, SharedQueue, SharedQueueNumber};
use super::receives::gather;
use super::violation::Rule;

impl Judge {
    /// A shared receive queue was made.
    pub fn add_shared_queue(&mut self) -> SharedQueueNumber {
        self.shared_queues.push(SharedQueue::default());
        SharedQueueNumber(self.shared_queues.len() - 1)
    }

    /// A receive was posted to it.
    pub fn posted_shared_receive(&mut self, queue: SharedQueueNumber, receive: PostedReceive) {
        for piece in &receive.pieces {
            self.memory.lend(piece.place, piece.length);
        }
        self.shared_queues[queue.0].posted.insert(receive.id, receive);
    }

    /// Receives in it that have not completed.
    pub fn used_shared_receives(&self, queue: SharedQueueNumber) -> usize {
        self.shared_queues[queue.0].posted.len()
    }

    /// The program asked for an event when fewer receives than this are left.
    pub fn wants_limit_event(&mut self, queue: SharedQueueNumber, limit: usize) {
        let queue = &mut self.shared_queues[queue.0];
        queue.limit = limit;
        queue.fewest = queue.posted.len();
    }

    /// The event arrived: it must have been asked for, and few enough receives may be left, as each queue pair may hold
    /// one more.
    pub fn limit_event(&mut self, number: SharedQueueNumber) {
        let users = self.ends.iter().filter(|end| end.facts.shared_queue == Some(number)).count();
        let queue = &mut self.shared_queues[number.0];
        let limit = std::mem::take(&mut queue.limit);
        let fewest = queue.fewest.saturating_sub(users + queue.lost_max);
        // On real time receives may have been posted since it was raised.
        if !self.network.is_slow && (limit == 0 || fewest >= limit) {
            self.accuse(
                Rule::Event,
                format!("shared receive queue {}", number.0),
                format!("no event: its limit is {limit}"),
                format!("one, with at least {fewest} receives left"),
            );
        }
    }

    /// All raised events have been delivered: is one missing?
    pub fn check_limit_event(&mut self, number: SharedQueueNumber) {
        let SharedQueue { posted, limit, .. } = &self.shared_queues[number.0];
        let (left, limit) = (posted.len(), *limit);
        if left < limit {
            let subject = format!("shared receive queue {}", number.0);
            self.accuse(
                Rule::Event,
                subject,
                format!("an event: its limit is {limit}"),
                format!("none, with {left} left"),
            );
            self.shared_queues[number.0].limit = 0;
        }
    }

    /// The queue is gone, with its device.
    pub fn forget_shared_queue(&mut self, number: SharedQueueNumber) {
        let queue = std::mem::take(&mut self.shared_queues[number.0]);
        for piece in queue.posted.values().flat_map(|receive| &receive.pieces) {
            self.memory.give_back(piece.place);
        }
    }

    /// Messages that this end has received since its last reset.
    pub(super) fn completed_receives(&self, number: EndNumber) -> usize {
        let end = &self.ends[number.0];
        match end.facts.shared_queue {
            Some(_) => end.shared_completed_count,
            None => end.receive_queue.completed_count(),
        }
    }

    /// Takes a receive out of the model of a shared queue, if it may complete at this end.
    pub(super) fn take_shared_receive(
        &mut self,
        number: EndNumber,
        queue: SharedQueueNumber,
        completion: &WorkCompletion,
    ) -> Result<PostedReceive, ReceiveFault> {
        let queue = &mut self.shared_queues[queue.0];
        let mut receive = queue.posted.remove(&completion.id).ok_or(ReceiveFault::NotPosted)?;
        queue.fewest = queue.fewest.min(queue.posted.len());
        let end = &mut self.ends[number.0];
        receive.index = end.shared_completed_count;
        if completion.status == CompletionStatus::FlushedError {
            end.has_flushed_shared = true;
        } else if end.has_flushed_shared {
            return Err(ReceiveFault::AfterFailure);
        } else {
            end.shared_completed_count += 1;
        }
        Ok(receive)
    }

    /// Messages that wait at this end for a receive of a shared queue, beyond those that it certainly has.
    pub(super) fn missing_shared_receives(&self, number: EndNumber, queue: SharedQueueNumber) -> usize {
        let Some(peer) = self.ends[number.0].peer else { return 0 };
        let waiting = self.ends[peer.0].needing_receive.len() - self.ends[number.0].shared_completed_count;
        let users = self.ends.iter().filter(|end| end.facts.shared_queue == Some(queue)).count();
        let queue = &self.shared_queues[queue.0];
        waiting.saturating_sub(queue.posted.len().saturating_sub(users + queue.lost_max))
    }

    /// These ends are about to be reset. What they have begun to receive stays where it is, and is nobody's any more.
    pub(super) fn reset_shared_receives(&mut self, ends: &[EndNumber], memory: &impl ReadMemory) {
        let shared = ends.iter().filter_map(|end| self.ends[end.0].facts.shared_queue.map(|queue| (*end, queue)));
        for (end, queue) in shared.collect::<Vec<_>>() {
            // On real time its other queue pairs go on meanwhile, and completions that nobody has seen yet explain what
            // they do.
            if !self.network.is_slow {
                self.check_shared_queue(queue, memory);
            }
            self.shared_queues[queue.0].lost_max += 1;
            let this = &mut self.ends[end.0];
            this.shared_completed_count = 0;
            this.has_flushed_shared = false;
            for piece in self.shared_queues[queue.0].posted.values().flat_map(|receive| &receive.pieces) {
                let mut bytes = vec![0; piece.length];
                memory.read(piece.place, &mut bytes);
                self.memory.set_known(piece.place, &bytes);
            }
        }
    }

    /// Judges the memory of all receives of all shared queues.
    pub(super) fn check_shared_queues(&mut self, memory: &impl ReadMemory) {
        for queue in 0..self.shared_queues.len() {
            self.check_shared_queue(SharedQueueNumber(queue), memory);
        }
    }

    fn check_shared_queue(&mut self, number: SharedQueueNumber, memory: &impl ReadMemory) {
        let users: Vec<EndNumber> = (0..self.ends.len())
            .map(EndNumber)
            .filter(|end| self.ends[end.0].facts.shared_queue == Some(number))
            .collect();
        let mut wrong = Vec::new();
        for receive in self.shared_queues[number.0].posted.values() {
            let bytes = gather(receive, memory);
            let known = self.known_of(receive);
            let is_explained = known == bytes || users.iter().any(|end| self.is_begun_at(*end, &known, &bytes));
            if !is_explained {
                wrong.push((receive.id, known, bytes));
            }
        }
        for (id, known, bytes) in wrong {
            let first = known.iter().zip(&bytes).position(|(known, got)| known != got).unwrap_or(0);
            self.accuse(
                Rule::Memory,
                format!("receive {id:#x} of shared receive queue {}, its byte {first}", number.0),
                "no change, or a part of the next message of one of its queue pairs",
                super::contents::describe(&bytes[first..]),
            );
        }
    }

    /// Whether all that has changed belongs to the next message for this end.
    fn is_begun_at(&self, end: EndNumber, known: &[u8], bytes: &[u8]) -> bool {
        let Some(peer) = self.ends[end.0].peer else { return false };
        let next = self.ends[peer.0].needing_receive.get(self.ends[end.0].shared_completed_count);
        let Some(&message) = next else { return false };
        let mut position = 0;
        while let Some(step) = known[position..].iter().zip(&bytes[position..]).position(|(known, got)| known != got) {
            position += step;
            match self.begun_bytes(message, position, bytes) {
                0 => return false,
                explained => position += explained,
            }
        }
        true
    }
}
