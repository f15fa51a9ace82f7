//! Many senders with `credit` to one receiver, over one link with a short queue: they share it, lose nothing after the
//! beginning, and go on when control messages are lost, when one of them stops, and when one starts anew.

use crate::ends;

use std::collections::VecDeque;

use ends::{End, MTU};
use longhaul_congestion::{ControllerName, CreditReceiver, PathFacts, ReceiverLimits};
use longhaul_impair::{Loss, Profile};
use longhaul_sdr::{
    ConnectError, Context, ContextAttributes, QueuePair, QueuePairAttributes, Receive, SendStatus, SendStream,
};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Device, Gid, Mtu};
use longhaul_world::{Topology, World, WorldConfig};

const RATE: u64 = 1_000_000_000;
const QUEUE_BYTES: u64 = 128 << 10;
const MESSAGE_BYTES: usize = 64 << 10;
/// IP, UDP, BTH, RETH, immediate, ICRC.
const HEADERS: usize = 20 + 8 + 12 + 16 + 4 + 4;

fn link() -> Profile {
    Profile::default()
        .with_propagation_delay(Duration::from_micros(5))
        .with_rate_bits_per_second(RATE)
        .with_queue_limit_bytes(QUEUE_BYTES)
}

/// A sender and its own queue pair at the receiver.
struct Pair {
    id: u64,
    sender: End,
    receiver: End,
    open: VecDeque<(SendStream, Receive, Option<Instant>)>,
    started: usize,
    is_stopped: bool,
}

struct FanIn {
    world: World,
    pairs: Vec<Pair>,
    granter: CreditReceiver,
    next_id: u64,
}

/// What a while of sending has brought.
#[derive(Debug)]
struct Outcome {
    /// Of what the link could carry.
    goodput: f64,
    /// Packets that arrived from each.
    shares: Vec<u64>,
    /// Of those that were sent.
    lost: f64,
}

fn end(device: &Device, gid: Gid, random: u64, is_sender: bool) -> End {
    let context = Context::create(device, &ContextAttributes::default()).unwrap();
    let mut attributes = QueuePairAttributes::new(gid, 4791, Mtu::Bytes1024);
    attributes.random = random;
    attributes.message_bytes_max = MESSAGE_BYTES as u64;
    attributes.chunk_bytes = MTU as u32;
    attributes.receive_depth = 512;
    attributes.congestion = is_sender.then_some(ControllerName::Credit);
    attributes.grants_credit = !is_sender;
    let queue_pair = QueuePair::create(&context, &attributes).unwrap();
    let memory = context.register(vec![0; 4 * MESSAGE_BYTES]).unwrap();
    End { context, queue_pair, memory }
}

impl FanIn {
    fn new(senders: usize, link: Profile) -> Self {
        let world =
            World::new(WorldConfig { link, nodes: senders + 1, topology: Topology::Star, ..Default::default() });
        let facts = PathFacts {
            packet_bytes: (MTU + HEADERS) as u32,
            round_trip: None,
            line_bits_per_second: Some(RATE),
            seed: 1,
        };
        let granter = CreditReceiver::new(&facts).with_limits(ReceiverLimits {
            outstanding_bytes_min: 64 << 10,
            outstanding_bytes_max: 1 << 20,
            patience_min: Duration::from_millis(5),
        });
        let mut fan_in = FanIn { world, pairs: Vec::new(), granter, next_id: 0 };
        (0..senders).for_each(|node| fan_in.connect(node));
        fan_in
    }

    /// Connects the sender of a node; one that there was before has gone.
    fn connect(&mut self, node: usize) {
        self.next_id += 1;
        let (world, id, hub) = (&self.world, self.next_id, self.world_nodes());
        let sender = end(&world.device(node), world.gid(node), id << 34 | 1 << 33, true);
        let receiver = end(&world.device(hub), world.gid(hub), id << 34, false);
        sender.queue_pair.connect(&receiver.queue_pair.info()).unwrap();
        receiver.queue_pair.connect(&sender.queue_pair.info()).unwrap();
        let pair = Pair { id, sender, receiver, open: VecDeque::new(), started: 0, is_stopped: false };
        match self.pairs.get_mut(node) {
            Some(before) => {
                self.granter.remove(before.id);
                *before = pair;
            }
            None => self.pairs.push(pair),
        }
    }

    fn world_nodes(&self) -> usize {
        self.world.links().count() - 1
    }

    fn step(&mut self) {
        let now = self.world.now();
        let mut next = now + Duration::from_micros(500);
        for pair in &mut self.pairs {
            if !pair.is_stopped {
                pair.post(now);
            }
            let polled = [Some(&pair.sender).filter(|_| !pair.is_stopped), Some(&pair.receiver)];
            for end in polled.into_iter().flatten() {
                while end.context.poll().unwrap() > 0 {}
                end.queue_pair.poll(now).unwrap();
            }
            if let Some(news) = pair.receiver.queue_pair.take_credit_news() {
                if let Some(announcement) = &news.announcement {
                    self.granter.on_announcement(now, pair.id, announcement);
                }
                if let Some(round_trip) = news.round_trip {
                    self.granter.set_round_trip(pair.id, round_trip);
                }
                self.granter.on_arrived_total(pair.id, news.arrived_bytes);
            }
        }
        while let Some(grant) = self.granter.poll(now) {
            let pair = self.pairs.iter().find(|pair| pair.id == grant.sender).expect("a sender that is there");
            let standing = self.granter.standing_of(grant.sender).expect("it was granted something");
            pair.receiver.queue_pair.grant_credit(&standing, now);
            pair.receiver.queue_pair.poll(now).unwrap();
        }
        next = self.granter.next_deadline().map_or(next, |deadline| deadline.min(next));
        for pair in &self.pairs {
            let polled = [Some(&pair.sender).filter(|_| !pair.is_stopped), Some(&pair.receiver)];
            for end in polled.into_iter().flatten() {
                next = end.queue_pair.next_deadline().map_or(next, |deadline| deadline.min(next));
            }
        }
        self.world.run_some(next.max(now + Duration::from_nanos(1)), Duration::from_micros(20));
    }

    fn send_for(&mut self, duration: Duration) -> Outcome {
        let arrived = |pair: &Pair| pair.receiver.queue_pair.counters().1.arrived;
        let writes = |pair: &Pair| pair.sender.queue_pair.counters().0.writes;
        let before: Vec<_> = self.pairs.iter().map(|pair| (arrived(pair), writes(pair))).collect();
        let end = self.world.now() + duration;
        while self.world.now() < end {
            self.step();
        }
        let shares: Vec<_> = self.pairs.iter().zip(&before).map(|(pair, before)| arrived(pair) - before.0).collect();
        let sent: u64 = self.pairs.iter().zip(&before).map(|(pair, before)| writes(pair) - before.1).sum();
        let total: u64 = shares.iter().sum();
        let bits = total as f64 * ((MTU + HEADERS) * 8) as f64;
        let goodput = bits / (RATE as f64 * duration.as_secs_f64());
        // What is in flight at the beginning and at the end differs a little.
        Outcome { goodput, shares, lost: (1.0 - total as f64 / sent as f64).max(0.0) }
    }
}

impl Pair {
    /// Messages without repeats, one after the other.
    fn post(&mut self, now: Instant) {
        let Pair { sender, receiver, open, started, .. } = self;
        for (send, _, sent_at) in open.iter_mut() {
            if sent_at.is_none() && send.status() == SendStatus::Sent {
                *sent_at = Some(now);
            }
        }
        let is_over = |(_, receive, sent_at): &(SendStream, Receive, Option<Instant>)| {
            receive.bitmap().is_complete() || sent_at.is_some_and(|at| now >= at + Duration::from_millis(5))
        };
        while open.front().is_some_and(is_over) {
            open.pop_front();
        }
        while open.len() < 4 {
            let range = *started % 4 * MESSAGE_BYTES..(*started % 4 + 1) * MESSAGE_BYTES;
            let Ok(receive) = receiver.queue_pair.post_receive(&receiver.memory, range.clone()) else { break };
            let send = sender.queue_pair.post_send(&sender.memory, range, None).unwrap();
            open.push_back((send, receive, None));
            *started += 1;
        }
    }
}

#[test]
fn many_senders_share_the_link_and_lose_nothing_after_the_beginning() {
    for senders in [1, 16, 64] {
        let mut fan_in = FanIn::new(senders, link());
        fan_in.send_for(Duration::from_millis(50));
        let outcome = fan_in.send_for(Duration::from_millis(300));
        let mean = outcome.shares.iter().sum::<u64>() / senders as u64;
        println!("{senders} senders: goodput {:.3}, lost {:.5}", outcome.goodput, outcome.lost);
        assert!(outcome.goodput > 0.85, "{senders} senders: {outcome:?}");
        assert!(outcome.lost < 0.001, "{senders} senders: {outcome:?}");
        let is_fair = |share: &u64| (mean * 3 / 4..=mean * 5 / 4).contains(share);
        assert!(outcome.shares.iter().all(is_fair), "{senders} senders: {outcome:?}");
    }
}

/// The same without `credit`, so that the test above can fail.
#[test]
fn without_credit_they_lose_most_of_it() {
    let mut fan_in = FanIn::new(16, link());
    // Peers that grant without being asked: whatever a sender wants.
    let lost = {
        let standing = longhaul_congestion::Standing {
            granted_bytes: 1 << 40,
            recent_bytes: 1 << 40,
            patience: Duration::from_secs(60),
        };
        fan_in.send_for(Duration::from_millis(20));
        for pair in &fan_in.pairs {
            pair.receiver.queue_pair.grant_credit(&standing, fan_in.world.now());
        }
        fan_in.send_for(Duration::from_millis(100)).lost
    };
    assert!(lost > 0.05, "{lost}");
}

#[test]
fn lost_control_messages_are_made_up_for() {
    // Data is lost, too, and stays outstanding until its sender has announced that: with a third of it lost, that is most.
    for (probability, least) in [(0.02, 0.8), (0.05, 0.6), (0.2, 0.15)] {
        let mut fan_in = FanIn::new(16, link().with_loss(Loss::Independent { probability }));
        fan_in.send_for(Duration::from_millis(100));
        let outcome = fan_in.send_for(Duration::from_millis(400));
        println!("loss {probability}: goodput {:.3}", outcome.goodput);
        assert!(outcome.goodput > least, "{probability}: {outcome:?}");
        assert!(outcome.shares.iter().all(|share| *share > 100), "{probability}: {outcome:?}");
    }
}

#[test]
fn a_sender_that_stops_leaves_the_link_to_the_others() {
    let mut fan_in = FanIn::new(16, link());
    fan_in.send_for(Duration::from_millis(50));
    fan_in.pairs[3].is_stopped = true;
    fan_in.send_for(Duration::from_millis(20));
    let outcome = fan_in.send_for(Duration::from_millis(200));
    assert_eq!(outcome.shares[3], 0);
    assert!(outcome.goodput > 0.85, "{outcome:?}");
    fan_in.pairs[3].is_stopped = false;
    fan_in.send_for(Duration::from_millis(50));
    let outcome = fan_in.send_for(Duration::from_millis(200));
    let mean = outcome.shares.iter().sum::<u64>() / 16;
    assert!(outcome.shares[3] > mean * 3 / 4, "it goes on: {outcome:?}");
}

#[test]
fn a_connection_that_is_made_anew_begins_anew() {
    let mut fan_in = FanIn::new(8, link());
    fan_in.send_for(Duration::from_millis(50));
    for node in [2, 5] {
        fan_in.connect(node);
        fan_in.send_for(Duration::from_millis(20));
    }
    let outcome = fan_in.send_for(Duration::from_millis(200));
    let mean = outcome.shares.iter().sum::<u64>() / 8;
    assert!(outcome.goodput > 0.85 && outcome.shares.iter().all(|share| *share > mean / 2), "{outcome:?}");
}

#[test]
fn a_peer_that_grants_nothing_is_refused() {
    let fan_in = FanIn::new(1, link());
    let (device, gid) = (fan_in.world.device(0), fan_in.world.gid(0));
    let (sender, other) = (end(&device, gid, 1 << 40, true), end(&device, gid, 1 << 41, true));
    let refused = sender.queue_pair.connect(&other.queue_pair.info()).expect_err("nobody would grant anything");
    assert!(matches!(refused, ConnectError::NoCredit) && refused.to_string().contains("wan"), "{refused}");
}
