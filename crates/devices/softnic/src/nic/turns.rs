//! Which queue pair sends next: answers first, then the answers to READs and requests, in turn.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{QueuePairState, Transport as VerbsTransport};
use longhaul_wire::cnp;
use slotmap::Key;

use super::{DEFAULT_PARTITION_KEY, Nic};
use crate::config::Config;
use crate::pace::{Allowance, Peers};
use crate::port::{OutgoingPayload, TransmitSink};
use crate::queue_pair::{QueuePair, QueuePairKey, Turn};
use crate::resources::Resources;
use crate::send::packet;
use crate::{receive, send};

/// Time-outs are put off this long at most while arrivals wait to be looked at: longer than it takes to look at all that
/// a socket's buffer holds.
const BEHIND_MAX: Duration = Duration::from_millis(250);

impl Nic {
    /// Hand the port what is to be sent now. Stops when the port has no room; then [`Nic::has_output`] says `true`.
    pub(super) fn poll<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        self.has_news = false;
        self.handle_deadlines(now);
        self.send_answers(sink);
        self.send_requests(now, sink);
        // Acknowledgements that had to wait for the answers of READs.
        self.send_answers(sink);
        sink.flush();
    }

    /// The same right after a post: the program may be answering what it has just received, and its peer waits for that
    /// rather than for the acknowledgement, which can be left for later.
    pub(super) fn poll_after_post<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S, answers: bool) {
        self.has_news = false;
        self.handle_deadlines(now);
        self.send_requests(now, sink);
        // In a call of its own: one with two datagrams takes longer.
        sink.flush();
        if answers {
            self.send_answers(sink);
            sink.flush();
        }
    }

    /// Give queue pairs with answers to READs, and those with requests, their turns, as far as the port has room.
    fn send_requests<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) {
        while sink.has_room() {
            let has_responded = self.send_responses(now, sink);
            let Some(key) = self.active.pop_front() else {
                if has_responded {
                    continue;
                }
                break;
            };
            let budget = self.shared.config.turn_packets;
            let (shared, queue_pair) = (&mut self.shared, self.queue_pairs.get_mut(key));
            // Destroyed while it waited for its turn.
            let Some(queue_pair) = queue_pair else { continue };
            queue_pair.make_pacing(&shared.config);
            queue_pair.begin_turn(now);
            let turn = match queue_pair.state() {
                QueuePairState::ReadyToSend | QueuePairState::SendQueueDrained => match queue_pair.identity().transport
                {
                    VerbsTransport::ReliableConnection => match admit(&mut self.peers, key, queue_pair, &shared.config)
                    {
                        Some(allowance) => send::rc::transmit(queue_pair, shared, sink, now, budget, allowance),
                        None => {
                            // Others hold it up, not its path.
                            queue_pair.end_turn(now, Turn::NoRoomAtPeer);
                            self.schedule(key, now);
                            continue;
                        }
                    },
                    VerbsTransport::UnreliableConnection => send::uc::transmit(queue_pair, shared, sink, now, budget),
                    _ => send::ud::transmit(queue_pair, shared, sink, now, budget),
                },
                _ => Turn::Idle,
            };
            queue_pair.end_turn(now, turn);
            match turn {
                Turn::More => self.active.push_back(key),
                Turn::Idle => {
                    queue_pair.leave_active();
                    if let Some(share) = queue_pair.share_if_used() {
                        share.step_out();
                    }
                }
                Turn::NoRoomAtPeer => self.peers.wait(key, queue_pair.share_mut()),
            }
            self.settle_with_peer(key);
            self.schedule(key, now);
        }
        #[cfg(debug_assertions)]
        self.check_peers();
    }

    /// Give the next queue pair with answers to READs its turn; `false` when there is none.
    fn send_responses<S: TransmitSink + ?Sized>(&mut self, now: Instant, sink: &mut S) -> bool {
        let Some(key) = self.responding.pop_front() else { return false };
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return true };
        if queue_pair.lets_requests_first(now) {
            self.responding.push_back(key);
            return true;
        }
        queue_pair.make_pacing(&self.shared.config);
        queue_pair.begin_answers(now);
        let budget = self.shared.config.turn_packets;
        let turn = receive::rc_responses::send_responses(queue_pair, &mut self.shared, sink, now, budget);
        if turn == Turn::More {
            self.responding.push_back(key);
        } else {
            queue_pair.leave_responding();
            // Not among those with answers to READs again: its pace holds it up, and this call would never end.
            list_answering(&mut self.answering, key, queue_pair);
        }
        self.settle_with_peer(key);
        self.schedule(key, now);
        true
    }

    /// Send what queue pairs owe their peers, as far as the port has room.
    fn send_answers<S: TransmitSink + ?Sized>(&mut self, sink: &mut S) {
        while sink.has_room() {
            let Some(&key) = self.answering.front() else { break };
            if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
                if queue_pair.owes_acknowledgement() {
                    receive::rc::send_answer(queue_pair, &mut self.shared, sink);
                    if queue_pair.responder().owes_notification() {
                        // One packet for each look at the port's room.
                        continue;
                    }
                } else {
                    send_congestion_notification(queue_pair, &mut self.shared, sink);
                }
                queue_pair.leave_answering();
            }
            self.answering.pop_front();
        }
    }

    /// See [`NicGuard::note_arrivals_left`](crate::NicGuard::note_arrivals_left).
    pub(super) fn note_arrivals_left(&mut self, has_more: bool, now: Instant) {
        self.behind_since = has_more.then(|| self.behind_since.unwrap_or(now));
    }

    fn handle_deadlines(&mut self, now: Instant) {
        self.shared.now = now;
        self.shared.handle_moderation(now);
        let is_behind = self.behind_since.is_some_and(|since| now < since + BEHIND_MAX);
        if !is_behind {
            for key in std::mem::take(&mut self.put_off) {
                self.schedule(key, now);
            }
        }
        while let Some(number) = self.timers.next_due(now) {
            let key = QueuePairKey::from(slotmap::KeyData::from_ffi(number));
            // Its entry goes with a queue pair (`remove_queue_pair`), so there is one.
            let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
            self.timers.cancel(number, queue_pair.scheduled_mut());
            let is_put_off = is_behind && queue_pair.sender().is_timed_out(now);
            if is_put_off {
                self.put_off.insert(key);
            } else {
                send::rc::handle_deadline(queue_pair, &mut self.shared, now);
            }
            if let Some(pacing) = queue_pair.pacing_mut() {
                pacing.handle_deadline(now);
            }
            // Its pace may have held back answers.
            list_debtor(&mut self.answering, &mut self.responding, key, queue_pair);
            self.settle_with_peer(key);
            self.probe_silent_peer(key, now);
            self.activate(key);
            // It would come up again at once.
            if !is_put_off {
                self.schedule(key, now);
            }
        }
    }

    /// What held up a queue pair is different now: give it its turns.
    pub(crate) fn resume(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        list_debtor(&mut self.answering, &mut self.responding, key, queue_pair);
        // One without requests would only take the memory of those that work.
        if queue_pair.has_request_to_send() {
            self.activate(key);
        }
        self.has_news = true;
    }

    /// Give a queue pair a turn.
    pub(crate) fn activate(&mut self, key: QueuePairKey) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(key)
            && queue_pair.join_active()
        {
            self.active.push_back(key);
        }
    }

    pub(super) fn schedule(&mut self, key: QueuePairKey, now: Instant) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
            if queue_pair.share().needs_patience() {
                let timeout = queue_pair.settings().timeout;
                queue_pair.share_mut().limit_patience(now, timeout);
            }
            let deadline = queue_pair.deadline(now);
            if deadline != Instant::FAR_FUTURE {
                self.timers.schedule(key.data().as_ffi(), deadline, queue_pair.scheduled_mut());
            }
        }
    }
}

/// What a reliable connection may send in its turn; `None` when it has to wait for others, and does.
fn admit(peers: &mut Peers, key: QueuePairKey, queue_pair: &mut QueuePair, config: &Config) -> Option<Allowance> {
    let mtu_bytes = queue_pair.mtu_bytes();
    let has_asked_last = queue_pair.sender().has_asked_last();
    peers.admit(key, queue_pair.share_mut(), mtu_bytes, has_asked_last, config)
}

/// Enter a queue pair in the lists of those that owe their peer something.
pub(super) fn list_debtor(
    answering: &mut VecDeque<QueuePairKey>,
    responding: &mut VecDeque<QueuePairKey>,
    key: QueuePairKey,
    queue_pair: &mut QueuePair,
) {
    list_answering(answering, key, queue_pair);
    if queue_pair.join_responding() {
        responding.push_back(key);
    }
}

fn list_answering(answering: &mut VecDeque<QueuePairKey>, key: QueuePairKey, queue_pair: &mut QueuePair) {
    if queue_pair.join_answering() {
        answering.push_back(key);
    }
}

/// Tell the peer that its packets met congestion (A17.9.3).
fn send_congestion_notification<S: TransmitSink + ?Sized>(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    sink: &mut S,
) {
    let Some(route) = queue_pair.route(&shared.config) else { return };
    if !queue_pair.responder_mut().take_notification() {
        return;
    }
    let mut headers = cnp::headers(queue_pair.settings().destination_queue_pair, DEFAULT_PARTITION_KEY);
    packet::emit(&route, &mut headers, OutgoingPayload::Device(&[0; cnp::PAYLOAD_BYTES]), shared, sink);
    shared.counters.np_cnp_sent += 1;
}
