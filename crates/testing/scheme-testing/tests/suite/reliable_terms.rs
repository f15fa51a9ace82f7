//! The sender chooses scheme and chunks for each message: all that the ends have agreed on mix on one connection, and what an
//! offer says is believed only as far as it can be true.

use std::ops::Range;
use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::record::{Offer, Record};
use longhaul_reliable::{
    Attributes, Bound, Choice, ChoiceError, Connection, ConnectionError, Deadline, Delivery, Ending, Fill,
    MessageError, ReceiveTicket, Scheme, SendTicket, record_bytes,
};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_sdr::{Context, ContextAttributes, Memory, PeerReceive, QueuePair, QueuePairAttributes, SendStream};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;
use longhaul_world::{World, WorldConfig};

const MTU: usize = 1024;
const SCHEMES: [&str; 6] = ["sr:nack", "ec:mds:8,4", "be", "sr:rto", "be+ec:mds:4,2", "ec:xor:4,2"];

fn schemes(names: &[&str]) -> Vec<Arc<dyn Scheme>> {
    names.iter().map(|name| scheme_by_name(name).expect("a scheme")).collect()
}

fn link(loss: f64) -> Profile {
    let link = Profile::default().with_propagation_delay(Duration::from_millis(1));
    let link = link.with_rate_bits_per_second(10_000_000_000);
    if loss == 0.0 { link } else { link.with_loss(Loss::Independent { probability: loss }) }
}

fn ground(names: &[&str], loss: f64, seed: u64, chunk_packets: usize) -> VirtualGround {
    let mut all = schemes(names);
    let options = GroundOptions {
        seed,
        mtu: Mtu::Bytes1024,
        chunk_bytes: (chunk_packets * MTU) as u32,
        other_schemes: all.split_off(1),
        round_trip_guess: Duration::from_millis(2),
        ..GroundOptions::new(link(loss), 8 << 20)
    };
    VirtualGround::with_scheme(&options, all.remove(0))
}

fn byte_of(message: usize, place: usize) -> u8 {
    (((message * 31 + place / 7 + place) % 199) + 1) as u8
}

fn write_message(memory: &Memory, message: usize, range: Range<usize>) {
    let mut bytes = memory.write(range).expect("nobody uses it");
    bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = byte_of(message, place));
}

fn is_message(message: usize, bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(place, byte)| *byte == byte_of(message, place))
}

fn run_until(ground: &mut VirtualGround, limit: Duration, mut is_over: impl FnMut() -> bool) {
    let end = ground.now() + limit;
    while !is_over() {
        assert!(ground.now() < end, "it does not end");
        ground.step(end).expect("the ends work");
    }
}

/// Each scheme with each length and its own chunks, one after another on one connection with loss, bounded ones among them.
#[test]
fn messages_of_all_schemes_mix_on_one_connection() {
    const LENGTHS: [usize; 5] = [40_000, 1, 0, 3 * MTU, 17 * MTU + 5];
    const PLACE: usize = 48 << 10;
    const COUNT: usize = 120;
    for (seed, loss, chunk_packets) in [(1, 0.0, 1), (2, 0.02, 8), (3, 0.2, 4), (4, 0.05, 64)] {
        let mut ground = ground(&SCHEMES, loss, seed, chunk_packets);
        let mut open: Vec<(usize, ReceiveTicket, SendTicket)> = Vec::new();
        let mut parity = [0; SCHEMES.len()];
        for message in 0..COUNT {
            let which = message % SCHEMES.len();
            let at = message * PLACE;
            let length = LENGTHS[message / SCHEMES.len() % LENGTHS.len()];
            let choice = Choice::scheme(SCHEMES[which]);
            // All that divide the connection's.
            let choice = match message % 4 {
                0 => choice,
                shift => choice.with_chunk_bytes(((chunk_packets >> (2 * (shift - 1))).max(1) * MTU) as u32),
            };
            let now = ground.now();
            let (receiver, memory) = ground.receiver();
            let deadline = Deadline::After(Duration::from_secs(5));
            let receive = match SCHEMES[which].starts_with("be") {
                true => {
                    let bound = Bound { deadline, fill: Fill::Value(0) };
                    receiver.receive_bounded(memory, at..at + length, bound, now)
                }
                false => receiver.post_receive(memory, at..at + PLACE),
            };
            let (sender, memory) = ground.sender();
            write_message(memory, message, at..at + length);
            let send = sender.send_chosen(memory, at..at + length, &choice, now).expect("there is room");
            open.push((message, receive.expect("there is room"), send));
        }
        run_until(&mut ground, Duration::from_secs(60), || {
            open.iter().all(|(_, receive, send)| receive.is_over() && send.is_over())
        });
        for (message, receive, send) in &open {
            let which = message % SCHEMES.len();
            let name = SCHEMES[which];
            let received = receive.take().expect("it has ended").expect("it has not failed");
            if !name.starts_with("be") || loss == 0.0 {
                assert_eq!((received.ending(), received.missing()), (Ending::Whole, &[][..]), "{message}: {name}");
            }
            let is_missing = |place: usize| received.missing().iter().any(|range| range.contains(&(place as u64)));
            let mut places = received.bytes().iter().enumerate();
            let wrong = places.find(|(place, byte)| **byte != byte_of(*message, *place) && !is_missing(*place));
            assert_eq!(wrong, None, "{message}: {name}");
            let missing = received.report().missing_bytes;
            match send.take().expect("it has ended") {
                Ok(report) => {
                    assert_eq!((missing, report.missing_bytes), (0, 0), "{message}: {name}");
                    parity[which] += report.parity_packets_sent;
                }
                Err(MessageError::Incomplete { .. }) => assert!(name.starts_with("be"), "{message}: {name}"),
                Err(error) => panic!("{message}: {name}: {error}"),
            }
        }
        for (name, packets) in SCHEMES.iter().zip(parity) {
            assert_eq!(packets > 0, name.contains("ec:"), "{name}: {packets} packets of parity");
        }
    }
}

/// A long message: its parts have the scheme and the chunks of its first offer, also those of which packets come before their own.
#[test]
fn long_messages_of_all_schemes_mix_on_one_connection() {
    let mut all = schemes(&SCHEMES);
    let options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: 4 * MTU as u32,
        message_bytes_max: Some([64 << 10; 2]),
        other_schemes: all.split_off(1),
        round_trip_guess: Duration::from_millis(2),
        ..GroundOptions::new(link(0.02), 8 << 20)
    };
    let mut ground = VirtualGround::with_scheme(&options, all.remove(0));
    const BYTES: usize = 700_000;
    let reliable = ["ec:mds:8,4", "sr:nack", "ec:xor:4,2", "sr:rto", "ec:mds:8,4"];
    let now = ground.now();
    let tickets = (0..reliable.len()).map(|message| {
        let range = message * BYTES..(message + 1) * BYTES;
        let (receiver, memory) = ground.receiver();
        let receive = receiver.post_receive(memory, range.clone()).expect("there is room");
        let (sender, memory) = ground.sender();
        write_message(memory, message, range.clone());
        let choice = Choice::scheme(reliable[message]).with_chunk_bytes((1 << (message % 3)) * MTU as u32);
        (receive, sender.send_chosen(memory, range, &choice, now).expect("there is room"))
    });
    let tickets: Vec<_> = tickets.collect();
    run_until(&mut ground, Duration::from_secs(60), || {
        tickets.iter().all(|(one, other)| one.is_over() && other.is_over())
    });
    for (message, (receive, send)) in tickets.iter().enumerate() {
        let received = receive.take().expect("it has ended").expect("it has not failed");
        assert!(received.bytes().len() == BYTES && is_message(message, received.bytes()), "{message}");
        send.take().expect("it has ended").expect("it has not failed");
    }
}

#[test]
fn a_bounded_message_chooses_too() {
    // With the first scheme, what is lost would be repeated; with this one nothing is, so that it ends quietly.
    let mut ground = ground(&["sr:nack", "be"], 0.2, 1, 1);
    let now = ground.now();
    let (receiver, memory) = ground.receiver();
    let bound = Bound { deadline: Deadline::After(Duration::from_millis(200)), fill: Fill::Zero };
    let receive = receiver.receive_bounded(memory, 0..64 * MTU, bound, now).expect("there is room");
    let (sender, memory) = ground.sender();
    let choice = Choice::scheme("be").with_chunk_bytes(4 * MTU as u32);
    let deadline = Deadline::After(Duration::from_secs(2));
    let send = sender.send_bounded_chosen(memory, 0..64 * MTU, deadline, &choice, now).expect("there is room");
    run_until(&mut ground, Duration::from_secs(3), || receive.is_over() && send.is_over());
    let received = receive.take().expect("it has ended").expect("it has not failed");
    assert_eq!(received.ending(), Ending::Quiet);
    let sent = send.take().expect("it has ended").expect("it has not failed");
    assert_eq!(sent.delivery, Delivery::Partial { missing: received.missing().to_vec(), is_coarse: false });
}

#[test]
fn what_is_not_agreed_on_is_refused_before_it_is_sent() {
    let mut ground = ground(&["sr:nack", "ec:mds:32,8"], 0.0, 1, 1);
    let now = ground.now();
    let (sender, memory) = ground.sender();
    let mut refused = |choice: &Choice| sender.send_chosen(memory, 0..MTU, choice, now).expect_err("it is refused");
    let error = refused(&Choice::scheme("be"));
    assert!(
        matches!(&error, ConnectionError::Choice(ChoiceError::SchemeNotAgreed { scheme, .. }) if scheme == "be"),
        "{error}"
    );
    assert!(error.to_string().contains("sr:nack,ec:mds:32,8"), "{error}");
    for chunk_bytes in [0, 1, MTU as u32 + 1] {
        let error = refused(&Choice::default().with_chunk_bytes(chunk_bytes));
        assert!(
            matches!(error, ConnectionError::Choice(ChoiceError::Chunks { mtu: 1024, .. })),
            "{chunk_bytes}: {error}"
        );
    }
    // A code makes whole chunks of parity, and the receiver has room for that of short ones.
    let choice = Choice::scheme("ec:mds:32,8").with_chunk_bytes(64 * MTU as u32);
    let too_long = sender.send_chosen(memory, 0..100 * MTU, &choice, now).expect("it is looked at later");
    let next = sender.send(memory, 0..100 * MTU, now).expect("there is room");
    let (receiver, memory) = ground.receiver();
    let receive = receiver.post_receive(memory, 0..100 * MTU).expect("there is room");
    run_until(&mut ground, Duration::from_secs(1), || too_long.is_over() && next.is_over() && receive.is_over());
    let error = too_long.take().expect("it has ended").expect_err("it has failed");
    assert!(matches!(error, MessageError::ChunksTooLong { chunk_bytes: 65536, .. }), "{error}");
    next.take().expect("it has ended").expect("the next one takes the receive");
    receive.take().expect("it has ended").expect("it has not failed");
}

/// A connection that receives, and the other end's queue pair, with which a test says what it wants.
struct Forged {
    world: World,
    peer: (Context, QueuePair, Memory),
    context: Context,
    connection: Connection,
    memory: Memory,
}

impl Forged {
    fn new(names: &[&str], chunk_packets: u32) -> Self {
        let world = World::new(WorldConfig::default());
        let [peer, own] = [0, 1].map(|node| {
            let context = Context::create(&world.device(node), &ContextAttributes::default()).expect("there is room");
            let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, Mtu::Bytes1024);
            attributes.random = (node as u64 + 1) << 32;
            attributes.message_bytes_max = 1 << 20;
            attributes.chunk_bytes = chunk_packets * MTU as u32;
            let queue_pair = QueuePair::create(&context, &attributes).expect("there is room");
            let memory = context.register(vec![0; 1 << 20]).expect("there is room");
            (context, queue_pair, memory)
        });
        peer.1.connect(&own.1.info()).expect("both were made alike");
        own.1.connect(&peer.1.info()).expect("both were made alike");
        let mut all = schemes(names);
        let others = all.split_off(1);
        let connection = Connection::new(own.1, all.remove(0), Attributes::default()).with_others(others);
        Forged { world, peer, context: own.0, connection, memory: own.2 }
    }

    fn run_for(&mut self, duration: Duration) {
        let end = self.world.now() + duration;
        while self.world.now() < end {
            let now = self.world.now();
            for context in [&self.peer.0, &self.context] {
                while context.poll().expect("the queues have room") > 0 {}
            }
            self.peer.1.poll(now).expect("the end works");
            self.connection.poll(now).expect("the end works");
            self.world.run_for(Duration::from_micros(5));
        }
    }

    /// What the receiver has told of a message.
    fn said(&mut self) -> Vec<(u64, String, bool)> {
        let mut said = Vec::new();
        while let Some(bytes) = self.peer.1.take_from_peer() {
            if let Some((number, Record::Refused(refused))) = Record::parse(&bytes) {
                let is_other_scheme = refused.reason == longhaul_reliable::record::Refusal::OtherScheme;
                said.push((number, refused.scheme.to_owned(), is_other_scheme));
            }
        }
        said
    }

    fn offer(&mut self, stream: &SendStream, change: impl FnOnce(&mut Offer<'_>)) {
        let part_bytes = self.connection.part_bytes().expect("it is connected");
        let mut offer = Offer {
            length: 10 * MTU as u64,
            offset: 0,
            part_bytes,
            chunk_bytes: MTU as u32,
            parity_bytes: 0,
            checksum: None,
            scheme: "sr:nack",
            contents: None,
        };
        change(&mut offer);
        self.peer.1.send_to_peer(record_bytes(stream.number(), &Record::Offer(offer)));
        self.run_for(Duration::from_millis(1));
    }
}

/// A receive, the forged message for it and the one of its parity.
fn post(forged: &mut Forged) -> (ReceiveTicket, SendStream, SendStream) {
    let receive = forged.connection.post_receive(&forged.memory, 0..16 * MTU).expect("there is room");
    forged.run_for(Duration::from_millis(1));
    let stream = || forged.peer.1.start_stream(None).expect("there is room");
    (receive, stream(), stream())
}

type Change = fn(&mut Offer<'_>);

#[test]
fn offers_that_cannot_be_are_refused_and_name_what_the_receiver_has() {
    let changes: [(&str, Change); 8] = [
        ("a scheme that was not agreed on", |offer| offer.scheme = "be"),
        ("no scheme", |offer| offer.scheme = ""),
        ("chunks of nothing", |offer| offer.chunk_bytes = 0),
        ("chunks that are no packets", |offer| offer.chunk_bytes = 1500),
        ("the longest chunks, which are none", |offer| offer.chunk_bytes = u32::MAX),
        ("parity where there is none", |offer| offer.parity_bytes = 1024),
        ("less parity than the code's", |offer| {
            (offer.scheme, offer.parity_bytes) = ("ec:mds:8,4", 7 * 1024);
        }),
        ("more parity than there is room for", |offer| {
            // Right for its chunks.
            (offer.scheme, offer.chunk_bytes, offer.parity_bytes) = ("ec:mds:8,4", 8 * 1024, 4 * 8 * 1024);
        }),
    ];
    for (what, change) in changes {
        let mut forged = Forged::new(&["sr:nack", "ec:mds:8,4"], 1);
        let (receive, stream, _parity) = post(&mut forged);
        forged.offer(&stream, change);
        let error = receive.take().expect(what).expect_err(what);
        assert!(matches!(error, MessageError::OtherScheme { .. }), "{what}: {error}");
        let said = forged.said();
        let (number, scheme, is_other_scheme) = said.first().expect(what);
        assert_eq!((*number, *is_other_scheme), (stream.number(), true), "{what}");
        assert!(scheme.starts_with("sr:nack,ec:mds:8,4 with chunks of"), "{what}: {scheme}");
        // The next message is not disturbed.
        let (next, stream, _parity) = post(&mut forged);
        forged.offer(&stream, |_| ());
        stream.send_at(0, &forged.peer.2, 0..10 * MTU).expect("it fits");
        forged.run_for(Duration::from_millis(2));
        next.take().expect("it has ended").expect("it has not failed");
    }
}

/// The names of many schemes are longer than a control frame.
#[test]
fn a_refusal_names_as_many_schemes_as_fit() {
    let names: Vec<String> =
        std::iter::once("sr:nack".to_owned()).chain((2..80).map(|data| format!("ec:mds:{data},2"))).collect();
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let mut forged = Forged::new(&names, 1);
    let (receive, stream, _parity) = post(&mut forged);
    forged.offer(&stream, |offer| offer.scheme = "be");
    let error = receive.take().expect("it has ended").expect_err("it was refused");
    assert!(matches!(error, MessageError::OtherScheme { .. }), "{error}");
    let (number, scheme, is_other_scheme) = forged.said().remove(0);
    assert_eq!((number, is_other_scheme), (stream.number(), true));
    assert!(scheme.starts_with("sr:nack,ec:mds:2,2,") && scheme.len() > 300, "{scheme}");
}

/// More packets arrive than the message has, and not the one that it has.
#[test]
fn packets_beyond_a_short_message_do_not_count_for_it() {
    let mut forged = Forged::new(&["sr:nack", "be"], 1);
    let bound = Bound { deadline: Deadline::After(Duration::from_millis(5)), fill: Fill::Value(9) };
    let now = forged.world.now();
    let receive = forged.connection.receive_bounded(&forged.memory, 0..16 * MTU, bound, now).expect("there is room");
    forged.run_for(Duration::from_millis(1));
    let stream = forged.peer.1.start_stream(None).expect("there is room");
    stream.send_at(MTU as u64, &forged.peer.2, MTU..10 * MTU).expect("it fits");
    forged.offer(&stream, |offer| (offer.length, offer.scheme) = (MTU as u64, "be"));
    forged.run_for(Duration::from_millis(10));
    let received = receive.take().expect("it has ended").expect("it has not failed");
    assert_eq!((received.missing().len(), &received.missing()[0]), (1, &(0..MTU as u64)));
    assert!(received.bytes().iter().all(|byte| *byte == 9), "what is missing is filled");
}

/// The longest chunks that are possible hold all of a message: nothing overflows, and it arrives.
#[test]
fn huge_chunks_hold_all_of_a_message() {
    for bitmap_chunk in [1, 4] {
        let mut forged = Forged::new(&["sr:nack", "be"], bitmap_chunk);
        let receive = forged.connection.post_receive(&forged.memory, 0..16 * MTU).expect("there is room");
        forged.run_for(Duration::from_millis(1));
        let stream = forged.peer.1.start_stream(None).expect("there is room");
        forged.offer(&stream, |offer| offer.chunk_bytes = u32::MAX - (MTU as u32 - 1));
        stream.send_at(0, &forged.peer.2, 0..9 * MTU).expect("it fits");
        forged.run_for(Duration::from_millis(2));
        assert!(!receive.is_over());
        stream.send_at(9 * MTU as u64, &forged.peer.2, 9 * MTU..10 * MTU).expect("it fits");
        forged.run_for(Duration::from_millis(2));
        receive.take().expect("it has ended").expect("it has not failed");
    }
}

/// What its sender has said of a message once holds: another offer must not make a half of another scheme look at its bitmaps.
#[test]
fn a_repeated_offer_that_says_otherwise_is_refused() {
    let changes: [(&str, Change); 3] = [
        ("another scheme", |offer| (offer.scheme, offer.parity_bytes) = ("ec:mds:8,4", 8 * 1024)),
        ("another one without parity", |offer| offer.scheme = "be"),
        ("other chunks", |offer| offer.chunk_bytes = 2048),
    ];
    for (what, change) in changes {
        let mut forged = Forged::new(&["sr:nack", "ec:mds:8,4", "be"], 1);
        let (receive, stream, _parity) = post(&mut forged);
        forged.offer(&stream, |_| ());
        forged.offer(&stream, |_| ());
        assert!(!receive.is_over(), "{what}: the same offer again is nothing new");
        forged.offer(&stream, change);
        let error = receive.take().expect(what).expect_err(what);
        assert!(matches!(error, MessageError::OtherScheme { .. }), "{what}: {error}");
        let said = forged.said();
        assert_eq!(said.first().map(|(number, _, is_other)| (*number, *is_other)), Some((stream.number(), true)));
    }
}

/// The receiver has room for the parity of every scheme before it knows which one a message has: no round trip is lost, and a message that
/// has none gives it back.
#[test]
fn parity_needs_no_round_trip_and_memory_that_is_not_needed_comes_back() {
    let once = |scheme: &str| {
        let mut ground = ground(&["sr:nack", "ec:mds:8,4"], 0.0, 1, 1);
        // The ends have heard of each other.
        let settled = ground.now() + Duration::from_millis(20);
        ground.run_until(settled).expect("the ends work");
        let (receiver, memory) = ground.receiver();
        let receive = receiver.post_receive(memory, 0..80 * MTU).expect("there is room");
        let settled = settled + Duration::from_millis(20);
        ground.run_until(settled).expect("the ends work");
        let now = ground.now();
        let (sender, memory) = ground.sender();
        let send = sender.send_chosen(memory, 0..80 * MTU, &Choice::scheme(scheme), now).expect("there is room");
        run_until(&mut ground, Duration::from_secs(1), || receive.is_over());
        drop(send);
        ground.now().saturating_since(now)
    };
    let (without, with) = (once("sr:nack"), once("ec:mds:8,4"));
    // Data and parity of 120 packets at 10 Gbit/s, and 1 ms of delay.
    for took in [without, with] {
        assert!(took < Duration::from_micros(1300), "{without:?} without parity and {with:?} with it");
    }
}

/// Receives hold memory for parity before they know whether there is any: not more than the attributes say, and what waits for it goes on.
#[test]
fn memory_for_parity_is_cleared_ahead_and_bounded() {
    const BYTES: usize = 64 * MTU;
    const COUNT: usize = 12;
    let mut connection = Attributes::default();
    // Parity of a message has half its bytes: room for three.
    connection.parity_bytes_max = 3 * BYTES as u64 / 2;
    let mut all = schemes(&["sr:nack", "ec:mds:8,4"]);
    let options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: MTU as u32,
        connection,
        other_schemes: all.split_off(1),
        round_trip_guess: Duration::from_millis(2),
        ..GroundOptions::new(link(0.0), 8 << 20)
    };
    let mut ground = VirtualGround::with_scheme(&options, all.remove(0));
    let mut receives = Vec::new();
    for message in 0..COUNT {
        let (receiver, memory) = ground.receiver();
        receives.push(receiver.post_receive(memory, message * BYTES..(message + 1) * BYTES).expect("there is room"));
    }
    let settled = ground.now() + Duration::from_millis(20);
    ground.run_until(settled).expect("the ends work");
    let posted = |ground: &mut VirtualGround| {
        let queue_pair = ground.sender().0.queue_pair();
        (0..2 * COUNT as u64).filter(|number| queue_pair.peer_receive_of(*number) != PeerReceive::NotPosted).count()
    };
    assert_eq!(posted(&mut ground), 2 * 3, "data and parity of three");
    let now = ground.now();
    let sends = (0..COUNT).map(|message| {
        let (sender, memory) = ground.sender();
        let range = message * BYTES..(message + 1) * BYTES;
        write_message(memory, message, range.clone());
        let choice = Choice::scheme(["sr:nack", "ec:mds:8,4"][message % 2]);
        sender.send_chosen(memory, range, &choice, now).expect("there is room")
    });
    let sends: Vec<_> = sends.collect();
    run_until(&mut ground, Duration::from_secs(1), || {
        receives.iter().all(ReceiveTicket::is_over) && sends.iter().all(SendTicket::is_over)
    });
    for (message, receive) in receives.iter().enumerate() {
        let received = receive.take().expect("it has ended").expect("it has not failed");
        assert!(is_message(message, received.bytes()), "{message}");
    }
}
