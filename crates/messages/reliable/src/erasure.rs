//! Erasure coding: parity goes along with the data, and the receiver computes what was lost.
//!
//! ```text
//!   sender:    submessage 0, its parity, submessage 1, its parity, … ──asked for chunks──▶ those again, and so on until done
//!   receiver:  every submessage can be computed ──▶ finished
//!              nothing new for β round trips ──▶ ask for the chunks of the submessages that cannot ──(1 + β) round trips──▶ ask again
//! ```
//!
//! A message is cut into submessages of `k` chunks, each with `m` chunks of parity. As long as the code can recover all
//! losses, they cost no round trip at all. Beyond that the receiver asks for what is missing, as selective repeat does.
//!
//! How much parity there is, and how short messages are coded, is in [`longhaul_scheme::parity`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use longhaul_coding::{Arrived, ChunkSet, Code, Coder, MessageLayout};
use longhaul_scheme::timers::{self, BETA, TIMEOUT_MIN};
use longhaul_scheme::{NamedScheme, parity};
use longhaul_sdr::backed_off;
use longhaul_time::{Duration, Instant};
use longhaul_wire::acknowledgement::Acknowledgement;

use crate::acknowledgement;
use crate::arrivals::Arrivals;
use crate::jobs::Task;
use crate::repeater::Repeater;
use crate::report::MessageReport;
use crate::scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo, retry_after};

/// Submessages of a message whose parity is being computed at once, where workers do that: enough to keep several of them busy, and few enough that
/// parity is not far behind its data.
const ENCODING_MAX: usize = 8;

/// Erasure coding with a code.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Erasure {
    /// For the code, and with it `k` and `m`. One for all messages: making its tables takes longer than coding a short message.
    coder: Arc<Coder>,
    /// The receiver asks when nothing has come for β round trips.
    pub beta: f64,
    /// But not before: timers of hosts are not exact.
    pub timeout_min: Duration,
}

impl Erasure {
    /// With a code, and β as [`BETA`] has it.
    pub fn new(code: Code) -> Self {
        Erasure { coder: Arc::new(Coder::new(code)), beta: BETA, timeout_min: TIMEOUT_MIN }
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.coder.code()
    }

    fn timeout(&self, round_trip: Duration) -> Duration {
        timers::fallback(self.beta, self.timeout_min).after(round_trip)
    }

    /// The receiver's half, for this scheme and for those that are made of it.
    pub(crate) fn receiving(&self, shape: &MessageShape) -> Receiver {
        let layout = self.layout(shape);
        Receiver {
            scheme: self.clone(),
            layout,
            packet_bytes: shape.packet_bytes,
            has_short_parity: layout.chunk_bytes() < shape.chunk_bytes as usize,
            decodable_below: 0,
            seen: (0, [None; 2]),
            begun: None,
            news_at: Instant::ZERO,
            asked_at: None,
            asked_in_vain: 0,
            deadline: None,
        }
    }

    fn layout(&self, shape: &MessageShape) -> MessageLayout {
        let chunk_bytes = parity::coded_chunk_bytes(shape.message_bytes, shape.chunk_bytes);
        MessageLayout::new(self.code(), chunk_bytes as usize, shape.message_bytes as usize)
            .expect("chunks have bytes, and a message and its parity are in memory")
    }
}

impl Scheme for Erasure {
    fn name(&self) -> String {
        NamedScheme::Erasure(self.code()).to_string()
    }

    fn parity_bytes(&self, message_bytes: u64, chunk_bytes: u32) -> u64 {
        parity::parity_bytes(self.code(), message_bytes, chunk_bytes)
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        let layout = self.layout(shape);
        // Only what the receiver asks for is repeated; it asks again itself.
        let repeater = Repeater::new(shape.packet_count(), shape.packet_bytes, false);
        Box::new(Sender {
            coder: self.coder.clone(),
            layout,
            repeater,
            next: 0,
            encoding: VecDeque::new(),
            retry_at: None,
        })
    }

    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(self.receiving(shape))
    }
}

struct Sender {
    coder: Arc<Coder>,
    layout: MessageLayout,
    repeater: Repeater,
    /// The submessage that is sent next.
    next: usize,
    /// The parity of those before that is being computed.
    encoding: VecDeque<Encoding>,
    /// When to check again whether its bytes can be read: nothing reports that.
    retry_at: Option<Instant>,
}

/// Parity that is being computed.
struct Encoding {
    parity: Range<u32>,
    task: Task<()>,
}

impl Sender {
    /// Send a submessage, and begin to compute its parity. Returns whether it could be done.
    fn send_submessage(&mut self, io: &mut SendIo<'_>) -> bool {
        let (data, parity) = chunks_of(&self.layout, self.next);
        let chunk_bytes = self.layout.chunk_bytes();
        let Some((data_bytes, mut parity_bytes)) = io.encode(data.clone(), parity.clone()) else { return false };
        let packets = io.shape().packets_in(data);
        self.repeater.send(vec![packets], io);
        let coder = self.coder.clone();
        let task = io.start(data_bytes.len(), move |_| {
            let data_chunks: Vec<&[u8]> = data_bytes.chunks(chunk_bytes).collect();
            let mut parity_chunks: Vec<&mut [u8]> = parity_bytes.chunks_mut(chunk_bytes).collect();
            coder.encode(&data_chunks, &mut parity_chunks).expect("the layout gives chunks as the code has them");
        });
        self.encoding.push_back(Encoding { parity, task });
        true
    }

    /// Send the parity that has been computed.
    fn send_encoded(&mut self, io: &mut SendIo<'_>) {
        while let Some(encoding) = self.encoding.front_mut()
            && encoding.task.take().is_some()
        {
            io.send_parity(encoding.parity.clone());
            self.encoding.pop_front();
        }
    }
}

/// The data and the parity chunks of a submessage.
fn chunks_of(layout: &MessageLayout, submessage: usize) -> (Range<u32>, Range<u32>) {
    let code = layout.code();
    let first = submessage * code.data_chunks();
    let end = (first + code.data_chunks()).min(layout.data_chunks());
    let parity = submessage * code.parity_chunks();
    (first as u32..end as u32, parity as u32..(parity + code.parity_chunks()) as u32)
}

impl SendHalf for Sender {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        self.repeater.on_left(io.left_data_bytes(), io.now(), io.round_trip());
        // Little at a time, so that the parity of a submessage leaves right behind it.
        self.retry_at = None;
        self.send_encoded(io);
        while self.next < self.layout.submessages() && io.has_room() && self.encoding.len() < ENCODING_MAX {
            if !self.send_submessage(io) {
                self.retry_at = Some(io.now() + retry_after(io.round_trip()));
                break;
            }
            self.next += 1;
            self.send_encoded(io);
        }
    }

    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>) {
        let Some(acknowledgement) = Acknowledgement::parse(bytes) else { return };
        let runs = self.repeater.on_acknowledgement(&acknowledgement, io.now(), io.round_trip(), io.variation());
        if !runs.is_empty() {
            io.report().fallbacks += 1;
        }
        self.repeater.send(runs, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }
}

pub(crate) struct Receiver {
    scheme: Erasure,
    layout: MessageLayout,
    packet_bytes: u32,
    /// Its chunks of parity are not those of the bitmap.
    has_short_parity: bool,
    /// Every submessage below can be computed.
    decodable_below: usize,
    /// When something came last: chunks that had arrived, and the last packet of data and of parity. On a slow link a chunk takes its time.
    seen: (u32, [Option<u32>; 2]),
    begun: Option<Instant>,
    news_at: Instant,
    asked_at: Option<Instant>,
    /// Questions after which nothing came, less those after which something did: at a sender that is slow because it has other messages to send,
    /// the time between questions follows the time between packets.
    asked_in_vain: u32,
    deadline: Option<Instant>,
}

impl Receiver {
    /// What has arrived of a submessage.
    fn arrived(&self, submessage: usize, data: Arrivals<'_>, parity: Option<Arrivals<'_>>) -> Arrived {
        let (data_chunks, parity_chunks) = chunks_of(&self.layout, submessage);
        let parity = match parity {
            None => ChunkSet::default(),
            Some(parity) if self.has_short_parity => {
                short_parity(parity, parity_chunks, self.layout.chunk_bytes() as u64, self.packet_bytes.into())
            }
            Some(parity) => extract(parity, parity_chunks),
        };
        Arrived { data: extract(data, data_chunks), parity }
    }

    fn can_decode(&self, submessage: usize, data: Arrivals<'_>, parity: Option<Arrivals<'_>>) -> bool {
        let arrived = self.arrived(submessage, data, parity);
        self.layout.submessage_code(submessage).can_decode(&arrived)
    }

    /// Whether every submessage is complete, or can be computed.
    pub(crate) fn can_be_whole(&mut self, data: Arrivals<'_>, parity: Option<Arrivals<'_>>) -> bool {
        let submessages = self.layout.submessages();
        while self.decodable_below < submessages && self.can_decode(self.decodable_below, data, parity) {
            self.decodable_below += 1;
        }
        self.decodable_below == submessages
    }

    /// Whether anything of it has arrived.
    fn has_begun(&self) -> bool {
        self.seen.1 != [None; 2]
    }

    /// When to ask for what cannot be computed.
    fn fallback_at(&self, io: &ReceiveIo<'_>, begun: Instant) -> Instant {
        let timeout = self.scheme.timeout(io.round_trip());
        let shape = io.shape();
        let injection = shape.injection_time(shape.message_bytes + shape.parity_bytes);
        // Before its first packet a message may wait for its turn at the sender.
        let patience = if self.has_begun() { timeout } else { timeout.max(io.round_trip()) };
        let first = self.news_at.max(begun + injection) + patience;
        match self.asked_at {
            // What was asked for takes a round trip to come. When nothing does, it may wait for its turn at a slow sender.
            Some(asked) => first.max(asked + backed_off(io.round_trip() + timeout, self.asked_in_vain)),
            None => first,
        }
    }

    /// Ask for the packets that are missing of the submessages that cannot be computed.
    fn ask(&self, io: &mut ReceiveIo<'_>) {
        let (data, parity) = (io.data(), io.parity());
        let mut wanted = crate::chunk_set::ChunkSet::new(data.packet_count());
        for submessage in self.decodable_below..self.layout.submessages() {
            if !self.can_decode(submessage, data, parity) {
                let (chunks, _) = chunks_of(&self.layout, submessage);
                for packet in chunks.flat_map(|chunk| data.missing_packets_of(chunk)) {
                    wanted.insert(packet);
                }
            }
        }
        let end = data.packet_count();
        let (first, _) = chunks_of(&self.layout, self.decodable_below);
        let first = io.shape().packets_in(first);
        let records =
            acknowledgement::encode(first.start, end, end, io.feedback_bytes_max(), |index| !wanted.word(index));
        records.into_iter().for_each(|record| io.send_feedback(record));
    }
}

impl ReceiveHalf for Receiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        let (data, parity, now) = (io.data(), io.parity(), io.now());
        if self.can_be_whole(data, parity) {
            return Progress::Finished;
        }
        let begun = *self.begun.get_or_insert(now);
        let last = [data.last_packet(), parity.and_then(|parity| parity.last_packet())];
        let parity_seen = parity.map_or(0, |parity| parity.arrived_packets());
        let seen = (data.arrived_packets() + parity_seen, last);
        if !self.has_begun() && last != [None; 2] {
            // Questions before that had no answer, because nothing had left yet.
            (self.asked_at, self.asked_in_vain) = (None, 0);
        }
        if seen != self.seen || self.news_at == Instant::ZERO {
            (self.seen, self.news_at) = (seen, now);
        }
        if self.fallback_at(io, begun) <= now {
            self.asked_in_vain = match self.asked_at {
                Some(asked) if asked >= self.news_at => self.asked_in_vain + 1,
                _ => self.asked_in_vain.saturating_sub(1),
            };
            self.asked_at = Some(now);
            io.report().fallbacks += 1;
            self.ask(io);
        } else if io.is_asked() {
            // Nothing is missing yet; only that it is being received.
            let records = acknowledgement::encode(0, 0, 0, io.feedback_bytes_max(), |_| 0);
            records.into_iter().for_each(|record| io.send_feedback(record));
        }
        self.deadline = Some(self.fallback_at(io, begun));
        Progress::Waiting
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn recover(
        &mut self,
        data: &mut [u8],
        arrived_data: Arrivals<'_>,
        parity: Option<(&[u8], Arrivals<'_>)>,
        report: &mut MessageReport,
        is_wanted: &dyn Fn() -> bool,
    ) -> Vec<Range<u32>> {
        let parity_arrivals = parity.map(|(_, arrivals)| arrivals);
        let there = |submessage| self.arrived(submessage, arrived_data, parity_arrivals);
        // A bounded receive may end before everything can be computed.
        let mut missing = Vec::new();
        let mut decodable = Vec::new();
        for submessage in 0..self.layout.submessages() {
            let (there, code) = (there(submessage), self.layout.submessage_code(submessage));
            if !code.can_decode(&there) {
                let (chunks, _) = chunks_of(&self.layout, submessage);
                let packets = chunks.flat_map(|chunk| arrived_data.missing_packets_of(chunk));
                missing.extend(packets.map(|packet| packet..packet + 1));
                continue;
            }
            decodable.push(submessage);
            let lost = code.data_chunks() - there.data.count_of_first(code.data_chunks());
            let parity = there.parity.count_of_first(code.parity_chunks());
            report.chunks_recovered += lost as u64;
            report.parity_chunks_used += lost.min(parity) as u64;
            report.parity_chunks_wasted += parity.saturating_sub(lost) as u64;
        }
        if report.chunks_recovered == 0 {
            return missing;
        }
        let bytes = parity.map_or(&[][..], |(bytes, _)| bytes);
        let mut coder = Coder::clone(&self.scheme.coder);
        let chunk_bytes = self.layout.chunk_bytes();
        for submessage in decodable.into_iter().take_while(|_| is_wanted()) {
            let there = there(submessage);
            let data_bytes = &mut data[self.layout.data_range(submessage)];
            let mut data_chunks: Vec<&mut [u8]> = data_bytes.chunks_mut(chunk_bytes).collect();
            if there.data.count_of_first(data_chunks.len()) == data_chunks.len() {
                continue;
            }
            let parity_bytes = bytes.get(self.layout.parity_range(submessage)).unwrap_or_default();
            let parity_chunks: Vec<&[u8]> = parity_bytes.chunks(chunk_bytes).collect();
            // It was decodable just now, and bits are never taken back.
            if coder.decode(&there, &mut data_chunks, &parity_chunks).is_err() {
                return arrived_data.missing_packets().collect();
            }
        }
        missing
    }
}

/// The chunks of short parity that are whole: they begin and end anywhere in packets.
fn short_parity(arrivals: Arrivals<'_>, chunks: Range<u32>, chunk_bytes: u64, packet_bytes: u64) -> ChunkSet {
    let is_whole = |chunk: u64| {
        let (first, end) = (chunk * chunk_bytes / packet_bytes, ((chunk + 1) * chunk_bytes).div_ceil(packet_bytes));
        arrivals.first_missing_packet(first as u32).is_none_or(|missing| u64::from(missing) >= end)
    };
    let mut set = ChunkSet::default();
    chunks.filter(|chunk| is_whole((*chunk).into())).for_each(|chunk| set.insert(chunk as usize));
    set
}

/// A range of a bitmap, as a set of its own that begins at 0.
fn extract(arrivals: Arrivals<'_>, chunks: Range<u32>) -> ChunkSet {
    let (first, shift) = ((chunks.start / 64) as usize, chunks.start % 64);
    let count = (chunks.end - chunks.start) as usize;
    let mut words = [0; 4];
    for (index, word) in words.iter_mut().enumerate().take(count.div_ceil(64)) {
        let low = arrivals.word(first + index) >> shift;
        let high = match shift {
            0 => 0,
            shift => arrivals.word(first + index + 1) << (64 - shift),
        };
        let left = count - index * 64;
        let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        *word = (low | high) & mask;
    }
    ChunkSet::from_words(words)
}

#[cfg(test)]
mod tests {
    use longhaul_sdr::MessageBitmap;

    use super::*;

    const SHAPE: MessageShape = MessageShape {
        message_bytes: 64 * 1024,
        parity_bytes: 8 * 1024,
        chunk_bytes: 1024,
        packet_bytes: 1024,
        rate_bits_per_second: None,
    };
    const ROUND_TRIP: Duration = Duration::from_millis(40);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// How many records are told when a half is polled, and when it wants to be polled next.
    fn poll(half: &mut dyn ReceiveHalf, bitmap: &MessageBitmap, millis: u64) -> (usize, Option<Instant>) {
        poll_shape(&SHAPE, half, bitmap, millis)
    }

    fn poll_shape(
        shape: &MessageShape,
        half: &mut dyn ReceiveHalf,
        bitmap: &MessageBitmap,
        millis: u64,
    ) -> (usize, Option<Instant>) {
        let (mut feedback, mut report) = (Vec::new(), MessageReport::default());
        let mut io = ReceiveIo {
            now: at(millis),
            round_trip: ROUND_TRIP,
            shape,
            data: shape.arrivals(bitmap, shape.message_bytes),
            parity: None,
            is_asked: false,
            is_sender_through: false,
            feedback: &mut feedback,
            feedback_bytes_max: 500,
            report: &mut report,
        };
        assert_eq!(half.poll(&mut io), Progress::Waiting);
        (feedback.len(), half.next_deadline())
    }

    #[test]
    fn what_is_missing_is_asked_for_a_quarter_of_a_round_trip_after_the_last_packet() {
        let code = Code::mds(32, 4).expect("a code");
        let mut half = Erasure::new(code).receiver(&SHAPE);
        let bitmap = MessageBitmap::new(64, 1);
        assert_eq!(poll(&mut *half, &bitmap, 1), (0, Some(at(41))), "it may wait for its turn at the sender");
        bitmap.record_run(0, 20);
        assert_eq!(poll(&mut *half, &bitmap, 30), (0, Some(at(40))));
        bitmap.record_run(28, 36);
        assert_eq!(poll(&mut *half, &bitmap, 35), (0, Some(at(45))));
        assert_eq!(poll(&mut *half, &bitmap, 45), (1, Some(at(95))), "and again when the answer is due");
    }

    #[test]
    fn packets_of_a_chunk_that_is_not_whole_are_news() {
        let shape = MessageShape { chunk_bytes: 16 * 1024, ..SHAPE };
        let mut half = Erasure::new(Code::mds(4, 1).expect("a code")).receiver(&shape);
        let bitmap = MessageBitmap::new(64, 16);
        for packet in 0..8 {
            bitmap.record(packet);
            let (told, _) = poll_shape(&shape, &mut *half, &bitmap, 1 + 10 * u64::from(packet));
            assert_eq!(told, 0, "packet {packet} came just now");
        }
        assert_eq!(poll_shape(&shape, &mut *half, &bitmap, 81).0, 1);
    }

    #[test]
    fn questions_before_the_first_packet_delay_none_after_it() {
        let code = Code::mds(32, 4).expect("a code");
        let mut half = Erasure::new(code).receiver(&SHAPE);
        let bitmap = MessageBitmap::new(64, 1);
        poll(&mut *half, &bitmap, 1);
        // Each after a longer time than the one before.
        for (millis, next) in [(41, 91), (91, 191), (191, 391)] {
            assert_eq!(poll(&mut *half, &bitmap, millis), (1, Some(at(next))));
        }
        bitmap.record_run(0, 20);
        assert_eq!(poll(&mut *half, &bitmap, 200), (0, Some(at(210))));
        assert_eq!(poll(&mut *half, &bitmap, 210).0, 1);
    }

    #[test]
    fn a_range_of_a_bitmap() {
        let bitmap = MessageBitmap::new(400, 1);
        let is_there = |chunk: u32| chunk.is_multiple_of(3) || chunk % 7 == 2;
        (0..400).filter(|chunk| is_there(*chunk)).for_each(|chunk| {
            bitmap.record(chunk);
        });
        let arrivals = Arrivals::new(&bitmap, 400, 1);
        for chunks in [0..32, 32..64, 40..104, 63..65, 100..355, 145..400] {
            let set = extract(arrivals, chunks.clone());
            for (index, chunk) in chunks.clone().enumerate() {
                assert_eq!(set.contains(index), is_there(chunk), "chunk {chunk} of {chunks:?}");
            }
            assert!(!set.contains(chunks.len()));
        }
    }

    #[test]
    fn short_parity_is_whole_when_its_packets_are() {
        // 5 chunks of 30 bytes in packets of 64: the second and the fourth lie in two packets each.
        let bitmap = MessageBitmap::new(16, 4);
        let arrivals = Arrivals::new(&bitmap, 3, 4);
        let there = || (0..5).filter(|chunk| short_parity(arrivals, 0..5, 30, 64).contains(*chunk)).collect::<Vec<_>>();
        assert_eq!(there(), [0; 0]);
        bitmap.record(1);
        assert_eq!(there(), [3]);
        bitmap.record(2);
        assert_eq!(there(), [3, 4]);
        bitmap.record(0);
        assert_eq!(there(), [0, 1, 2, 3, 4]);
    }
}
