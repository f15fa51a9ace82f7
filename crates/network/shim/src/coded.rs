//! The coded form of a packet, which sums are made of; docs/WIRE.md has it.

use longhaul_coding::RunningCoder;
use longhaul_wire::icrc::{self, ICRC_BYTES};
use longhaul_wire::repair::CODED_PREFIX_BYTES;
use longhaul_wire::{Ecn, IcrcScope, Opcode, ipv4};

use crate::packet::{Borrowed, Envelope, Packet};

/// The byte of the BTH that the ICRC masks.
const MASKED: usize = 4;
/// Flags that a whole packet may have: "don't fragment" or nothing.
const WHOLE_FLAGS: [u16; 2] = [0, ipv4::DONT_FRAGMENT];

/// A packet in its coded form, but for the bytes that are the packet's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coded {
    /// The ICRC that it has there.
    pub(crate) icrc: u32,
    /// Bytes of the packet, from BTH to ICRC, with those that are elided.
    pub(crate) length: u16,
    prefix: [u8; CODED_PREFIX_BYTES],
}

impl Coded {
    /// The coded form of a packet with a right ICRC, which covers `scope`. `None` when it has none: fragments, and what is longer than
    /// a packet.
    pub(crate) fn of<'a>(packet: impl Into<Borrowed<'a>>, scope: &IcrcScope) -> Option<Coded> {
        let Borrowed { envelope, datagram } = packet.into();
        let (body, received_icrc) = datagram.split_last_chunk::<ICRC_BYTES>()?;
        let length = u16::try_from(datagram.len() + usize::try_from(envelope.elided_bytes).ok()?).ok()?;
        let flags = match scope {
            &IcrcScope::WITHOUT_ADDRESSES | IcrcScope::V6 { .. } => 0,
            IcrcScope::V4 { flags_fragment, .. } => *flags_fragment,
        };
        if !WHOLE_FLAGS.contains(&flags) || body.len() <= MASKED {
            return None;
        }
        let received_icrc = u32::from_le_bytes(*received_icrc);
        let icrc = icrc::convert(scope, &scope.canonical(), body.len(), received_icrc)?;
        let [length_bytes, flag_bytes, port] = [length, flags, envelope.source.port()].map(u16::to_be_bytes);
        let mut prefix = [0; CODED_PREFIX_BYTES];
        for (place, bytes) in prefix.chunks_exact_mut(2).zip([length_bytes, flag_bytes, port]) {
            place.copy_from_slice(&bytes);
        }
        Some(Coded { icrc, length, prefix })
    }

    /// How long a packet is in its coded form.
    pub(crate) fn byte_count(datagram: &[u8]) -> usize {
        CODED_PREFIX_BYTES + datagram.len()
    }

    /// Writes all of it; `datagram` is the packet's.
    pub(crate) fn write(&self, datagram: &[u8], coded: &mut Vec<u8>) {
        let body = &datagram[..datagram.len() - ICRC_BYTES];
        coded.clear();
        coded.extend_from_slice(&self.prefix);
        coded.extend_from_slice(body);
        coded[CODED_PREFIX_BYTES + MASKED] = 0;
        coded.extend_from_slice(&self.icrc.to_le_bytes());
    }

    /// Adds it to a plain sum that is long enough, from where the packet lies.
    pub(crate) fn add_plain(&self, datagram: &[u8], coder: &RunningCoder, sum: &mut [u8]) {
        let body = &datagram[..datagram.len() - ICRC_BYTES];
        let (prefix, rest) = sum.split_at_mut(CODED_PREFIX_BYTES);
        let (body_sum, icrc_sum) = rest.split_at_mut(body.len());
        coder.add_plain(&self.prefix, prefix);
        let masked = body_sum[MASKED];
        coder.add_plain(body, body_sum);
        body_sum[MASKED] = masked;
        coder.add_plain(&self.icrc.to_le_bytes(), icrc_sum);
    }
}

/// Writes the coded form of a packet, if it has one: see [`Coded::of`].
pub(crate) fn write_coded(packet: &Packet, scope: &IcrcScope, coded: &mut Vec<u8>) -> Option<Coded> {
    let parts = Coded::of(packet, scope)?;
    parts.write(&packet.datagram, coded);
    Some(parts)
}

/// The ICRC that a packet has in its coded form, with the number of its bytes: equal packets have the same.
pub(crate) fn identity(packet: &Packet, scope: &IcrcScope) -> Option<(u32, usize)> {
    let (body, icrc) = packet.datagram.split_last_chunk::<ICRC_BYTES>()?;
    let icrc = icrc::convert(scope, &scope.canonical(), body.len(), u32::from_le_bytes(*icrc))?;
    Some((icrc, packet.datagram.len()))
}

/// A packet from its coded form, in an envelope like the repair packet's. `None` when it is none: anything may have been added up.
pub(crate) fn read_coded(coded: &[u8], like: &Envelope, checks_icrc: bool) -> Option<(Packet, Coded)> {
    let (prefix, rest) = coded.split_first_chunk::<CODED_PREFIX_BYTES>()?;
    let field = |at: usize| u16::from_be_bytes([prefix[at], prefix[at + 1]]);
    let (length, flags, source_port, zero) = (field(0), field(2), field(4), field(6));
    let header_bytes = Opcode::from_byte(*rest.first()?)?.header_bytes();
    let bare_bytes = header_bytes + ICRC_BYTES;
    let total_bytes = usize::from(length);
    // Of a simulation's packet only the headers and the ICRC exist.
    let datagram_bytes = if like.elided_bytes > 0 { bare_bytes } else { total_bytes };
    if zero != 0 || datagram_bytes < bare_bytes || total_bytes < datagram_bytes || datagram_bytes > rest.len() {
        return None;
    }
    let (datagram, zeros) = rest.split_at(datagram_bytes);
    if zeros.iter().any(|&byte| byte != 0) || !WHOLE_FLAGS.contains(&flags) {
        return None;
    }
    let leaves_out = like.icrc_scope == IcrcScope::WITHOUT_ADDRESSES;
    let scope = match leaves_out {
        true => like.icrc_scope,
        false => like.icrc_scope.canonical().with_source_port(source_port),
    };
    if checks_icrc && !icrc::verify(&scope, datagram) {
        return None;
    }
    let mut datagram = datagram.to_vec();
    let (body, icrc_bytes) = datagram.split_last_chunk_mut::<ICRC_BYTES>()?;
    let icrc = u32::from_le_bytes(*icrc_bytes);
    let own_scope = if leaves_out { scope } else { scope.with_flags_fragment(flags) };
    *icrc_bytes = icrc::convert(&scope, &own_scope, body.len(), icrc)?.to_le_bytes();
    let mut envelope = *like;
    envelope.source.set_port(source_port);
    envelope.icrc_scope = own_scope;
    envelope.identification = like.identification.map(|_| 0);
    envelope.elided_bytes = u32::from(length) - u32::try_from(datagram_bytes).ok()?;
    Some((Packet { envelope, datagram }, Coded { icrc, length, prefix: *prefix }))
}

/// Whether a packet met congestion.
pub(crate) fn is_marked(envelope: &Envelope) -> bool {
    Ecn::from_bits(envelope.traffic_class) == Ecn::CongestionExperienced
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use longhaul_wire::{Headers, Psn, packet};

    use super::*;

    fn packet(scope: IcrcScope) -> Packet {
        let (source, destination): (SocketAddr, SocketAddr) =
            ("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
        let mut datagram = vec![0; 200];
        let headers = Headers::new(Opcode::RcSendMiddle, 7, Psn::new(9));
        let length = packet::write_datagram(&headers, &[0x5a; 64], &scope, &mut datagram).unwrap();
        datagram.truncate(length);
        let envelope = Envelope {
            source,
            destination,
            traffic_class: 2,
            hop_limit: 64,
            identification: scope.identification(),
            icrc_scope: scope,
            elided_bytes: 0,
        };
        Packet { envelope, datagram }
    }

    fn scope() -> IcrcScope {
        IcrcScope::v4("10.0.0.1:50000".parse().unwrap(), "10.0.0.2:4791".parse().unwrap())
    }

    #[test]
    fn a_packet_comes_back_with_identification_zero() {
        let mut coded = Vec::new();
        let v6 = IcrcScope::v6("[2001:db8::1]:50000".parse().unwrap(), "[2001:db8::2]:4791".parse().unwrap());
        for own in [scope(), scope().with_identification(77).with_flags_fragment(0), IcrcScope::WITHOUT_ADDRESSES, v6] {
            let sent = packet(own);
            let written = write_coded(&sent, &sent.envelope.icrc_scope, &mut coded).unwrap();
            let (read, parts) = read_coded(&[&coded[..], &[0; 9]].concat(), &sent.envelope, true).unwrap();
            let expected = match own {
                IcrcScope::WITHOUT_ADDRESSES | IcrcScope::V6 { .. } => own,
                _ => own.with_identification(0),
            };
            assert_eq!(read.envelope.icrc_scope, expected);
            assert!(icrc::verify(&expected, &read.datagram));
            assert_eq!((read.datagram.len(), parts.icrc, parts.length), (80, written.icrc, 80));
            assert_eq!(read.datagram[..76], sent.datagram[..76]);
        }
        let fragment = packet(scope().with_flags_fragment(0x2000));
        assert!(
            write_coded(&fragment, &fragment.envelope.icrc_scope, &mut coded).is_none(),
            "fragments are left alone"
        );
    }

    #[test]
    fn a_packet_is_added_from_where_it_lies_as_its_coded_form_is() {
        let mut sent = packet(scope().with_identification(77));
        // What the ICRC masks must not get into the sum.
        sent.datagram[MASKED] = 0x77;
        let mut coded = Vec::new();
        let parts = write_coded(&sent, &sent.envelope.icrc_scope, &mut coded).unwrap();
        assert_eq!(Coded::byte_count(&sent.datagram), coded.len());
        let mut sum: Vec<u8> = (0..coded.len() + 9).map(|index| index as u8).collect();
        let expected: Vec<u8> =
            sum.iter().enumerate().map(|(at, byte)| byte ^ coded.get(at).copied().unwrap_or(0)).collect();
        parts.add_plain(&sent.datagram, &RunningCoder::new(), &mut sum);
        assert_eq!(sum, expected);
    }

    #[test]
    fn what_is_wrong_anywhere_is_nothing() {
        let mut coded = Vec::new();
        let sent = packet(scope());
        write_coded(&sent, &sent.envelope.icrc_scope, &mut coded).unwrap();
        coded.extend_from_slice(&[0; 4]);
        assert!(read_coded(&coded, &sent.envelope, true).is_some());
        for at in 0..coded.len() {
            let mut wrong = coded.clone();
            wrong[at] ^= 0x10;
            // The masked byte is not covered, but nobody adds it up either.
            let is_masked = at == CODED_PREFIX_BYTES + MASKED;
            // Flags, if they are those of a whole packet, are not covered: the ICRC is that of "don't fragment".
            let read = read_coded(&wrong, &sent.envelope, true);
            assert_eq!(read.is_some(), is_masked, "{at}");
        }
        (0..coded.len() - 4).for_each(|length| assert!(read_coded(&coded[..length], &sent.envelope, true).is_none()));
    }

    #[test]
    fn elided_payload_comes_back_as_a_length() {
        let mut sent = packet(scope());
        sent.datagram.drain(12..76);
        icrc::write(&scope(), &mut sent.datagram);
        sent.envelope.elided_bytes = 64;
        let mut coded = Vec::new();
        assert_eq!(write_coded(&sent, &sent.envelope.icrc_scope, &mut coded).unwrap().length, 80);
        let (read, _) = read_coded(&coded, &sent.envelope, true).unwrap();
        assert_eq!(read, sent);
    }
}
