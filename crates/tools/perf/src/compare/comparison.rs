//! What a comparison says.

use std::collections::BTreeMap;

use super::orders::{Outcome, Subject};
use crate::statistics::Sorted;

/// What the loopback device carries unless somebody has changed it.
const LOOPBACK_MTU: u32 = 65_536;

/// What lies between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// Two network namespaces and a veth.
    Namespaces,
    /// The same, in a user namespace.
    UserNamespaces,
    /// The loopback device.
    Loopback,
}

impl Environment {
    /// In JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Environment::Namespaces => "namespaces",
            Environment::UserNamespaces => "user-namespaces",
            Environment::Loopback => "loopback",
        }
    }

    /// For people.
    pub const fn description(self) -> &'static str {
        match self {
            Environment::Namespaces => "two network namespaces joined by a veth",
            Environment::UserNamespaces => "two network namespaces, in a user namespace, joined by a veth",
            Environment::Loopback => "LOOPBACK, not a network: its figures are not those of a link",
        }
    }
}

/// Every round of every measurement at one MTU.
pub struct Comparison {
    /// What lies between the ends.
    pub environment: Environment,
    /// The MTU that was asked for.
    pub mtu: u32,
    /// Payload of a full packet.
    pub payload_bytes_per_packet: u32,
    /// Of each measurement.
    pub seconds: f64,
    /// Of each measurement.
    pub rounds: u32,
    /// Of the measurement with many of them.
    pub queue_pairs: Option<u32>,
    outcomes: BTreeMap<Subject, Vec<(Outcome, Outcome)>>,
}

/// What the rounds of one bandwidth measurement say together.
pub struct Bandwidth {
    /// Gbit/s, round by round.
    pub gbps: Sorted,
    /// Payload that was sent and did not arrive.
    pub lost_bytes: u64,
    /// Packets that a scheme sent again.
    pub repeated_packets: u64,
    /// Threads that only encode and decode, at each end.
    pub coding_threads: Option<usize>,
    /// Nanoseconds of processor time for a packet, at the sender and at the receiver.
    pub nanoseconds_per_packet: [f64; 2],
    /// The same for a byte.
    pub nanoseconds_per_byte: [f64; 2],
}

impl Comparison {
    /// Without any round yet.
    pub fn new(environment: Environment, mtu: u32, payload_bytes_per_packet: u32, seconds: f64, rounds: u32) -> Self {
        let (queue_pairs, outcomes) = (None, BTreeMap::new());
        Comparison { environment, mtu, payload_bytes_per_packet, seconds, rounds, queue_pairs, outcomes }
    }

    /// MTU of what lies between the ends. Nobody changes that of the host's loopback device for a measurement.
    pub fn link_mtu(&self) -> u32 {
        if self.environment != Environment::Loopback {
            return self.mtu;
        }
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(LOOPBACK_MTU)
    }

    /// What the sender and the receiver saw of a round.
    pub fn add(&mut self, subject: Subject, sent: Outcome, received: Outcome) {
        self.outcomes.entry(subject).or_default().push((sent, received));
    }

    /// A bandwidth measurement; `None` if it was not made.
    pub fn bandwidth(&self, subject: Subject) -> Option<Bandwidth> {
        let rounds = self.outcomes.get(&subject)?;
        // RC's receiver gets no completion for WRITEs and READs; its sender gets one when the bytes have arrived.
        let counted = |(sent, received): &(Outcome, Outcome)| match subject {
            Subject::RcWrite | Subject::RcWriteMany | Subject::RcRead => (sent.payload_bytes, sent.nanoseconds),
            _ => (received.payload_bytes, received.nanoseconds),
        };
        let rate = |round: &(Outcome, Outcome)| {
            let (bytes, nanoseconds) = counted(round);
            bytes as f64 * 8.0 / nanoseconds.max(1) as f64
        };
        let sent: u64 = rounds.iter().map(|(sent, _)| sent.payload_bytes).sum();
        let arrived: u64 = rounds.iter().map(|round| counted(round).0).sum();
        let early: u64 = rounds.iter().map(|(_, received)| received.early_bytes).sum();
        let spent = |pick: fn(&(Outcome, Outcome)) -> &Outcome| -> f64 {
            rounds.iter().map(|round| pick(round).processor_nanoseconds as f64).sum()
        };
        let spent = [spent(|round| &round.0), spent(|round| &round.1)];
        let bytes = [sent.max(1) as f64, arrived.max(1) as f64];
        let nanoseconds_per_byte = [spent[0] / bytes[0], spent[1] / bytes[1]];
        Some(Bandwidth {
            gbps: Sorted::new(rounds.iter().map(rate)),
            lost_bytes: sent.saturating_sub(arrived + early),
            repeated_packets: rounds.iter().map(|(sent, _)| sent.repeated_packets).sum(),
            coding_threads: rounds.iter().find_map(|(sent, _)| sent.coding_threads),
            nanoseconds_per_packet: nanoseconds_per_byte.map(|cost| cost * f64::from(self.payload_bytes_per_packet)),
            nanoseconds_per_byte,
        })
    }

    /// One-way times in microseconds: half of a round trip.
    pub fn latency(&self, subject: Subject) -> Option<Sorted> {
        let rounds = self.outcomes.get(&subject)?;
        let round_trips = rounds.iter().flat_map(|(sent, _)| &sent.round_trips_nanoseconds);
        Some(Sorted::new(round_trips.map(|&nanoseconds| f64::from(nanoseconds) / 2000.0)))
    }

    /// The ratios that can be computed from what was measured.
    pub fn ratios(&self) -> Vec<(&'static str, f64)> {
        let gbps = |subject| self.bandwidth(subject).map(|bandwidth| bandwidth.gbps.median());
        let microseconds = |subject| self.latency(subject).map(|latency| latency.median());
        let over = |name, above: Option<f64>, below: Option<f64>| match (above, below) {
            (Some(above), Some(below)) if below > 0.0 => Some((name, above / below)),
            _ => None,
        };
        let (bare, tcp) = (gbps(Subject::BareUdp), gbps(Subject::Tcp));
        let (uc, rc) = (gbps(Subject::UcWrite), gbps(Subject::RcWrite));
        let latency = [microseconds(Subject::RcSendPingPong), microseconds(Subject::BareUdpPingPong)];
        let ratios = [
            over("uc_over_bare", uc, bare),
            over("rc_over_bare", rc, bare),
            over("rc_over_tcp", rc, tcp),
            over("rc_many_over_one", gbps(Subject::RcWriteMany), rc),
            over("rc_read_over_write", gbps(Subject::RcRead), rc),
            // What is measured is the library itself; both names are kept for those who compare with older runs.
            over("facade_sr_over_uc", gbps(Subject::SdrSelectiveRepeat), uc),
            over("sdr_sr_over_uc", gbps(Subject::SdrSelectiveRepeat), uc),
            over("sdr_ec_over_uc", gbps(Subject::SdrErasure), uc),
            over("sdr_ec_inline_over_uc", gbps(Subject::SdrErasureInline), uc),
            over("rc_latency_over_bare", latency[0], latency[1]),
            over("facade_latency_over_rc", microseconds(Subject::FacadePingPong), latency[0]),
            over(
                "facade_sleeping_over_rc_events",
                microseconds(Subject::FacadeSleeping),
                microseconds(Subject::RcSendEvents),
            ),
        ];
        ratios.into_iter().flatten().collect()
    }
}
