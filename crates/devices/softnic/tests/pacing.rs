//! The default pace: for peers elsewhere, not for peers on this host, and slower after losses.

mod two_ends;

use std::cell::Cell;

use longhaul_congestion::ControllerName;
use longhaul_softnic::{Config, Outgoing, Route, TransmitSink};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Gid, PathAttributes, QueuePairAttributes, QueuePairNumber, QueuePairOptions, QueuePairState, SendOperation,
    SendRequest, Transport,
};
use two_ends::{End, Outbox, Reliability, at, pair_with};

const RC: Transport = Transport::ReliableConnection;
const UC: Transport = Transport::UnreliableConnection;
const UD: Transport = Transport::UnreliableDatagram;
/// One byte a microsecond: less than four packets of 256 bytes in a millisecond.
const RATE: u64 = 8_000_000;

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
        assert_eq!(sent_at_once(transport, paced), 1);
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
    assert_eq!(one.poll(at(1_000_000)).len(), 1);
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
    (0..5).for_each(|_| post("10.0.0.1"));
    assert_eq!(one.poll(at(1_000_000)).len(), 5);
    (0..5).for_each(|_| post("10.0.0.22"));
    assert_eq!(one.poll(at(1_000_000)).len(), 1);
}

/// Send a message with the packets of these positions lost once. Returns how long it took.
fn duration_with_losses(lost: &[usize]) -> Duration {
    let (one, two) = pair_with(RC, Reliability { timeout: 20, ..Default::default() }, paced);
    one.post_write(1, 60_000, &two);
    let start = at(1_000_000);
    let (mut now, mut sent) = (start, 0);
    loop {
        for packet in one.poll(now) {
            if !lost.contains(&sent) {
                two.receive(&packet, now);
            }
            sent += 1;
        }
        answer(&two, &one, now);
        if !one.completions().is_empty() {
            break;
        }
        now = one.next_deadline().expect("more to send").max(now);
    }
    assert_eq!(one.counters().local_ack_timeout_err, 0);
    now - start
}

fn answer(from: &End, to: &End, now: Instant) {
    from.poll(now).iter().for_each(|answer| to.receive(answer, now));
}

#[test]
fn losses_slow_a_connection_down_for_a_while() {
    let without = duration_with_losses(&[]);
    // Each costs the two packets that are sent again; the rest is the slower pace.
    let with = duration_with_losses(&[20, 30, 40]);
    assert!(with > without + without / 10, "{with:?} against {without:?}");
    assert!(with < 4 * without, "{with:?} against {without:?}: the rate comes back");
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
    const ECN_CONGESTION_EXPERIENCED: u8 = 3;
    let (one, two) = pair_with(RC, patient(), paced);
    one.post_read(1, 0, 256 * 10, &two);
    let requests = one.poll(at(1_000_000));
    two.receive(&requests[0], at(1_000_000));
    assert_eq!(two.poll(at(1_000_000)).len(), 1, "the pace lets one packet of the answer go");
    two.receive_marked(&requests[0], at(1_000_000), ECN_CONGESTION_EXPERIENCED);
    let mut sink = Impatient::default();
    two.device.nic().poll_after_post(at(1_000_000), &mut sink, false);
    assert!(sink.asked.get() < 10, "asked for room {} times", sink.asked.get());
    assert!(sink.outbox.0.is_empty(), "the pace holds the answer, and the notification is left for later");
    let later = two.next_deadline().expect("the rest of the answer");
    assert_eq!(two.poll(later).len(), 2, "the notification and the next packet of the answer");
}
