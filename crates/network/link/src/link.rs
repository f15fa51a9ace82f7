//! Both directions, as the loop drives them.

use std::sync::Arc;

use longhaul_capture::{Capture, CaptureDirection, CaptureError, CaptureSummary};
use longhaul_forward::{Arrival, Fate, Handler, Outbox};
use longhaul_impair::{Profile, ProfileError};
use longhaul_time::Instant;

use crate::direction::{Direction, DirectionCounters, DirectionOptions};

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the first interface to the second.
    Second,
    /// From the second interface to the first.
    First,
}

impl Towards {
    /// Both.
    pub const BOTH: [Towards; 2] = [Towards::Second, Towards::First];

    fn index(self) -> usize {
        match self {
            Towards::Second => 0,
            Towards::First => 1,
        }
    }
}

/// A link between interfaces 0 and 1 of a forwarding loop.
pub struct Link {
    /// By the interface where frames enter.
    directions: [Direction; 2],
    capture: Option<LinkCapture>,
}

struct LinkCapture {
    capture: Capture,
    /// Of the interfaces, in the capture.
    numbers: [u32; 2],
}

/// What a link has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// From the first interface to the second.
    pub towards_second: DirectionCounters,
    /// The other way.
    pub towards_first: DirectionCounters,
}

impl Link {
    /// What happens to frames from the first interface to the second, and the other way.
    pub fn new(towards_second: &DirectionOptions, towards_first: &DirectionOptions) -> Result<Self, ProfileError> {
        let directions = [Direction::new(towards_second, 1)?, Direction::new(towards_first, 0)?];
        Ok(Link { directions, capture: None })
    }

    /// Record frames at both interfaces, as they arrive and as they leave.
    pub fn record(&mut self, mut capture: Capture, names: [&str; 2]) -> Result<(), CaptureError> {
        let numbers = [capture.add_ethernet_interface(names[0])?, capture.add_ethernet_interface(names[1])?];
        self.capture = Some(LinkCapture { capture, numbers });
        Ok(())
    }

    /// End the capture, if there is one.
    pub fn end_capture(&mut self) -> Result<Option<CaptureSummary>, CaptureError> {
        self.capture.take().map(|capture| capture.capture.finish()).transpose()
    }

    /// Change what happens to frames that enter from now on.
    pub fn set_profile(&mut self, towards: Towards, profile: Arc<Profile>, now: Instant) -> Result<(), ProfileError> {
        self.directions[towards.index()].set_profile(profile, now)
    }

    /// What was counted so far.
    pub fn counters(&self) -> LinkCounters {
        let [towards_second, towards_first] = [0, 1].map(|index| self.directions[index].counters());
        LinkCounters { towards_second, towards_first }
    }
}

impl Handler for Link {
    fn handle(&mut self, port: usize, arrival: &mut Arrival<'_>, outbox: &mut Outbox) -> Fate {
        if let Some(capture) = &mut self.capture {
            capture.record(port, arrival.at, arrival.bytes, CaptureDirection::Received);
        }
        let fate = self.directions[port].enter(arrival, outbox);
        if let (Fate::Forward(to), Some(capture)) = (fate, &mut self.capture) {
            capture.record(to, arrival.at, arrival.bytes, CaptureDirection::Sent);
        }
        fate
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) {
        let Link { directions, capture } = self;
        for (port, direction) in directions.iter_mut().enumerate() {
            direction.leave(now, outbox, |frame| {
                if let Some(capture) = capture {
                    capture.record(1 - port, now, frame, CaptureDirection::Sent);
                }
            });
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        Instant::earlier_of(self.directions[0].next_deadline(), self.directions[1].next_deadline())
    }
}

impl LinkCapture {
    fn record(&mut self, port: usize, at: Instant, frame: &[u8], direction: CaptureDirection) {
        let wire_bytes = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        self.capture.record(self.numbers[port], at, frame, wire_bytes, direction);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longhaul_impair::Loss;
    use proptest::prelude::*;

    use super::*;

    fn options(profile: Profile, seed: u64) -> DirectionOptions {
        DirectionOptions { profile: Arc::new(profile), seed, kept_bytes_max: 1 << 20 }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1000 * micros)
    }

    /// Frames that enter at these times, and what leaves when: all that is due at each time of a tick.
    fn pass(link: &mut Link, port: usize, frames: &[(u64, Vec<u8>)]) -> Vec<(u64, Vec<u8>)> {
        let (mut outbox, mut left) = (Outbox::default(), Vec::new());
        let mut poll = |link: &mut Link, now: u64, outbox: &mut Outbox| {
            while let Some(due) = link.next_deadline().filter(|due| *due <= at(now)) {
                link.poll(due, outbox);
                for (to, frame, at) in outbox.take_all() {
                    assert_eq!(to, 1 - port);
                    left.push((at.as_nanos() / 1000, frame));
                }
            }
        };
        let mut direct = Vec::new();
        for (time, frame) in frames {
            poll(link, *time, &mut outbox);
            let mut bytes = frame.clone();
            let mut arrival = Arrival { bytes: &mut bytes, at: at(*time) };
            if link.handle(port, &mut arrival, &mut outbox) == Fate::Forward(1 - port) {
                direct.push((*time, bytes));
            }
        }
        poll(link, u64::MAX / 1000, &mut outbox);
        left.extend(direct);
        left
    }

    fn frames(count: u64, apart_micros: u64) -> Vec<(u64, Vec<u8>)> {
        (0..count)
            .map(|index| (index * apart_micros, [&[0; 14][..], &index.to_be_bytes(), &[0; 978]].concat()))
            .collect()
    }

    #[test]
    fn a_link_without_settings_passes_everything_at_once() {
        let mut link = Link::new(&options(Profile::default(), 1), &options(Profile::default(), 1)).expect("a link");
        let sent = frames(50, 10);
        for port in [0, 1] {
            assert_eq!(pass(&mut link, port, &sent), sent);
        }
    }

    #[test]
    fn each_direction_has_its_own_delay_and_rate() {
        let slow = Profile::default().with_rate_bits_per_second(8_000_000);
        let far = Profile::default().with_propagation_delay(Duration::from_millis(10));
        let mut link = Link::new(&options(far, 1), &options(slow, 1)).expect("a link");
        let sent = frames(20, 10);
        let left = pass(&mut link, 0, &sent);
        assert!(left.iter().zip(&sent).all(|(left, sent)| left.0 == sent.0 + 10_000 && left.1 == sent.1));
        // A thousand bytes at a megabyte a second.
        let left = pass(&mut link, 1, &sent);
        let times: Vec<u64> = left.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, (1..=20).map(|count| count * 1000).collect::<Vec<_>>());
        let counters = link.counters();
        assert_eq!((counters.towards_second.impaired.packets, counters.towards_first.impaired.packets), (20, 20));
        assert_eq!((counters.towards_first.kept, counters.towards_first.kept_bytes), (0, 0));
    }

    #[test]
    fn one_seed_drops_the_same_frames_and_another_others() {
        let lossy = Profile::default().with_loss(Loss::Independent { probability: 0.3 });
        let drops = |seed| {
            let mut link = Link::new(&options(lossy.clone(), seed), &options(Profile::default(), 1)).expect("a link");
            pass(&mut link, 0, &frames(200, 1))
        };
        assert_eq!(drops(7), drops(7));
        assert_ne!(drops(7), drops(8));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let far = Profile::default().with_propagation_delay(Duration::from_secs(1));
        let mut limited = options(far, 1);
        limited.kept_bytes_max = 12_000;
        let mut link = Link::new(&limited, &limited).expect("a link");
        let left = pass(&mut link, 0, &frames(100, 1));
        assert_eq!((left.len(), link.counters().towards_second.no_memory), (10, 90), "each takes 1,128 bytes");
    }

    #[test]
    fn frames_that_are_on_their_way_keep_their_time_when_settings_change() {
        let far = Profile::default().with_propagation_delay(Duration::from_millis(100));
        let mut link = Link::new(&options(far, 1), &options(Profile::default(), 1)).expect("a link");
        let mut outbox = Outbox::default();
        let mut enter = |link: &mut Link, time: u64| {
            let mut bytes = vec![0; 100];
            link.handle(0, &mut Arrival { bytes: &mut bytes, at: at(time) }, &mut outbox)
        };
        assert_eq!(enter(&mut link, 0), Fate::Taken);
        link.set_profile(Towards::Second, Arc::new(Profile::default()), at(10)).expect("a good profile");
        // It would overtake the first, which is allowed, but not by a way that does not look at what is kept.
        assert_eq!(enter(&mut link, 20), Fate::Taken);
        link.poll(at(20), &mut outbox);
        assert_eq!(outbox.take_all().len(), 1);
        assert_eq!(link.next_deadline(), Some(at(100_000)));
    }

    proptest! {
        #[test]
        fn any_bytes_pass_any_link(
            contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..40),
            seed: u64,
            delay in 0..3_u64,
        ) {
            let profile = Profile::default()
                .with_propagation_delay(Duration::from_micros(delay))
                .with_rate_bits_per_second(1_000_000_000)
                .with_ecn(longhaul_impair::EcnMarking::Step { threshold_bytes: 0 })
                .with_duplication(0.2)
                .with_corruption(0.3, 2);
            let mut link = Link::new(&options(profile.clone(), seed), &options(profile, seed)).expect("a link");
            let sent: Vec<_> = contents.into_iter().enumerate().map(|(time, bytes)| (time as u64, bytes)).collect();
            let left = pass(&mut link, 0, &sent);
            let counters = link.counters().towards_second;
            prop_assert_eq!(left.len() as u64, counters.impaired.deliveries() - counters.no_memory);
            prop_assert_eq!(counters.kept_bytes, 0);
        }
    }
}
