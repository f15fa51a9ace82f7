//! What a receiver says of a message is true, whatever gets lost and whatever else was said.

use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::record::{Offer, Record, Refusal, Refused};
use longhaul_reliable::{
    Attributes, Connection, Erasure, ReceiveTicket, Scheme, SelectiveRepeat, SendTicket, record_bytes,
};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround};
use longhaul_sdr::{Context, ContextAttributes, Memory, PeerReceive, QueuePair, QueuePairAttributes};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;
use longhaul_world::{World, WorldConfig};

const MTU: usize = 1024;
const MEMORY_BYTES: usize = 1 << 20;

/// One end of an SDR connection.
struct End {
    context: Context,
    queue_pair: QueuePair,
    memory: Memory,
}

/// Two of them, connected.
struct Ends {
    world: World,
    sender: End,
    receiver: End,
}

impl Ends {
    fn new(config: WorldConfig, change: impl Fn(&mut QueuePairAttributes)) -> Self {
        let world = World::new(config);
        let [sender, receiver] = [0, 1].map(|node| {
            let context = Context::create(&world.device(node), &ContextAttributes::default()).expect("there is room");
            let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, Mtu::Bytes1024);
            attributes.random = (node as u64 + 1) << 32;
            attributes.message_bytes_max = MEMORY_BYTES as u64;
            attributes.chunk_bytes = MTU as u32;
            change(&mut attributes);
            let queue_pair = QueuePair::create(&context, &attributes).expect("there is room");
            let memory = context.register(vec![0; MEMORY_BYTES]).expect("there is room");
            End { context, queue_pair, memory }
        });
        sender.queue_pair.connect(&receiver.queue_pair.info()).expect("both were made alike");
        receiver.queue_pair.connect(&sender.queue_pair.info()).expect("both were made alike");
        Ends { world, sender, receiver }
    }

    /// Lets both ends do what is due, for this long.
    fn run_for(&mut self, duration: Duration) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            self.poll();
            self.world.run_for((end - self.world.now()).min(Duration::from_micros(5)));
        }
        self.poll();
    }

    fn poll(&self) {
        for end in [&self.sender, &self.receiver] {
            while end.context.poll().expect("the queues have room") > 0 {}
            end.queue_pair.poll(self.world.now()).expect("the end works");
        }
    }
}

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_micros(500)).with_rate_bits_per_second(40_000_000_000)
}

fn settle(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

/// A receiver that refuses must never be taken for one that is done, however many it has refused since and however
/// often its answers get lost.
#[test]
fn a_refusal_is_not_forgotten_while_its_sender_asks() {
    const SLOTS: usize = 1024;
    const BYTES: usize = 1024;
    let schemes: [Arc<dyn Scheme>; 2] =
        [Arc::new(SelectiveRepeat::default()), Arc::new(SelectiveRepeat::with_negative_acknowledgements())];
    let lossy = link().with_loss(Loss::Independent { probability: 0.5 });
    let options = GroundOptions { mtu: Mtu::Bytes1024, chunk_bytes: 1024, ..GroundOptions::new(lossy, SLOTS * BYTES) };
    let mut ground = VirtualGround::new(&options, schemes);
    let mut free: Vec<usize> = (0..SLOTS).collect();
    let mut open: Vec<(usize, ReceiveTicket, SendTicket)> = Vec::new();
    let (mut ended, mut believed) = (0, 0);
    while ended < 4 * SLOTS {
        let now = ground.now();
        assert!(now.as_nanos() < 100_000_000_000, "{ended} sends ended in {now:?}");
        for slot in free.drain(..) {
            let range = slot * BYTES..(slot + 1) * BYTES;
            let (receiver, memory) = ground.receiver();
            let receive = receiver.post_receive(memory, range.clone()).expect("there is room");
            let (sender, memory) = ground.sender();
            open.push((slot, receive, sender.send(memory, range, now).expect("there is room")));
        }
        settle(&mut ground, Duration::from_millis(2));
        open.retain(|(slot, receive, send)| {
            let is_over = receive.is_over() && send.is_over();
            if is_over {
                free.push(*slot);
                ended += 1;
                believed += u32::from(send.take().expect("it has ended").is_ok());
            }
            !is_over
        });
    }
    assert_eq!(believed, 0, "of {ended} messages, all of which were refused, some were reported as delivered");
}

/// Packets say a length too, but those may be a stranger's: only the offer ends a message, and it is right where they
/// differ.
#[test]
fn no_message_ends_before_its_offer_has_come() {
    let mut ends = Ends::new(WorldConfig::default(), |_| ());
    let scheme = Arc::new(SelectiveRepeat::default());
    let mut connection = Connection::new(ends.receiver.queue_pair.clone(), scheme, Attributes::default());
    let receive = connection.post_receive(&ends.receiver.memory, 0..8 * MTU).expect("there is room");
    let bytes: Vec<u8> = (0..6 * MTU).map(|index| (index * 31 + (index >> 8) * 7) as u8).collect();
    ends.sender.memory.write(0..bytes.len()).expect("nobody uses it").copy_from_slice(&bytes);
    let mut drive = |ends: &mut Ends| {
        for _ in 0..200 {
            ends.run_for(Duration::from_micros(10));
            connection.poll(ends.world.now()).expect("it works");
        }
        connection.part_bytes().expect("it is connected")
    };
    let stream = ends.sender.queue_pair.start_stream(Some(4 * MTU as u32)).expect("there is room");
    stream.send_immediate(&ends.sender.memory, 0).expect("nobody writes there");
    stream.send_at(0, &ends.sender.memory, 0..4 * MTU).expect("it fits");
    let part_bytes = drive(&mut ends);
    assert!(!receive.is_over(), "everything that the packets announced has come, but there is no offer");
    let length = bytes.len() as u64;
    let (chunk_bytes, scheme) = (MTU as u32, "sr:rto");
    let offer =
        Offer { length, offset: 0, part_bytes, chunk_bytes, parity_bytes: 0, checksum: None, scheme, contents: None };
    ends.sender.queue_pair.send_to_peer(record_bytes(stream.number(), &Record::Offer(offer)));
    drive(&mut ends);
    assert!(!receive.is_over(), "the offer promises two more packets");
    stream.send_at(4 * MTU as u64, &ends.sender.memory, 4 * MTU..6 * MTU).expect("it fits");
    drive(&mut ends);
    let received = receive.take().expect("it has ended").expect("all has come");
    assert_eq!((received.bytes(), received.missing()), (&bytes[..], &[][..]));
}

/// A device without room for a receive's parity: the receive fails and says why, instead of waiting for ever.
#[test]
fn a_receive_that_the_device_refuses_fails_with_the_cause() {
    let mut config = WorldConfig { link: link(), ..Default::default() };
    config.nic.memory_regions_max = 64;
    let mut ends = Ends::new(config, |_| ());
    let Ends { world, receiver, .. } = &ends;
    let (context, memory) = (&receiver.context, &receiver.memory);
    let others: Vec<_> = std::iter::from_fn(|| context.register(vec![0; 1]).ok()).collect();
    assert!(!others.is_empty());
    let scheme = Arc::new(Erasure::new("mds:4,2".parse().expect("a code")));
    let mut connection = Connection::new(receiver.queue_pair.clone(), scheme, Attributes::default());
    let receive = connection.post_receive(memory, 0..1000).expect("there is room");
    connection.poll(world.now()).expect("the connection goes on");
    let error = receive.take().expect("it has ended").expect_err("the device holds no more regions");
    let mut causes: Vec<String> = Vec::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    assert!(causes.last().is_some_and(|cause| cause.contains("regions, its limit")), "{causes:?}");
    // The next receive is not disturbed, once there is room.
    drop(others);
    let next = connection.post_receive(memory, 0..1000).expect("there is room");
    connection.poll(world.now()).expect("the connection goes on");
    assert!(!next.is_over());
    // The peer's message for the first one has two numbers, as every message with parity: the next one has those after it.
    ends.run_for(Duration::from_millis(5));
    connection.poll(ends.world.now()).expect("the connection goes on");
    let said = |number| ends.sender.queue_pair.peer_receive_of(number);
    assert_eq!(
        [0, 1, 2, 3].map(said),
        [PeerReceive::Over, PeerReceive::Over, PeerReceive::Posted, PeerReceive::Posted]
    );
}

/// Whether a long message is accepted decides how many numbers it takes. A peer that says yes and then no must not make
/// its sender take numbers without end.
#[test]
fn a_peer_that_takes_its_acceptance_back_holds_nobody_up() {
    let (report, reported) = std::sync::mpsc::channel();
    // On a thread of its own: the bug would be a call that does not return.
    std::thread::spawn(move || {
        let mut ends = Ends::new(WorldConfig::default(), |attributes| attributes.message_bytes_max = 4 * MTU as u64);
        let mut attributes = Attributes::default();
        attributes.parts_open_max = 2;
        let scheme = Arc::new(SelectiveRepeat::default());
        let mut connection = Connection::new(ends.sender.queue_pair.clone(), scheme, attributes);
        let now = ends.world.now();
        let long = connection.send(&ends.sender.memory, 0..64 * MTU, now).expect("there is room");
        let next = connection.send(&ends.sender.memory, 0..MTU, now).expect("there is room");
        let mut drive = |ends: &mut Ends| {
            for _ in 0..100 {
                connection.poll(ends.world.now()).expect("it works");
                ends.run_for(Duration::from_micros(10));
            }
        };
        drive(&mut ends);
        let number = ends.receiver.queue_pair.peer_sends_from();
        ends.receiver.queue_pair.send_to_peer(record_bytes(number, &Record::Accepted));
        drive(&mut ends);
        let refused = Refused { reason: Refusal::TooLong, was_accepted: false, scheme: "sr:rto" };
        ends.receiver.queue_pair.send_to_peer(record_bytes(number, &Record::Refused(refused)));
        drive(&mut ends);
        report.send((long.is_over(), next.is_over())).expect("somebody waits");
    });
    let ended = reported.recv_timeout(std::time::Duration::from_secs(60)).expect("it returns");
    assert_eq!(ended, (true, false), "the refused message has failed; the next one waits for a receive");
}
