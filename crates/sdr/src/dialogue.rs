//! What the ends of a queue pair tell each other: completions and control messages in, state and control messages out.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{CompletionOperation, CompletionQueue, CompletionStatus, WorkCompletion};

use crate::attributes::QueuePairAttributes;
use crate::control::{FrameError, FrameReader, FrameWriter, Header, Record};
use crate::control_path::ControlPath;
use crate::link_estimate::RoundTripTime;
use crate::queue_pair::QueuePairError;
use crate::receiving::Receiving;
use crate::sending::Sending;

/// Marks ids of control messages that leave; those of data are numbers of internal queue pairs.
const CONTROL_SEND: u64 = 1 << 63;
/// Completions that are taken at a time.
const BATCH: usize = 32;
/// How often they are looked for before the rest is done.
const POLLS_MAX: usize = 64;
/// Frames of the scheme above that wait to be taken. More are dropped, as the network might have.
const SCHEME_FRAMES_MAX: usize = 1024;

/// What a queue pair knows, under its lock.
pub(crate) struct State {
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    pub(crate) control: ControlPath,
    pub(crate) peer: Option<Peer>,
    pub(crate) round_trip: RoundTripTime,
    /// Receives consumed, as the peer was told last.
    reported: u64,
    owes_answer: bool,
    /// The program waits for the sender to be through with a message.
    pub(crate) waits_for_sender: bool,
    /// When the peer was asked for its state last.
    pub(crate) asked: Option<Instant>,
    pub(crate) to_scheme: VecDeque<Vec<u8>>,
    pub(crate) from_scheme: VecDeque<Vec<u8>>,
    pub(crate) failure: Option<CompletionStatus>,
    pub(crate) counters: ControlCounters,
}

pub(crate) struct Peer {
    pub(crate) receiver: u32,
    /// The newest time stamp of its frames, and when it came.
    pub(crate) echo: Option<(u64, Instant)>,
    /// The longest message that it takes.
    pub(crate) message_bytes_max: u64,
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
    /// Of the scheme above, dropped because nobody took them.
    pub dropped: u64,
}

impl State {
    pub(crate) fn new(sending: Sending, control: ControlPath) -> Self {
        State {
            sending,
            receiving: Receiving::default(),
            control,
            peer: None,
            round_trip: RoundTripTime::default(),
            reported: 0,
            owes_answer: false,
            waits_for_sender: false,
            asked: None,
            to_scheme: VecDeque::new(),
            from_scheme: VecDeque::new(),
            failure: None,
            counters: ControlCounters::default(),
        }
    }

    /// Whether something goes on only when the peer has told its state.
    pub(crate) fn waits(&self) -> bool {
        self.waits_for_sender || self.sending.waits_for_window()
    }

    /// Queue bytes of our scheme for the peer's.
    pub(crate) fn send_to_peer(&mut self, bytes: Vec<u8>) {
        // The newest state is what counts.
        if self.from_scheme.len() == SCHEME_FRAMES_MAX {
            self.from_scheme.pop_front();
            self.counters.dropped += 1;
        }
        self.from_scheme.push_back(bytes);
    }

    pub(crate) fn patience(&self, attributes: &QueuePairAttributes) -> Duration {
        self.round_trip.patience(attributes.round_trip_guess)
    }

    pub(crate) fn take_completions(
        &mut self,
        queue: &CompletionQueue,
        now: Instant,
        attributes: &QueuePairAttributes,
    ) -> Result<(), QueuePairError> {
        let mut taken = [WorkCompletion::default(); BATCH];
        let mut frame = Vec::new();
        // All there is, because a device on sockets looks for more at an empty poll: an end that was away for a while must not take for lost
        // what has been acknowledged meanwhile.
        for _ in 0..POLLS_MAX {
            let count = queue.poll(&mut taken)?;
            for completion in &taken[..count] {
                if !completion.is_success() {
                    self.failure.get_or_insert(completion.status);
                } else if completion.operation == CompletionOperation::Receive {
                    self.control.take(completion.id, completion.byte_count, &mut frame)?;
                    self.handle_frame(&frame, now, attributes)?;
                } else if completion.id & CONTROL_SEND != 0 {
                    self.control.on_sent(completion.id & !CONTROL_SEND);
                } else {
                    self.sending.on_sent(completion.id as usize);
                }
            }
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    fn handle_frame(
        &mut self,
        bytes: &[u8],
        now: Instant,
        attributes: &QueuePairAttributes,
    ) -> Result<(), QueuePairError> {
        let frame = match FrameReader::parse(bytes) {
            Ok(frame) => frame,
            Err(error @ FrameError::Version(_)) => return Err(error.into()),
            Err(_) => {
                self.counters.ignored += 1;
                return Ok(());
            }
        };
        let header = frame.header;
        let Some(peer) = self.peer.as_mut().filter(|_| header.receiver == attributes.receiver()) else {
            self.counters.ignored += 1;
            return Ok(());
        };
        self.counters.received += 1;
        if peer.echo.is_none_or(|(newest, _)| header.sent_at > newest) {
            peer.echo = Some((header.sent_at, now));
        }
        if header.echo != 0 {
            let away = now.saturating_since(Instant::from_nanos(header.echo));
            self.round_trip.measure(away.saturating_sub(header.held()));
        }
        self.owes_answer |= header.wants_answer;
        let horizon = 2 * self.patience(attributes);
        self.sending.window.on_report(header.consumed, header.window, now, horizon);
        self.sending.on_open_from(header.open_from);
        self.receiving.on_cleared_through(header.cleared_through);
        self.receiving.on_sends_from(header.sends_from);
        self.waits_for_sender = false;
        for record in frame.records() {
            match record {
                Ok(Record::ClearToSend(clear)) => {
                    self.sending.on_clear(&clear);
                    // The receiver repeats it until it knows that it has come.
                    self.owes_answer = true;
                }
                Ok(Record::Scheme(bytes)) if self.to_scheme.len() < SCHEME_FRAMES_MAX => {
                    self.to_scheme.push_back(bytes.to_vec());
                }
                Ok(Record::Scheme(_)) => self.counters.dropped += 1,
                Err(_) => self.counters.ignored += 1,
            }
        }
        Ok(())
    }

    /// Tell the peer what it has to know now.
    pub(crate) fn send_frames(
        &mut self,
        now: Instant,
        attributes: &QueuePairAttributes,
        arrived: u64,
    ) -> Result<(), QueuePairError> {
        let patience = self.patience(attributes);
        // Made when there is something to say: this is called at every poll.
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        while self.control.can_send() {
            let asks = self.waits() && self.asked.is_none_or(|asked| asked + patience <= now);
            let clears: Vec<_> = self.receiving.due(now, patience).copied().collect();
            // Often enough that the window never closes for want of a report.
            let reports = arrived - self.reported >= u64::from(attributes.receive_depth).div_ceil(4);
            if !(asks || reports || self.owes_answer || !clears.is_empty() || !self.from_scheme.is_empty()) {
                break;
            }
            let Some(peer) = &self.peer else { break };
            let header = Header {
                wants_answer: asks || !clears.is_empty(),
                receiver: peer.receiver,
                // 0 means none.
                sent_at: now.as_nanos().max(1),
                echo: peer.echo.map_or(0, |(echo, _)| echo),
                held_ns: peer.echo.map_or(0, |(_, came)| now.saturating_since(came).as_nanos() as u64),
                consumed: arrived,
                window: attributes.receive_depth,
                cleared_through: self.sending.cleared_through(),
                open_from: self.receiving.open_from(),
                sends_from: self.sending.sends_from(),
            };
            bytes.resize(self.control.frame_bytes(), 0);
            let mut writer = FrameWriter::new(&mut bytes, &header);
            numbers.clear();
            numbers.extend(
                clears.iter().take_while(|clear| writer.push(&Record::ClearToSend(**clear))).map(|clear| clear.number),
            );
            let mut scheme_frames = 0;
            while let Some(frame) = self.from_scheme.get(scheme_frames)
                && writer.push(&Record::Scheme(frame))
            {
                scheme_frames += 1;
            }
            let length = writer.finish();
            if !self.control.send(&bytes[..length], CONTROL_SEND)? {
                break;
            }
            self.counters.sent += 1;
            self.receiving.told(&numbers, now);
            self.from_scheme.drain(..scheme_frames);
            self.reported = arrived;
            self.owes_answer = false;
            if asks {
                self.asked = Some(now);
            }
        }
        Ok(())
    }
}
