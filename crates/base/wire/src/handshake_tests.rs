//! The handshake's messages, byte by byte.

extern crate std;

use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const PATHS: &[Path] = &[Path { gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1], udp_port: 4791 }];

fn hello() -> Hello<'static> {
    Hello {
        capabilities: 0x0102_0304_0506_0708,
        mtu: 4096,
        paths: PATHS.into(),
        scheme: "sr:nack",
        chunk_bytes: Some(65_536),
        message_bytes_max: 1 << 30,
        channels: 2,
        token: Some(*b"0123456789abcdef"),
        addresses: Some(("192.0.2.1".parse().expect("an address"), "192.0.2.2".parse().expect("an address"))),
    }
}

fn answer() -> Answer<'static> {
    Answer {
        capabilities: 1,
        mtu: 1024,
        paths: PATHS.into(),
        scheme: "sr:rto",
        chunk_bytes: 65_536,
        message_bytes_max: 1 << 28,
        channels: 1,
        queue_pair: b"SDR...",
    }
}

fn emitted(message: Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0xa5; message.byte_count()];
    assert_eq!(message.emit(&mut bytes), Ok(bytes.len()));
    bytes
}

const PATH_FIELD: [u8; 22] = [0, 4, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 0x12, 0xb7];

#[test]
fn golden_bytes_of_hello() {
    let mut expected = b"LHC\x01\x00\x01\x00\x01\x01".to_vec();
    expected.extend([0, 2, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    expected.extend([0, 3, 0, 4, 0, 0, 0x10, 0]);
    expected.extend(PATH_FIELD);
    expected.extend(b"\x00\x05\x00\x07sr:nack");
    expected.extend([0, 6, 0, 4, 0, 1, 0, 0]);
    expected.extend([0, 7, 0, 8, 0, 0, 0, 0, 0x40, 0, 0, 0]);
    expected.extend([0, 8, 0, 2, 0, 2]);
    expected.extend(b"\x00\x09\x00\x100123456789abcdef");
    expected.extend([0, 10, 0, 4, 192, 0, 2, 1, 0, 11, 0, 4, 192, 0, 2, 2]);
    assert_eq!(emitted(Message::Hello(hello())), expected);
    assert_eq!(Message::parse(&expected), Ok(Message::Hello(hello())));
    // What a later version adds is skipped.
    expected.extend([0x12, 0x34, 0, 2, 1, 2]);
    assert_eq!(Message::parse(&expected), Ok(Message::Hello(hello())));
}

#[test]
fn golden_bytes_of_answer_and_info() {
    let mut expected = b"LHC\x01\x00\x01\x00\x01\x02".to_vec();
    expected.extend([0, 2, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1]);
    expected.extend([0, 3, 0, 4, 0, 0, 4, 0]);
    expected.extend(PATH_FIELD);
    expected.extend(b"\x00\x05\x00\x06sr:rto");
    expected.extend([0, 6, 0, 4, 0, 1, 0, 0]);
    expected.extend([0, 7, 0, 8, 0, 0, 0, 0, 0x10, 0, 0, 0]);
    expected.extend([0, 8, 0, 2, 0, 1]);
    expected.extend(b"\x00\x0c\x00\x06SDR...");
    assert_eq!(emitted(Message::Answer(answer())), expected);
    assert_eq!(Message::parse(&expected), Ok(Message::Answer(answer())));

    let mut expected = b"LHC\x01\x00\x01\x00\x01\x03".to_vec();
    expected.extend(PATH_FIELD);
    expected.extend(b"\x00\x0c\x00\x06SDR...");
    let info = Message::Info(Info { paths: PATHS.into(), queue_pair: b"SDR..." });
    assert_eq!(emitted(info), expected);
    assert_eq!(Message::parse(&expected), Ok(info));

    let expected = b"LHC\x01\x00\x01\x00\x01\x05\x00\x0f\x00\x01\x01";
    assert_eq!(emitted(Message::PathReport { has_heard: true }), expected);
    assert_eq!(Message::parse(expected), Ok(Message::PathReport { has_heard: true }));
}

#[test]
fn golden_bytes_of_refusals() {
    let cases: [(Refusal<'_>, &[u8]); 6] = [
        (Refusal::OtherScheme { theirs: "sr:rto" }, b"\x00\x0d\x00\x01\x01\x00\x05\x00\x06sr:rto"),
        (Refusal::OtherChunks { theirs: 4096 }, b"\x00\x0d\x00\x01\x02\x00\x06\x00\x04\x00\x00\x10\x00"),
        (Refusal::WrongToken, b"\x00\x0d\x00\x01\x03"),
        (Refusal::NoToken, b"\x00\x0d\x00\x01\x04"),
        (Refusal::Other { number: Refusal::OTHER, text: Some("no") }, b"\x00\x0d\x00\x01\xff\x00\x0e\x00\x02no"),
        // A reason of a later version.
        (Refusal::Other { number: 99, text: None }, b"\x00\x0d\x00\x01\x63"),
    ];
    for (refusal, fields) in cases {
        let expected = [b"LHC\x01\x00\x01\x00\x01\x04".as_slice(), fields].concat();
        assert_eq!(emitted(Message::Refused(refusal)), expected);
        assert_eq!(Message::parse(&expected), Ok(Message::Refused(refusal)));
    }
}

#[test]
fn no_message_can_be_cut_off() {
    let hello = emitted(Message::Hello(hello()));
    // Its last fields need not be there: both addresses, the token.
    let optional = [hello.len() - 8, hello.len() - 16, hello.len() - 36];
    for length in 0..hello.len() {
        assert_eq!(Message::parse(&hello[..length]).is_ok(), optional.contains(&length), "{length} bytes");
    }
    for message in [
        Message::Answer(answer()),
        Message::Info(Info { paths: PATHS.into(), queue_pair: &[1] }),
        Message::Refused(Refusal::OtherChunks { theirs: 1 }),
        Message::PathReport { has_heard: false },
    ] {
        let bytes = emitted(message);
        (0..bytes.len()).for_each(|length| assert!(Message::parse(&bytes[..length]).is_err(), "{length} bytes"));
    }
}

#[test]
fn what_is_said_of_wrong_messages() {
    let refusal = |bytes: &[u8]| Message::parse(bytes).expect_err("it is not right").to_string();
    assert!(refusal(b"GET / HTTP/1.1").contains("begin with \"LHC\""));
    let version = refusal(b"LHC\x09");
    assert!(version.contains("version 1") && version.contains("version 9"), "{version}");
    assert!(refusal(b"LHC\x01").contains("kind of message"));
    assert!(refusal(b"LHC\x01\x00\x01\x00\x01\x63").contains("message 99 is not expected"));
    assert!(Message::Answer(answer()).unexpected().to_string().contains("message 2 is not expected"));
    assert!(refusal(&vec![b'L'; BYTES_MAX + 1]).contains("at most"));
    let with = |change: fn(&mut Hello<'_>)| {
        let mut hello = hello();
        change(&mut hello);
        refusal(&emitted(Message::Hello(hello)))
    };
    assert!(with(|hello| hello.paths = [][..].into()).contains("no path"));
    assert!(with(|hello| hello.channels = 0).contains("channels"));
    assert!(with(|hello| hello.chunk_bytes = Some(0)).contains("chunk bytes"));
    assert!(with(|hello| hello.message_bytes_max = 0).contains("longest message"));
    let long = "x".repeat(1000);
    let cut = emitted(Message::Hello(Hello { scheme: &long, ..hello() }));
    assert!(matches!(Message::parse(&cut), Ok(Message::Hello(hello)) if hello.scheme.len() == SCHEME_BYTES_MAX));
    let many = [PATHS[0]; PATHS_MAX + 1];
    let mut cut = emitted(Message::Hello(Hello { paths: many[..].into(), ..hello() }));
    assert!(matches!(Message::parse(&cut), Ok(Message::Hello(hello)) if hello.paths.iter().count() == PATHS_MAX));
    cut.extend(PATH_FIELD);
    assert!(refusal(&cut).ends_with("expected at most 64 of them, got 65"), "{}", refusal(&cut));
    let mut twice = emitted(Message::Hello(hello()));
    twice.extend(b"\x00\x08\x00\x02\x00\x02");
    assert_eq!(refusal(&twice), "the connection info has the field channels twice");
}

fn addresses() -> impl Strategy<Value = Option<(IpAddr, IpAddr)>> {
    prop::option::of((any::<IpAddr>(), any::<IpAddr>()))
}

fn some_paths() -> impl Strategy<Value = Vec<Path>> {
    prop::collection::vec((any::<[u8; 16]>(), any::<u16>()).prop_map(|(gid, udp_port)| Path { gid, udp_port }), 1..5)
}

proptest! {
    #[test]
    fn hellos_survive(
        capabilities: u64, mtu: u32, paths in some_paths(), scheme in "[a-zµ:,0-9]{0,60}",
        chunk_bytes in prop::option::of(1_u32..), message_bytes_max in 1_u64.., channels in 1_u16..,
        token: Option<[u8; 16]>, addresses in addresses(),
    ) {
        let (paths, scheme) = (paths[..].into(), &scheme[..]);
        let hello = Hello { capabilities, mtu, paths, scheme, chunk_bytes, message_bytes_max, channels, token, addresses };
        let bytes = emitted(Message::Hello(hello));
        prop_assert_eq!(Message::parse(&bytes), Ok(Message::Hello(hello)));
    }

    #[test]
    fn answers_survive(
        capabilities: u64, mtu: u32, paths in some_paths(), scheme in "[a-zµ:,0-9]{0,60}", chunk_bytes in 1_u32..,
        message_bytes_max in 1_u64.., channels in 1_u16.., queue_pair in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let (paths, scheme, queue_pair) = (paths[..].into(), &scheme[..], &queue_pair[..]);
        let answer = Answer { capabilities, mtu, paths, scheme, chunk_bytes, message_bytes_max, channels, queue_pair };
        let bytes = emitted(Message::Answer(answer));
        prop_assert_eq!(Message::parse(&bytes), Ok(Message::Answer(answer)));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), place in 0_usize..140, value: u8) {
        let _ = Message::parse(&bytes);
        for message in [Message::Hello(hello()), Message::Answer(answer())] {
            let mut changed = emitted(message);
            if let Some(byte) = changed.get_mut(place) {
                *byte = value;
            }
            let _ = Message::parse(&changed);
        }
    }
}

#[test]
fn the_document_is_true() {
    use crate::document::check_numbers;
    let tags = [
        (tag::KIND.0, "kind"),
        (tag::CAPABILITIES.0, "capabilities"),
        (tag::MTU.0, "mtu"),
        (tag::PATH.0, "path"),
        (tag::SCHEME.0, "scheme"),
        (tag::CHUNK_BYTES.0, "chunk_bytes"),
        (tag::MESSAGE_BYTES_MAX.0, "message_bytes_max"),
        (tag::CHANNELS.0, "channels"),
        (tag::TOKEN.0, "token"),
        (tag::LOCAL_ADDRESS.0, "local_address"),
        (tag::PEER_ADDRESS.0, "peer_address"),
        (tag::QUEUE_PAIR.0, "queue_pair"),
        (tag::REFUSAL.0, "refusal"),
        (tag::TEXT.0, "text"),
        (tag::HAS_HEARD.0, "has_heard"),
    ];
    check_numbers("Handshake", 0, &tags);
    let kinds = [
        (kind::HELLO, "hello"),
        (kind::ANSWER, "answer"),
        (kind::INFO, "info"),
        (kind::REFUSED, "refused"),
        (kind::PATH_REPORT, "path-report"),
    ];
    check_numbers("Kinds of handshake messages", 0, &kinds.map(|(kind, name)| (u16::from(kind), name)));
    let refusals = [
        (refusal::OTHER_SCHEME, "other-scheme"),
        (refusal::OTHER_CHUNKS, "other-chunks"),
        (refusal::WRONG_TOKEN, "wrong-token"),
        (refusal::NO_TOKEN, "no-token"),
        (Refusal::OTHER, "other"),
    ];
    check_numbers("Refusals", 0, &refusals.map(|(number, name)| (u16::from(number), name)));
}
