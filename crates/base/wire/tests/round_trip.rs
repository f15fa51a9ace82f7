//! Properties: values survive the wire, bytes survive the values, and nothing panics on any bytes.

use longhaul_wire::aeth::{self, Syndrome};
use longhaul_wire::packet::{self, Headers, Packet};
use longhaul_wire::{
    Frame, IcrcScope, IpHeader, Opcode, Psn, atomic_ack, atomic_eth, bth, deth, ethernet, fuzzing, icrc, immediate,
    invalidate, ipv4, ipv6, reth, udp,
};
use proptest::collection::vec;
use proptest::prelude::*;

const MASK_24: u32 = 0xff_ffff;

fn bth_header() -> impl Strategy<Value = bth::Header> {
    let opcode = proptest::sample::select(Opcode::ALL);
    let bits = any::<[bool; 5]>();
    let numbers = (any::<u16>(), 0..=MASK_24, 0..=MASK_24, 0..4_u8, 0..64_u8, 0..128_u8);
    (opcode, bits, numbers).prop_map(|(opcode, bits, numbers)| {
        let [solicited_event, migration, forward_ecn, backward_ecn, ack_request] = bits;
        let (partition_key, destination_qp, psn, pad_count, reserved_congestion, reserved_ack_request) = numbers;
        bth::Header {
            opcode,
            solicited_event,
            migration,
            pad_count,
            version: 0,
            partition_key,
            forward_ecn,
            backward_ecn,
            destination_qp,
            ack_request,
            psn: Psn::new(psn),
            reserved_congestion,
            reserved_ack_request,
        }
    })
}

prop_compose! {
    fn deth_header()(queue_key: u32, source_qp in 0..=MASK_24, reserved: u8) -> deth::Header {
        deth::Header { queue_key, source_qp, reserved }
    }
}

prop_compose! {
    fn reth_header()(virtual_address: u64, remote_key: u32, dma_length: u32) -> reth::Header {
        reth::Header { virtual_address, remote_key, dma_length }
    }
}

prop_compose! {
    fn atomic_header()(virtual_address: u64, remote_key: u32, swap_or_add: u64, compare: u64) -> atomic_eth::Header {
        atomic_eth::Header { virtual_address, remote_key, swap_or_add, compare }
    }
}

prop_compose! {
    fn aeth_header()(syndrome: u8, message_sequence_number in 0..=MASK_24) -> aeth::Header {
        aeth::Header { syndrome: Syndrome::from_byte(syndrome), message_sequence_number }
    }
}

prop_compose! {
    fn headers()(
        bth in bth_header(),
        deth in deth_header(),
        reth in reth_header(),
        atomic in atomic_header(),
        aeth in aeth_header(),
        original: u64,
        immediate: u32,
        invalidate: u32,
    ) -> Headers {
        let opcode = bth.opcode;
        Headers {
            bth,
            deth: opcode.has_deth().then_some(deth),
            reth: opcode.has_reth().then_some(reth),
            atomic: opcode.has_atomic_eth().then_some(atomic),
            aeth: opcode.has_aeth().then_some(aeth),
            atomic_ack: opcode.has_atomic_ack().then_some(atomic_ack::Header { original }),
            immediate: opcode.has_immediate().then_some(immediate),
            invalidate: opcode.has_invalidate().then_some(invalidate),
        }
    }
}

prop_compose! {
    fn ipv4_header()(
        type_of_service: u8, total_length: u16, identification: u16, flags_fragment: u16, time_to_live: u8,
        protocol: u8, checksum: u16, source: u32, destination: u32,
    ) -> ipv4::Header {
        ipv4::Header {
            type_of_service, total_length, identification, flags_fragment, time_to_live, protocol, checksum,
            source: source.into(), destination: destination.into(),
        }
    }
}

prop_compose! {
    fn ipv6_header()(
        traffic_class: u8, flow_label in 0..1_u32 << 20, payload_length: u16, next_header: u8, hop_limit: u8,
        source: u128, destination: u128,
    ) -> ipv6::Header {
        ipv6::Header {
            traffic_class, flow_label, payload_length, next_header, hop_limit,
            source: source.into(), destination: destination.into(),
        }
    }
}

prop_compose! {
    fn udp_header()(source_port: u16, destination_port: u16, length: u16, checksum: u16) -> udp::Header {
        udp::Header { source_port, destination_port, length, checksum }
    }
}

fn scope() -> impl Strategy<Value = IcrcScope> {
    let version_4 = (any::<[u32; 2]>(), any::<[u16; 4]>()).prop_map(|(addresses, numbers)| IcrcScope::V4 {
        source: addresses[0].into(),
        destination: addresses[1].into(),
        identification: numbers[0],
        flags_fragment: numbers[1],
        source_port: numbers[2],
        destination_port: numbers[3],
    });
    let version_6 = (any::<[u128; 2]>(), any::<[u16; 2]>()).prop_map(|(addresses, ports)| IcrcScope::V6 {
        source: addresses[0].into(),
        destination: addresses[1].into(),
        source_port: ports[0],
        destination_port: ports[1],
    });
    prop_oneof![version_4, version_6]
}

/// A test that a header's value survives: `(name, module, view, strategy)`.
macro_rules! header_round_trips {
    ($($name:ident: $module:ident::$view:ident, $strategy:expr;)*) => {
        proptest! {
            $(#[test]
            fn $name(header in $strategy) {
                let mut buffer = [0xa5; $module::HEADER_BYTES];
                header.emit(&mut $module::$view::new_checked(&mut buffer).unwrap());
                let view = $module::$view::new_checked(&buffer).unwrap();
                prop_assert_eq!($module::Header::parse(&view), header);
            })*
        }
    };
}

header_round_trips! {
    deth_survives: deth::Deth, deth_header();
    reth_survives: reth::Reth, reth_header();
    atomic_eth_survives: atomic_eth::AtomicEth, atomic_header();
    aeth_survives: aeth::Aeth, aeth_header();
    atomic_ack_survives: atomic_ack::AtomicAck, any::<u64>().prop_map(|original| atomic_ack::Header { original });
    immediate_survives: immediate::Immediate, any::<u32>().prop_map(|data| immediate::Header { data });
    invalidate_survives: invalidate::Invalidate,
        any::<u32>().prop_map(|remote_key| invalidate::Header { remote_key });
    ipv4_survives: ipv4::Ipv4, ipv4_header();
    ipv6_survives: ipv6::Ipv6, ipv6_header();
    udp_survives: udp::Udp, udp_header();
    ethernet_survives: ethernet::Ethernet, any::<([u8; 6], [u8; 6], u16)>()
        .prop_map(|(destination, source, ether_type)| ethernet::Header { destination, source, ether_type });
}

proptest! {
    #[test]
    fn bth_survives(header in bth_header(), version in 0..16_u8) {
        let header = bth::Header { version, ..header };
        let mut buffer = [0xa5; bth::HEADER_BYTES];
        header.emit(&mut bth::Bth::new_checked(&mut buffer).unwrap());
        prop_assert_eq!(bth::Header::parse(&bth::Bth::new_checked(&buffer).unwrap()), Ok(header));
    }

    #[test]
    fn a_packet_survives(headers in headers(), payload in vec(any::<u8>(), 0..300), icrc: u32) {
        let packet = Packet { headers, payload: &payload, icrc };
        let mut buffer = [0xa5; 400];
        let length = packet.emit(&mut buffer).unwrap();
        prop_assert_eq!(length, packet.byte_count());
        prop_assert_eq!(Packet::parse(&buffer[..length]), Ok(packet));
        prop_assert_eq!(Headers::parse_prefix(&buffer[..length]), Ok((headers, headers.byte_count())));
    }

    #[test]
    fn a_written_datagram_verifies(
        headers in headers(), payload in vec(any::<u8>(), 0..300), scope in scope(), identification: u16,
    ) {
        let mut buffer = [0xa5; 400];
        let length = packet::write_datagram(&headers, &payload, &scope, &mut buffer).unwrap();
        prop_assert_eq!(length, packet::datagram_bytes(headers.byte_count(), payload.len()));
        prop_assert_eq!(length % 4, 0);
        let datagram = &buffer[..length];
        prop_assert!(icrc::verify(&scope, datagram));
        prop_assert_eq!(Packet::parse(datagram).unwrap().payload, &payload);
        let unaware = scope.with_identification(identification);
        prop_assert_eq!(icrc::solve_identification(&unaware, datagram), scope.identification());
    }

    #[test]
    fn a_frame_survives(
        ipv4 in ipv4_header(), ipv6 in ipv6_header(), udp in udp_header(), datagram in vec(any::<u8>(), 0..300),
        version_4: bool,
    ) {
        let length = (udp::HEADER_BYTES + datagram.len()) as u16;
        let ip = if version_4 {
            let flags_fragment = ipv4.flags_fragment & 0xc000;
            let total_length = length + ipv4::HEADER_BYTES as u16;
            IpHeader::V4(ipv4::Header { flags_fragment, total_length, protocol: 17, ..ipv4 })
        } else {
            IpHeader::V6(ipv6::Header { payload_length: length, next_header: 17, ..ipv6 })
        };
        let frame = Frame { ip, udp: udp::Header { length, ..udp }, datagram: &datagram };
        let mut buffer = [0xa5; 400];
        let length = frame.emit(&mut buffer).unwrap();
        prop_assert_eq!(length, frame.byte_count());
        // Parsed with what lies behind it in the buffer.
        prop_assert_eq!(Frame::parse(&buffer), Ok(frame));
    }

    #[test]
    fn the_serial_distance_is_the_number_of_steps(start: u32, steps in -0x80_0000..0x80_0000_i32) {
        let earlier = Psn::new(start);
        let later = earlier.add(steps.cast_unsigned());
        prop_assert_eq!(later.distance_from(earlier), steps);
        prop_assert_eq!(later.back(steps.cast_unsigned()), earlier);
    }

    #[test]
    fn any_bytes_at_all(bytes in vec(any::<u8>(), 0..200)) {
        fuzzing::parse_packet(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_known_opcode(
        opcode in proptest::sample::select(Opcode::ALL), bytes in vec(any::<u8>(), 0..100),
    ) {
        let mut datagram = bytes;
        if let [first, second, ..] = &mut datagram[..] {
            *first = opcode.byte();
            *second &= 0xf0;
        }
        fuzzing::parse_packet(&datagram);
    }
}
