//! The default pace: for peers elsewhere, not for peers on this host, and, with a controller, no more than the path takes.

use crate::two_ends;

use std::cell::Cell;

use longhaul_congestion::ControllerName;
use longhaul_softnic::{Config, Outgoing, Route, TransmitSink};
use longhaul_time::Instant;
use longhaul_verbs::{
    Gid, PathAttributes, QueuePairAttributes, QueuePairNumber, QueuePairOptions, QueuePairState, SendOperation,
    SendRequest, Transport,
};
use two_ends::{Datagram, End, Outbox, Reliability, at, pair_with};

const RC: Transport = Transport::ReliableConnection;
const UC: Transport = Transport::UnreliableConnection;
const ECN_CONGESTION_EXPERIENCED: u8 = 3;
const UD: Transport = Transport::UnreliableDatagram;
/// One byte a microsecond: less than four packets of 256 bytes in a millisecond.
const RATE: u64 = 8_000_000;
/// Packets that leave at once at such a rate.
const BURST: usize = 2;

/// The first window of `wan`: ten packets with the longest headers.
const WINDOW: usize = 11;

fn paced(config: &mut Config) {
    config.congestion = Some(ControllerName::Fixed(RATE));
}

/// Without a time-out: nobody answers here.
fn patient() -> Reliability {
    Reliability { timeout: 0, ..Default::default() }
}

fn sent_at_once(transport: Transport, change: impl Fn(&mut Config)) -> usize {
    let (one, two) = pair_with(transport, patient(), change);
    one.post_write(1, 256 * 10, &two);
    one.poll(at(1_000_000)).len()
}

#[test]
fn peers_elsewhere_are_paced_and_peers_on_this_host_are_not() {
    for transport in [RC, UC] {
        assert_eq!(sent_at_once(transport, paced), BURST);
        let on_this_host = |config: &mut Config| {
            paced(config);
            config.local_addresses = vec!["10.0.0.22".parse().unwrap()];
        };
        assert_eq!(sent_at_once(transport, on_this_host), 10);
        assert_eq!(sent_at_once(transport, |_| ()), 10);
    }
}

#[test]
fn what_is_local() {
    let mut config = Config::new("softnic", vec!["192.0.2.1".parse().unwrap()], [0; 32]);
    config.local_addresses = vec!["2001:db8::1".parse().unwrap()];
    for (address, expected) in [
        ("127.0.0.1", true),
        ("127.9.9.9", true),
        ("::1", true),
        ("192.0.2.1", true),
        ("2001:db8::1", true),
        ("192.0.2.2", false),
        ("2001:db8::2", false),
    ] {
        assert_eq!(config.is_local(address.parse().unwrap()), expected, "{address}");
    }
}

#[test]
fn a_rate_that_was_asked_for_is_kept_on_this_host_too() {
    let (one, two) = pair_with(RC, patient(), |config| config.local_addresses = vec!["10.0.0.22".parse().unwrap()]);
    let limit = QueuePairAttributes { rate_limit_kilobits_per_second: Some(8000), ..Default::default() };
    one.queue_pair.modify(&limit).unwrap();
    one.post_write(1, 256 * 10, &two);
    assert_eq!(one.poll(at(1_000_000)).len(), BURST);
}

#[test]
fn a_datagram_is_paced_only_if_it_leaves_the_host() {
    let (one, _two) = pair_with(UC, patient(), paced);
    let options = QueuePairOptions::default();
    let queue_pair = one.domain.create_queue_pair(UD, &one.completions, &one.completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_datagram(1)).unwrap();
    queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToReceive)).unwrap();
    queue_pair.modify(&QueuePairAttributes::ready_to_send(0)).unwrap();
    let entry = [one.region.entry(0..1000)];
    let post = |address: &str| {
        let path = PathAttributes::to(Gid::from_ip(address.parse().unwrap()));
        let handle = one.domain.create_address_handle(&path).unwrap();
        let request = SendRequest::new(1, SendOperation::Send, &entry);
        queue_pair.post_send(&[request.to(handle.destination(QueuePairNumber::new(99), 1))]).unwrap();
    };
    (0..20).for_each(|_| post("10.0.0.1"));
    assert_eq!(one.poll(at(1_000_000)).len(), 20);
    (0..20).for_each(|_| post("10.0.0.22"));
    let sent = one.poll(at(1_000_000)).len();
    assert!((1..10).contains(&sent), "{sent} datagrams at once");
}

fn controlled(name: ControllerName) -> impl Fn(&mut Config) {
    move |config| config.congestion = Some(name)
}

/// All that leaves in a second in which nobody answers.
fn sent_without_answers(one: &End) -> Vec<Datagram> {
    (0..1000).flat_map(|millis| one.poll(at(1_000_000 + 1000 * millis))).collect()
}

#[test]
fn a_controller_sends_no_more_than_its_window_and_asks_for_the_acknowledgement_that_opens_it() {
    let (one, two) = pair_with(RC, patient(), controlled(ControllerName::Wan));
    one.post_write(1, 256 * 100, &two);
    let sent = sent_without_answers(&one);
    assert_eq!(sent.len(), WINDOW);
    assert!(
        sent.last().is_some_and(|packet| packet.packet().headers.bth.ack_request),
        "otherwise no acknowledgement would ever open it"
    );
    let now = at(2_000_000);
    sent.iter().for_each(|packet| two.receive(packet, now));
    answer(&two, &one, now);
    let more = (0..1000).map(|millis| one.poll(at(2_000_000 + 1000 * millis)).len()).sum::<usize>();
    assert_eq!(more, 2 * WINDOW, "twice as many after a round trip");
}

#[test]
fn silence_leaves_a_small_window() {
    let (one, two) = pair_with(RC, Reliability { timeout: 14, ..Default::default() }, controlled(ControllerName::Wan));
    one.post_write(1, 256 * 100, &two);
    assert_eq!(one.poll(at(1_000_000)).len(), WINDOW);
    // The time-out is 67 ms.
    let again: usize = (1000..1100).map(|millis| one.poll(at(1000 * millis)).len()).sum();
    assert_eq!((again, one.counters().local_ack_timeout_err), (4, 1));
}

#[test]
fn a_read_asks_for_no_more_than_the_window_takes() {
    let (one, two) = pair_with(RC, patient(), controlled(ControllerName::Wan));
    one.post_read(1, 0, 256 * 100, &two);
    let questions = sent_without_answers(&one);
    let asked: u32 = questions.iter().map(|question| question.packet().headers.reth.expect("a READ").dma_length).sum();
    assert_eq!(asked, 256 * 10);
    questions.iter().for_each(|question| two.receive(question, at(2_000_000)));
    answer(&two, &one, at(2_000_000));
    assert!(!one.poll(at(2_000_000)).is_empty(), "the answers have opened the window");
}

#[test]
fn unreliable_connections_have_a_rate_of_their_own() {
    let both = |config: &mut Config| {
        config.congestion = Some(ControllerName::Wan);
        config.unacknowledged_bits_per_second = Some(RATE);
    };
    assert_eq!(sent_at_once(UC, both), BURST);
    assert_eq!(sent_at_once(UC, controlled(ControllerName::Wan)), 10, "nothing would tell it a rate");
}

#[test]
fn a_notification_slows_a_connection_down() {
    let sent_at_first = |is_notified: bool| {
        let (one, two) = pair_with(RC, patient(), |config| {
            config.congestion = Some(ControllerName::Dcqcn);
            config.rate_bits_per_second = Some(1_000_000_000);
        });
        one.post_write(1, 256 * 200, &two);
        let first = one.poll(at(0));
        if is_notified {
            two.receive_marked(&first[0], at(1), ECN_CONGESTION_EXPERIENCED);
            answer(&two, &one, at(1));
        }
        // Before its timers have brought the rate back.
        (1..=100).map(|micros| one.poll(at(micros)).len()).sum::<usize>()
    };
    let (free, notified) = (sent_at_first(false), sent_at_first(true));
    assert!(free > 35 && notified > 0 && notified < free * 3 / 4, "{notified} packets against {free}");
}

#[test]
fn one_connection_may_have_a_controller_of_its_own() {
    let (one, two) = pair_with(RC, patient(), |_| ());
    let number = one.queue_pair.number();
    assert!(!one.device.nic().set_congestion(number, ControllerName::Credit), "nobody would grant it any");
    assert!(!one.device.nic().set_congestion(QueuePairNumber::new(77), ControllerName::Wan));
    assert!(one.device.nic().set_congestion(number, ControllerName::Fixed(RATE)));
    one.post_write(1, 256 * 10, &two);
    assert_eq!(one.poll(at(1_000_000)).len(), BURST);
}

#[test]
fn a_rate_limit_is_a_cap_for_a_controller() {
    let (one, two) = pair_with(RC, patient(), controlled(ControllerName::Wan));
    let limit = QueuePairAttributes { rate_limit_kilobits_per_second: Some(8000), ..Default::default() };
    one.queue_pair.modify(&limit).unwrap();
    one.post_write(1, 256 * 100, &two);
    assert_eq!(one.poll(at(1_000_000)).len(), BURST, "the rate");
    assert_eq!(BURST + sent_without_answers(&one).len(), WINDOW, "the window");
}

fn limit(end: &End, kilobits_per_second: u32) {
    let rate_limit_kilobits_per_second = Some(kilobits_per_second);
    end.queue_pair.modify(&QueuePairAttributes { rate_limit_kilobits_per_second, ..Default::default() }).unwrap();
}

#[test]
fn a_rate_limit_does_not_take_the_controller_away_that_was_chosen() {
    let (one, two) = pair_with(RC, patient(), |_| ());
    assert!(one.device.nic().set_congestion(one.queue_pair.number(), ControllerName::Wan));
    limit(&one, 1_000_000);
    one.post_write(1, 256 * 100, &two);
    assert_eq!(sent_without_answers(&one).len(), WINDOW);
    limit(&one, 0);
    assert_eq!(sent_without_answers(&one).len(), 0, "the window is still full");
}

#[test]
fn a_new_rate_limit_keeps_what_is_in_flight_and_what_was_learned() {
    let (one, two) = pair_with(RC, patient(), controlled(ControllerName::Wan));
    one.post_write(1, 256 * 200, &two);
    let sent = sent_without_answers(&one);
    assert_eq!(sent.len(), WINDOW);
    for kilobits_per_second in [1_000_000, 2_000_000, 0, 3_000_000] {
        limit(&one, kilobits_per_second);
        assert_eq!(sent_without_answers(&one).len(), 0, "the window is full with any limit");
    }
    let now = at(2_000_000);
    sent.iter().for_each(|packet| two.receive(packet, now));
    answer(&two, &one, now);
    limit(&one, 1_000_000);
    let more = (0..1000).map(|millis| one.poll(at(2_000_000 + 1000 * millis)).len()).sum::<usize>();
    assert_eq!(more, 2 * WINDOW, "twice as many after a round trip");
}

#[test]
fn a_rate_limit_that_is_raised_applies_at_once() {
    let (one, two) = pair_with(RC, patient(), |_| ());
    // One packet in three seconds.
    limit(&one, 1);
    one.post_write(1, 256 * 100, &two);
    assert_eq!(one.poll(at(1_000_000)).len(), BURST);
    assert_eq!(one.poll(at(1_001_000)).len(), 0);
    limit(&one, 0);
    assert_eq!(one.poll(at(1_002_000)).len(), 100 - BURST);
}

/// Give a connection another path while it is drained.
fn move_to(end: &End, address: &str) {
    end.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)).unwrap();
    let path = Some(PathAttributes::to(Gid::from_ip(address.parse().unwrap())));
    end.queue_pair.modify(&QueuePairAttributes { path, ..Default::default() }).unwrap();
    end.queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToSend)).unwrap();
}

#[test]
fn a_new_path_has_the_control_that_it_needs() {
    let here = |config: &mut Config| {
        config.congestion = Some(ControllerName::Wan);
        config.local_addresses = vec!["10.0.0.22".parse().unwrap()];
    };
    let (one, two) = pair_with(RC, patient(), here);
    one.post_write(1, 256, &two);
    let packets = one.poll(at(0));
    packets.iter().for_each(|packet| two.receive(packet, at(1)));
    answer(&two, &one, at(1));
    move_to(&one, "10.0.0.77");
    one.post_write(2, 256 * 100, &two);
    assert_eq!(sent_without_answers(&one).len(), WINDOW, "to another host");

    let (one, two) = pair_with(RC, patient(), here);
    move_to(&one, "10.0.0.77");
    one.post_write(1, 256 * 100, &two);
    assert_eq!(sent_without_answers(&one).len(), WINDOW);
    // Back to this host, where nothing is paced: the rest leaves.
    move_to(&one, "10.0.0.22");
    assert_eq!(one.poll(at(3_000_000)).len(), 100 - WINDOW);
}

#[test]
fn a_chosen_controller_begins_anew_on_a_new_path() {
    let (one, two) = pair_with(RC, patient(), |_| ());
    assert!(one.device.nic().set_congestion(one.queue_pair.number(), ControllerName::Wan));
    one.post_write(1, 256 * 100, &two);
    assert_eq!(sent_without_answers(&one).len(), WINDOW);
    move_to(&one, "10.0.0.77");
    assert_eq!(sent_without_answers(&one).len(), WINDOW, "nothing of this is in flight on the old path");
}

fn answer(from: &End, to: &End, now: Instant) {
    from.poll(now).iter().for_each(|answer| to.receive(answer, now));
}

/// A port that runs out of room when it was asked too often: a device that asks for ever would hang the test.
#[derive(Default)]
struct Impatient {
    outbox: Outbox,
    asked: Cell<u32>,
}

impl TransmitSink for Impatient {
    fn has_room(&self) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.asked.get() < 1000
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        self.outbox.transmit(route, datagram);
    }
}

#[test]
fn a_paced_answer_with_a_notification_waiting_does_not_keep_the_device() {
    let (one, two) = pair_with(RC, patient(), paced);
    one.post_read(1, 0, 256 * 10, &two);
    let requests = one.poll(at(1_000_000));
    two.receive(&requests[0], at(1_000_000));
    assert_eq!(two.poll(at(1_000_000)).len(), BURST, "the pace lets some packets of the answer go");
    two.receive_marked(&requests[0], at(1_000_000), ECN_CONGESTION_EXPERIENCED);
    let mut sink = Impatient::default();
    two.device.nic().poll_after_post(at(1_000_000), &mut sink, false);
    assert!(sink.asked.get() < 10, "asked for room {} times", sink.asked.get());
    assert!(sink.outbox.0.is_empty(), "the pace holds the answer, and the notification is left for later");
    let later = two.next_deadline().expect("the rest of the answer");
    assert_eq!(two.poll(later).len(), 1 + BURST, "the notification and the next packets of the answer");
}
