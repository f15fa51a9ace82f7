//! How fast ICRC, parsing and solving for the identification are on this machine.
//!
//!     cargo run --release -p longhaul-wire --example wire_speed

use longhaul_wire::icrc::{self, IcrcScope, IdentificationTracker};
use longhaul_wire::packet::{Headers, Packet};
use longhaul_wire::{Opcode, Psn, bth, reth};
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::time::Instant;

/// Nanoseconds of one call: the best of some rounds.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 200_000;
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..9).map(|_| round(&mut call)).fold(f64::INFINITY, f64::min)
}

fn main() {
    let v4 = |last| SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 4791);
    let v6 = |last| SocketAddrV6::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), 4791, 0, 0);
    let scopes = [("IPv4", IcrcScope::v4(v4(1), v4(2))), ("IPv6", IcrcScope::v6(v6(1), v6(2)))];

    println!("ICRC, one packet after the other, BTH and payload:");
    for payload_bytes in [0, 64, 256, 1024, 4096, 8192] {
        for (name, scope) in scopes {
            let datagram = vec![0x5a; bth::HEADER_BYTES + payload_bytes];
            let time = nanoseconds(|| {
                black_box(icrc::compute(black_box(&scope), black_box(&datagram)));
            });
            let rate = payload_bytes as f64 / time;
            println!("  {name} {payload_bytes:5} B of payload {time:7.1} ns {rate:6.2} GB/s");
        }
    }

    println!("Solving for the identification, besides the ICRC:");
    for payload_bytes in [64, 4096] {
        let scope = scopes[0].1;
        let mut datagram = vec![0x5a; bth::HEADER_BYTES + payload_bytes + 4];
        icrc::write(&scope.with_identification(0x1234), &mut datagram);
        let verify = nanoseconds(|| {
            black_box(icrc::verify(black_box(&scope), black_box(&datagram)));
        });
        let solve = nanoseconds(|| {
            black_box(icrc::solve_identification(black_box(&scope), black_box(&datagram)));
        });
        let mut tracker = IdentificationTracker::new();
        let track = nanoseconds(|| {
            black_box(tracker.check(black_box(&scope), black_box(&datagram)));
        });
        println!(
            "  {payload_bytes:5} B of payload: verify {verify:.1} ns, solve {:.1} ns more, \
             tracker with a wrong guess {:.1} ns more",
            solve - verify,
            track - verify
        );
    }

    println!("Headers of one packet, parsed and emitted:");
    let mut write = Headers::new(Opcode::RcWriteOnly, 0x12, Psn::new(7));
    write.reth = Some(reth::Header { virtual_address: 1 << 40, remote_key: 5, dma_length: 4096 });
    for headers in [write, Headers::new(Opcode::RcWriteMiddle, 0x12, Psn::new(8))] {
        let mut datagram = vec![0x5a; headers.byte_count() + 4096 + 4];
        let emit = nanoseconds(|| {
            black_box(black_box(&headers).emit(black_box(&mut datagram))).unwrap();
        });
        let parse = nanoseconds(|| {
            black_box(Packet::parse(black_box(&datagram))).unwrap();
        });
        println!("  {:?}: parse {parse:.1} ns, emit {emit:.1} ns", headers.bth.opcode);
    }
}
