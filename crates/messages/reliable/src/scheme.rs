//! What a scheme is: the trait that every one implements, and what its two halves can do.
//!
//! A connection makes a half for each message, and drives it: `poll` whenever something may have happened (packets, feedback, time),
//! `next_deadline` to know when it must be polled at the latest. Halves never see packets, only which chunks have arrived; and never
//! block, sleep or look at a clock.

use std::ops::Range;

use longhaul_sdr::memory::{ReadGuard, WriteGuard};
use longhaul_sdr::{Memory, SendStream};
use longhaul_time::{Duration, Instant};

use crate::arrivals::Arrivals;
use crate::chunk_set::ChunkSet;
use crate::jobs::{JobOf, Jobs, Task};
use crate::report::MessageReport;

/// A reliability scheme: how messages of a connection are brought over. Both ends must have the same, with the same parameters.
pub trait Scheme: Send + Sync {
    /// Its name with all its parameters that the ends must agree on. A receiver refuses messages of a sender whose name differs.
    fn name(&self) -> String;

    /// Bytes of parity for a message of `message_bytes`: never fewer for a longer message, and 0 for all of them when the scheme has none. Parity is a second message of `sdr` that belongs to the first.
    fn parity_bytes(&self, message_bytes: u64, chunk_bytes: u32) -> u64 {
        let _ = (message_bytes, chunk_bytes);
        0
    }

    /// Whether messages may end with bytes missing, because nothing is repeated: the sender says when all has left, and a receive that ends by
    /// a time-out hands over what has arrived.
    fn is_best_effort(&self) -> bool {
        false
    }

    /// The sender's half for one message.
    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf>;

    /// The receiver's half for one message, made when the message's length is known.
    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf>;
}

/// The sender's half of a scheme, for one message. It is dropped when the receiver has reported that it is done. The half of
/// a message that travels in its offer, which has at most 256 bytes, is never called.
pub trait SendHalf: Send {
    /// Send what is due. Called at the beginning, when something has left the device, after feedback, and when the deadline
    /// is reached.
    fn poll(&mut self, io: &mut SendIo<'_>);

    /// Bytes of the receiver's half. They may be old, and come more than once: a half that sends for each of them must look
    /// whether what it queued before has left ([`SendIo::left_data_bytes`]), or its queue grows without bound.
    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>);

    /// When [`SendHalf::poll`] must be called at the latest.
    fn next_deadline(&self) -> Option<Instant>;
}

/// The receiver's half of a scheme, for one message.
pub trait ReceiveHalf: Send {
    /// Look at what has arrived, and tell the sender what it has to know. Called at the beginning, when a chunk has arrived or a packet has come again,
    /// when the sender asks, and when the deadline is reached.
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress;

    /// When [`ReceiveHalf::poll`] must be called at the latest.
    fn next_deadline(&self) -> Option<Instant>;

    /// The message is over, nothing more arrives: compute what can be computed. Returns the runs of packets that are missing for good, in order.
    /// Called when [`ReceiveHalf::poll`] has said [`Progress::Finished`], or when the deadline of a bounded receive has ended it. It may be called on another thread, so that it holds nobody up.
    /// When `is_wanted` says no, the message has failed meanwhile: return soon, whatever there is.
    fn recover(
        &mut self,
        data: &mut [u8],
        arrived: Arrivals<'_>,
        parity: Option<(&[u8], Arrivals<'_>)>,
        report: &mut MessageReport,
        is_wanted: &dyn Fn() -> bool,
    ) -> Vec<Range<u32>> {
        let _ = (data, parity, report, is_wanted);
        arrived.missing_packets().collect()
    }
}

/// Whether a receiver has what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not yet.
    Waiting,
    /// Yes: the message is completed and the sender told.
    Finished,
}

/// How a message is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageShape {
    /// Bytes of the message.
    pub message_bytes: u64,
    /// Bytes of its parity.
    pub parity_bytes: u64,
    /// Bytes of a chunk; the last one may have fewer.
    pub chunk_bytes: u32,
    /// Bytes of a packet; a chunk is one or more of them.
    pub packet_bytes: u32,
    /// What the sender sends at most, if that is known.
    pub rate_bits_per_second: Option<u64>,
}

impl MessageShape {
    /// How long this many bytes take to leave a sender with our rate, if that is limited.
    pub(crate) fn injection_time(&self, bytes: u64) -> Duration {
        self.rate_bits_per_second.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos((8 * u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))) as u64)
        })
    }

    /// Chunks of the message.
    pub fn chunk_count(&self) -> u32 {
        self.message_bytes.div_ceil(self.chunk_bytes.into()) as u32
    }

    /// Packets of the message.
    pub fn packet_count(&self) -> u32 {
        self.message_bytes.div_ceil(self.packet_bytes.into()) as u32
    }

    /// Packets of the message and of its parity.
    pub(crate) fn packets_with_parity(&self) -> u64 {
        u64::from(self.packet_count()) + self.parity_bytes.div_ceil(self.packet_bytes.into())
    }

    /// The packets of chunks.
    pub fn packets_in(&self, chunks: Range<u32>) -> Range<u32> {
        let chunk_packets = self.chunk_bytes / self.packet_bytes;
        let at = |chunk: u32| chunk.saturating_mul(chunk_packets).min(self.packet_count());
        at(chunks.start)..at(chunks.end)
    }

    /// Where chunks lie in the message.
    pub fn bytes_of(&self, chunks: Range<u32>) -> Range<u64> {
        within(chunks, self.chunk_bytes, self.message_bytes)
    }

    /// Where chunks of parity lie in the parity. (A scheme may cut the parity of a message that is shorter than a chunk otherwise.)
    pub fn parity_bytes_of(&self, chunks: Range<u32>) -> Range<u64> {
        within(chunks, self.chunk_bytes, self.parity_bytes)
    }

    pub(crate) fn arrivals<'a>(&self, bitmap: &'a longhaul_sdr::MessageBitmap, bytes: u64) -> Arrivals<'a> {
        let packets = bytes.div_ceil(self.packet_bytes.into()) as u32;
        Arrivals::new(bitmap, packets, self.chunk_bytes / self.packet_bytes)
    }

    /// Where packets lie in the message.
    pub(crate) fn bytes_of_packets(&self, packets: Range<u32>) -> Range<u64> {
        within(packets, self.packet_bytes, self.message_bytes)
    }

    fn packets_of(&self, bytes: &Range<u64>) -> u64 {
        (bytes.end - bytes.start).div_ceil(self.packet_bytes.into())
    }
}

fn within(units: Range<u32>, unit_bytes: u32, length: u64) -> Range<u64> {
    let at = |unit: u32| (u64::from(unit) * u64::from(unit_bytes)).min(length);
    at(units.start)..at(units.end)
}

/// Bytes that cannot be read are tried again after this part of a round trip, but not more often than this.
const RETRIES_A_ROUND_TRIP: u32 = 8;
const RETRY_MIN: Duration = Duration::from_micros(100);

/// When to look again at bytes that somebody else uses: nothing reports when that has ended.
pub(crate) fn retry_after(round_trip: Duration) -> Duration {
    (round_trip / RETRIES_A_ROUND_TRIP).max(RETRY_MIN)
}

/// What a sender's half can see and do.
pub struct SendIo<'a> {
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    pub(crate) variation: Duration,
    pub(crate) heard: Option<Instant>,
    pub(crate) shape: &'a MessageShape,
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) report: &'a mut MessageReport,
}

/// An outgoing message: where its bytes are, and which of them were queued.
pub(crate) struct Outbox {
    pub(crate) data: SendStream,
    pub(crate) memory: Memory,
    pub(crate) range: Range<usize>,
    pub(crate) parity: Option<(SendStream, Memory)>,
    pub(crate) queued_data_bytes: u64,
    pub(crate) queued_parity_bytes: u64,
    pub(crate) sent_once: ChunkSet,
    /// What may be queued and not left.
    pub(crate) backlog_bytes_max: u64,
    pub(crate) failure: Option<longhaul_sdr::SendError>,
    pub(crate) jobs: Jobs,
}

impl SendIo<'_> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The round-trip time, measured if it has been.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// How the message is divided.
    pub fn shape(&self) -> &MessageShape {
        self.shape
    }

    /// What will be said of the message: for a scheme's own counts.
    pub fn report(&mut self) -> &mut MessageReport {
        self.report
    }

    /// How much longer than the round-trip time an answer may take, as far as measured.
    pub fn variation(&self) -> Duration {
        self.variation
    }

    /// When the peer was heard of last, whatever it said, if it was: while it is silent, repeating much is of no use.
    pub fn peer_heard(&self) -> Option<Instant> {
        self.heard
    }

    /// Send chunks, after all that has been queued before.
    pub fn send_chunks(&mut self, chunks: Range<u32>) {
        self.send_packets(self.shape.packets_in(chunks));
    }

    /// Send packets, after all that has been queued before.
    pub fn send_packets(&mut self, packets: Range<u32>) {
        let bytes = within(packets.clone(), self.shape.packet_bytes, self.shape.message_bytes);
        self.report.data_packets_sent += u64::from(packets.end - packets.start);
        let repeated = packets.filter(|packet| !self.outbox.sent_once.insert(*packet)).count();
        self.report.data_packets_repeated += repeated as u64;
        let outbox = &mut *self.outbox;
        outbox.queued_data_bytes += bytes.end - bytes.start;
        let start = outbox.range.start;
        let range = start + bytes.start as usize..start + bytes.end as usize;
        if let Err(error) = outbox.data.send_at(bytes.start, &outbox.memory, range) {
            outbox.failure.get_or_insert(error);
        }
    }

    /// Send chunks of parity, after all parity that has been queued before. They must have been written.
    pub fn send_parity(&mut self, chunks: Range<u32>) {
        let bytes = self.shape.parity_bytes_of(chunks);
        self.report.parity_packets_sent += self.shape.packets_of(&bytes);
        let outbox = &mut *self.outbox;
        outbox.queued_parity_bytes += bytes.end - bytes.start;
        if let Some((stream, memory)) = &outbox.parity
            && let Err(error) = stream.send_at(bytes.start, memory, bytes.start as usize..bytes.end as usize)
        {
            outbox.failure.get_or_insert(error);
        }
    }

    /// Bytes of data that have been queued, repeated ones again.
    pub fn queued_data_bytes(&self) -> u64 {
        self.outbox.queued_data_bytes
    }

    /// Bytes of data that have left the device; they leave in the order of queueing. A timer for a chunk should begin when it
    /// leaves.
    pub fn left_data_bytes(&self) -> u64 {
        self.outbox.data.left_bytes()
    }

    /// Whether little enough is waiting that more should be queued now. A scheme that always goes on queueing while there is room keeps the
    /// device busy, and decides late what it sends.
    pub fn has_room(&self) -> bool {
        let parity_left = self.outbox.parity.as_ref().map_or(0, |(stream, _)| stream.left_bytes());
        let queued = self.outbox.queued_data_bytes + self.outbox.queued_parity_bytes;
        queued.saturating_sub(self.left_data_bytes() + parity_left) < self.outbox.backlog_bytes_max
    }

    /// The bytes of chunks, to compute parity from, and the room for chunks of their parity. `None` when there is no parity, or when its
    /// bytes are still being sent. They can be given to a job ([`SendIo::start`]).
    pub fn encode(
        &mut self,
        data: Range<u32>,
        parity: Range<u32>,
    ) -> Option<(ReadGuard<'static>, WriteGuard<'static>)> {
        let bytes = self.shape.bytes_of(data);
        let start = self.outbox.range.start;
        let data = self.outbox.memory.read_owned(start + bytes.start as usize..start + bytes.end as usize).ok()?;
        let bytes = self.shape.parity_bytes_of(parity);
        let (_, memory) = self.outbox.parity.as_ref()?;
        Some((data, memory.write_owned(bytes.start as usize..bytes.end as usize).ok()?))
    }

    /// Start work that takes long, such as computing parity from this many bytes. If the connection has workers, they
    /// do it: ask the task for the result whenever the half is polled. Otherwise, or if it is little, it has been done
    /// when this returns. The argument of the work says whether its result is still wanted.
    pub fn start<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&dyn Fn() -> bool) -> T + Send + 'static,
    ) -> Task<T> {
        self.outbox.jobs.start(JobOf::Send(self.outbox.data.number()), bytes, work)
    }
}

/// What a receiver's half can see and do.
pub struct ReceiveIo<'a> {
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    pub(crate) shape: &'a MessageShape,
    pub(crate) data: Arrivals<'a>,
    pub(crate) parity: Option<Arrivals<'a>>,
    pub(crate) is_asked: bool,
    pub(crate) is_sender_through: bool,
    pub(crate) feedback: &'a mut Vec<Vec<u8>>,
    pub(crate) feedback_bytes_max: usize,
    pub(crate) report: &'a mut MessageReport,
}

impl<'a> ReceiveIo<'a> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The round-trip time, measured if it has been.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// How the message is divided.
    pub fn shape(&self) -> &MessageShape {
        self.shape
    }

    /// What will be said of the message: for a scheme's own counts.
    pub fn report(&mut self) -> &mut MessageReport {
        self.report
    }

    /// Which chunks of the message have arrived.
    pub fn data(&self) -> Arrivals<'a> {
        self.data
    }

    /// Which chunks of its parity have arrived.
    pub fn parity(&self) -> Option<Arrivals<'a>> {
        self.parity
    }

    /// Whether the sender has asked how far it is, because it has heard nothing for a while. Feedback should be sent at once then.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Whether the sender has said that everything has left, or has given the message up: nothing more is sent.
    pub fn is_sender_through(&self) -> bool {
        self.is_sender_through
    }

    /// The most bytes of one piece of feedback.
    pub fn feedback_bytes_max(&self) -> usize {
        self.feedback_bytes_max
    }

    /// Send bytes to the sender's half. They may be lost. Panics when they are more than [`ReceiveIo::feedback_bytes_max`].
    pub fn send_feedback(&mut self, bytes: Vec<u8>) {
        assert!(bytes.len() <= self.feedback_bytes_max, "{} bytes do not fit a control message", bytes.len());
        self.report.feedback_records += 1;
        self.feedback.push(bytes);
    }
}
