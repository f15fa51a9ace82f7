//! Bounded and best-effort receives that meet messages of several parts, on virtual time.

use std::ops::Range;

use longhaul_impair::Profile;
use longhaul_reliable::record::{Offer, Record};
use longhaul_reliable::{
    Attributes, Bound, Connection, Deadline, Delivery, Ending, Fill, MessageError, ReceiveTicket, record_bytes,
};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;
use longhaul_world::{World, WorldConfig};

const PACKET: usize = 1024;
const PART: usize = 40 * PACKET;

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_millis(1)).with_rate_bits_per_second(4_000_000_000)
}

fn ground(scheme: &str) -> VirtualGround {
    let options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: PACKET as u32,
        message_bytes_max: Some([PART as u64; 2]),
        ..GroundOptions::new(link(), 4 << 20)
    };
    VirtualGround::with_scheme(&options, scheme_by_name(scheme).expect("a scheme"))
}

/// Until that has ended, and when.
fn run_until(ground: &mut VirtualGround, limit: Duration, mut is_over: impl FnMut() -> bool) -> Instant {
    let end = ground.now() + limit;
    while !is_over() {
        assert!(ground.now() < end, "it does not end");
        ground.step(end).expect("the ends work");
    }
    ground.now()
}

fn pass(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

fn range(of: Range<usize>) -> Vec<Range<u64>> {
    std::iter::once(of.start as u64..of.end as u64).collect()
}

fn only(bytes: usize) -> Vec<Range<u64>> {
    range(0..bytes)
}

fn fill(ground: &mut VirtualGround, range: Range<usize>, value: u8) {
    ground.sender().1.write(range).expect("nobody uses it").fill(value);
}

fn receive_bounded(ground: &mut VirtualGround, range: Range<usize>, after: Duration) -> ReceiveTicket {
    let now = ground.now();
    let bound = Bound { deadline: Deadline::After(after), fill: Fill::Zero };
    let (connection, memory) = ground.receiver();
    connection.receive_bounded(memory, range, bound, now).expect("there is room")
}

/// A bounded receive has one number, whatever the message that comes for it would have taken: the next message is the next receive's.
#[test]
fn a_long_message_whose_bounded_receive_has_expired_takes_one_number() {
    for scheme in ["be", "sr:nack", "ec:mds:8,4", "be+ec:mds:8,4"] {
        // The sender begins when it has heard of the receive, when that is over, and when it knows that it is.
        for millis in [4, 6, 50] {
            let mut ground = ground(scheme);
            let expired = receive_bounded(&mut ground, 0..1000, Duration::from_millis(5));
            pass(&mut ground, Duration::from_millis(millis));
            let next = receive_bounded(&mut ground, PART..PART + 5000, Duration::from_secs(5));
            let long = 0..3 * PART + 100;
            fill(&mut ground, long.clone(), 1);
            let now = ground.now();
            let (connection, memory) = ground.sender();
            let send = connection.send(memory, long.clone(), now).expect("there is room");
            let short = 4 * PART..4 * PART + 5000;
            fill(&mut ground, short.clone(), 2);
            let (connection, memory) = ground.sender();
            let second = connection.send(memory, short, now).expect("there is room");
            run_until(&mut ground, Duration::from_secs(20), || {
                expired.is_over() && next.is_over() && send.is_over() && second.is_over()
            });
            match send.take().expect("it has ended") {
                Err(MessageError::Incomplete { missing }) => assert_eq!(missing, only(long.end), "{scheme}, {millis}"),
                Err(MessageError::TooLong { .. } | MessageError::TooLongForPeer(_)) => {}
                other => panic!("{scheme}, {millis}: {other:?}"),
            }
            let received = next.take().expect("it has ended").expect("it has not failed");
            assert_eq!(received.ending(), Ending::Whole, "{scheme}, {millis}");
            assert!(received.bytes().iter().all(|byte| *byte == 2), "{scheme}, {millis}: another message's bytes");
            second.take().expect("it has ended").expect("all of it has arrived");
        }
    }
}

/// One end of a connection of `sdr`, whose other end is a [`Connection`].
struct End {
    context: Context,
    queue_pair: QueuePair,
    memory: Memory,
}

/// A sender that says and sends what a test wants, and a receiver.
struct ByHand {
    world: World,
    ends: [End; 2],
    connection: Connection,
}

impl ByHand {
    fn new(chunk_packets: u32, part_bytes: usize) -> Self {
        let world = World::new(WorldConfig { link: link(), ..Default::default() });
        let ends = [0, 1].map(|node| {
            let context = Context::create(&world.device(node), &ContextAttributes::default()).expect("there is room");
            let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, Mtu::Bytes1024);
            attributes.random = (node as u64 + 1) << 32;
            attributes.message_bytes_max = part_bytes as u64;
            attributes.chunk_bytes = chunk_packets * PACKET as u32;
            let queue_pair = QueuePair::create(&context, &attributes).expect("there is room");
            let memory = context.register(vec![7; part_bytes.max(1 << 20)]).expect("there is room");
            End { context, queue_pair, memory }
        });
        ends[0].queue_pair.connect(&ends[1].queue_pair.info()).expect("both were made alike");
        ends[1].queue_pair.connect(&ends[0].queue_pair.info()).expect("both were made alike");
        let mut attributes = Attributes::default();
        attributes.message_timeout = Duration::from_millis(100);
        let scheme = scheme_by_name("be").expect("a scheme");
        let connection = Connection::new(ends[1].queue_pair.clone(), scheme, attributes);
        ByHand { world, ends, connection }
    }

    /// Lets both ends do what is due, for this long.
    fn run_for(&mut self, duration: Duration) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            let now = self.world.now();
            for end in &self.ends {
                while end.context.poll().expect("the queues have room") > 0 {}
            }
            self.ends[0].queue_pair.poll(now).expect("the end works");
            self.connection.poll(now).expect("the end works");
            self.world.run_for(Duration::from_micros(20));
        }
    }

    fn tell(&self, number: u64, record: &Record<'_>) {
        self.ends[0].queue_pair.send_to_peer(record_bytes(number, record));
    }

    fn offer(&mut self, number: u64, length: usize, chunk_packets: u32, checksum: Option<u64>) {
        let part_bytes = self.connection.part_bytes().expect("it is connected");
        let (length, chunk_bytes) = (length as u64, chunk_packets * PACKET as u32);
        let (offset, parity_bytes, scheme) = (0, 0, "be");
        let offer = Offer { length, offset, part_bytes, chunk_bytes, parity_bytes, checksum, scheme, contents: None };
        self.tell(number, &Record::Offer(offer));
    }
}

/// All packets of a part have come, and its checksum has not: that is not a whole part, to the program or to the sender.
#[test]
fn a_part_whose_checksum_never_came_is_not_whole() {
    let mut by_hand = ByHand::new(1, 4 * PACKET);
    let memory = by_hand.ends[1].memory.clone();
    let receive = by_hand.connection.post_receive_partial(&memory, 0..8 * PACKET).expect("there is room");
    by_hand.run_for(Duration::from_millis(10));
    let [first, second] = [0, 1].map(|_| by_hand.ends[0].queue_pair.start_stream(None).expect("there is room"));
    by_hand.offer(first.number(), 8 * PACKET, 1, Some(1));
    let source = by_hand.ends[0].memory.clone();
    first.send_at(0, &source, 0..3 * PACKET).expect("it fits");
    second.send_at(0, &source, 0..4 * PACKET).expect("it fits");
    by_hand.run_for(Duration::from_millis(10));
    by_hand.tell(first.number(), &Record::Sent);
    by_hand.run_for(Duration::from_millis(200));
    let received = receive.take().expect("it has ended").expect("it has not failed");
    assert_eq!(received.ending(), Ending::Deadline);
    assert_eq!(received.missing(), [3 * PACKET as u64..4 * PACKET as u64, 7 * PACKET as u64..8 * PACKET as u64]);
    let answers: Vec<_> = std::iter::from_fn(|| by_hand.ends[0].queue_pair.take_from_peer()).collect();
    let of_second = answers.iter().filter_map(|bytes| Record::parse(bytes)).filter(|(of, _)| *of == second.number());
    let of_second: Vec<_> = of_second.map(|(_, record)| record).collect();
    assert!(!of_second.contains(&Record::Done), "{of_second:?}");
    let has_ended = |record: &Record<'_>| matches!(record, Record::Ended(ended) if ended.ranges().eq([(3, 4)]));
    assert!(of_second.iter().any(has_ended), "{of_second:?}");
}

/// Its sender falls silent: a receive of many parts does not wait for each of them anew.
#[test]
fn a_silent_sender_holds_a_long_receive_for_one_time_out() {
    let mut by_hand = ByHand::new(1, 4 * PACKET);
    let memory = by_hand.ends[1].memory.clone();
    // More parts than are open at a time.
    let receive = by_hand.connection.post_receive_partial(&memory, 0..200 * PACKET).expect("there is room");
    by_hand.run_for(Duration::from_millis(10));
    let first = by_hand.ends[0].queue_pair.start_stream(None).expect("there is room");
    by_hand.offer(first.number(), 200 * PACKET, 1, None);
    first.send_at(0, &by_hand.ends[0].memory.clone(), 0..3 * PACKET).expect("it fits");
    by_hand.run_for(Duration::from_millis(90));
    assert!(!receive.is_over());
    by_hand.run_for(Duration::from_millis(100));
    let received = receive.take().expect("a time-out has passed").expect("it has not failed");
    assert_eq!((received.ending(), received.missing()), (Ending::Deadline, &*range(3 * PACKET..200 * PACKET)));
}

/// The same with more parts than the message table has places: it fails, because nobody is there who could make room.
#[test]
fn a_silent_sender_does_not_hold_a_receive_that_has_more_parts_than_places() {
    let mut by_hand = ByHand::new(1, 64);
    let memory = by_hand.ends[1].memory.clone();
    let bytes = 1 << 20;
    let receive = by_hand.connection.post_receive(&memory, 0..bytes).expect("there is room");
    by_hand.run_for(Duration::from_millis(10));
    let first = by_hand.ends[0].queue_pair.start_stream(None).expect("there is room");
    by_hand.offer(first.number(), bytes, 1, None);
    by_hand.run_for(Duration::from_millis(250));
    let outcome = receive.take().expect("a time-out has passed");
    assert!(matches!(outcome, Err(MessageError::TimedOut(_))), "{outcome:?}");
}

/// The last packet has come, and a chunk of many packets that it is in is not whole: the receive ends all the same when nothing more comes,
/// without a word of the sender.
#[test]
fn the_last_packet_is_noticed_in_a_chunk_that_is_not_whole() {
    let mut by_hand = ByHand::new(64, 256 * PACKET);
    let memory = by_hand.ends[1].memory.clone();
    let bound = Bound { deadline: Deadline::After(Duration::from_secs(1)), fill: Fill::Zero };
    let now = by_hand.world.now();
    let receive = by_hand.connection.receive_bounded(&memory, 0..128 * PACKET, bound, now).expect("there is room");
    by_hand.run_for(Duration::from_millis(10));
    let stream = by_hand.ends[0].queue_pair.start_stream(Some(128 * PACKET as u32)).expect("there is room");
    by_hand.offer(stream.number(), 128 * PACKET, 64, None);
    let source = by_hand.ends[0].memory.clone();
    by_hand.run_for(Duration::from_millis(10));
    stream.send_at(0, &source, 0..PACKET).expect("it fits");
    by_hand.run_for(Duration::from_millis(10));
    stream.send_at(127 * PACKET as u64, &source, 127 * PACKET..128 * PACKET).expect("it fits");
    by_hand.run_for(Duration::from_millis(20));
    let received = receive.take().expect("nothing has come for a while").expect("it has not failed");
    assert_eq!((received.ending(), received.missing()), (Ending::Quiet, &*range(PACKET..127 * PACKET)));
}

/// Every second packet of a long message has come. Its ranges take many frames, which leave a few at a time however often the sender asks, and
/// arrive.
#[test]
fn a_long_answer_is_told_a_few_frames_at_a_time() {
    const PACKETS: usize = 16_384;
    let mut by_hand = ByHand::new(1, PACKETS * PACKET);
    let memory = by_hand.ends[1].memory.clone();
    let bound = Bound { deadline: Deadline::After(Duration::from_millis(100)), fill: Fill::Zero };
    let (now, bytes) = (by_hand.world.now(), PACKETS * PACKET);
    let receive = by_hand.connection.receive_bounded(&memory, 0..bytes, bound, now).expect("there is room");
    by_hand.run_for(Duration::from_millis(5));
    let stream = by_hand.ends[0].queue_pair.start_stream(None).expect("there is room");
    by_hand.ends[0].queue_pair.set_asks_from(Some(stream.number()));
    by_hand.offer(stream.number(), bytes, 1, None);
    let source = by_hand.ends[0].memory.clone();
    for packet in (0..PACKETS).step_by(2) {
        stream.send_at((packet * PACKET) as u64, &source, packet * PACKET..(packet + 1) * PACKET).expect("it fits");
    }
    by_hand.run_for(Duration::from_millis(90));
    assert!(!receive.is_over());
    while by_hand.ends[0].queue_pair.take_from_peer().is_some() {}
    // How many frames come in one step, and which ranges they have.
    let (mut most, mut frames, mut told) = (0, 0, Vec::new());
    for _ in 0..2000 {
        by_hand.offer(stream.number(), bytes, 1, None);
        by_hand.run_for(Duration::from_micros(20));
        let heard: Vec<_> = std::iter::from_fn(|| by_hand.ends[0].queue_pair.take_from_peer()).collect();
        let mut in_step = 0;
        for (_, record) in heard.iter().filter_map(|bytes| Record::parse(bytes)) {
            if let Record::Ended(ended) = record {
                assert_eq!(ended.range_count as usize, PACKETS / 2);
                in_step += 1;
                told.extend((ended.first_range..).zip(ended.ranges()));
            }
        }
        (most, frames) = (most.max(in_step), frames + in_step);
        if told.len() >= PACKETS / 2 {
            break;
        }
    }
    assert_eq!(frames, 161);
    assert!((1..=5).contains(&most), "{most} frames at once");
    let wrong = told.iter().zip(0..).find(|(range, index)| **range != (*index, (2 * index + 1, 2 * index + 2)));
    assert_eq!(
        (wrong, told.len()),
        (None, PACKETS / 2),
        "each once, in order: nothing is told again while it is being told"
    );
    let received = receive.take().expect("its time is up").expect("it has not failed");
    assert_eq!(received.missing().len(), PACKETS / 2);
}

/// A message of no bytes, of which its receiver never heard: nothing can be missing, and yet it has not arrived.
#[test]
fn a_message_of_nothing_that_was_not_heard_of_is_not_whole() {
    for millis in [4, 6, 50] {
        let mut ground = ground("be");
        let expired = receive_bounded(&mut ground, 0..0, Duration::from_millis(5));
        pass(&mut ground, Duration::from_millis(millis));
        let now = ground.now();
        let (connection, memory) = ground.sender();
        let deadline = Deadline::After(Duration::from_secs(1));
        let send = connection.send_bounded(memory, 0..0, deadline, now).expect("there is room");
        run_until(&mut ground, Duration::from_secs(2), || expired.is_over() && send.is_over());
        assert_eq!(expired.take().expect("it has ended").expect("it has not failed").ending(), Ending::Deadline);
        let delivery = send.take().expect("it has ended").expect("it has not failed").delivery;
        assert_eq!(delivery, Delivery::Partial { missing: Vec::new(), is_coarse: false }, "after {millis} ms");
    }
}
