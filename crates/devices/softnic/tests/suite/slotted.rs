//! Slotted regions under traffic: messages into slots that are bound, bound to nothing, and bound again in between.

use crate::two_ends;

use longhaul_softnic::Device;
use longhaul_verbs::{
    Access, DestroyError, RegisterError, RemoteMemory, SendOperation, SendRequest, SlottedRegion, Transport,
};
use two_ends::{End, MTU, at, pair};

const TRANSPORTS: [Transport; 2] = [Transport::UnreliableConnection, Transport::ReliableConnection];
const SLOT_BYTES: usize = 1024;

fn slotted(end: &End, slots: u32) -> SlottedRegion {
    end.domain.allocate_slotted_region(slots, SLOT_BYTES as u64, Access::REMOTE_WRITE).unwrap()
}

fn write(from: &End, bytes: usize, remote: RemoteMemory) {
    let entry = [from.region.entry(0..bytes)];
    from.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(remote), &entry)]).unwrap();
}

#[test]
fn a_message_over_several_slots_goes_where_they_lead() {
    for transport in TRANSPORTS {
        let (one, two) = pair(transport);
        let message: Vec<u8> = (0..3 * SLOT_BYTES).map(|index| index as u8 | 1).collect();
        one.region.copy_in(0, &message);
        let key = slotted(&two, 8);
        // Slots 2 and 4 in the other order, slot 3 not at all; the message begins inside of slot 2.
        key.bind(4, &two.region, 0..SLOT_BYTES).unwrap();
        key.bind(2, &two.region, 2048..2048 + SLOT_BYTES).unwrap();
        write(&one, 2 * SLOT_BYTES + 100, key.remote(2, 10));
        for packet in one.poll(at(0)) {
            two.receive(&packet, at(1));
        }
        let mut expected = vec![0; 4096];
        expected[2058..2048 + SLOT_BYTES].copy_from_slice(&message[..SLOT_BYTES - 10]);
        expected[..110].copy_from_slice(&message[2 * SLOT_BYTES - 10..2 * SLOT_BYTES + 100]);
        assert!(two.region.to_vec(0..4096) == expected, "{transport:?}");
    }
}

/// When the call returns that binds a slot, nothing comes to the old memory any more, not even of a message in flight.
#[test]
fn a_slot_that_is_bound_again_in_the_middle_of_a_message() {
    for transport in TRANSPORTS {
        let (one, two) = pair(transport);
        one.region.copy_in(0, &[7; SLOT_BYTES]);
        let key = slotted(&two, 1);
        key.bind(0, &two.region, 0..SLOT_BYTES).unwrap();
        write(&one, SLOT_BYTES, key.remote(0, 0));
        let packets = one.poll(at(0));
        let mtu = MTU.byte_count() as usize;
        assert_eq!(packets.len(), SLOT_BYTES / mtu);
        two.receive(&packets[0], at(1));
        key.bind(0, &two.region, SLOT_BYTES..2 * SLOT_BYTES).unwrap();
        two.receive(&packets[1], at(2));
        key.unbind(0).unwrap();
        two.receive(&packets[2], at(3));
        let mut expected = vec![0; 2 * SLOT_BYTES];
        expected[..mtu].fill(7);
        expected[SLOT_BYTES + mtu..SLOT_BYTES + 2 * mtu].fill(7);
        assert_eq!(two.region.to_vec(0..2 * SLOT_BYTES), expected, "{transport:?}");
    }
}

#[test]
fn slots_and_regions_of_different_owners_do_not_mix() {
    let (one, two) = pair(Transport::UnreliableConnection);
    let key = slotted(&one, 2);
    assert!(matches!(key.bind(0, &two.region, 0..16), Err(RegisterError::ForeignObject { .. })));
    let other_domain = one.device.verbs().allocate_protection_domain().unwrap();
    let other = other_domain.register_zeroed(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    assert!(matches!(key.bind(0, &other, 0..16), Err(RegisterError::ForeignObject { .. })));
    let nothing = one.domain.allocate_null_region().unwrap();
    let binding = longhaul_verbs::SlotBinding { region: &**nothing.raw(), address: 0, length: 16, is_blank: false };
    assert!(key.raw().bind_slot(0, Some(binding)).is_err(), "a slot is bound to nothing by saying so");
    assert!(key.deregister().is_ok());
    assert!(matches!(key.deregister(), Err(DestroyError::Gone)));
    assert!(matches!(key.unbind(0), Err(RegisterError::Gone)));
}

#[test]
fn slots_are_limited_over_all_regions() {
    let mut config = longhaul_softnic::Config::new("slots", vec!["10.0.0.1".parse().unwrap()], [3; 32]);
    config.slotted_slots_max = 10;
    let domain = Device::new(config, || ()).verbs().allocate_protection_domain().unwrap();
    let six = domain.allocate_slotted_region(6, 1, Access::REMOTE_WRITE).unwrap();
    assert!(domain.allocate_slotted_region(5, 1, Access::REMOTE_WRITE).is_err());
    drop(six);
    assert!(domain.allocate_slotted_region(5, 1, Access::REMOTE_WRITE).is_ok());
}
