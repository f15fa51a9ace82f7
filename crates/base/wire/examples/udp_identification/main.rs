//! Speaks RoCEv2 with Linux Soft-RoCE from an ordinary UDP socket, and checks that both ends understood.
//!
//!     lab/run udp-identification
//!
//! boots the Soft-RoCE end, runs this program as `udp_identification --address ADDRESS --target FILE`, and checks what
//! arrived over there. FILE says what the other end is called and what it expects (`lab/guest/roce_target.c` writes it).
//!
//! The ICRC covers IPv4's identification, which a socket neither sets nor shows (`docs/ICRC.md` explains why):
//!
//! - Sending, we know it: a socket that is not connected, with "don't fragment" set, sends 0; and the segments that
//!   segmentation offload (UDP_SEGMENT) cuts from one call are numbered 0, 1, 2, …
//! - Receiving, we follow it: `IdentificationTracker`.
//!
//! One line a check, `ok …` or `FAIL …`, and `N passed, N failed` at the end. Exit 0: nothing failed. 1: a check failed.
//! 2: usage. 3: something is missing on this host.

mod end;
mod target;

use end::{Content, End, datagram};
use longhaul_wire::icrc::{self, IcrcScope, IdentificationTracker, Verdict};
use longhaul_wire::packet::{self, Packet};
use longhaul_wire::{Opcode, Operation, Position, Psn, Trailer, Transport, deth, reth};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Arguments;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use target::Target;

const USAGE: &str = "usage: udp_identification --address ADDRESS --target FILE";
/// The other end begins to send 0.3 s after it has everything.
const RECEIVE_SECONDS_MAX: u64 = 20;
/// How long we wait for packets that should not come.
const SILENCE: Duration = Duration::from_millis(300);
/// The byte of a datagram that ICRC leaves out: routers mark congestion in it.
const CONGESTION_BYTE: usize = 4;

/// Why we could not even try.
enum Stop {
    Usage(String),
    Missing(String),
}

fn main() -> ExitCode {
    let mut report = Report::default();
    match run(&mut report) {
        Ok(()) => {
            println!("{} passed, {} failed", report.passed, report.failed);
            ExitCode::from(u8::from(report.failed > 0))
        }
        Err(Stop::Usage(reason)) => {
            eprintln!("udp_identification: {reason}\n{USAGE}");
            ExitCode::from(2)
        }
        Err(Stop::Missing(reason)) => {
            eprintln!("udp_identification: {reason}");
            ExitCode::from(3)
        }
    }
}

fn run(report: &mut Report) -> Result<(), Stop> {
    let (address, target) = target::arguments()?;
    let end = End::open(address, &target)?;
    report.check(true, format_args!("socket on {}: not connected, never fragments, segmentation offload", end.local));
    send_what_must_be_ignored(&end, &target, report)?;
    send_what_is_expected(&end, &target, report)?;
    let received = receive(&end, &target, report)?;
    let trackers = check_icrc(&end, &received, report);
    check_writes(&target, &received, report);
    check_datagram(&target, &received, report);
    check_corrupted_copies(&end, &received, &trackers, report);
    Ok(())
}

#[derive(Default)]
struct Report {
    passed: usize,
    failed: usize,
}

impl Report {
    fn check(&mut self, good: bool, what: Arguments<'_>) {
        println!("{} {what}", if good { "ok" } else { "FAIL" });
        *(if good { &mut self.passed } else { &mut self.failed }) += 1;
    }
}

// --- sending ---------------------------------------------------------------------------------------------------------

/// Packets that differ from good ones in the ICRC only: the other end's guarded bytes must stay as they are.
fn send_what_must_be_ignored(end: &End, target: &Target, report: &mut Report) -> Result<(), Stop> {
    let guard = vec![0x5a; target.length("guard_length")];
    let mut headers = target.headers(Opcode::UcWriteOnly, "uc_qpn", target.psn("uc_psn"));
    headers.reth = Some(reth::Header {
        virtual_address: target.long("guard_address"),
        remote_key: target.word("uc_rkey"),
        dma_length: target.word("guard_length"),
    });
    let mut ud_headers = target.headers(Opcode::UdSendOnly, "ud_qpn", Psn::new(0));
    ud_headers.deth = Some(deth::Header::new(target.word("ud_qkey"), target.word("host_ud_qpn")));
    let ud_message = target.message("ud");
    // One bit of the ICRC, one of the payload.
    let mut wrong_icrc = datagram(&(headers, &guard), &end.scope);
    *wrong_icrc.last_mut().expect("a datagram has an ICRC") ^= 0x80;
    let mut wrong_payload = datagram(&(headers, &guard), &end.scope);
    wrong_payload[100] ^= 1;
    let mut wrong_ud = datagram(&(ud_headers, &ud_message), &end.scope);
    *wrong_ud.last_mut().expect("a datagram has an ICRC") ^= 1;
    for datagram in [wrong_icrc, wrong_payload, wrong_ud] {
        end.send_in_one_call(&[datagram])?;
    }
    // Right but for the headers around it: each identification one too high or, where there is none, the port.
    let elsewhere = |identification: u16| match end.scope {
        IcrcScope::V4 { .. } => end.scope.with_identification(identification + 1),
        IcrcScope::V6 { source, destination, source_port, destination_port } => {
            IcrcScope::V6 { source, destination, source_port: source_port + 1, destination_port }
        }
    };
    let datagrams: Vec<_> = (0..4).map(|index| datagram(&(headers, &guard), &elsewhere(index))).collect();
    end.send_in_one_call(&datagrams[..1])?;
    end.send_in_one_call(&datagrams)?;
    report.check(true, format_args!("sent 8 packets with wrong ICRCs, which the other end must ignore"));
    Ok(())
}

fn send_what_is_expected(end: &End, target: &Target, report: &mut Report) -> Result<(), Stop> {
    let message = target.message("uc");
    let payloads: Vec<&[u8]> = message.chunks(target.length("mtu")).collect();
    let contents: Vec<Content<'_>> = (0..)
        .zip(&payloads)
        .map(|(index, &payload)| {
            let position = position_of(index, payloads.len());
            let psn = target.psn("uc_psn").add(index as u32);
            let mut headers = target.headers(uc_write(position, Trailer::None), "uc_qpn", psn);
            headers.reth = position.is_start().then(|| reth::Header {
                virtual_address: target.long("uc_address"),
                remote_key: target.word("uc_rkey"),
                dma_length: message.len() as u32,
            });
            (headers, payload)
        })
        .collect();
    let call_count = end.send(&contents)?;
    // The first packet has a RETH and is longer than the second, which is therefore the short end of the first call.
    report.check(
        call_count == 2,
        format_args!("sent a UC WRITE of {} bytes: {} packets in {call_count} calls", message.len(), contents.len()),
    );
    let message = target.message("ud");
    let mut headers = target.headers(Opcode::UdSendOnly, "ud_qpn", Psn::new(0));
    headers.deth = Some(deth::Header::new(target.word("ud_qkey"), target.word("host_ud_qpn")));
    end.leave_out_checksum(true)?;
    end.send(&[(headers, &message)])?;
    end.leave_out_checksum(false)?;
    report.check(true, format_args!("sent a UD SEND of {} bytes", message.len()));
    Ok(())
}

fn position_of(index: usize, count: usize) -> Position {
    match (index == 0, index + 1 == count) {
        (true, true) => Position::Only,
        (true, false) => Position::First,
        (false, true) => Position::Last,
        (false, false) => Position::Middle,
    }
}

fn uc_write(position: Position, trailer: Trailer) -> Opcode {
    Opcode::request(Transport::UnreliableConnection, Operation::Write, position, trailer)
        .expect("UC has WRITEs of every position, and an immediate at the end of one")
}

// --- receiving -------------------------------------------------------------------------------------------------------

struct Received {
    source: SocketAddr,
    datagram: Vec<u8>,
}

impl Received {
    fn scope(&self, end: &End) -> IcrcScope {
        IcrcScope::between(self.source, end.local).expect("a socket receives from its own family only")
    }
}

fn receive(end: &End, target: &Target, report: &mut Report) -> Result<Vec<Received>, Stop> {
    let expected_count = target.length("out_uc_writes") * packets_of_a_write(target) + 1;
    let started = Instant::now();
    let (mut received, mut call_count, mut longest_batch) = (Vec::new(), 0, 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let left = match received.len() < expected_count {
            true => Duration::from_secs(RECEIVE_SECONDS_MAX).saturating_sub(started.elapsed()),
            false => SILENCE,
        };
        if left.is_zero() {
            break;
        }
        let Some((source, length, segment_bytes)) = end.receive(&mut buffer, left)? else {
            break;
        };
        if source.ip() != target.address {
            continue;
        }
        call_count += 1;
        let segments = buffer[..length].chunks(segment_bytes.max(1));
        longest_batch = longest_batch.max(segments.len());
        received.extend(segments.map(|segment| Received { source, datagram: segment.to_vec() }));
    }
    report.check(
        received.len() == expected_count,
        format_args!(
            "received {} packets, expected {expected_count}; {call_count} calls, at most {longest_batch} in one",
            received.len()
        ),
    );
    Ok(received)
}

fn packets_of_a_write(target: &Target) -> usize {
    target.length("out_uc_length").div_ceil(target.length("mtu"))
}

/// Checks every packet in the order of arrival. Returns the tracker as it was before each.
fn check_icrc(end: &End, received: &[Received], report: &mut Report) -> Vec<IdentificationTracker> {
    let mut tracker = IdentificationTracker::new();
    let mut before = Vec::new();
    let (mut exact, mut predicted, mut solved, mut bad) = (0, 0, 0, 0);
    for packet in received {
        before.push(tracker);
        let count = match tracker.check(&packet.scope(end), &packet.datagram) {
            Verdict::Exact => &mut exact,
            Verdict::Predicted => &mut predicted,
            Verdict::Solved => &mut solved,
            Verdict::Bad => &mut bad,
        };
        *count += 1;
    }
    // Over IPv4 nothing is known before the first packet.
    let expected_solved = usize::from(end.local.is_ipv4() && !received.is_empty());
    report.check(
        bad == 0 && solved == expected_solved,
        format_args!("ICRCs: {exact} exact, {predicted} predicted, {solved} solved, {bad} bad"),
    );
    let identifications: Vec<u16> =
        received.iter().filter_map(|packet| icrc::solve_identification(&packet.scope(end), &packet.datagram)).collect();
    if let [first, .., last] = identifications[..] {
        let steps = identifications.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        let mut step_counts: BTreeMap<u16, usize> = BTreeMap::new();
        steps.for_each(|step| *step_counts.entry(step).or_default() += 1);
        let steps: Vec<_> = step_counts.iter().map(|(step, count)| format!("+{step} {count} times")).collect();
        println!("   identifications {first:#06x} to {last:#06x}: {}", steps.join(", "));
    }
    let ports: BTreeSet<u16> = received.iter().map(|packet| packet.source.port()).collect();
    println!("   source ports {ports:?}");
    before
}

/// UC WRITEs one after the other, all bytes in their places.
fn check_writes(target: &Target, received: &[Received], report: &mut Report) {
    let message = target.message("out_uc");
    let packet_count = packets_of_a_write(target);
    let write_count = target.length("out_uc_writes");
    let packets = received.iter().filter_map(|packet| Packet::parse(&packet.datagram).ok());
    let writes: Vec<_> =
        packets.filter(|packet| packet.headers.bth.destination_qp == target.word("host_uc_qpn")).collect();
    let mut right = 0;
    for (index, packet) in writes.iter().enumerate() {
        let (write, place) = (index / packet_count, index % packet_count);
        let position = position_of(place, packet_count);
        let with_immediate = position.is_end() && write + 1 == write_count;
        let trailer = if with_immediate { Trailer::Immediate } else { Trailer::None };
        let mtu = target.length("mtu");
        let psn = target.psn("out_uc_psn").add(index as u32);
        let mut expected = target.headers(uc_write(position, trailer), "host_uc_qpn", psn);
        expected.reth = position.is_start().then(|| reth::Header {
            virtual_address: target.long("host_address") + (write * message.len()) as u64,
            remote_key: target.word("host_rkey"),
            dma_length: message.len() as u32,
        });
        expected.immediate = with_immediate.then(|| target.word("out_immediate"));
        let found = &packet.headers.bth;
        // What is the sender's own affair.
        expected.bth.ack_request = found.ack_request;
        expected.bth.solicited_event = found.solicited_event;
        expected.bth.migration = found.migration;
        expected.bth.pad_count = packet::pad_count(packet.payload.len());
        let bytes = &message[place * mtu..message.len().min((place + 1) * mtu)];
        if packet.headers == expected && packet.payload == bytes {
            right += 1;
        } else {
            println!("   packet {index}: expected {expected:?}, and found {:?}", packet.headers);
        }
    }
    let expected_count = write_count * packet_count;
    report.check(
        right == expected_count && writes.len() == expected_count,
        format_args!(
            "{write_count} UC WRITEs of {} bytes: {} packets, {right} with the right headers and bytes",
            message.len(),
            writes.len()
        ),
    );
    let immediates: Vec<u32> = writes.iter().filter_map(|packet| packet.headers.immediate).collect();
    let expected = target.word("out_immediate");
    report.check(immediates == [expected], format_args!("one immediate, {expected:#x}: found {immediates:x?}"));
}

fn check_datagram(target: &Target, received: &[Received], report: &mut Report) {
    let packets = received.iter().filter_map(|packet| Packet::parse(&packet.datagram).ok());
    let sends: Vec<_> =
        packets.filter(|packet| packet.headers.bth.destination_qp == target.word("host_ud_qpn")).collect();
    let right = |packet: &Packet<'_>| {
        packet.headers.bth.opcode == Opcode::UdSendOnly
            && packet.headers.bth.psn == target.psn("out_ud_psn")
            && packet.headers.deth == Some(deth::Header::new(target.word("host_qkey"), target.word("ud_qpn")))
            && packet.payload == target.message("out_ud")
    };
    let right = sends.iter().filter(|packet| right(packet)).count();
    report.check(sends.len() == 1 && right == 1, format_args!("UD SENDs: {} received, {right} right", sends.len()));
}

// --- negative controls on what was received --------------------------------------------------------------------------

/// Corrupts copies of the packets and shows them to the tracker as it was when the packet came.
fn check_corrupted_copies(end: &End, received: &[Received], trackers: &[IdentificationTracker], report: &mut Report) {
    // Every bit that is covered, one at a time. All of these are found, whatever is known of the identification.
    let (mut tried, mut refused) = (0, 0);
    for (packet, tracker) in received.iter().zip(trackers) {
        let mut copy = packet.datagram.clone();
        for bit in (0..copy.len() * 8).filter(|bit| bit / 8 != CONGESTION_BYTE) {
            copy[bit / 8] ^= 1 << (bit % 8);
            tried += 1;
            refused += usize::from({ *tracker }.check(&packet.scope(end), &copy) == Verdict::Bad);
            copy[bit / 8] ^= 1 << (bit % 8);
        }
    }
    report.check(tried > 0 && refused == tried, format_args!("single flipped bits: {refused} of {tried} refused"));

    // Noise in up to sixteen bytes, where the identification can be predicted. One in 2^16 is to be taken for a jump
    // (`Solved`), one in 2^22 for a packet close by (`Predicted`), and one in 2^32 for good.
    let mut random = Random(1);
    let (mut tried, mut exact, mut predicted, mut solved) = (0, 0, 0, 0);
    let followed = || received.iter().zip(trackers).skip(usize::from(end.local.is_ipv4()));
    for (packet, tracker) in followed().cycle().take((1 << 14) * followed().count()) {
        let mut copy = packet.datagram.clone();
        let first = CONGESTION_BYTE + 1 + random.next() as usize % (copy.len() - CONGESTION_BYTE - 1);
        for byte in copy[first..].iter_mut().take(16) {
            *byte ^= random.next() as u8;
        }
        if copy == packet.datagram {
            continue;
        }
        tried += 1;
        match { *tracker }.check(&packet.scope(end), &copy) {
            Verdict::Exact => exact += 1,
            Verdict::Predicted => predicted += 1,
            Verdict::Solved => solved += 1,
            Verdict::Bad => {}
        }
    }
    let solved_most = if end.local.is_ipv4() { 3 * (tried >> 16) + 1 } else { 0 };
    report.check(
        tried > 0 && exact == 0 && predicted <= 3 && solved <= solved_most,
        format_args!(
            "noise: {} of {tried} refused, {solved} taken for a jump, {predicted} for close by, {exact} for good",
            tried - solved - predicted - exact
        ),
    );
}

/// SplitMix64: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
