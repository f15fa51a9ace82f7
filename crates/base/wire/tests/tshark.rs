//! Wireshark's dissector reads what we write: at least one packet of every opcode over IPv4 and IPv6, and every syndrome.
//!
//! Our own dissector reads repair packets, and leaves everything else to Wireshark's.
//!
//! Without `tshark` the test says so and passes, except where `CI=true` promises that it is there.

use longhaul_wire::aeth::{self, NakCode, Syndrome};
use longhaul_wire::cm::{self, Message, PrivateData};
use longhaul_wire::mad;
use longhaul_wire::packet::{self, Headers, Packet};
use longhaul_wire::repair::{self, Subject};
use longhaul_wire::{
    Frame, IcrcScope, Opcode, Psn, UDP_PORT_ROCE, atomic_ack, atomic_eth, cnp, deth, ethernet, icrc, reth,
};
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use pcap_file::pcapng::{PcapNgBlock, PcapNgWriter};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One packet that we write, and what tshark is to say about it.
struct Sample {
    headers: Headers,
    payload: Vec<u8>,
}

fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    for (index, &opcode) in (0_u32..).zip(Opcode::ALL) {
        let mut headers = Headers::new(opcode, 0x12_3400 + index, Psn::new(0xff_fff0 + index));
        headers.bth.solicited_event = index % 2 == 1;
        headers.bth.ack_request = index % 3 == 1;
        headers.deth = opcode.has_deth().then_some(deth::Header::new(0x1111_1111, 0x65_4321));
        headers.reth = opcode.has_reth().then_some(reth::Header {
            virtual_address: 0x7fff_1234_5678_9abc,
            remote_key: 0x0102_0304,
            dma_length: 1001,
        });
        headers.atomic = opcode.has_atomic_eth().then_some(atomic_eth::Header {
            virtual_address: 0x7fff_1234_5678_9ab8,
            remote_key: 0x0102_0304,
            swap_or_add: 0x1111_2222_3333_4444,
            compare: 0x5555_6666_7777_8888,
        });
        headers.aeth = opcode
            .has_aeth()
            .then_some(aeth::Header { syndrome: Syndrome::ACK_WITHOUT_CREDITS, message_sequence_number: index });
        headers.atomic_ack = opcode.has_atomic_ack().then_some(atomic_ack::Header { original: 0x0123_4567_89ab_cdef });
        headers.immediate = opcode.has_immediate().then_some(0xdead_beef);
        headers.invalidate = opcode.has_invalidate().then_some(0x0a0b_0c0d);
        if opcode == Opcode::Cnp {
            headers = cnp::headers(0x12_3400 + index, 0xffff);
        }
        for payload in payloads(opcode) {
            samples.push(Sample { headers, payload });
        }
    }
    let syndromes = [
        Syndrome::Ack { credits: 0 },
        Syndrome::Ack { credits: 30 },
        Syndrome::RnrNak { timer: 0 },
        Syndrome::RnrNak { timer: 31 },
        Syndrome::Nak(NakCode::PsnSequenceError),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccessError),
        Syndrome::Nak(NakCode::RemoteOperationalError),
        Syndrome::Nak(NakCode::InvalidRdRequest),
    ];
    for syndrome in syndromes {
        let mut headers = Headers::new(Opcode::RcAcknowledge, 0x11, Psn::new(0));
        headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: 0xff_ffff });
        samples.push(Sample { headers, payload: Vec::new() });
    }
    samples
}

/// Every pad count where there is a payload at all.
fn payloads(opcode: Opcode) -> Vec<Vec<u8>> {
    use longhaul_wire::Operation::{CongestionNotification, ReadResponse, Send, Write};
    match opcode.operation() {
        Send | Write | ReadResponse => (256..260).map(|length| vec![0x5a; length]).collect(),
        CongestionNotification => vec![cnp::PAYLOAD.to_vec()],
        _ => vec![Vec::new()],
    }
}

/// Writes every sample over IPv4 and then over IPv6, and says which ICRC each has.
fn write_capture(path: &Path, samples: &[Sample]) -> Vec<u32> {
    let mut icrcs = Vec::new();
    write_datagrams(path, UDP_PORT_ROCE, |scope| {
        let datagrams = samples.iter().map(|sample| {
            let mut datagram = vec![0xa5; 1000];
            let length = packet::write_datagram(&sample.headers, &sample.payload, scope, &mut datagram).unwrap();
            datagram.truncate(length);
            icrcs.push(Packet::parse(&datagram).unwrap().icrc);
            datagram
        });
        datagrams.collect()
    });
    icrcs
}

/// Writes datagrams over IPv4 and then over IPv6.
fn write_datagrams(path: &Path, port: u16, mut datagrams: impl FnMut(&IcrcScope) -> Vec<Vec<u8>>) {
    let mut writer = PcapNgWriter::new(std::fs::File::create(path).unwrap()).unwrap();
    writer.write_block(&InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0xffff).into_block()).unwrap();
    let ends = [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")];
    for (source, destination) in ends {
        let end = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
        let (source, destination) = (end(source, 0xc001), end(destination, port));
        let scope = IcrcScope::between(source, destination).unwrap();
        for datagram in datagrams(&scope) {
            let frame = Frame::new(source, destination, &datagram).unwrap();
            let ether_type = if source.is_ipv4() { ethernet::ETHER_TYPE_IPV4 } else { ethernet::ETHER_TYPE_IPV6 };
            let mut bytes = [0xa5; 1100];
            ethernet::Header { destination: [2; 6], source: [4; 6], ether_type }
                .emit(&mut ethernet::Ethernet::new_checked(&mut bytes[..]).unwrap());
            let length = ethernet::HEADER_BYTES + frame.emit(&mut bytes[ethernet::HEADER_BYTES..]).unwrap();
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_secs(1),
                original_len: length as u32,
                data: Cow::Borrowed(&bytes[..length]),
                options: Vec::new(),
            };
            writer.write_block(&block.into_block()).unwrap();
        }
    }
}

/// What Wireshark calls an opcode.
fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::RcSendFirst => "RC Send First",
        Opcode::RcSendMiddle => "RC Send Middle",
        Opcode::RcSendLast => "RC Send Last",
        Opcode::RcSendLastWithImmediate => "RC Send Last Immediate",
        Opcode::RcSendOnly => "RC Send Only",
        Opcode::RcSendOnlyWithImmediate => "RC Send Only Immediate",
        Opcode::RcWriteFirst => "RC RDMA Write First",
        Opcode::RcWriteMiddle => "RC RDMA Write Middle",
        Opcode::RcWriteLast => "RC RDMA Write Last",
        Opcode::RcWriteLastWithImmediate => "RC RDMA Write Last Immediate",
        Opcode::RcWriteOnly => "RC RDMA Write Only",
        Opcode::RcWriteOnlyWithImmediate => "RC RDMA Write Only Immediate",
        Opcode::RcReadRequest => "RC RDMA Read Request",
        Opcode::RcReadResponseFirst => "RC RDMA Read Response First",
        Opcode::RcReadResponseMiddle => "RC RDMA Read Response Middle",
        Opcode::RcReadResponseLast => "RC RDMA Read Response Last",
        Opcode::RcReadResponseOnly => "RC RDMA Read Response Only",
        Opcode::RcAcknowledge => "RC Acknowledge",
        Opcode::RcAtomicAcknowledge => "RC Atomic Acknowledge",
        Opcode::RcCompareSwap => "RC Compare Swap",
        Opcode::RcFetchAdd => "RC Fetch Add",
        Opcode::RcSendLastWithInvalidate => "RC Send Last Invalidate",
        Opcode::RcSendOnlyWithInvalidate => "RC Send Only Invalidate",
        Opcode::UcSendFirst => "UC Send First",
        Opcode::UcSendMiddle => "UC Send Middle",
        Opcode::UcSendLast => "UC Send Last",
        Opcode::UcSendLastWithImmediate => "UC Send Last Immediate",
        Opcode::UcSendOnly => "UC Send Only",
        Opcode::UcSendOnlyWithImmediate => "UC Send Only Immediate",
        Opcode::UcWriteFirst => "UC RDMA Write First",
        Opcode::UcWriteMiddle => "UC RDMA Write Middle",
        Opcode::UcWriteLast => "UC RDMA Write Last",
        Opcode::UcWriteLastWithImmediate => "UC RDMA Write Last Immediate",
        Opcode::UcWriteOnly => "UC RDMA Write Only",
        Opcode::UcWriteOnlyWithImmediate => "UC RDMA Write Only Immediate",
        Opcode::UdSendOnly => "UD Send Only",
        Opcode::UdSendOnlyWithImmediate => "UD Send Only Immediate",
        Opcode::Cnp => "CNP",
        other => panic!("{other:?} needs a name here"),
    }
}

const FIELDS: [&str; 24] = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "_ws.malformed",
    "_ws.col.Info",
];

fn temporary_folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tshark");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// tshark's answer, or `None` when it is not installed. Dissectors of other protocols, which look at payloads and guess, are off.
fn tshark(capture: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args(["--disable-protocol", "rpcordma", "--disable-protocol", "lnet"]);
    match command.args(arguments).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8(output.stdout).unwrap())
        }
        Err(error) if std::env::var("CI").is_ok_and(|value| value == "true") => {
            panic!("tshark cannot be run ({error}), and CI=true says that it must be: apt-get install tshark")
        }
        Err(error) => {
            println!("SKIPPED: tshark cannot be run ({error}); apt-get install tshark");
            None
        }
    }
}

/// A field as tshark prints it, in whichever of its styles; `None` when the packet does not have it.
fn number(text: &str) -> Option<u64> {
    // Fields that are listed twice (once as a header, once as its only field) are joined by a comma.
    match text.split(',').next().unwrap_or_default() {
        "" => None,
        "True" => Some(1),
        "False" => Some(0),
        text if text.starts_with("0x") => u64::from_str_radix(&text[2..], 16).ok(),
        text => text.parse().ok(),
    }
}

/// A field that is shown as bytes.
fn bytes(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.split(',').next()?.replace(':', ""), 16).ok()
}

#[test]
fn wireshark_reads_what_we_write() {
    let samples = samples();
    let capture = temporary_folder().join("every-opcode.pcapng");
    let icrcs = write_capture(&capture, &samples);

    let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
    FIELDS.iter().for_each(|field| arguments.extend(["-e", field]));
    let Some(output) = tshark(&capture, &arguments) else {
        return;
    };
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2 * samples.len());
    for ((line, sample), icrc) in lines.iter().zip(samples.iter().chain(&samples)).zip(icrcs) {
        check(line, &sample.headers, packet::pad_count(sample.payload.len()), icrc);
    }
}

fn check(line: &str, headers: &Headers, pad_count: u8, icrc: u32) {
    let fields: Vec<&str> = line.split('|').collect();
    let [numbers @ .., immediate, invalidate, shown_icrc, malformed, info] = &fields[..] else { panic!("{line}") };
    let Headers { bth, deth, reth, atomic, aeth, atomic_ack, .. } = *headers;
    let address = reth.map(|reth| reth.virtual_address).or(atomic.map(|atomic| atomic.virtual_address));
    let remote_key = reth.map(|reth| reth.remote_key).or(atomic.map(|atomic| atomic.remote_key));
    let expected = [
        Some(u64::from(bth.opcode.byte())),
        Some(u64::from(bth.solicited_event)),
        Some(u64::from(bth.migration)),
        Some(u64::from(pad_count)),
        Some(0),
        Some(u64::from(bth.partition_key)),
        Some(u64::from(bth.destination_qp)),
        Some(u64::from(bth.ack_request)),
        Some(u64::from(bth.psn.value())),
        deth.map(|deth| u64::from(deth.queue_key)),
        deth.map(|deth| u64::from(deth.source_qp)),
        address,
        remote_key.map(u64::from),
        reth.map(|reth| u64::from(reth.dma_length)),
        atomic.map(|atomic| atomic.swap_or_add),
        atomic.map(|atomic| atomic.compare),
        aeth.map(|aeth| u64::from(aeth.syndrome.byte())),
        aeth.map(|aeth| u64::from(aeth.message_sequence_number)),
        atomic_ack.map(|atomic_ack| atomic_ack.original),
    ];
    for ((field, text), expected) in FIELDS.iter().zip(numbers).zip(expected) {
        assert_eq!(number(text), expected, "{field} of {line}");
    }
    assert_eq!(bytes(immediate), headers.immediate.map(u64::from), "{line}");
    assert_eq!(bytes(invalidate), headers.invalidate.map(u64::from), "{line}");
    assert_eq!(*malformed, "", "{line}");
    if bth.opcode == Opcode::Cnp && info.starts_with("Unknown OpCode") {
        return; // Wireshark up to 4.0 reads the BTH of these packets and no further.
    }
    // The four bytes as they are on the wire.
    assert_eq!(number(shown_icrc), Some(u64::from(icrc.swap_bytes())), "{line}");
    let rest = info.strip_prefix(name(bth.opcode));
    let rest = rest.unwrap_or_else(|| panic!("expected {}, and found {info}", name(bth.opcode)));
    assert!(rest.trim_start().starts_with("QP="), "expected {}, and found {info}", name(bth.opcode));
    if let Some(aeth) = aeth {
        let complaint = match aeth.syndrome {
            Syndrome::Nak(NakCode::PsnSequenceError) => "[PSN Sequence Error]",
            Syndrome::Nak(NakCode::InvalidRequest) => "[Invalid Request]",
            Syndrome::Nak(NakCode::RemoteAccessError) => "[Remote Access Error]",
            Syndrome::Nak(NakCode::RemoteOperationalError) => "[Remote Operational Error]",
            Syndrome::Nak(NakCode::InvalidRdRequest) => "[Invalid RD Request]",
            _ => "",
        };
        assert!(info.trim_end().ends_with(complaint), "expected {complaint}, and found {info}");
    }
}

/// A repair packet, an announcement with a tag, a report, a header that is none, and a packet of RoCEv2.
fn repair_datagrams(scope: &IcrcScope) -> Vec<Vec<u8>> {
    let subject = Subject { queue_pair: 0x12_3456, is_responses: true };
    let header = repair::Header {
        subject,
        is_announcement: false,
        base_psn: Psn::new(0xff_fffe),
        epoch: 258,
        is_mds: true,
        block_packets: 32,
        repair_packets: 8,
        count: 7,
        index: 6,
        has_first: true,
        has_last: true,
        last_length: 836,
        is_copy: false,
        has_tag: false,
        digest: 0xdead_beef,
    };
    let announcement = repair::Header { is_announcement: true, index: 0, has_tag: true, is_mds: false, ..header };
    let bursts = [1, 2, 3, 4, 5, 6, 7, 8];
    let report = repair::Report {
        subject: Subject { is_responses: false, ..subject },
        next_psn: Psn::new(77),
        epoch: 3,
        has_tag: false,
        received: 1_000_000,
        lost: 1000,
        restored: 998,
        bursts,
    };
    let mut datagrams = vec![vec![0x5a; 24 + 100 + 4], vec![0x5b; 24 + 8 + 4], vec![0; 40 + 4], vec![0x1f; 40]];
    header.emit(&mut datagrams[0]);
    announcement.emit(&mut datagrams[1]);
    report.emit(&mut datagrams[2]);
    datagrams.iter_mut().for_each(|datagram| icrc::write(scope, datagram));
    let mut data = vec![0; 1000];
    let headers = Headers::new(Opcode::RcSendOnly, 0x12, Psn::new(1));
    let length = packet::write_datagram(&headers, &[7; 64], scope, &mut data).unwrap();
    data.truncate(length);
    datagrams.push(data);
    datagrams
}

#[test]
fn our_dissector_reads_repair_packets() {
    let script = concat!("lua_script:", env!("CARGO_MANIFEST_DIR"), "/../../../docs/wireshark/longhaul.lua");
    // At RoCE's own port, and at one that a software RNIC may have.
    for port in [UDP_PORT_ROCE, 40_000] {
        let capture = temporary_folder().join(format!("repair-{port}.pcapng"));
        write_datagrams(&capture, port, repair_datagrams);
        let fields = [
            "type",
            "queue_pair",
            "base_psn",
            "responses",
            "has_first",
            "has_last",
            "is_mds",
            "has_tag",
            "epoch",
            "block_packets",
            "repair_packets",
            "count",
            "index",
            "last_length",
            "digest",
            "received",
            "lost",
            "restored",
            "bursts",
        ];
        let names = fields.map(|field| format!("longhaul_repair.{field}"));
        let mut arguments = vec!["-X", script, "-T", "fields", "-E", "separator=|", "-e", "_ws.col.Info"];
        names.iter().for_each(|name| arguments.extend(["-e", name]));
        arguments.extend(["-e", "_ws.malformed", "-e", "longhaul_repair.malformed", "-e", "_ws.lua.error"]);
        let Some(output) = tshark(&capture, &arguments) else {
            return;
        };
        let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split('|').collect()).collect();
        assert_eq!(lines.len(), 10, "{output}");
        for lines in lines.chunks(5) {
            let numbers = |line: usize| lines[line][1..19].iter().map(|text| number(text)).collect::<Vec<_>>();
            let block = |kind, is_mds, has_tag, index| {
                [kind, 0x12_3456, 0xff_fffe, 1, 1, 1, is_mds, has_tag, 258, 32, 8, 7, index, 836, 0xdead_beef].map(Some)
            };
            let none = [None; 3];
            assert_eq!(lines[0][0], "Repair 6: QP=0x123456 responses PSN=16777214, mds:32,8, 7 packets");
            assert_eq!(numbers(0), [&block(1, 1, 0, 6)[..], &none].concat());
            assert_eq!(lines[1][0], "Repair announcement: QP=0x123456 responses PSN=16777214, xor:32,8, 7 packets");
            assert_eq!(numbers(1), [&block(2, 0, 1, 0)[..], &none].concat());
            assert_eq!(lines[2][0], "Repair report: QP=0x123456 requests PSN=77, 1000 lost, 998 restored");
            assert_eq!(numbers(2)[15..], [Some(1_000_000), Some(1000), Some(998)]);
            assert_eq!(lines[2][19].replace(':', ""), "00010002000300040005000600070008");
            if port == UDP_PORT_ROCE {
                assert_eq!(lines[3][0], "Repair packet, malformed");
                assert_ne!(lines[3][21], "", "{output}");
            }
            assert!(lines[4][0].starts_with("RC Send Only"), "{output}");
            for line in [0, 1, 2, 4] {
                assert_eq!(lines[line][20..], ["", "", ""], "{output}");
            }
        }
    }
}

/// One message of every kind, each of whose fields has a value of its own.
fn messages() -> Vec<Message> {
    let path = cm::PathFields {
        local_lid: 0xffff,
        remote_lid: 0xfffe,
        local_gid: [1; 16],
        remote_gid: [2; 16],
        flow_label: 0xf_1234,
        rate: 0x25,
        traffic_class: 0x68,
        hop_limit: 64,
        service_level: 5,
        is_subnet_local: true,
        acknowledgement_timeout: 19,
    };
    let (local_id, remote_id) = (0x0102_0304, 0x1112_1314);
    vec![
        Message::Request(cm::Request {
            local_id,
            service: 0x0106_1c06,
            adapter_guid: 0x0200_1122_3344_5566,
            queue_key: 0x0a0b_0c0d,
            queue_pair: 0x12_3456,
            responder_resources: 7,
            initiator_depth: 9,
            remote_response_timeout: 20,
            transport: cm::request::TRANSPORT_UC,
            flow_control: true,
            first_psn: 0xab_cdef,
            local_response_timeout: 21,
            retry_count: 6,
            partition_key: 0xffff,
            path_mtu: 5,
            rnr_retry_count: 3,
            cm_retries_max: 14,
            has_shared_receive_queue: true,
            primary: path,
            alternate: cm::PathFields { service_level: 9, ..path },
            private_data: PrivateData::new(&[0x5a; 92]).unwrap(),
        }),
        Message::Received(cm::Received { local_id, remote_id, answered: 1, service_timeout: 24, ..Default::default() }),
        Message::Reject(cm::Reject { local_id, remote_id, answered: 2, reason: 28, ..Default::default() }),
        Message::Reply(cm::Reply {
            local_id,
            remote_id,
            queue_key: 0x0a0b_0c0d,
            queue_pair: 0x12_3456,
            first_psn: 0xab_cdef,
            responder_resources: 7,
            initiator_depth: 9,
            acknowledgement_delay: 15,
            failover: 1,
            flow_control: true,
            rnr_retry_count: 3,
            has_shared_receive_queue: true,
            adapter_guid: 0x0200_1122_3344_5566,
            private_data: PrivateData::new(&[0x5a; 196]).unwrap(),
        }),
        Message::Ready(cm::Ready { local_id, remote_id, ..Default::default() }),
        Message::Disconnect(cm::Disconnect { local_id, remote_id, remote_queue_pair: 0x12_3456, ..Default::default() }),
        Message::DisconnectReply(cm::DisconnectReply { local_id, remote_id, ..Default::default() }),
        Message::ServiceRequest(cm::ServiceRequest {
            request_id: local_id,
            partition_key: 0xffff,
            service: 0x0111_1c06,
            ..Default::default()
        }),
        Message::ServiceReply(cm::ServiceReply {
            request_id: local_id,
            queue_pair: 0x12_3456,
            service: 0x0111_1c06,
            queue_key: 0x0a0b_0c0d,
            ..Default::default()
        }),
    ]
}

#[test]
fn wireshark_reads_our_connection_management() {
    let messages = messages();
    let capture = temporary_folder().join("connection-management.pcapng");
    write_datagrams(&capture, UDP_PORT_ROCE, |scope| {
        let datagrams = messages.iter().map(|message| {
            let mut headers = Headers::new(Opcode::UdSendOnly, mad::QUEUE_PAIR_GENERAL, Psn::new(0));
            headers.deth = Some(deth::Header::new(mad::QUEUE_KEY_GENERAL, mad::QUEUE_PAIR_GENERAL));
            let mut datagram = vec![0; 1024];
            let length = packet::write_datagram(&headers, &message.emit(7), scope, &mut datagram).unwrap();
            datagram.truncate(length);
            datagram
        });
        datagrams.collect()
    });
    // Not the word with flow label and rate: Wireshark 4.0 takes 12 bits for the first of them, which has 20. Linux's bytes hold
    // that word (`cm/request.rs`).
    let expected_of_request: [(&str, u64); 23] = [
        ("infiniband.cm.req", 0x0102_0304),
        ("infiniband.cm.req.serviceid.dport", 7174),
        ("infiniband.cm.req.localqkey", 0x0a0b_0c0d),
        ("infiniband.cm.req.localqpn", 0x12_3456),
        ("infiniband.cm.req.responderres", 7),
        ("infiniband.cm.req.initdepth", 9),
        ("infiniband.cm.req.remoteresptout", 20),
        ("infiniband.cm.req.transpsvctype", 1),
        ("infiniband.cm.req.e2eflowctrl", 1),
        ("infiniband.cm.req.startpsn", 0xab_cdef),
        ("infiniband.cm.req.localresptout", 21),
        ("infiniband.cm.req.retrcount", 6),
        ("infiniband.cm.req.pkey", 0xffff),
        ("infiniband.cm.req.pppmtu", 5),
        ("infiniband.cm.req.rnrretrcount", 3),
        ("infiniband.cm.req.maxcmretr", 14),
        ("infiniband.cm.req.srq", 1),
        ("infiniband.cm.req.prim_tfcclass", 0x68),
        ("infiniband.cm.req.prim_hoplim", 64),
        ("infiniband.cm.req.prim_sl", 5),
        ("infiniband.cm.req.prim_subnetlocal", 1),
        ("infiniband.cm.req.prim_localacktout", 19),
        ("infiniband.cm.req.alt_sl", 9),
    ];
    let expected_of_reply: [(&str, u64); 12] = [
        ("infiniband.cm.rep", 0x0102_0304),
        ("infiniband.cm.rep.remotecommid", 0x1112_1314),
        ("infiniband.cm.rep.localqkey", 0x0a0b_0c0d),
        ("infiniband.cm.rep.localqpn", 0x12_3456),
        ("infiniband.cm.rep.startpsn", 0xab_cdef),
        ("infiniband.cm.rep.respres", 7),
        ("infiniband.cm.rep.initdepth", 9),
        ("infiniband.cm.rep.tgtackdelay", 15),
        ("infiniband.cm.rep.failoveracc", 1),
        ("infiniband.cm.rep.e2eflowctrl", 1),
        ("infiniband.cm.rep.rnrretrcount", 3),
        ("infiniband.cm.rep.srq", 1),
    ];
    let others: [(usize, &str, u64); 9] = [
        (2, "infiniband.cm.rej.localcommid", 0x0102_0304),
        (2, "infiniband.cm.rej.remotecommid", 0x1112_1314),
        (2, "infiniband.cm.rej.msgrej", 2),
        (2, "infiniband.cm.rej.reason", 28),
        (4, "infiniband.cm.rtu.localcommid", 0x0102_0304),
        (4, "infiniband.cm.rtu.remotecommid", 0x1112_1314),
        (5, "infiniband.cm.dreq.localcommid", 0x0102_0304),
        (5, "infiniband.cm.req.remoteqpneecn", 0x12_3456),
        (6, "infiniband.cm.drsp.remotecommid", 0x1112_1314),
    ];
    let request = expected_of_request.into_iter().map(|(field, value)| (0, field, value));
    let reply = expected_of_reply.into_iter().map(|(field, value)| (3, field, value));
    let expected: Vec<(usize, &str, u64)> = request.chain(reply).chain(others).collect();

    let mut arguments = vec!["-T", "fields", "-E", "separator=|", "-e", "infiniband.mad.attributeid", "-e"];
    arguments.push("infiniband.mad.transactionid");
    expected.iter().for_each(|(_, field, _)| arguments.extend(["-e", field]));
    arguments.extend(["-e", "_ws.malformed"]);
    let Some(output) = tshark(&capture, &arguments) else {
        return;
    };
    let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split('|').collect()).collect();
    assert_eq!(lines.len(), 2 * messages.len());
    for (index, line) in lines.iter().enumerate() {
        let message = &messages[index % messages.len()];
        assert_eq!(number(line[0]), Some(message.kind() as u64), "{message:?}");
        assert_eq!(number(line[1]), Some(7), "{message:?}");
        assert_eq!(line.last(), Some(&""), "{message:?}");
    }
    for (column, (message, field, value)) in expected.into_iter().enumerate() {
        for line in [&lines[message], &lines[message + messages.len()]] {
            assert_eq!(number(line[column + 2]), Some(value), "{field}: {}", line[column + 2]);
        }
    }
}
