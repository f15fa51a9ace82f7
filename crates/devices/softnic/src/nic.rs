//! The device as a driven object.
//!
//! A [`Nic`] has no thread, no clock and no socket. Its driver calls, in this order and as often as there is reason
//! to:
//!
//! - [`NicGuard::handle`](crate::NicGuard::handle) for each datagram that arrived,
//! - [`NicGuard::poll`](crate::NicGuard::poll) after arrivals, after verbs calls, when [`Nic::next_deadline`] has come, and when the port has room
//!   again after it had none; it hands the port what is to be sent,
//! - [`Nic::next_deadline`] to know when to come back.
//!
//! Verbs calls come in through [`Device`](crate::Device), which holds the `Nic` behind a lock; what they do is in
//! `post` and `modify`.

mod arrivals;
pub(crate) mod guard;
pub(crate) mod in_place;
mod modify;
mod peering;
mod post;
mod turns;

use std::collections::{BTreeSet, VecDeque};

use longhaul_congestion::ControllerName;
use longhaul_time::Instant;
use longhaul_verbs::{Gid, LinkState, QueuePairNumber, Transport as VerbsTransport};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use slotmap::{Key, SlotMap};

use crate::config::Config;
use crate::counters::{Counters, QueuePairCounters};
use crate::memory::RandomNumberMap;
use crate::pace::{Peers, Timers};
use crate::queue_pair::{Identity, QueuePair, QueuePairKey};
use crate::resources::Resources;

/// A queue pair of another partition is not ours (IBTA 10.9.3); RoCE has only the default one.
const DEFAULT_PARTITION_KEY: u16 = 0xffff;

/// A software RNIC, driven from outside.
pub struct Nic {
    pub(crate) shared: Resources,
    /// Boxed, so that the table's spare room costs little.
    pub(crate) queue_pairs: SlotMap<QueuePairKey, Box<QueuePair>>,
    /// Which queue pair has a number. Numbers are drawn at random.
    pub(crate) numbers: RandomNumberMap<QueuePairKey>,
    /// Which queue pairs are members of which multicast groups.
    pub(crate) memberships: Vec<(Gid, QueuePairKey)>,
    pub(crate) random: ChaCha12Rng,
    pub(crate) next_domain: u32,
    pub(crate) serial: u64,
    /// Queue pairs that owe their peer an answer. They come before all that is in `active`: the peer's timer runs.
    answering: VecDeque<QueuePairKey>,
    /// Queue pairs that owe their peer the answers of READs and atomics, in turn.
    responding: VecDeque<QueuePairKey>,
    /// Queue pairs that have something to send, in turn.
    pub(crate) active: VecDeque<QueuePairKey>,
    /// Who it has reliable connections to, and how much is in flight towards them.
    pub(crate) peers: Peers,
    /// The queue pair whose packet arrived last, if it was of a WRITE that goes on, or that others are likely to follow.
    pub(crate) last_writer: Option<QueuePairKey>,
    /// Deadlines of queue pairs, by slotmap's number for their key.
    timers: Timers<u64>,
    /// Since when the port has had arrivals that the device has not seen.
    behind_since: Option<Instant>,
    /// Queue pairs whose time-outs wait for those arrivals: what they wait for may be among them.
    put_off: BTreeSet<QueuePairKey>,
    /// Whether a verbs call has made work since the last poll.
    pub(crate) has_news: bool,
    /// Whether there ever was a datagram queue pair.
    takes_datagrams: bool,
}

impl Nic {
    /// A device without any objects. `serial` distinguishes it from every other device of the process. Panics when the
    /// configuration makes no sense.
    pub(crate) fn new(config: Config, serial: u64) -> Self {
        assert!(!config.addresses.is_empty(), "a device needs an address");
        let window = config.window_packets_max;
        assert!((1..1 << 23).contains(&window), "a window of {window} packets: expected 1 to 2^23 - 1");
        assert!(config.turn_packets > 0, "a turn of no packets would never send anything");
        assert!(config.read_packets_max > 0, "a READ is asked for in parts of at least one packet");
        assert!(config.congestion != Some(ControllerName::Credit), "a device has no receiver that grants credit");
        let numbers = &config.queue_pair_numbers;
        let is_aligned = numbers.len().is_power_of_two() && (numbers.start as usize).is_multiple_of(numbers.len());
        assert!(
            is_aligned && numbers.end <= 1 << 24,
            "queue pair numbers {numbers:?}: expected an aligned power of two"
        );
        let pairs = config.queue_pairs_max as usize;
        assert!(
            pairs <= numbers.len() / 2,
            "{pairs} queue pairs with numbers {numbers:?}: expected half as many at most"
        );
        for (what, most) in [("entries", config.scatter_gather_entries_max), ("inline bytes", config.inline_bytes_max)]
        {
            assert!(u16::try_from(most).is_ok(), "{most} {what} in a request: expected at most {}", u16::MAX);
        }
        Nic {
            random: ChaCha12Rng::from_seed(config.random_seed),
            peers: Peers::new(&config),
            shared: Resources::new(config),
            queue_pairs: SlotMap::with_key(),
            numbers: RandomNumberMap::default(),
            memberships: Vec::new(),
            next_domain: 1,
            serial,
            answering: VecDeque::new(),
            responding: VecDeque::new(),
            active: VecDeque::new(),
            last_writer: None,
            timers: Timers::new(),
            behind_since: None,
            put_off: BTreeSet::new(),
            has_news: false,
            takes_datagrams: false,
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.shared.counters
    }

    /// What a queue pair has counted.
    pub fn queue_pair_counters(&self, number: QueuePairNumber) -> Option<QueuePairCounters> {
        let key = self.numbers.get(&number.value())?;
        self.queue_pairs.get(*key).map(|queue_pair| queue_pair.counters())
    }

    /// See [`NicGuard::set_congestion`](crate::NicGuard::set_congestion).
    pub(crate) fn set_congestion(&mut self, number: QueuePairNumber, name: ControllerName) -> bool {
        let Some(&key) = self.numbers.get(&number.value()) else { return false };
        let queue_pair = self.queue_pairs.get_mut(key);
        let is_set = queue_pair.is_some_and(|queue_pair| queue_pair.set_congestion(name, &self.shared.config));
        if is_set {
            self.resume(key);
        }
        is_set
    }

    /// Whether anything has to be done now: something to send, or a deadline that has come.
    pub fn has_due_work(&self, now: Instant) -> bool {
        self.has_output() || self.has_news || self.next_deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Whether something waits that could be sent if the port had room.
    pub fn has_output(&self) -> bool {
        !self.active.is_empty() || !self.answering.is_empty() || !self.responding.is_empty()
    }

    /// Whether there ever was a queue pair that takes datagrams: only those want to know the hop limit.
    pub fn takes_datagrams(&self) -> bool {
        self.takes_datagrams
    }

    /// Completions so far, taken or not.
    #[inline]
    pub fn completion_count(&self) -> u64 {
        self.shared.completion_count
    }

    /// Whether the port's link is up.
    pub fn link_state(&self) -> LinkState {
        self.shared.link_state
    }

    /// Whether a verbs call has made work since the last poll.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// When to poll next, if nothing happens before. It may turn out that there is nothing to do then.
    pub fn next_deadline(&self) -> Option<Instant> {
        // What was put off is due as soon as nothing is left behind, also if a caller of the device took the rest.
        let put_off = (!self.put_off.is_empty()).then(|| self.behind_since.unwrap_or(Instant::ZERO));
        let deadline = Instant::earlier_of(self.timers.next(), put_off);
        Instant::earlier_of(deadline, self.shared.moderation_deadline())
    }

    /// Add a queue pair under a number that nobody can guess.
    pub(crate) fn insert_queue_pair(&mut self, identity: impl FnOnce(u32) -> Identity) -> (QueuePairKey, u32) {
        let numbers = &self.shared.config.queue_pair_numbers;
        let number = loop {
            let number = numbers.start | self.random.next_u32() & (numbers.end - numbers.start - 1);
            let is_ordinary = number >= QueuePairNumber::FIRST_ORDINARY && number != QueuePairNumber::MULTICAST.value();
            if is_ordinary && !self.numbers.contains_key(&number) {
                break number;
            }
        };
        let identity = identity(number);
        self.takes_datagrams |= identity.transport == VerbsTransport::UnreliableDatagram;
        let key = self.queue_pairs.insert(Box::new(QueuePair::new(identity)));
        self.numbers.insert(number, key);
        (key, number)
    }

    /// Forget a queue pair. `false` when it is gone already.
    pub(crate) fn remove_queue_pair(&mut self, key: QueuePairKey) -> bool {
        self.leave_peer(key);
        let Some(mut queue_pair) = self.queue_pairs.remove(key) else {
            return false;
        };
        if let Some(scheduled) = queue_pair.scheduled_if_used() {
            self.timers.cancel(key.data().as_ffi(), scheduled);
        }
        self.shared.memory.forget_queue_pair(queue_pair.identity().number);
        self.numbers.remove(&queue_pair.identity().number);
        if queue_pair.identity().transport == VerbsTransport::UnreliableDatagram {
            self.memberships.retain(|(_, member)| *member != key);
        }
        // Its places in the lists are passed over when they come up. Should that take long, they are swept out, so rarely
        // that it costs nothing.
        for list in [&mut self.active, &mut self.answering, &mut self.responding] {
            if list.len() > 2 * self.queue_pairs.len() + 64 {
                list.retain(|waiting| self.queue_pairs.contains_key(*waiting));
            }
        }
        for queue in [queue_pair.identity().send_completions, queue_pair.identity().receive_completions] {
            self.shared.leave_completion_queue(queue);
        }
        queue_pair.return_receive(&mut self.shared);
        if let Some(queue) = queue_pair.identity().shared_receive {
            self.shared.leave_shared_receive_queue(queue);
        }
        true
    }
}
