//! Reliable messages of many senders with `credit` to one endpoint, as the runtime drives them, on virtual time: contents
//! arrive at nearly the rate of the link, nearly nothing is repeated, and senders that go leave nothing behind.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{Attributes, Choice, Connection, ReceiveTicket, scheme_named};
use longhaul_runtime::{Assembly, End, Engine, Letter, Letterbox, Shared, Turn};
use longhaul_sdr::{Memory, QueuePair, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{CompletionChannel, Mtu};
use longhaul_world::{Topology, World, WorldConfig};

const RATE: u64 = 1_000_000_000;
const MESSAGES: usize = 8;
const BYTES: usize = 192 << 10;

struct Mailbox {
    now: Arc<AtomicU64>,
    letters: Mutex<Vec<Letter>>,
}

impl Letterbox for Mailbox {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn put(&self, letter: Letter) {
        self.letters.lock().expect("nobody panicked").push(letter);
    }
}

/// What drives the connections of a node.
struct Host {
    node: usize,
    assembly: Assembly,
    engine: Engine,
    mailbox: Arc<Mailbox>,
    events: CompletionChannel,
    next: Option<Instant>,
}

impl Host {
    fn new(world: &World, node: usize, now: &Arc<AtomicU64>) -> Self {
        let device = world.device(node);
        let assembly = Assembly::new(&device).expect("room").with_credit_rate(Some(RATE));
        let engine = Engine::new(Duration::ZERO).with_granter(assembly.granter());
        let mailbox = Arc::new(Mailbox { now: now.clone(), letters: Mutex::default() });
        let events = device.create_completion_channel().expect("room");
        Host { node, assembly, engine, mailbox, events, next: None }
    }

    fn queue_pair(&self, world: &World, random: u64, congestion: Option<&str>) -> QueuePair {
        let mut attributes = QueuePairAttributes::new(world.gid(self.node), 4791, Mtu::Bytes1024);
        attributes.random = random;
        attributes.receive_depth = 1024;
        attributes.message_bytes_max = BYTES as u64;
        attributes.congestion = congestion.map(|name| name.parse().expect("a controller"));
        attributes.grants_credit = true;
        let id = self.assembly.next_id();
        let context = self.assembly.create_context(id, Some(&self.events), 1, &attributes).expect("room");
        QueuePair::create(&context, &attributes).expect("room")
    }

    fn start(&self, queue_pair: QueuePair) -> Arc<Shared> {
        let scheme = scheme_named("sr:nack".parse().expect("a scheme"));
        let connection = Connection::new(queue_pair, scheme, Attributes::default());
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 4791));
        Shared::start(connection, self.mailbox.clone(), Duration::from_secs(60), peer)
    }

    fn turn(&mut self, now: Instant) {
        let mut is_due = self.next.is_some_and(|next| next <= now);
        for _ in 0..1000 {
            while let Some(id) = self.events.next_event().expect("events can be taken") {
                self.engine.take(Letter::Look(id));
                is_due = true;
            }
            let letters = std::mem::take(&mut *self.mailbox.letters.lock().expect("nobody panicked"));
            is_due |= !letters.is_empty();
            letters.into_iter().for_each(|letter| self.engine.take(letter));
            if !std::mem::take(&mut is_due) {
                return;
            }
            match self.engine.turn(now) {
                Turn::Again => is_due = true,
                Turn::Rest(next) => self.next = next,
            }
        }
        panic!("node {} is never done at {now:?}", self.node);
    }
}

struct Pair {
    ends: [Arc<Shared>; 2],
    memory: Memory,
    receives: Vec<ReceiveTicket>,
}

struct FanIn {
    world: World,
    now: Arc<AtomicU64>,
    /// The last is the one that all send to.
    hosts: Vec<Host>,
    pairs: Vec<Pair>,
    random: u64,
}

fn contents(sender: usize, message: usize) -> Vec<u8> {
    (0..BYTES).map(|index| (index * 31 + (index >> 8) * 7 + sender * 101 + message * 13) as u8).collect()
}

impl FanIn {
    fn new(senders: usize, loss: f64, congestion: Option<&str>) -> Self {
        let link = Profile::default()
            .with_propagation_delay(Duration::from_micros(5))
            .with_rate_bits_per_second(RATE)
            .with_queue_limit_bytes(256 << 10)
            .with_loss(Loss::Independent { probability: loss });
        let world =
            World::new(WorldConfig { link, nodes: senders + 1, topology: Topology::Star, ..Default::default() });
        let now = Arc::new(AtomicU64::new(world.now().as_nanos()));
        let hosts = (0..=senders).map(|node| Host::new(&world, node, &now)).collect();
        let mut fan_in = FanIn { world, now, hosts, pairs: Vec::new(), random: 0 };
        for node in 0..senders {
            let pair = fan_in.connect(node, congestion);
            fan_in.pairs.push(pair);
        }
        fan_in
    }

    /// All messages of a sender are posted at once.
    fn connect(&mut self, node: usize, congestion: Option<&str>) -> Pair {
        self.random += 1 << 34;
        let (from, hub) = (&self.hosts[node], &self.hosts[self.hosts.len() - 1]);
        let one = from.queue_pair(&self.world, self.random, congestion);
        let other = hub.queue_pair(&self.world, self.random | 1 << 33, None);
        one.connect(&other.info()).expect("it connects");
        other.connect(&one.info()).expect("it connects");
        let ends = [from.start(one), hub.start(other)];
        let bytes: Vec<u8> = (0..MESSAGES).flat_map(|message| contents(node, message)).collect();
        let source = ends[0].context().register(bytes).expect("room");
        let memory = ends[1].context().register(vec![0; MESSAGES * BYTES]).expect("room");
        let range = |message: usize| message * BYTES..(message + 1) * BYTES;
        let receive = |message| ends[1].post_receive(&memory, range(message)).expect("open").expect("room");
        let receives = (0..MESSAGES).map(receive).collect();
        (0..MESSAGES).for_each(|message| {
            drop(ends[0].send(&source, range(message), &Choice::default()).expect("open").expect("room"))
        });
        Pair { ends, memory, receives }
    }

    fn step(&mut self) {
        let now = self.world.now();
        self.now.store(now.as_nanos(), Ordering::Relaxed);
        self.hosts.iter_mut().for_each(|host| host.turn(now));
        let next = self.hosts.iter().filter_map(|host| host.next).min().unwrap_or(Instant::FAR_FUTURE);
        let next = next.clamp(now + Duration::from_nanos(1), now + Duration::from_micros(500));
        self.world.run_some(next, Duration::from_micros(20));
    }

    /// Runs until all have arrived from those that are there; how long that took.
    fn finish(&mut self, limit: Duration) -> Duration {
        let begun = self.world.now();
        while !self.pairs.iter().all(|pair| pair.receives.iter().all(ReceiveTicket::is_over)) {
            assert!(self.world.now() < begun + limit, "not done after {limit:?}");
            self.step();
        }
        for (sender, pair) in self.pairs.iter().enumerate().filter(|(_, pair)| !pair.receives.is_empty()) {
            for (message, ticket) in pair.receives.iter().enumerate() {
                let received = ticket.take().expect("it has ended").expect("it has arrived");
                assert!(received.bytes() == contents(sender, message), "message {message} of sender {sender}");
            }
            assert_eq!(pair.memory.len(), MESSAGES * BYTES);
        }
        self.world.now() - begun
    }

    fn counted(&self, name: &str) -> u64 {
        let of = |pair: &Pair| pair.ends[0].counters().into_iter().find(|(counter, _)| *counter == name);
        self.pairs.iter().filter_map(of).map(|(_, value)| value).sum()
    }

    fn outstanding_bytes(&self) -> u64 {
        self.hosts[self.hosts.len() - 1].assembly.granter().outstanding_bytes()
    }
}

impl Drop for FanIn {
    fn drop(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.engine.end_all(&End::Closed));
    }
}

/// With the headers of packets of 1 KiB.
fn at_line_rate(senders: usize) -> Duration {
    Duration::from_secs_f64((senders * MESSAGES * BYTES) as f64 * 8.0 * (1088.0 / 1024.0) / RATE as f64)
}

#[test]
fn many_senders_at_nearly_the_rate_of_the_link() {
    let run = |congestion| {
        let mut fan_in = FanIn::new(16, 0.0, congestion);
        let took = fan_in.finish(Duration::from_secs(20));
        let (sent, repeated) = ("reliable.data_packets_sent", "reliable.data_packets_repeated");
        (took, fan_in.counted(repeated) as f64 / fan_in.counted(sent) as f64)
    };
    let (took, repeated) = run(Some("credit"));
    let ideal = at_line_rate(16);
    println!("credit: {took:?} of {ideal:?}, {repeated:.4} repeated; without: {:?}", run(None));
    assert!(took < ideal * 5 / 4, "{took:?}, at line rate {ideal:?}");
    assert!(repeated < 0.02, "{repeated} repeated");
    assert!(run(None).1 > 0.1, "without credit the queue overflows, or this test shows nothing");
}

#[test]
fn lost_packets_and_control_messages_are_made_up_for() {
    let mut fan_in = FanIn::new(16, 0.02, Some("credit"));
    let took = fan_in.finish(Duration::from_secs(20));
    assert!(took < 3 * at_line_rate(16), "{took:?}");
}

#[test]
fn senders_that_go_leave_nothing_behind() {
    let mut fan_in = FanIn::new(8, 0.0, Some("credit"));
    let middle = fan_in.world.now() + at_line_rate(8) / 3;
    while fan_in.world.now() < middle {
        fan_in.step();
    }
    // One end of the first goes, the other of the second; the third starts anew.
    fan_in.pairs[0].ends[0].end_now(End::Closed);
    fan_in.pairs[1].ends[1].end_now(End::Closed);
    fan_in.pairs[2].ends.iter().for_each(|end| end.end_now(End::Closed));
    fan_in.pairs[0].receives.clear();
    fan_in.pairs[1].receives.clear();
    fan_in.pairs[2] = fan_in.connect(2, Some("credit"));
    let took = fan_in.finish(Duration::from_secs(20));
    assert!(took < 2 * at_line_rate(8), "{took:?}");
    let end = fan_in.world.now() + Duration::from_millis(50);
    while fan_in.world.now() < end {
        fan_in.step();
    }
    assert_eq!(fan_in.outstanding_bytes(), 0);
}
