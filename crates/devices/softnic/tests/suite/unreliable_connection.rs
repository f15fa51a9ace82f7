//! Unreliable connections, packet by packet: what a gap, a repetition and another order do.

use crate::two_ends;

use longhaul_verbs::{ReceiveRequest, SendFlags, Transport, WriteBurst};
use two_ends::{End, at, pair, pair_with};

const UC: Transport = Transport::UnreliableConnection;

fn received_ids(end: &End) -> Vec<u64> {
    end.completions().iter().map(|done| done.id).collect()
}

#[test]
fn a_gap_ends_the_message_and_the_next_one_arrives() {
    let (one, two) = pair(UC);
    two.post_receive(1, 1000);
    one.post_send(10, 600);
    one.post_send(11, 700);
    let packets = one.poll(at(0));
    assert_eq!(packets.len(), 3 + 3);
    assert_eq!(one.completions().len(), 2, "a message is done when its last packet has left");
    for packet in packets.iter().enumerate().filter(|(index, _)| *index != 1).map(|(_, packet)| packet) {
        two.receive(packet, at(1));
    }
    let done = two.completions();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].id, done[0].byte_count), (1, 700), "the receive of the lost message serves the next one");
    assert!(two.poll(at(1)).is_empty(), "nobody answers");
    assert_eq!(two.counters().dropped_messages, 1);
}

#[test]
fn single_packet_writes_arrive_in_any_order_and_as_often_as_delivered() {
    let (one, two) = pair(UC);
    let pattern: Vec<u8> = (0..=255).collect();
    for chunk in 0..4 {
        one.region.copy_in(chunk * 256, &pattern);
    }
    two.queue_pair.post_receive(&[ReceiveRequest { id: 0, local: &[] }; 8]).unwrap();
    let burst = WriteBurst {
        id: 5,
        local: one.region.entry(0..4 * 256 - 56),
        remote: two.region.remote(0),
        stride: 256,
        immediates: &[100, 101, 102, 103],
        flags: SendFlags::SIGNALED,
    };
    one.queue_pair.post_write_burst(&burst).unwrap();
    let packets = one.poll(at(0));
    assert_eq!(received_ids(&one), [5], "only the last request of a burst makes a completion");
    for index in [3, 1, 0, 1, 2] {
        two.receive(&packets[index], at(1));
    }
    let done = two.completions();
    let seen: Vec<_> = done.iter().map(|done| (done.immediate().unwrap(), done.byte_count)).collect();
    assert_eq!(seen, [(103, 200), (101, 256), (100, 256), (101, 256), (102, 256)]);
    assert_eq!(two.region.to_vec(0..968), pattern.repeat(4)[..968]);
    assert_eq!(two.region.to_vec(968..1024), vec![0; 56]);
}

#[test]
fn without_payload_everything_completes_and_nothing_is_copied() {
    let (one, two) = pair_with(UC, Default::default(), |config| config.payload = longhaul_softnic::PayloadMode::Elided);
    one.region.copy_in(0, &[1; 1000]);
    two.post_receive(1, 1000);
    one.post_send(10, 777);
    for packet in one.poll(at(0)) {
        assert!(packet.bytes.len() < 40, "headers only");
        two.receive(&packet, at(1));
    }
    let done = two.completions();
    assert_eq!((done[0].id, done[0].byte_count), (1, 777));
    assert_eq!(two.region.to_vec(0..1000), vec![0; 1000]);
}

#[test]
fn only_writes_can_go_without_payload() {
    let (one, two) =
        pair_with(UC, Default::default(), |config| config.payload = longhaul_softnic::PayloadMode::WritesElided);
    one.region.copy_in(0, &[1; 1000]);
    two.post_receive(1, 100);
    one.post_write(9, 777, &two);
    one.post_send(10, 33);
    let packets = one.poll(at(0));
    // Four packets of up to 256 bytes, and one with its 33, padding and all.
    let lengths: Vec<_> = packets.iter().map(|packet| packet.bytes.len() < 40).collect();
    assert_eq!(lengths, [true, true, true, true, false]);
    packets.iter().for_each(|packet| two.receive(packet, at(1)));
    let done = two.completions();
    assert_eq!((done.len(), done[0].id, done[0].byte_count), (1, 1, 33));
    assert_eq!(two.region.to_vec(0..34), [&[1; 33][..], &[0]].concat());
    assert_eq!(two.region.to_vec(34..1000), vec![0; 966]);
}

#[test]
fn a_message_without_a_receive_is_one_message_dropped() {
    let (one, two) = pair(UC);
    one.post_send(1, 2560);
    for packet in one.poll(at(0)) {
        two.receive(&packet, at(1));
    }
    assert_eq!(two.counters().dropped_messages, 1);
    assert_eq!(two.counters().out_of_buffer, 1);
}
