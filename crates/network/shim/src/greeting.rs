//! A sign of life for the other shim, for those that have no other way to learn of each other.

use longhaul_wire::Psn;
use longhaul_wire::icrc::{self, ICRC_BYTES};
use longhaul_wire::repair::{BURST_CLASSES, REPORT_BYTES, Report, Subject};

use crate::config::Config;
use crate::packet::{Envelope, Packet};
use crate::tag::tag;

/// A report about queue pair 0 with only zeros, which says nothing but that there is a shim. It looks like a packet with this
/// envelope.
pub fn greeting(config: &Config, like: &Envelope) -> Packet {
    let report = Report {
        subject: Subject { queue_pair: 0, is_responses: false },
        next_psn: Psn::new(0),
        epoch: 0,
        has_tag: config.key.is_some(),
        received: 0,
        lost: 0,
        restored: 0,
        bursts: [0; BURST_CLASSES],
    };
    let identification = like.identification.map(|_| 0);
    let envelope = Envelope { identification, icrc_scope: like.icrc_scope.canonical(), elided_bytes: 0, ..*like };
    let mut datagram = vec![0; REPORT_BYTES];
    report.emit(&mut datagram);
    if let Some(key) = &config.key {
        let tag = tag(key, &envelope, &datagram);
        datagram.extend_from_slice(&tag);
    }
    datagram.extend_from_slice(&[0; ICRC_BYTES]);
    icrc::write(&envelope.icrc_scope, &mut datagram);
    Packet { envelope, datagram }
}
