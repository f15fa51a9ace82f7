//! What the ends of a queue pair tell each other: completions and control messages in, state and control messages out.

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{CompletionOperation, CompletionQueue, CompletionStatus, PostError, WorkCompletion};
use longhaul_wire::control::{
    self, CLEARED_BEYOND_BYTES_MAX, ControlFrame, DataArrivals, FrameError, FrameWriter, HELD_UNKNOWN, Header, Record,
};

use crate::asking::{BackOff, Stamps};
use crate::attributes::QueuePairAttributes;
use crate::control_path::ControlPath;
use crate::credit::Credit;
use crate::path::Path;
use crate::queue_pair_error::QueuePairError;
use crate::receive_table::ArrivedData;
use crate::receiving::Receiving;
use crate::scheme_queue::SchemeQueue;
use crate::sending::Sending;
use crate::shape::Shape;

/// Marks ids of control messages that leave; those of data are numbers of internal queue pairs.
const CONTROL_SEND: u64 = 1 << 63;
/// Completions that are taken at a time.
const BATCH: usize = 32;
/// How often they are looked for before the rest is done.
const POLLS_MAX: usize = 64;

/// An end that was polled this short a time ago has not been away.
const POLLED_OFTEN: Duration = Duration::from_micros(20);
/// Data is reported after this many packets, or a quarter of a round trip, but not more often than `REPORT_GAP_MIN`.
const REPORT_PACKETS: u64 = 16;
const REPORT_GAP_MIN: Duration = Duration::from_micros(250);
/// What may wait does not wait longer than this.
const WAITS_MAX: Duration = Duration::from_micros(25);

/// What the peer is told in a poll. Each frame costs about as much as a packet of data, and one can say it all: a program that is about to post
/// something gains by what waits for that, for at most 25 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saying {
    /// Everything.
    All,
    /// Everything but that clear-to-sends have come.
    ExceptAnswers,
    /// What the peer may wait for at this moment: questions, and that its packets have been consumed.
    Urgent,
}

/// What a queue pair knows, under its lock.
pub(crate) struct State {
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    pub(crate) control: ControlPath,
    pub(crate) peer: Option<Peer>,
    pub(crate) path: Path,
    pub(crate) credit: Credit,
    /// Packets that have arrived, as the peer was told last.
    reported: u64,
    reported_at: Instant,
    /// The same, as far as it was looked, and when the last of them was seen.
    arrived: u64,
    arrived_at: Instant,
    /// When the first of those was seen that the peer was not told of.
    unreported_since: Instant,
    owed: Owed,
    /// Since when something has waited to be said ([`Saying`]).
    unsaid_since: Option<Instant>,
    /// The program waits for the sender to be through with a message.
    waits_for_sender: bool,
    /// Which one it waited for last.
    waited_for: Option<u64>,
    /// The program wants to know whether the peer is still there.
    pub(crate) waits_for_peer: bool,
    /// When the peer is asked for its state.
    asking: BackOff,
    /// Of our frames.
    stamps: Stamps,
    /// The time of the last poll.
    polled: Option<Instant>,
    /// Since when messages have waited for a clear-to-send without one coming.
    waits_for_clear: Option<Instant>,
    pub(crate) to_scheme: SchemeQueue,
    from_scheme: SchemeQueue,
    pub(crate) failure: Option<CompletionStatus>,
    pub(crate) counters: ControlCounters,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::mutation::Mutation>,
}

/// Whether the peer gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owed {
    Nothing,
    /// To clear-to-sends: the peer would repeat them, but not soon.
    Answer,
    /// To a question.
    AnswerAtOnce,
}

pub(crate) struct Peer {
    pub(crate) receiver: u32,
    /// The newest stamp of its frames, and when that came, if it can be said.
    pub(crate) echo: Option<(u64, Option<Instant>)>,
    /// The longest message that it takes.
    pub(crate) message_bytes_max: u64,
    /// Receives that it has, as it said when it connected. Frames may say less, never more.
    pub(crate) window: u32,
    /// It has echoed a frame of ours: packets get through in both directions.
    pub(crate) is_verified: bool,
}

/// What became of control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Sent.
    pub sent: u64,
    /// Received, and for this connection.
    pub received: u64,
    /// Received, but not readable or not for this connection.
    pub ignored: u64,
    /// Received for this connection, but of a version that this end does not speak. `connect` has made sure that the peer's is the
    /// same, so they are not the peer's.
    pub other_version: u64,
    /// What schemes tell each other, dropped because nobody took it.
    pub dropped: u64,
}

impl State {
    pub(crate) fn new(sending: Sending, receiving: Receiving, control: ControlPath, path: Path) -> Self {
        State {
            sending,
            receiving,
            control,
            peer: None,
            path,
            credit: Credit::default(),
            reported: 0,
            reported_at: Instant::ZERO,
            arrived: 0,
            arrived_at: Instant::ZERO,
            unreported_since: Instant::ZERO,
            owed: Owed::Nothing,
            unsaid_since: None,
            waits_for_sender: false,
            waited_for: None,
            waits_for_peer: false,
            asking: BackOff::default(),
            stamps: Stamps::default(),
            polled: None,
            waits_for_clear: None,
            to_scheme: SchemeQueue::default(),
            from_scheme: SchemeQueue::default(),
            failure: None,
            counters: ControlCounters::default(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutate(&mut self, mutation: crate::mutation::Mutation) {
        self.mutation = Some(mutation);
        self.receiving.never_repeats = mutation == crate::mutation::Mutation::NeverRepeatClear;
    }

    /// When the peer has to be asked for its state, if something goes on only when that is known.
    fn asks_at(&self, patience: Duration) -> Option<Instant> {
        let is_waiting = !self.is_path_verified() || self.waits_for_peer || self.waits_for_sender;
        let since = match is_waiting {
            true => Some(Instant::ZERO),
            false => {
                // A clear-to-send comes without being asked for, unless it was lost.
                let clear = self.waits_for_clear.map(|since| since + patience);
                let waits = self.sending.waits_for_window(&self.path);
                Instant::earlier_of(clear, waits.then(|| self.path.asks_at(patience)))
            }
        };
        // What it was asked for had not happened yet when it answered; nothing was lost, so nothing is to be waited for longer than
        // an answer usually takes.
        let pace = match self.path.round_trip.smoothed {
            Some(usual) if self.asking.is_answered() => usual.clamp(patience / 4, patience),
            _ => patience,
        };
        since.map(|since| since.max(self.asking.due_at(pace)))
    }

    /// Whether a frame has come that echoes one of ours: a proof of both directions.
    pub(crate) fn is_path_verified(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.is_verified)
    }

    /// When something has to be said if nothing arrives before.
    pub(crate) fn next_deadline(&self, attributes: &QueuePairAttributes) -> Option<Instant> {
        self.peer.as_ref()?;
        if self.credit.has_announcement() {
            // It came with something else, and the granter has not heard of it.
            return Some(Instant::ZERO);
        }
        let patience = self.patience(attributes);
        let control = Instant::earlier_of(self.asks_at(patience), self.receiving.next_deadline(patience));
        let unsaid = self.unsaid_since.map(|since| since + WAITS_MAX);
        let said = Instant::earlier_of(unsaid, self.reports_at(attributes));
        let sent = Instant::earlier_of(self.sending.next_deadline(&self.path), self.path.next_deadline());
        let sent = Instant::earlier_of(sent, self.silent_at(patience));
        Instant::earlier_of(Instant::earlier_of(control, said), sent)
    }

    /// When the peer has been silent for too long, while data waits for its reports.
    fn silent_at(&self, patience: Duration) -> Option<Instant> {
        self.path.silent_at(patience).filter(|_| self.sending.waits_for_window(&self.path))
    }

    /// Gives up what is in flight to a peer that has been silent for too long.
    pub(crate) fn note_silence(&mut self, now: Instant, attributes: &QueuePairAttributes) {
        if self.silent_at(self.patience(attributes)).is_some_and(|at| at <= now) {
            self.path.on_silence(now, self.horizon(attributes));
        }
    }

    /// Takes note of the data that has arrived so far.
    fn note_arrivals(&mut self, arrived: ArrivedData, now: Instant) {
        if arrived.count > self.arrived {
            if self.arrived == self.reported {
                self.unreported_since = now;
            }
            (self.arrived, self.arrived_at) = (arrived.count, now);
        }
    }

    /// When the peer is to be told what has arrived: often enough that its window never closes for want of a report, and that its
    /// congestion control sees what happens, a few times in a round trip.
    fn reports_at(&self, attributes: &QueuePairAttributes) -> Option<Instant> {
        let unreported = self.arrived - self.reported;
        match unreported {
            0 => None,
            _ if unreported >= u64::from(attributes.receive_depth).div_ceil(4) => Some(Instant::ZERO),
            REPORT_PACKETS.. => Some(self.reported_at + REPORT_GAP_MIN),
            _ => {
                let round_trip = self.path.round_trip.smoothed.unwrap_or(attributes.round_trip_guess);
                Some(self.unreported_since.max(self.reported_at) + (round_trip / 4).max(REPORT_GAP_MIN))
            }
        }
    }

    /// The number of the next receive, or of the message that has to be over before.
    pub(crate) fn next_receive_number(&mut self, shape: &Shape) -> Result<u64, u64> {
        match self.receiving.obstacle(shape.layout.slot_count(), shape.generations) {
            None => Ok(self.receiving.next_number()),
            Some(number) => {
                // The sender knows nothing of a message that only has to be completed here.
                if !self.receiving.is_open(number) {
                    self.wait_for_sender(number);
                }
                Err(number)
            }
        }
    }

    /// The program waits for the sender to be through with this message. Questions about other things may have become rare, and the last
    /// of them may have been answered just before; this is a new one, so it is asked at once.
    fn wait_for_sender(&mut self, number: u64) {
        self.waits_for_sender = true;
        if self.waited_for.replace(number) != Some(number) {
            self.asking = BackOff::default();
        }
    }

    /// Before anything is sent that the peer answers.
    pub(crate) fn post_control_receives(&mut self) -> Result<(), PostError> {
        self.control.expect_messages(self.sending.open_count() + self.receiving.open_count());
        self.control.post_receives()
    }

    /// Queue bytes of our scheme for the peer's.
    pub(crate) fn send_to_peer(&mut self, bytes: Vec<u8>) {
        // The newest state is what counts.
        self.counters.dropped += self.from_scheme.push_newest(bytes);
    }

    pub(crate) fn patience(&self, attributes: &QueuePairAttributes) -> Duration {
        self.path.patience(attributes.round_trip_guess)
    }

    /// A packet that left this long ago has been consumed and reported, or is lost.
    fn horizon(&self, attributes: &QueuePairAttributes) -> Duration {
        2 * self.patience(attributes)
    }

    pub(crate) fn take_completions(
        &mut self,
        queue: &CompletionQueue,
        now: Instant,
        attributes: &QueuePairAttributes,
    ) -> Result<(), QueuePairError> {
        let mut taken = [WorkCompletion::default(); BATCH];
        let mut frame = Vec::new();
        // `now` was read before this call, and completions carry no time. What is in the queue at first had come by then; a frame that the
        // device finds while the queue is emptied may have come later, so that nothing is measured with it. The same goes for a second
        // poll with the same time.
        let is_later = self.polled.is_none_or(|polled| now > polled);
        let was_away = self.polled.is_none_or(|polled| polled + POLLED_OFTEN < now);
        self.polled = Some(now);
        let mut arrival = is_later.then_some(now);
        let (mut frames, posted) = (0, self.control.posted());
        // Everything is taken, because a device on sockets looks for more at an empty poll: an end that was away for a while must
        // not presume lost what has been acknowledged in the meantime. One that polls all the time goes on with what it has
        // found, which saves a system call where latency counts.
        let mut is_empty = false;
        for _ in 0..POLLS_MAX {
            let count = queue.poll(&mut taken)?;
            for completion in &taken[..count] {
                if !completion.is_success() {
                    self.failure.get_or_insert(completion.status);
                } else if completion.operation == CompletionOperation::Receive {
                    frames += 1;
                    self.control.take(completion.id, completion.byte_count, &mut frame)?;
                    self.handle_frame(&frame, now, arrival, attributes);
                } else if completion.id & CONTROL_SEND != 0 {
                    self.control.on_sent(completion.id & !CONTROL_SEND);
                } else {
                    self.sending.on_sent(completion.id as usize, &mut self.path, now);
                }
            }
            // What has left the device is no answer: then the sockets have not been looked at.
            is_empty = count == 0 || count < BATCH && frames > 0 && !was_away;
            if is_empty {
                break;
            }
            if count < BATCH {
                arrival = None;
            }
        }
        if !is_empty {
            // There may be more: the next poll is not to stop early.
            self.polled = None;
        }
        self.control.on_taken(frames, posted);
        Ok(())
    }

    fn handle_frame(&mut self, bytes: &[u8], now: Instant, arrival: Option<Instant>, attributes: &QueuePairAttributes) {
        // Whom it is for comes first: what was not sent for this connection says nothing about it, not even a version.
        let is_ours = control::receiver_of(bytes) == Some(attributes.receiver());
        #[cfg(feature = "mutations")]
        let is_ours = is_ours || self.mutation == Some(crate::mutation::Mutation::IgnoreReceiver);
        let Some(peer) = self.peer.as_mut().filter(|_| is_ours) else {
            self.counters.ignored += 1;
            return;
        };
        let frame = match ControlFrame::new_checked(bytes) {
            Ok(frame) => frame,
            Err(FrameError::Version(_)) => {
                self.counters.other_version += 1;
                return;
            }
            Err(_) => {
                self.counters.ignored += 1;
                return;
            }
        };
        let header = Header::parse(&frame);
        self.counters.received += 1;
        let is_newest = peer.echo.is_none_or(|(newest, _)| header.sent_at > newest);
        if is_newest {
            peer.echo = Some((header.sent_at, arrival));
        }
        // Each frame of ours counts once, when an answer to it or to a later one has not come before: a late frame measures nothing.
        let is_answer = self.stamps.take(header.echo);
        if is_answer {
            peer.is_verified = true;
            self.path.round_trip.measure_answer(header.echo, header.held(), arrival);
            self.path.on_round_trip();
        }
        let window = header.window.min(peer.window);
        self.path.set_receives(window);
        let mut is_news = self.sending.on_open_from(header.open_from);
        is_news |= self.receiving.on_sends_from(header.sends_from);
        self.receiving.on_heard(now);
        self.receiving.on_cleared_through(header.cleared_through);
        self.waits_for_sender = false;
        self.waits_for_peer = false;
        let mut owed = if header.wants_answer { Owed::AnswerAtOnce } else { Owed::Nothing };
        let mut cleared_beyond: &[u8] = &[];
        let mut arrivals = None;
        for record in frame.records() {
            match record {
                Ok(Record::ClearToSend(clear)) => {
                    match self.sending.on_clear(&clear) {
                        Ok(is_new) => is_news |= is_new,
                        Err(_) => self.counters.ignored += 1,
                    }
                    // The receiver repeats it until it knows that it has arrived.
                    owed = Owed::Answer;
                }
                Ok(Record::ClearedBeyond(bits)) => {
                    cleared_beyond = bits;
                    self.receiving.on_cleared_beyond(header.cleared_through, bits);
                }
                Ok(Record::DataArrivals(said)) => arrivals = Some(said),
                Ok(Record::CreditAnnouncement(said)) if is_newest && attributes.grants_credit => {
                    self.credit.on_announcement(&said);
                }
                // Older than what is known, or nobody grants anything here.
                Ok(Record::CreditAnnouncement(_)) => {}
                Ok(Record::CreditGrant(grant)) => self.path.on_grant(&grant, now),
                Ok(Record::Scheme(bytes)) => {
                    self.counters.dropped += u64::from(!self.to_scheme.push(bytes.to_vec()));
                }
                Err(_) => self.counters.ignored += 1,
            }
        }
        let horizon = self.horizon(attributes);
        is_news |= self.path.on_report(header.consumed, arrivals.as_ref(), arrival, now, horizon);
        self.owed = self.owed.max(owed);
        if header.wants_answer {
            self.receiving.on_question(header.cleared_through, cleared_beyond);
        }
        if is_answer {
            self.receiving.on_echo(header.echo);
        }
        // A receive that is posted late is no news for long: then the questions become rare although each is answered.
        if is_news || is_answer && self.waits_for_clear.is_none() {
            self.asking.on_heard(now);
        }
        if is_news {
            self.asking.on_news();
            self.waits_for_clear = None;
        }
    }

    /// The peer is to hear the state of things, although it has not asked.
    pub(crate) fn owe_answer(&mut self) {
        self.owed = self.owed.max(Owed::Answer);
    }

    /// Tell the peer what it has to know now.
    pub(crate) fn send_frames(
        &mut self,
        now: Instant,
        attributes: &QueuePairAttributes,
        arrived: ArrivedData,
        saying: Saying,
    ) -> Result<(), QueuePairError> {
        let patience = self.patience(attributes);
        self.note_arrivals(arrived, now);
        self.waits_for_clear = match self.sending.waits_for_clear() {
            true => self.waits_for_clear.or(Some(now)),
            false => None,
        };
        // Made when there is something to say: this is called at every poll.
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        let mut has_told_beyond = false;
        while self.control.can_send() {
            let asks = self.asks_at(patience).is_some_and(|at| at <= now);
            let clears: Vec<_> = self.receiving.due(now, patience).copied().collect();
            // Often enough that the window never closes for want of a report.
            let reports = self.reports_at(attributes).is_some_and(|at| at <= now);
            let (announcement, grant) = self.credit.due();
            let has_credit = announcement.is_some() || grant.is_some();
            let is_urgent = asks || reports || has_credit || self.owed == Owed::AnswerAtOnce;
            let has_records = !clears.is_empty() || !self.from_scheme.is_empty();
            let (is_due, may_wait) = match saying {
                Saying::All => (is_urgent || has_records || self.owed == Owed::Answer, false),
                Saying::ExceptAnswers => (is_urgent || has_records, self.owed == Owed::Answer),
                Saying::Urgent => (is_urgent, has_records || self.owed == Owed::Answer),
            };
            if !is_due {
                self.unsaid_since = may_wait.then(|| self.unsaid_since.unwrap_or(now));
                if self.unsaid_since.is_none_or(|since| now < since + WAITS_MAX) {
                    break;
                }
            }
            let Some(peer) = &self.peer else { break };
            let stamp = self.stamps.next(now);
            let header = Header {
                // A frame that the peer might not get back to us proves nothing; whatever is said first is a probe.
                wants_answer: asks || !clears.is_empty() || !peer.is_verified,
                receiver: peer.receiver,
                sent_at: stamp,
                echo: peer.echo.map_or(0, |(echo, _)| echo),
                held_ns: match peer.echo {
                    Some((_, Some(arrival))) => now.saturating_since(arrival).as_nanos() as u64,
                    _ => HELD_UNKNOWN,
                },
                consumed: arrived.count,
                window: attributes.receive_depth,
                cleared_through: self.sending.cleared_through(),
                open_from: self.receiving.open_from(),
                sends_from: self.sending.sends_from(),
            };
            bytes.resize(self.control.frame_bytes(), 0);
            let mut writer = FrameWriter::new(&mut bytes, &header).expect("every path carries a header");
            let beyond = self.sending.cleared_beyond(CLEARED_BEYOND_BYTES_MAX);
            let record_bytes = |contents: usize| control::RECORD_HEADER_BYTES + contents;
            let scheme_bytes = self.from_scheme.iter().next().map_or(0, |record| record_bytes(record.len()));
            let both_bytes = control::HEADER_BYTES + record_bytes(beyond.len()) + scheme_bytes;
            // First, so that there is room. But what a scheme says may fill a frame, and must leave, too.
            if !beyond.is_empty() && (!has_told_beyond || both_bytes <= self.control.frame_bytes()) {
                has_told_beyond = writer.push(&Record::ClearedBeyond(&beyond));
            }
            if arrived.count > self.reported
                && let Some((generation, immediate)) = arrived.newest
            {
                let held_ns = (now - self.arrived_at).as_nanos() as u64;
                writer.push(&Record::DataArrivals(DataArrivals {
                    immediate,
                    generation,
                    held_ns,
                    marked: arrived.marked,
                }));
            }
            let announcement = announcement.filter(|said| writer.push(&Record::CreditAnnouncement(*said)));
            let grant = grant.filter(|said| writer.push(&Record::CreditGrant(*said)));
            numbers.clear();
            numbers.extend(
                clears.iter().take_while(|clear| writer.push(&Record::ClearToSend(**clear))).map(|clear| clear.number),
            );
            let scheme_records =
                self.from_scheme.iter().take_while(|record| writer.push(&Record::Scheme(record))).count();
            if let Some(again) = self.credit.repeated(now) {
                writer.push(&Record::CreditGrant(again));
            }
            let length = writer.finish();
            if !self.control.send(&bytes[..length], CONTROL_SEND)? {
                break;
            }
            self.counters.sent += 1;
            self.stamps.on_sent(stamp);
            self.receiving.told(&numbers, stamp, now);
            self.from_scheme.drop_first(scheme_records);
            self.credit.on_said(announcement, grant);
            (self.reported, self.reported_at) = (arrived.count, now);
            self.owed = Owed::Nothing;
            self.unsaid_since = None;
            if asks {
                self.asking.on_due_said(now);
            }
        }
        Ok(())
    }
}
