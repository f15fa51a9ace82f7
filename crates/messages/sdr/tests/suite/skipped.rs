//! Receives that take a number and nothing else.

use crate::ends;

use ends::{Ends, MTU, Options, pattern};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::{PeerReceive, SendStatus};
use longhaul_time::Duration;

const LONG: Duration = Duration::from_secs(5);

/// A number that is skipped needs no memory and no key: its sender hears that the message is over, the next message is the next receive's, and
/// only numbers can run out.
#[test]
fn a_skipped_receive_uses_its_number_and_nothing_else() {
    for generations in [1, 2, 4] {
        let mut ends = Ends::new(Options::default(), |attributes| {
            attributes.layout = ImmediateLayout::new(2, 26, 4).unwrap();
            attributes.generations = generations;
        });
        for round in 0..40 {
            let skipped = ends.receiver.queue_pair.skip_receive().unwrap();
            let bytes = pattern(round, 3 * MTU);
            ends.sender.memory.write(0..bytes.len()).unwrap().copy_from_slice(&bytes);
            let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..bytes.len()).unwrap();
            assert_eq!(receive.number(), skipped + 1);
            let range = 0..bytes.len();
            let nowhere = ends.sender.queue_pair.post_send(&ends.sender.memory, range.clone(), None).unwrap();
            let send = ends.sender.queue_pair.post_send(&ends.sender.memory, range, None).unwrap();
            assert_eq!((nowhere.number(), send.number()), (skipped, skipped + 1));
            assert!(ends.run_until(LONG, || receive.bitmap().is_complete() && nowhere.status() == SendStatus::Over));
            assert_eq!(ends.sender.queue_pair.peer_receive_of(skipped), PeerReceive::Over);
            assert_eq!(receive.complete().unwrap().bytes(), bytes);
            assert!(ends.run_until(LONG, || send.status() != SendStatus::Sending));
            drop((nowhere, send));
            ends.run_for(Duration::from_millis(1));
        }
        // While the sender has said nothing of them, there are at most as many as the table and its generations hold; it may not have reported yet
        // that it has done with the last of those above.
        let skipped = std::iter::from_fn(|| ends.receiver.queue_pair.skip_receive()).count();
        let most = 4 * usize::from(generations);
        assert!((most - 2..=most).contains(&skipped), "{skipped} of {most}");
    }
}

/// A send of no bytes asks for nothing: it has to be told.
#[test]
fn a_send_of_nothing_hears_that_its_receive_was_skipped() {
    let ends = &mut Ends::new(Options::default(), |_| {});
    let nowhere = ends.sender.queue_pair.post_send(&ends.sender.memory, 0..0, None).unwrap();
    ends.run_for(Duration::from_millis(100));
    assert_eq!(ends.receiver.queue_pair.skip_receive(), Some(nowhere.number()));
    assert!(ends.run_until(Duration::from_millis(100), || nowhere.status() == SendStatus::Over));
}
