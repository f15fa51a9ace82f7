//! What the sender knows of each path: the code that it chose, and the reports that it chose by.

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_time::Instant;
use longhaul_wire::Psn;
use longhaul_wire::repair::{BURST_CLASSES, Report};

use crate::adaptive::{Auto, Chooser, CodeChange, Sample};
use crate::config::{BlockCode, Config};
use crate::packet::Envelope;

/// Packets that the mean length of messages goes back.
const MESSAGES_COUNTED_MAX: f64 = 16_384.0;
/// After this many packets of messages their mean length is known well enough for a first code.
const MESSAGES_KNOWN: f64 = 256.0;
/// Packets that cuts are counted among.
const CUTS_COUNTED_MAX: f64 = 262_144.0;
/// Until a message has ended.
const MESSAGE_FIRST: f64 = 1024.0;
/// Reports in a row that do not fit the last one that did: the receiver counts anew.
const MISFITS_MAX: u8 = 4;
/// Reports of this many epochs before the current one still count: they were in flight while the sender went back.
const EPOCHS_BACK: u16 = 8;
/// Packets that a receiver may have seen beyond those that we know to have sent: duplicates, retransmissions by others.
const SEEN_SLACK: u64 = 64;

/// A peer: all packets to it go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// A configured network, by its place in the configuration.
    Network(usize),
    /// A host that was agreed with.
    Host(IpAddr),
}

/// All paths of an encoder whose code follows the link.
#[derive(Debug)]
pub(crate) struct Paths {
    auto: Auto,
    sums_max: u8,
    paths_max: usize,
    index: BTreeMap<Peer, usize>,
    paths: Vec<Path>,
}

/// One path.
#[derive(Debug)]
pub(crate) struct Path {
    address: IpAddr,
    pub(crate) chooser: Chooser,
    /// The newest packet to the peer: reports go the same way.
    pub(crate) like: Option<Envelope>,
    /// The length of the message that a packet is of, in the mean, and the packets that this was seen on.
    message_packets: f64,
    messages_seen: f64,
    /// Data packets that were protected, and blocks that were cut short among them, the newest counting most.
    protected: f64,
    cuts: f64,
}

/// How forward error correction to one peer stands.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PathStatus {
    /// The peer, or an address of its network.
    pub peer: IpAddr,
    /// The code of blocks that begin now.
    pub code: BlockCode,
    /// Packets that were reported since the path was last seen to change.
    pub sample_packets: u64,
    /// Share of them that was lost.
    pub loss: f64,
    /// Packets lost in a row, in the mean.
    pub mean_burst_packets: f64,
    /// The newest changes of the code, the oldest of them first.
    pub changes: Vec<CodeChange>,
}

impl Paths {
    pub(crate) fn new(config: &Config) -> Option<Paths> {
        let sums_max = config.flow_units_max.min(u8::try_from(config.units_max).unwrap_or(u8::MAX));
        let auto = config.auto?;
        Some(Paths { auto, sums_max, paths_max: config.flows_max, index: BTreeMap::new(), paths: Vec::new() })
    }

    pub(crate) fn get(&self, peer: Peer) -> Option<usize> {
        self.index.get(&peer).copied()
    }

    /// A new path to a peer, if there is room: in the place of one that nobody needs any more, if there is no other. Flows that had
    /// that one must not use it.
    pub(crate) fn insert(&mut self, peer: Peer, address: IpAddr, is_needed: impl Fn(Peer) -> bool) -> Option<usize> {
        let id = if self.paths.len() < self.paths_max {
            self.paths.len()
        } else {
            let (unneeded, id) =
                self.index.iter().find(|(peer, _)| !is_needed(**peer)).map(|(peer, id)| (*peer, *id))?;
            self.index.remove(&unneeded);
            id
        };
        self.index.insert(peer, id);
        let path = Path::new(address, Chooser::new(self.auto, self.sums_max));
        match self.paths.get_mut(id) {
            Some(place) => *place = path,
            None => self.paths.push(path),
        }
        Some(id)
    }

    pub(crate) fn path(&mut self, id: usize) -> &mut Path {
        &mut self.paths[id]
    }

    pub(crate) fn code(&self, id: usize) -> BlockCode {
        self.paths[id].chooser.code()
    }

    pub(crate) fn statuses(&self) -> impl Iterator<Item = PathStatus> + '_ {
        self.paths.iter().map(|path| {
            let measured = path.chooser.measured();
            PathStatus {
                peer: path.address,
                code: path.chooser.code(),
                sample_packets: measured.packets,
                loss: measured.loss(),
                mean_burst_packets: measured.mean_burst(),
                changes: path.chooser.changes().cloned().collect(),
            }
        })
    }
}

impl Path {
    fn new(address: IpAddr, chooser: Chooser) -> Path {
        Path {
            address,
            chooser,
            like: None,
            message_packets: MESSAGE_FIRST,
            messages_seen: 0.0,
            protected: 0.0,
            cuts: 0.0,
        }
    }

    /// A data packet was protected.
    pub(crate) fn note_protected(&mut self) {
        self.protected += 1.0;
        if self.protected > CUTS_COUNTED_MAX {
            (self.protected, self.cuts) = (self.protected / 2.0, self.cuts / 2.0);
        }
    }

    /// A block was cut short because its flow paused.
    pub(crate) fn note_cut(&mut self) {
        self.cuts += 1.0;
    }

    /// A message of this many packets has ended. Messages count by their packets: repair packets are for those. Whether the code has
    /// changed.
    pub(crate) fn note_message(&mut self, packets: u32, now: Instant) -> bool {
        let packets = f64::from(packets.max(1));
        let was_known = self.messages_seen >= MESSAGES_KNOWN;
        let all = self.messages_seen + packets;
        self.message_packets += (packets - self.message_packets) * packets / all;
        self.messages_seen = all.min(MESSAGES_COUNTED_MAX);
        !was_known && all >= MESSAGES_KNOWN && self.chooser.fit_first_code(self.message_packets, now)
    }

    /// A report of one of its flows that was accepted. Whether the code has changed.
    pub(crate) fn report(&mut self, sample: Sample, in_flight: Option<u64>, now: Instant) -> bool {
        self.chooser.report(sample, in_flight, self.message_packets, self.cuts / self.protected.max(1.0), now)
    }
}

/// What the receiver of a flow has reported, to tell what is new in the next report.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    received: u32,
    lost: u32,
    bursts: [u16; BURST_CLASSES],
    /// Packets that we had sent, without those in flight: what the receiver can have seen then.
    seen_max: u64,
    misfits: u8,
}

/// Where a flow is when a report comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) epoch: u16,
    pub(crate) next: Psn,
    /// Packets that were sent since the beginning.
    pub(crate) sent: u64,
    /// Whether any PSNs were skipped: those are no packets.
    pub(crate) skips: bool,
}

impl Reported {
    /// What is new in a report, and how many packets were in flight if that can be told. `None` if the report cannot be true, or
    /// is older than another.
    pub(crate) fn take(&mut self, report: &Report, position: &Position) -> Option<(Sample, Option<u64>)> {
        let behind = position.next.distance_from(report.next_psn);
        let epochs_back = position.epoch.wrapping_sub(report.epoch);
        let in_flight = match (epochs_back, u64::try_from(behind)) {
            (0, Ok(behind)) if behind <= position.sent || position.skips => Some(behind),
            // It expects what was never sent.
            (0, _) => return None,
            (1..=EPOCHS_BACK, _) => None,
            _ => return None,
        };
        let packets = |received: u32, lost: u32| u64::from(received) + u64::from(lost);
        let (received, lost) = (report.received.wrapping_sub(self.received), report.lost.wrapping_sub(self.lost));
        let sample = Sample {
            packets: packets(received, lost),
            lost: u64::from(lost),
            bursts: report.bursts.iter().zip(&self.bursts).map(|(new, old)| u64::from(new.wrapping_sub(*old))).sum(),
        };
        // Of an earlier epoch it is not known what was in flight: no more is taken for seen than was reported. Nor is it known how many
        // of the PSNs that are missing are packets, if any were skipped.
        let reported = (self.seen_max + sample.packets).min(position.sent);
        let in_flight = in_flight.map(|psns| if position.skips { psns.min(position.sent - reported) } else { psns });
        let seen_max = match in_flight {
            Some(in_flight) => position.sent.saturating_sub(in_flight),
            None => reported,
        };
        let is_new = received < 1 << 31 && lost < 1 << 31 && sample.packets > 0;
        let is_possible = sample.packets <= position.sent - self.seen_max + SEEN_SLACK
            && sample.bursts <= sample.lost
            && (sample.bursts > 0) == (sample.lost > 0);
        if !(is_new && is_possible) {
            // A duplicate, or overtaken by a later one; or the receiver has begun anew.
            self.misfits = if sample.packets == 0 { self.misfits } else { self.misfits + 1 };
            if self.misfits >= MISFITS_MAX {
                *self = Reported::of(report, position.sent);
            }
            return None;
        }
        *self = Reported::of(report, seen_max.max(self.seen_max));
        Some((sample, in_flight))
    }

    fn of(report: &Report, seen_max: u64) -> Reported {
        Reported { received: report.received, lost: report.lost, bursts: report.bursts, seen_max, misfits: 0 }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_wire::repair::Subject;

    use super::*;

    fn report(received: u32, lost: u32, next: u32, epoch: u16) -> Report {
        let mut bursts = [0; BURST_CLASSES];
        bursts[0] = lost as u16;
        let subject = Subject { queue_pair: 17, is_responses: false };
        Report { subject, next_psn: Psn::new(next), epoch, has_tag: false, received, lost, restored: 0, bursts }
    }

    fn position(sent: u64, next: u32) -> Position {
        Position { epoch: 5, next: Psn::new(next), sent, skips: false }
    }

    #[test]
    fn reports_are_differences() {
        let mut reported = Reported::default();
        let first = reported.take(&report(900, 10, 910, 5), &position(1000, 1000)).unwrap();
        assert_eq!(first, (Sample { packets: 910, lost: 10, bursts: 10 }, Some(90)));
        let (second, _) = reported.take(&report(1895, 15, 1910, 5), &position(2000, 2000)).unwrap();
        assert_eq!(second, Sample { packets: 1000, lost: 5, bursts: 5 });
        // The same again, and an older one that was overtaken.
        assert_eq!(reported.take(&report(1895, 15, 1910, 5), &position(2000, 2000)), None);
        assert_eq!(reported.take(&report(900, 10, 910, 5), &position(2000, 2000)), None);
        assert!(reported.take(&report(2100, 20, 2120, 5), &position(2200, 2200)).is_some(), "they do no harm");
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        let mut reported = Reported::default();
        let take = |reported: &mut Reported, report| reported.take(&report, &position(1000, 1000)).is_some();
        assert!(!take(&mut reported, report(5000, 100, 900, 5)), "more than was sent");
        assert!(!take(&mut reported, report(900, 10, 1001, 5)), "expects what was not sent");
        assert!(!take(&mut reported, report(900, 10, 0xff_0000, 5)), "long before the beginning");
        assert!(!take(&mut reported, report(900, 10, 910, 6)), "an epoch that is to come");
        assert!(!take(&mut reported, report(900, 10, 910, 0x8000)));
        assert!(!take(&mut reported, Report { bursts: [0; 8], ..report(900, 10, 910, 5) }), "lost in no burst");
        assert!(take(&mut reported, report(900, 10, 910, 4)), "before the sender went back");
    }

    #[test]
    fn the_report_after_one_of_an_earlier_epoch_counts_too() {
        let mut reported = Reported::default();
        assert!(reported.take(&report(900, 10, 910, 4), &position(1000, 500)).is_some());
        // 590 packets were in flight when that came: 90 of the epoch before, and 500 of this one.
        let (sample, _) = reported.take(&report(1390, 20, 500, 5), &position(1500, 1000)).unwrap();
        assert_eq!(sample.packets, 500);
    }

    #[test]
    fn numbers_wrap_and_receivers_begin_anew() {
        let mut reported = Reported::default();
        reported = Reported { received: u32::MAX - 99, bursts: [u16::MAX, 0, 0, 0, 0, 0, 0, 0], ..reported };
        let mut wrapped = report(100, 1, 910, 5);
        wrapped.bursts[0] = 0;
        let (sample, _) = reported.take(&wrapped, &position(1000, 1000)).unwrap();
        assert_eq!(sample, Sample { packets: 201, lost: 1, bursts: 1 });
        // A receiver that was restarted: after a few reports it counts again.
        let mut reported = Reported::of(&report(1 << 20, 100, 0, 5), 1 << 20);
        let later =
            |step: u32| (report(300 * step, 0, 300 * step, 5), position((1 << 20) + u64::from(300 * step), 300 * step));
        let taken = (1..=6).map(|step| {
            let (report, position) = later(step);
            reported.take(&report, &position).map(|(sample, _)| sample.packets)
        });
        assert_eq!(taken.collect::<Vec<_>>(), [None, None, None, None, Some(300), Some(300)]);
    }

    #[test]
    fn psns_that_were_skipped_are_not_in_flight() {
        let mut reported = Reported::default();
        // READ requests of 1024 packets each: 20 of 500 are in flight.
        let at = |sent: u64| Position { skips: true, ..position(sent, (sent * 1024) as u32) };
        let first = reported.take(&report(480, 0, 480 * 1024, 5), &at(500)).unwrap();
        assert_eq!(first, (Sample { packets: 480, lost: 0, bursts: 0 }, Some(20)));
        let second = reported.take(&report(970, 10, 980 * 1024, 5), &at(1000)).unwrap();
        assert_eq!(second, (Sample { packets: 500, lost: 10, bursts: 10 }, Some(20)));
        // WRITEs follow, and nothing is skipped any more.
        let third = reported.take(
            &report(1970, 10, 980 * 1024 + 1000, 5),
            &Position { next: Psn::new(1000 * 1024 + 1000), ..at(2000) },
        );
        assert_eq!(third.unwrap().1, Some(20));
        assert_eq!(reported.take(&report(9970, 10, 1980 * 1024, 5), &at(2100)), None, "more than was sent");
    }

    fn path(auto: Auto) -> Path {
        Path::new([10, 0, 0, 2].into(), Chooser::new(auto, 32))
    }

    #[test]
    fn messages_count_by_their_packets() {
        let mut path = path(Auto::default());
        let mut codes = 0;
        let mut micros = 0;
        for round in 0..400_u32 {
            // Long messages, and as many short ones between them as they have packets, now more and now fewer.
            for packets in [vec![1024], vec![1; if round % 2 == 0 { 100 } else { 20 }]].concat() {
                micros += 50;
                path.note_message(packets, Instant::from_nanos(micros * 1000));
            }
            let sample = Sample { packets: 6000, lost: 6, bursts: 6 };
            codes += u32::from(path.report(sample, Some(45_000), Instant::from_nanos(micros * 1000)));
            assert!(round < 4 || (900.0..1000.0).contains(&path.message_packets), "{}", path.message_packets);
        }
        assert!(codes <= 4, "{codes} changes");
    }

    #[test]
    fn the_first_code_changes_when_messages_turn_out_short() {
        let mut path = path(Auto::default());
        let changes = (0..1000).filter(|_| path.note_message(16, Instant::ZERO)).count();
        assert_eq!(changes, 1);
        let code = path.chooser.code();
        assert!(code.sums_of(16, true) <= 4, "{code}");
    }

    #[test]
    fn a_path_that_nobody_needs_makes_room() {
        let config = Config { flows_max: 2, ..Config::following(Auto::default()) };
        let mut paths = Paths::new(&config).unwrap();
        let host = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut insert = |last, needed: &[u8]| {
            let needed: Vec<Peer> = needed.iter().map(|&last| Peer::Host(host(last))).collect();
            paths.insert(Peer::Host(host(last)), host(last), |peer| needed.contains(&peer))
        };
        assert_eq!((insert(1, &[1]), insert(2, &[1, 2])), (Some(0), Some(1)));
        assert_eq!(insert(3, &[1, 2]), None);
        assert_eq!(insert(3, &[2, 3]), Some(0));
        assert_eq!((paths.get(Peer::Host(host(1))), paths.get(Peer::Host(host(3)))), (None, Some(0)));
    }
}
