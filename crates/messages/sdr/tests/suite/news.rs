//! A queue pair reports which sends have changed, so that nobody has to ask each of many.

use crate::ends;

use ends::{Ends, MTU, Options};
use longhaul_sdr::SendStatus;
use longhaul_time::Duration;

const TIME: Duration = Duration::from_millis(1);

#[test]
fn every_change_of_a_send_is_told_once() {
    let mut ends = Ends::new(Options::default(), |_| ());
    let sender = ends.sender.queue_pair.clone();
    assert!(sender.take_send_news().is_empty());
    let streams = [(); 3].map(|()| sender.start_stream(None).expect("there is room"));
    ends.run_for(TIME);
    assert_eq!((sender.take_send_news(), sender.has_news()), (vec![], false));
    let receive = |range| ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range).expect("there is room");
    let receives = [receive(0..MTU), receive(MTU..2 * MTU)];
    ends.run_for(TIME);
    assert!(sender.has_news());
    assert_eq!((sender.take_send_news(), sender.has_news()), (vec![0, 1], false), "cleared");
    streams[1].send_at(0, &ends.sender.memory, 0..MTU).expect("it is cleared");
    streams[1].send_at(0, &ends.sender.memory, 0..MTU).expect("it is cleared");
    ends.run_for(TIME);
    assert_eq!(sender.take_send_news(), [1], "left, twice");
    assert_eq!(streams[1].left_bytes(), 2 * MTU as u64);
    streams[0].send_at(0, &ends.sender.memory, 0..2 * MTU).expect("it is cleared");
    ends.run_for(TIME);
    assert_eq!((sender.take_send_news(), streams[0].status()), (vec![0], SendStatus::TooLong { room: MTU as u64 }));
    drop(receives);
    // Their end is reported with the next thing that has to be.
    let _next = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..MTU).expect("there is room");
    ends.run_for(TIME);
    let mut news = sender.take_send_news();
    news.sort_unstable();
    assert_eq!(news, [0, 1, 2], "two have ended, one is cleared");
    assert_eq!(streams[1].status(), SendStatus::Over);
}
