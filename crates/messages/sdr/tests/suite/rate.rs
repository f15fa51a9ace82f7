//! A rate holds for a queue pair, however many internal queue pairs its messages leave by; and what waits for it is not
//! lost.

use crate::ends;

use std::collections::VecDeque;

use ends::{Ends, Options};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_time::Duration;

const RATE: u64 = 80_000_000;
const BYTES: usize = 100_000;
const MESSAGES: usize = 64;

#[test]
fn a_rate_holds_over_generations_and_what_waits_for_it_is_not_lost() {
    for channels in [1, 2] {
        let mut ends = Ends::new(Options { channels, ..Default::default() }, |attributes| {
            // Two messages to a generation, so that messages of two generations are sent at a time.
            attributes.layout = ImmediateLayout::new(1, 27, 4).unwrap();
            attributes.generations = 4;
            attributes.rate_bits_per_second = Some(RATE);
        });
        let mut open = VecDeque::new();
        let mut started = 0;
        let start = ends.world.now();
        while started < MESSAGES || !open.is_empty() {
            while started < MESSAGES && open.len() < 2 {
                let range = started % 4 * BYTES..(started % 4 + 1) * BYTES;
                let Ok(receive) = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range.clone()) else {
                    break;
                };
                let send = ends.sender.queue_pair.post_send(&ends.sender.memory, range, None).unwrap();
                open.push_back((send, receive));
                started += 1;
            }
            ends.step(Duration::from_micros(100));
            assert_eq!(ends.sender.queue_pair.counters().0.presumed_lost, 0, "nothing is lost");
            while open.front().is_some_and(|(_, receive)| receive.bitmap().is_complete()) {
                open.pop_front();
            }
            assert!(ends.world.now() - start < Duration::from_secs(5), "{started} messages on {channels} channels");
        }
        let elapsed = ends.world.now() - start;
        let at_rate = Duration::from_secs_f64((MESSAGES * BYTES * 8) as f64 / RATE as f64);
        // Headers are counted. (A message has to leave before the next but one begins.)
        assert!(elapsed.mul_f64(1.05) >= at_rate, "{elapsed:?} instead of {at_rate:?}, {channels} channels");
        assert!(elapsed <= at_rate * 5 / 4, "{elapsed:?} instead of {at_rate:?}, {channels} channels");
    }
}
