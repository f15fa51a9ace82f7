//! Best effort: everything is sent once, and nothing is asked for. The receiver ends with what has arrived.
//!
//! ```text
//!   sender:    everything, in order (each submessage followed by its parity) ──all has left──▶ says so, three times ──▶ waits for the ending
//!   receiver:  all is there, or can be computed ──▶ finished
//!              the last packet has come, or the sender has said that all was sent; then nothing for the allowance ──▶ finished
//! ```
//!
//! A receive without a deadline ends only so, or with the connection's time-outs. Loss is not congestion here, and not ignored either: the
//! controller below hears of it as with any scheme.

use std::ops::Range;

use longhaul_coding::Code;
use longhaul_scheme::NamedScheme;
use longhaul_scheme::timers::QUIET;
use longhaul_time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::erasure::{self, Erasure};
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};

/// Packets that are queued at a time.
const PACKETS_AT_ONCE: u32 = 64;

/// Best effort, without parity or with.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BestEffort {
    erasure: Option<Erasure>,
}

impl BestEffort {
    /// Data and parity: up to the code's losses, nothing is missing.
    pub fn with_parity(code: Code) -> Self {
        BestEffort { erasure: Some(Erasure::new(code)) }
    }
}

impl Scheme for BestEffort {
    fn name(&self) -> String {
        NamedScheme::BestEffort(self.erasure.as_ref().map(Erasure::code)).to_string()
    }

    fn parity_bytes(&self, message_bytes: u64, chunk_bytes: u32) -> u64 {
        self.erasure.as_ref().map_or(0, |erasure| erasure.parity_bytes(message_bytes, chunk_bytes))
    }

    fn is_best_effort(&self) -> bool {
        true
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        match &self.erasure {
            None => Box::new(Sender { next: 0 }),
            Some(erasure) => Box::new(Once(erasure.sender(shape))),
        }
    }

    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(Receiver {
            erasure: self.erasure.as_ref().map(|erasure| erasure.receiving(shape)),
            whole_below: 0,
            seen: [0; 2],
            news_at: Instant::ZERO,
            deadline: None,
        })
    }
}

struct Sender {
    next: u32,
}

impl SendHalf for Sender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        let count = io.shape().packet_count();
        // Little at a time: what is not queued when time is up is never sent.
        while self.next < count && io.has_room() {
            let end = count.min(self.next + PACKETS_AT_ONCE);
            io.send_packets(self.next..end);
            self.next = end;
        }
    }

    fn on_feedback(&mut self, _: &[u8], _: &mut SendIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// A sender's half that repeats nothing, whatever it is asked for.
struct Once(Box<dyn SendHalf>);

impl SendHalf for Once {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        self.0.poll(io);
    }

    fn on_feedback(&mut self, _: &[u8], _: &mut SendIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        self.0.next_deadline()
    }
}

struct Receiver {
    erasure: Option<erasure::Receiver>,
    /// All packets before this one have arrived: they are not looked at again.
    whole_below: u32,
    /// Packets of data and of parity that had arrived, and when there were more of them last.
    seen: [u32; 2],
    news_at: Instant,
    deadline: Option<Instant>,
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let (data, parity, now) = (io.data(), io.parity(), io.now());
        let is_whole = match &mut self.erasure {
            None => match data.first_missing_packet(self.whole_below) {
                Some(first) => {
                    self.whole_below = first;
                    false
                }
                None => true,
            },
            Some(erasure) => erasure.can_be_whole(data, parity),
        };
        if is_whole {
            return Progress::Finished;
        }
        let seen = [data.arrived_packets(), parity.map_or(0, |parity| parity.arrived_packets())];
        if seen != self.seen || self.news_at == Instant::ZERO {
            (self.seen, self.news_at) = (seen, now);
        }
        // Parity leaves behind its data.
        let is_through = io.is_sender_through() || parity.unwrap_or(data).has_last_packet();
        let allowance: Duration = QUIET.after(io.round_trip());
        self.deadline = is_through.then(|| self.news_at + allowance);
        match self.deadline {
            Some(deadline) if deadline <= now => Progress::Finished,
            _ => Progress::Waiting,
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn recover(
        &mut self,
        data: &mut [u8],
        arrived: Arrivals<'_>,
        parity: Option<(&[u8], Arrivals<'_>)>,
        report: &mut MessageReport,
        is_wanted: &dyn Fn() -> bool,
    ) -> Vec<Range<u32>> {
        match &mut self.erasure {
            None => arrived.missing_packets().collect(),
            Some(erasure) => erasure.recover(data, arrived, parity, report, is_wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_sdr::MessageBitmap;

    use super::*;

    const SHAPE: MessageShape = MessageShape {
        message_bytes: 64 * 1024,
        parity_bytes: 0,
        chunk_bytes: 16 * 1024,
        packet_bytes: 1024,
        rate_bits_per_second: None,
    };

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn poll(half: &mut dyn ReceiveHalf, bitmap: &MessageBitmap, is_sender_through: bool, millis: u64) -> Progress {
        let mut io = ReceiveIo {
            now: at(millis),
            round_trip: Duration::from_millis(40),
            shape: &SHAPE,
            data: SHAPE.arrivals(bitmap, SHAPE.message_bytes),
            parity: None,
            is_asked: false,
            is_sender_through,
            feedback: &mut Vec::new(),
            feedback_bytes_max: 500,
            report: &mut MessageReport::default(),
        };
        half.poll(&mut io)
    }

    #[test]
    fn it_is_quiet_an_allowance_after_the_newest_packet_once_the_last_one_is_there() {
        let mut half = BestEffort::default().receiver(&SHAPE);
        let bitmap = MessageBitmap::new(64, 16);
        bitmap.record_run(0, 20);
        assert_eq!(poll(&mut *half, &bitmap, false, 1), Progress::Waiting);
        assert_eq!((poll(&mut *half, &bitmap, false, 1000), half.next_deadline()), (Progress::Waiting, None));
        bitmap.record(63);
        assert_eq!(poll(&mut *half, &bitmap, false, 1001), Progress::Waiting);
        assert_eq!(half.next_deadline(), Some(at(1011)));
        // A late one, of a chunk that is not whole.
        bitmap.record(40);
        assert_eq!(poll(&mut *half, &bitmap, false, 1011), Progress::Waiting);
        assert_eq!(poll(&mut *half, &bitmap, false, 1020), Progress::Waiting);
        assert_eq!(poll(&mut *half, &bitmap, false, 1021), Progress::Finished);
    }

    #[test]
    fn the_senders_word_is_as_good_as_the_last_packet() {
        let mut half = BestEffort::default().receiver(&SHAPE);
        let bitmap = MessageBitmap::new(64, 16);
        bitmap.record_run(0, 20);
        assert_eq!(poll(&mut *half, &bitmap, false, 1), Progress::Waiting);
        assert_eq!(poll(&mut *half, &bitmap, true, 5), Progress::Waiting);
        assert_eq!(half.next_deadline(), Some(at(11)));
        assert_eq!(poll(&mut *half, &bitmap, true, 11), Progress::Finished);
    }
}
