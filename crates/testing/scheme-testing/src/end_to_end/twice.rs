//! A scheme that was made up to show that one can be: everything is sent twice, at once; what is missing after that is
//! asked for, and sent twice again. It knows nothing but the public trait.

use longhaul_reliable::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};
use longhaul_time::{Duration, Instant};

/// Who gets nothing asks less and less often, up to this many doublings: what it waits for may be in a queue.
const DOUBLINGS_MAX: u32 = 6;

/// Send everything twice.
#[derive(Clone, Copy, Debug)]
pub struct Twice;

impl Scheme for Twice {
    fn name(&self) -> String {
        "twice".to_owned()
    }

    fn sender(&self, _: &MessageShape) -> Box<dyn SendHalf> {
        Box::new(Sender { has_begun: false })
    }

    fn receiver(&self, _: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(Receiver { seen: 0, quiet_since: None, asks_at: None, asked: 0 })
    }
}

struct Sender {
    has_begun: bool,
}

impl SendHalf for Sender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        if !self.has_begun {
            self.has_begun = true;
            let all = 0..io.shape().chunk_count();
            io.send_chunks(all.clone());
            io.send_chunks(all);
        }
    }

    /// Chunks that are missing, four bytes each.
    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>) {
        // What still waits to leave may be what is missing. A receiver repeats its question until something arrives; sending
        // for each of them would fill the queue without bound.
        if io.left_data_bytes() < io.queued_data_bytes() {
            return;
        }
        for chunk in bytes.chunks_exact(4).filter_map(|bytes| bytes.try_into().ok().map(u32::from_be_bytes)) {
            io.send_chunks(chunk..chunk + 1);
            io.send_chunks(chunk..chunk + 1);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

struct Receiver {
    seen: u32,
    quiet_since: Option<Instant>,
    asks_at: Option<Instant>,
    /// In vain.
    asked: u32,
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let arrived = io.data();
        if arrived.is_complete() {
            return Progress::Finished;
        }
        let pause = 2 * io.round_trip() + Duration::from_micros(100);
        let seen = arrived.whole_count();
        if seen != self.seen || self.quiet_since.is_none() {
            (self.seen, self.quiet_since, self.asked) = (seen, Some(io.now()), 0);
            self.asks_at = Some(io.now() + pause);
        }
        if self.asks_at.is_some_and(|at| at <= io.now()) {
            let most = io.feedback_bytes_max() / 4;
            let missing = arrived.missing().flatten().take(most).flat_map(u32::to_be_bytes).collect();
            io.send_feedback(missing);
            self.asked += 1;
            self.asks_at = Some(io.now() + pause * (1 << self.asked.min(DOUBLINGS_MAX)));
        }
        Progress::Waiting
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.asks_at
    }
}
