//! What is changed in a frame: the mark of congestion, and bits.

use longhaul_impair::Corruption;

const ETHERNET_BYTES: usize = 14;
const VLAN_TAG_BYTES: usize = 4;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
/// Values of the two ECN bits.
const NOT_CAPABLE: u8 = 0b00;
const CONGESTION: u8 = 0b11;

/// Where the packet in a frame begins, behind addresses, tags and type; and that type.
fn packet_of(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = ETHERNET_BYTES;
    loop {
        let ethertype = u16::from_be_bytes([*frame.get(at - 2)?, *frame.get(at - 1)?]);
        if ethertype != ETHERTYPE_VLAN && ethertype != ETHERTYPE_SERVICE_VLAN {
            return Some((at, ethertype));
        }
        at += VLAN_TAG_BYTES;
    }
}

/// Mark the packet in a frame as one that met congestion, if it is of IP and its ends know such marks. Returns whether it is
/// marked now.
pub(crate) fn mark_congestion(frame: &mut [u8]) -> bool {
    match packet_of(frame) {
        Some((at, ETHERTYPE_IPV4)) => mark_ipv4(&mut frame[at..]),
        Some((at, ETHERTYPE_IPV6)) => mark_ipv6(&mut frame[at..]),
        _ => false,
    }
}

fn mark_ipv4(packet: &mut [u8]) -> bool {
    let &mut [version, class, ..] = packet else { return false };
    if packet.len() < 20 || version >> 4 != 4 || class & CONGESTION == NOT_CAPABLE {
        return false;
    }
    let marked = class | CONGESTION;
    // RFC 1624: the checksum of what was 16 bits and is other 16 bits now.
    let (before, after) = (u16::from_be_bytes([version, class]), u16::from_be_bytes([version, marked]));
    let sum = u32::from(!u16::from_be_bytes([packet[10], packet[11]])) + u32::from(!before) + u32::from(after);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = ((folded & 0xffff) + (folded >> 16)) as u16;
    packet[1] = marked;
    packet[10..12].copy_from_slice(&(!folded).to_be_bytes());
    true
}

fn mark_ipv6(packet: &mut [u8]) -> bool {
    let &mut [first, second, ..] = packet else { return false };
    // The traffic class lies across two bytes, and its last bits are bits 4 and 5 of the second.
    if packet.len() < 40 || first >> 4 != 6 || (second >> 4) & CONGESTION == NOT_CAPABLE {
        return false;
    }
    packet[1] = second | CONGESTION << 4;
    true
}

/// Flip bits of what the frame carries. Addresses and type stay as they are, so that it arrives where it is to be found wrong.
pub(crate) fn corrupt(frame: &mut [u8], corruption: Corruption) {
    let from = ETHERNET_BYTES.min(frame.len());
    corruption.apply(&mut frame[from..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(ecn: u8) -> Vec<u8> {
        let mut packet =
            vec![0x45, 0x10 << 2 | ecn, 0, 28, 0xab, 0xcd, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend([0; 8]);
        packet
    }

    fn checksum(header: &[u8]) -> u16 {
        let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        !(((sum & 0xffff) + (sum >> 16)) as u16)
    }

    fn framed(tags: &[u16], ethertype: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![1; 12];
        for tag in tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        frame.extend(ethertype.to_be_bytes());
        frame.extend(packet);
        frame
    }

    #[test]
    fn ipv4_is_marked_and_its_checksum_is_right() {
        for tags in [&[][..], &[ETHERTYPE_VLAN], &[ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN]] {
            for ecn in [0b01, 0b10, 0b11] {
                let mut frame = framed(tags, ETHERTYPE_IPV4, &ipv4(ecn));
                assert!(mark_congestion(&mut frame));
                let packet = &frame[14 + 4 * tags.len()..];
                assert_eq!(packet[1] & 0b11, CONGESTION);
                assert_eq!(packet[1] >> 2, 0x10, "the class stays");
                assert_eq!(checksum(&packet[..20]), 0, "{tags:?} {ecn}");
            }
        }
    }

    #[test]
    fn ipv6_is_marked() {
        let mut packet = vec![0x60 | 0x4, 0x20 | 0x7, 1, 2];
        packet.extend([0; 36]);
        let mut frame = framed(&[], ETHERTYPE_IPV6, &packet);
        assert!(mark_congestion(&mut frame));
        assert_eq!(frame[14..18], [0x64, 0x37, 1, 2]);
    }

    #[test]
    fn what_does_not_know_marks_stays_as_it_is() {
        let mut short = framed(&[], ETHERTYPE_IPV4, &ipv4(0b01)[..12]);
        short.truncate(14 + 12);
        let arp = framed(&[], 0x0806, &[0xff; 28]);
        let other_version = framed(&[], ETHERTYPE_IPV4, &[0x65; 40]);
        let endless_tags = [0x81, 0x00].repeat(20);
        for frame in
            [framed(&[], ETHERTYPE_IPV4, &ipv4(0b00)), short, arp, other_version, endless_tags, Vec::new(), vec![8; 13]]
        {
            let mut marked = frame.clone();
            assert!(!mark_congestion(&mut marked) && marked == frame, "{frame:?}");
        }
    }

    #[test]
    fn bits_are_flipped_behind_the_addresses() {
        for length in [0, 5, 14, 15, 60] {
            let mut frame = vec![0; length];
            corrupt(&mut frame, Corruption { seed: 5, bit_count: 3 });
            let flipped: u32 = frame.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(flipped, if length > 14 { 3 } else { 0 });
            assert!(frame.iter().take(14).all(|byte| *byte == 0));
        }
    }
}
