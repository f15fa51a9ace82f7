//! Lies that would cost much: repair packets that lie about a block of which much waits.

use crate::ends;

use ends::{Flow, assert_protected, at, bytes, config, decode, encode, header, is_repair, lie, split, with};
use longhaul_shim::{Packet, Shim};
use longhaul_wire::repair::Header;

/// Different repair packets for the block of `like`, all lies.
fn lies(like: &Header, count: u32) -> Vec<Packet> {
    let one = |seed: u32| {
        let header = Header { digest: seed, index: 0, is_announcement: false, ..*like };
        lie(&header, &bytes(seed, 400))
    };
    (1..=count).map(one).collect()
}

/// A flow with a full block of which all but the first packet wait. What it would have been repaired with.
fn waiting(receiver: &mut Shim, sender: &mut Shim, flow: &mut Flow, micros: u64) -> Header {
    let sent = encode(sender, &flow.message(223), at(micros));
    let (data, repairs) = split(&sent);
    let announcement: Vec<Packet> = sent.into_iter().take_while(is_repair).collect();
    decode(receiver, &announcement, at(micros));
    assert!(decode(receiver, &data[1..223], at(micros)).is_empty(), "all of it waits");
    repairs.iter().filter_map(header).rfind(|header| !header.is_announcement).expect("a repair packet")
}

#[test]
fn in_an_invented_flow_nothing_waits_after_the_first_lie() {
    let (mut sender, mut receiver) = with(config("mds:223,1"));
    let like = waiting(&mut receiver, &mut sender, &mut Flow::writes(7, 100), 0);
    assert_eq!(receiver.decoder().held_packets(), 222);
    let handed_on = decode(&mut receiver, &lies(&like, 1000), at(1));
    assert_eq!(handed_on.len(), 222, "each packet goes on once");
    let counters = receiver.decoder().counters();
    assert_eq!((counters.wrong_blocks, counters.restored), (1, 0), "{counters:?}");
    assert!(receiver.decoder().held_packets() <= 2);
}

#[test]
fn a_proven_flow_has_few_attempts_for_each_block_that_waits() {
    let (mut sender, mut receiver) = with(config("mds:223,1"));
    let mut flow = Flow::writes(7, 100);
    decode(&mut receiver, &encode(&mut sender, &flow.message(223), at(0)), at(0));
    for block in 1..=3 {
        let like = waiting(&mut receiver, &mut sender, &mut flow, block);
        // What arrives while all of it waits does not begin anew.
        decode(&mut receiver, &lies(&like, 1000), at(block));
        let counters = receiver.decoder().counters();
        assert_eq!((counters.wrong_blocks, counters.restored), (4 * block, 0), "{counters:?}");
        assert!(receiver.decoder().held_packets() >= 222);
        // The missing one comes late, and with it everything.
        let first = flow.packet(flow.psn - 223, longhaul_wire::Position::First, ends::MTU);
        assert_eq!(decode(&mut receiver, &[first], at(block)).len(), 223);
    }
    assert_protected(&mut sender, &mut receiver, &mut flow, 10);
}
