//! Several processes at one port, told apart by queue pair numbers.
//!
//! Sockets that share an address and a port (SO_REUSEPORT) each have one of [`PARTS`] parts of all queue pair numbers, by their top
//! six bits. A classic BPF program in the kernel reads them from each packet and selects the socket. So each process receives
//! what is for its own queue pairs, at the port that every RNIC sends to. Who makes these sockets and hands them out is not
//! this crate's business: [`UdpDevice::open_shared`](crate::UdpDevice::open_shared) takes them.
//!
//! The kernel selects a socket once for each call of a sender, and once for what it joins on arrival (UDP_GRO). So a batch
//! that we send is for one part only (`batch`). Should packets for two parts arrive together all the same, because
//! the network has joined them, those for the other part are lost; the receiver then has the kernel join no more.

use std::ops::Range;

/// Parts of the queue pair numbers.
pub const PARTS: u8 = 64;

const NUMBERS: u32 = (1 << 24) / PARTS as u32;

/// The queue pair numbers of a part, for [`Config::queue_pair_numbers`](longhaul_softnic::Config::queue_pair_numbers).
///
/// # Panics
///
/// When there is no such part.
pub fn queue_pair_numbers(part: u8) -> Range<u32> {
    assert!(part < PARTS, "part {part} of the queue pair numbers: expected less than {PARTS}");
    let start = u32::from(part) * NUMBERS;
    start..start + NUMBERS
}

/// Which part a datagram is for, by the destination queue pair in its base transport header; `None` if it is too short to say.
pub(crate) fn part_of(datagram: &[u8]) -> Option<u8> {
    // The number's first byte.
    datagram.get(5).map(|byte| byte >> 2)
}

/// Whether datagrams that arrived together are for different parts.
pub(crate) fn are_mixed<'a>(mut datagrams: impl Iterator<Item = &'a [u8]>) -> bool {
    let first = datagrams.next().and_then(part_of);
    datagrams.any(|datagram| part_of(datagram) != first)
}

#[cfg(test)]
mod tests {
    use longhaul_wire::bth::{self, Bth};

    use super::*;

    #[test]
    fn parts_are_the_top_six_bits_of_the_destination() {
        for number in [0, 1, 0x3_ffff, 0x4_0000, 0x7f_ffff, 0xfb_ffff, 0xfc_0000, 0xff_ffff] {
            let mut header = [0xa5; bth::HEADER_BYTES];
            Bth::new_checked(&mut header[..]).unwrap().set_destination_qp(number);
            let part = part_of(&header).unwrap();
            assert_eq!(u32::from(part), number >> 18);
            assert!(queue_pair_numbers(part).contains(&number), "{number:#x}");
        }
        assert_eq!(part_of(&[0; 5]), None);
        assert_eq!(queue_pair_numbers(PARTS - 1).end, 1 << 24);
    }

    #[test]
    fn only_different_parts_are_mixed() {
        let to = |byte| [0, 0, 0, 0, 0, byte, 0, 0];
        let (one, same, other) = (to(4), to(7), to(8));
        assert!(!are_mixed([&one[..]].into_iter()));
        assert!(!are_mixed([&one[..], &same, &one].into_iter()));
        assert!(are_mixed([&one[..], &same, &other].into_iter()));
        assert!(are_mixed([&one[..], &one[..3]].into_iter()));
    }
}
