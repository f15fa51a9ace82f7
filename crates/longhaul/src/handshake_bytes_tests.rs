//! The handshake's messages, byte by byte.

use proptest::prelude::*;

use super::*;

fn path() -> PathInfo {
    PathInfo { gid: Gid::from_ip("192.0.2.1".parse().expect("an address")), udp_port: 4791 }
}

fn hello() -> Hello {
    Hello {
        capabilities: 0x0102_0304_0506_0708,
        mtu: Mtu::Bytes4096,
        paths: vec![path()],
        scheme: "sr:nack".to_owned(),
        chunk_bytes: Some(65_536),
        message_bytes_max: 1 << 30,
        channels: 2,
        token: Some(*b"0123456789abcdef"),
        addresses: Some(("192.0.2.1".parse().expect("an address"), "192.0.2.2".parse().expect("an address"))),
    }
}

fn answer() -> Answer {
    Answer {
        capabilities: 1,
        mtu: Mtu::Bytes1024,
        paths: vec![path()],
        scheme: "sr:rto".to_owned(),
        chunk_bytes: 65_536,
        message_bytes_max: 1 << 28,
        channels: 1,
        queue_pair: b"SDR...".to_vec(),
    }
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
    assert_eq!(hello().to_bytes(), expected);
    assert_eq!(Hello::from_bytes(&expected), Ok(hello()));
    // What a later version adds is skipped.
    expected.extend([0x12, 0x34, 0, 2, 1, 2]);
    assert_eq!(Hello::from_bytes(&expected), Ok(hello()));
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
    let reply = Reply::Answer(answer());
    assert_eq!(reply.to_bytes(), expected);
    assert_eq!(Reply::from_bytes(&expected), Ok(reply));

    let mut expected = b"LHC\x01\x00\x01\x00\x01\x03".to_vec();
    expected.extend(PATH_FIELD);
    expected.extend(b"\x00\x0c\x00\x06SDR...");
    let info = Info { paths: vec![path()], queue_pair: b"SDR...".to_vec() };
    assert_eq!(info.to_bytes(), expected);
    assert_eq!(Info::from_bytes(&expected), Ok(info));
}

#[test]
fn golden_bytes_of_refusals() {
    let cases: [(Refusal, &[u8]); 4] = [
        (Refusal::OtherScheme { theirs: "sr:rto".to_owned() }, b"\x00\x0d\x00\x01\x01\x00\x05\x00\x06sr:rto"),
        (Refusal::OtherChunks { theirs: 4096 }, b"\x00\x0d\x00\x01\x02\x00\x06\x00\x04\x00\x00\x10\x00"),
        (Refusal::WrongToken, b"\x00\x0d\x00\x01\x03"),
        (Refusal::Other("no".to_owned()), b"\x00\x0d\x00\x01\xff\x00\x0e\x00\x02no"),
    ];
    for (refusal, fields) in cases {
        let expected = [b"LHC\x01\x00\x01\x00\x01\x04".as_slice(), fields].concat();
        let reply = Reply::Refused(refusal);
        assert_eq!(reply.to_bytes(), expected);
        assert_eq!(Reply::from_bytes(&expected), Ok(reply));
    }
    let later = b"LHC\x01\x00\x01\x00\x01\x04\x00\x0d\x00\x01\x63";
    let told = Reply::Refused(Refusal::Other("for a reason numbered 99".to_owned()));
    assert_eq!(Reply::from_bytes(later), Ok(told), "a reason of a later version");
}

#[test]
fn no_message_can_be_cut_off() {
    let hello = hello().to_bytes();
    // Its last fields need not be there: both addresses, the token.
    let optional = [hello.len() - 8, hello.len() - 16, hello.len() - 36];
    for length in 0..hello.len() {
        assert_eq!(Hello::from_bytes(&hello[..length]).is_ok(), optional.contains(&length), "{length} bytes");
    }
    let answer = Reply::Answer(answer()).to_bytes();
    let info = Info { paths: vec![path()], queue_pair: vec![1] }.to_bytes();
    let refusal = Reply::Refused(Refusal::OtherChunks { theirs: 1 }).to_bytes();
    (0..answer.len()).for_each(|length| assert!(Reply::from_bytes(&answer[..length]).is_err(), "{length} bytes"));
    (0..info.len()).for_each(|length| assert!(Info::from_bytes(&info[..length]).is_err(), "{length} bytes"));
    (0..refusal.len()).for_each(|length| assert!(Reply::from_bytes(&refusal[..length]).is_err(), "{length} bytes"));
}

#[test]
fn what_is_said_of_wrong_messages() {
    let refusal = |bytes: &[u8]| Hello::from_bytes(bytes).expect_err("it is not right").to_string();
    assert!(refusal(b"GET / HTTP/1.1").contains("begin with \"LHC\""));
    let version = refusal(b"LHC\x09");
    assert!(version.contains("version 1") && version.contains("version 9"), "{version}");
    assert!(refusal(b"LHC\x01").contains("kind of message"));
    assert!(refusal(&Reply::Answer(answer()).to_bytes()).contains("expected one of [1], came 2"));
    assert!(refusal(&vec![b'L'; BYTES_MAX + 1]).contains("at most"));
    let with = |change: fn(&mut Hello)| {
        let mut hello = hello();
        change(&mut hello);
        refusal(&hello.to_bytes())
    };
    assert!(with(|hello| hello.paths.clear()).contains("no path"));
    assert!(with(|hello| hello.channels = 0).contains("channels"));
    assert!(with(|hello| hello.chunk_bytes = Some(0)).contains("chunk bytes"));
    assert!(with(|hello| hello.message_bytes_max = 0).contains("longest message"));
    let long = Hello { scheme: "x".repeat(1000), ..hello() };
    assert_eq!(Hello::from_bytes(&long.to_bytes()).expect("it is cut").scheme.len(), SCHEME_BYTES_MAX);
    let mut twice = hello().to_bytes();
    twice.extend(b"\x00\x08\x00\x02\x00\x02");
    assert_eq!(refusal(&twice), "the connection info has the field channels twice");
}

fn addresses() -> impl Strategy<Value = Option<(IpAddr, IpAddr)>> {
    prop::option::of((any::<IpAddr>(), any::<IpAddr>()))
}

fn mtus() -> impl Strategy<Value = Mtu> {
    prop::sample::select(Mtu::ALL.to_vec())
}

fn some_paths() -> impl Strategy<Value = Vec<PathInfo>> {
    prop::collection::vec(
        (any::<[u8; 16]>(), any::<u16>()).prop_map(|(gid, udp_port)| PathInfo { gid: Gid(gid), udp_port }),
        1..5,
    )
}

proptest! {
    #[test]
    fn hellos_survive(
        capabilities: u64, mtu in mtus(), paths in some_paths(), scheme in "[a-zµ:,0-9]{0,60}",
        chunk_bytes in prop::option::of(1_u32..), message_bytes_max in 1_u64.., channels in 1_u16..,
        token: Option<[u8; 16]>, addresses in addresses(),
    ) {
        let hello = Hello { capabilities, mtu, paths, scheme, chunk_bytes, message_bytes_max, channels, token, addresses };
        prop_assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
    }

    #[test]
    fn answers_survive(
        capabilities: u64, mtu in mtus(), paths in some_paths(), scheme in "[a-zµ:,0-9]{0,60}", chunk_bytes in 1_u32..,
        message_bytes_max in 1_u64.., channels in 1_u16.., queue_pair in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let reply = Reply::Answer(Answer { capabilities, mtu, paths, scheme, chunk_bytes, message_bytes_max, channels, queue_pair });
        prop_assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), place in 0_usize..140, value: u8) {
        let _ = (Hello::from_bytes(&bytes), Reply::from_bytes(&bytes), Info::from_bytes(&bytes));
        for message in [hello().to_bytes(), Reply::Answer(answer()).to_bytes()] {
            let mut changed = message;
            if let Some(byte) = changed.get_mut(place) {
                *byte = value;
            }
            let _ = (Hello::from_bytes(&changed), Reply::from_bytes(&changed), Info::from_bytes(&changed));
        }
    }
}

#[test]
fn the_document_is_true() {
    use longhaul_wire::document::check_numbers;
    let tags = [
        (tag::KIND, "kind"),
        (tag::CAPABILITIES, "capabilities"),
        (tag::MTU, "mtu"),
        (tag::PATH, "path"),
        (tag::SCHEME, "scheme"),
        (tag::CHUNK_BYTES, "chunk_bytes"),
        (tag::MESSAGE_BYTES_MAX, "message_bytes_max"),
        (tag::CHANNELS, "channels"),
        (tag::TOKEN, "token"),
        (tag::LOCAL_ADDRESS, "local_address"),
        (tag::PEER_ADDRESS, "peer_address"),
        (tag::QUEUE_PAIR, "queue_pair"),
        (tag::REFUSAL, "refusal"),
        (tag::TEXT, "text"),
        (tag::HAS_HEARD, "has_heard"),
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
        (refusal::OTHER, "other"),
    ];
    check_numbers("Refusals", 0, &refusals.map(|(number, name)| (u16::from(number), name)));
}
