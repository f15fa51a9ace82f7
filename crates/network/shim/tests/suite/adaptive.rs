//! Codes that follow the link: reports between two shims, and reports that lie.

use crate::ends;

use ends::{Flow, SOURCE, at, envelope, header, is_repair, psn, with};
use longhaul_shim::{Auto, Config, Direction, Fec, Network, Onward, Packet, Reason, Shim};
use longhaul_wire::Psn;
use longhaul_wire::icrc;
use longhaul_wire::repair::{Datagram, REPORT_BYTES, Report, Subject};

const MESSAGE_PACKETS: u32 = 64;

fn following(auto: &str) -> Config {
    let Ok(Fec::Auto(auto)) = auto.parse::<Fec>() else { panic!("{auto}") };
    Config { datagram_bytes_max: 512, peers: Network::EVERYWHERE.to_vec(), ..Config::following(auto) }
}

/// Two ends, and a message every 100 µs from one to the other.
struct Ends {
    sender: Shim,
    receiver: Shim,
    flow: Flow,
    message_packets: u32,
    micros: u64,
    state: u64,
    repairs: u64,
    reports: u64,
}

impl Ends {
    fn new(config: Config) -> Ends {
        let (sender, receiver) = with(config);
        let (flow, message_packets) = (Flow::writes(7, 100), MESSAGE_PACKETS);
        Ends { sender, receiver, flow, message_packets, micros: 0, state: 3, repairs: 0, reports: 0 }
    }

    fn is_lost(&mut self, loss: f64) -> bool {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 11) as f64 / (1_u64 << 53) as f64) < loss
    }

    /// Messages with this loss. Reports go back through `change`.
    fn send(&mut self, messages: u32, loss: f64, mut change: impl FnMut(Packet) -> Vec<Packet>) {
        for _ in 0..messages {
            self.micros += 100;
            let now = at(self.micros);
            let mut sent = Onward::default();
            for packet in self.flow.message(self.message_packets) {
                self.sender.handle(Direction::Outgoing, packet, now, &mut sent);
            }
            self.sender.poll(now, &mut sent);
            let mut arrived = Onward::default();
            for packet in sent.outgoing {
                self.repairs += u64::from(is_repair(&packet));
                if !self.is_lost(loss) {
                    self.receiver.handle(Direction::Incoming, packet, now, &mut arrived);
                }
            }
            self.receiver.poll(now, &mut arrived);
            let mut back = Onward::default();
            for report in arrived.outgoing {
                self.reports += 1;
                for report in change(report) {
                    self.sender.handle(Direction::Incoming, report, now, &mut back);
                }
            }
            assert!(back.incoming.is_empty(), "a report ends in the decoder");
        }
    }
}

/// As it was, or with other contents.
fn rewritten(packet: &Packet, change: impl FnOnce(&mut Report)) -> Packet {
    let Ok(Datagram::Report(mut report)) = Datagram::parse(&packet.datagram) else { panic!("a report") };
    change(&mut report);
    let mut packet = packet.clone();
    report.emit(&mut packet.datagram);
    icrc::write(&packet.envelope.icrc_scope, &mut packet.datagram);
    packet
}

#[test]
fn loss_is_reported_and_the_code_follows() {
    let mut ends = Ends::new(following("auto:mds"));
    ends.send(2000, 0.0, |report| vec![report]);
    let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
    assert!(path.code.repair_packets() == 1 && path.loss == 0.0, "{path:?}");
    let before = path.code;
    ends.send(1000, 2e-2, |report| vec![report]);
    let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
    assert!((0.015..0.025).contains(&path.loss), "{path:?}");
    assert!(path.code.repair_packets() >= 4, "{path:?}");
    let first = path.changes.iter().find(|change| change.from == before).expect("a change");
    assert_eq!(first.reason, Reason::TooWeak);
    let counters = ends.sender.encoder().counters();
    assert_eq!(counters.reports_used, ends.reports, "{counters:?}");
    assert_eq!(counters.code_changes, path.changes.len() as u64);
    assert_eq!((counters.reports_refused, counters.over_bound), (0, 0));
    assert_eq!(ends.receiver.encoder().counters().reports, ends.reports);
    let restored = ends.receiver.decoder().counters();
    assert!(restored.restored > 500 && restored.wrong_blocks == 0, "{restored:?}");
    // A report each 5 ms.
    assert!((55..=60).contains(&ends.reports), "{}", ends.reports);
}

#[test]
fn a_flow_that_sends_little_reports_little() {
    let mut ends = Ends::new(following("auto"));
    let mut packets = 0;
    for _ in 0..100 {
        ends.micros += 10_000;
        ends.send(1, 0.0, |report| vec![report]);
        packets += u64::from(MESSAGE_PACKETS);
    }
    assert!(ends.reports * 256 <= packets, "{}", ends.reports);
}

#[test]
fn reports_may_come_twice_late_or_not_at_all() {
    let mut ends = Ends::new(following("auto:mds"));
    let mut kept: Option<Packet> = None;
    let mut count = 0;
    ends.send(1500, 1e-2, |report| {
        count += 1;
        match count % 4 {
            0 => vec![],
            1 => vec![report.clone(), report],
            2 => {
                kept = Some(report);
                vec![]
            }
            _ => vec![report].into_iter().chain(kept.take()).collect(),
        }
    });
    let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
    assert!((0.008..0.012).contains(&path.loss), "{path:?}");
    let counters = ends.sender.encoder().counters();
    assert!(counters.reports_used > 10 && counters.reports_refused > 10, "{counters:?}");
}

#[test]
fn a_liar_costs_no_more_than_the_bound() {
    for (auto, bound) in [("auto", 0.25), ("auto:mds,overhead=5%", 0.05)] {
        let mut ends = Ends::new(following(auto));
        let mut all = 0;
        ends.send(4000, 0.0, |report| {
            let lie = rewritten(&report, |report| {
                // All that was received is said to be lost, one by one.
                all += 300;
                (report.received, report.lost, report.bursts) = (0, all, [all as u16, 0, 0, 0, 0, 0, 0, 0]);
            });
            vec![lie]
        });
        let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
        assert!(path.loss > 0.5, "the lie is believed: {path:?}");
        let sent = ends.sender.encoder().counters();
        let share = sent.repairs as f64 / sent.protected as f64;
        assert!(share <= bound + 0.001, "{auto}: {share}");
        // With the truth again it comes down.
        ends.send(4000, 0.0, |report| vec![report]);
        let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
        assert!(path.code.repair_packets() == 1 && path.code.block_packets() >= 64, "{path:?}");
    }
}

#[test]
fn reports_of_strangers_and_impossible_ones_count_nothing() {
    let mut ends = Ends::new(following("auto:mds"));
    let mut wild = Vec::new();
    ends.send(500, 0.0, |report| {
        wild = vec![
            rewritten(&report, |report| report.subject = Subject { queue_pair: 8, is_responses: false }),
            rewritten(&report, |report| report.subject.is_responses = true),
            rewritten(&report, |report| report.lost = report.received),
            rewritten(&report, |report| (report.lost, report.bursts[0]) = (1 << 30, 1 << 10)),
            rewritten(&report, |report| {
                report.next_psn = Psn::new(report.next_psn.value().wrapping_add(5000) & 0xff_ffff)
            }),
            rewritten(&report, |report| report.epoch = report.epoch.wrapping_add(1)),
        ];
        [wild.clone(), vec![report]].concat()
    });
    let counters = ends.sender.encoder().counters();
    assert_eq!(counters.reports_used, ends.reports);
    assert_eq!(counters.reports_refused, 6 * ends.reports);
    let [path] = &ends.sender.encoder().paths()[..] else { panic!("one path") };
    assert_eq!(path.loss, 0.0);
    // Nobody was agreed with: not even looked at.
    let strangers = Config { peers: Vec::new(), ..following("auto:mds") };
    let mut shim = Shim::new(strangers, 1).unwrap();
    let mut onward = Onward::default();
    wild.iter().for_each(|report| shim.handle(Direction::Incoming, report.clone(), at(0), &mut onward));
    assert!(onward.incoming.is_empty() && onward.outgoing.is_empty());
    assert_eq!(shim.decoder().counters().refused, wild.len() as u64);
    assert_eq!((shim.encoder().counters().reports_refused, shim.encoder().paths().len()), (0, 0));
}

#[test]
fn without_auto_nothing_is_reported_or_changed() {
    let config = Config { auto: None, reports_every: None, ..following("auto") };
    let mut ends = Ends::new(config.clone());
    ends.send(200, 1e-2, |report| vec![report]);
    assert_eq!(ends.reports, 0);
    // A report is not obeyed either.
    let mut shim = Shim::new(config.clone(), 1).unwrap();
    let subject = Subject { queue_pair: 7, is_responses: false };
    let (next_psn, epoch) = (Psn::new(0), 0);
    let report = Report { subject, next_psn, epoch, has_tag: false, received: 9, lost: 9, restored: 0, bursts: [9; 8] };
    let mut datagram = vec![0; REPORT_BYTES + 4];
    report.emit(&mut datagram);
    let envelope = envelope(SOURCE, 0);
    icrc::write(&envelope.icrc_scope, &mut datagram);
    shim.handle(Direction::Incoming, Packet { envelope, datagram }, at(0), &mut Onward::default());
    assert_eq!(shim.encoder().counters(), longhaul_shim::EncoderCounters::default());
}

#[test]
fn single_packets_stay_within_the_bound() {
    let mut shim = Shim::new(following("auto,overhead=10%"), 1).unwrap();
    let mut flow = Flow::writes(7, 0);
    let (mut data, mut repairs) = (0, 0);
    for micros in 0..10_000 {
        let mut onward = Onward::default();
        flow.message(1)
            .into_iter()
            .for_each(|packet| shim.handle(Direction::Outgoing, packet, at(micros), &mut onward));
        for packet in onward.outgoing {
            match header(&packet) {
                Some(header) => repairs += u32::from(!header.is_announcement),
                None => data += u32::from(psn(&packet) < 1 << 24),
            }
        }
    }
    assert_eq!(data, 10_000);
    assert!(repairs <= 1000 + 64, "{repairs} repair packets");
    assert!(shim.encoder().counters().over_bound > 8000);
    let auto = Auto::default();
    assert_eq!(auto.overhead_max, 0.25, "as documented");
}

#[test]
fn a_flow_of_single_packets_takes_nothing_from_another() {
    let mut shim = Shim::new(following("auto,overhead=10%"), 1).unwrap();
    let (mut single, mut bulk) = (Flow::writes(7, 0), Flow::writes(8, 0));
    let mut repairs = [0, 0];
    for micros in 0..300 {
        let mut onward = Onward::default();
        for packet in (0..64).flat_map(|_| single.message(1)).chain(bulk.message(64)).collect::<Vec<_>>() {
            shim.handle(Direction::Outgoing, packet, at(micros), &mut onward);
        }
        let headers = onward.outgoing.iter().filter_map(header).filter(|header| !header.is_announcement);
        headers.for_each(|header| repairs[usize::from(header.subject.queue_pair == 8)] += 1);
    }
    let [single, bulk] = repairs;
    let packets = 300 * 64;
    assert!(single <= packets / 10 + 64 && bulk <= packets / 10 + 64, "{single} {bulk}");
    assert!(bulk * 40 > packets, "{bulk} of {packets}");
}

#[test]
fn short_messages_all_have_repair_packets() {
    for (auto, packets) in [("auto:mds,overhead=10%", 16), ("auto:mds", 8)] {
        let mut ends = Ends { message_packets: packets, ..Ends::new(following(auto)) };
        // A thousand packets in flight, until it has converged.
        ends.send(4000, 1e-2, |report| vec![report]);
        let before = ends.sender.encoder().counters();
        ends.send(2000, 1e-2, |report| vec![report]);
        let after = ends.sender.encoder().counters();
        let without = after.over_bound - before.over_bound;
        assert!(without < 20, "{auto}: {without} of 2000 messages: {:?}", ends.sender.encoder().paths());
        assert!(after.repairs > before.repairs + 1000, "{auto}: {after:?}");
    }
}

#[test]
fn the_block_after_one_that_ended_without_repair_packets_is_repaired() {
    let config = following("auto:mds,overhead=1%");
    let (mut sender, mut receiver) = with(config);
    let message = Flow::writes(7, 100).message(200);
    let (mut received, mut micros) = (Vec::new(), 0);
    let mut pass = |packets: &[Packet], micros: u64, lost: u32| {
        let mut sent = Onward::default();
        packets.iter().for_each(|packet| sender.handle(Direction::Outgoing, packet.clone(), at(micros), &mut sent));
        // The flow pauses, but not for so long that the receiver knows that the block has ended.
        sender.poll(at(micros + 2000), &mut sent);
        let mut arrived = Onward::default();
        for packet in sent.outgoing.into_iter().filter(|packet| is_repair(packet) || psn(packet) != lost) {
            receiver.handle(Direction::Incoming, packet, at(micros), &mut arrived);
        }
        received.extend(arrived.incoming);
    };
    for packets in message[..60].chunks(3) {
        pass(packets, micros, 0);
        micros += 2100;
    }
    pass(&message[60..160], micros, 200);
    ends::assert_same(&received, &message[..160]);
    assert!(sender.encoder().counters().over_bound > 5);
    assert_eq!(receiver.decoder().counters().restored, 1);
}
