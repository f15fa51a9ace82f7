//! What must be true of messages. The judge knows what the program asked for and what the network can do, and nothing
//! of the implementation.

use longhaul_reliable::{MessageError, MessageReport, Received};
use longhaul_sdr::ReceivedMessage;
use longhaul_time::{Duration, Instant};

use super::contents::Label;
use super::plan::{Ground, Item, MTU, MessagePlan, Plan};
use super::program::{Half, MessageState, Receiving, Sending, fresh_round};
use super::violation::{Rule, Violation};
use longhaul_runtime::with_sources;

/// A time-out of this length is not explained by the faults of a program.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);
/// No message waits longer than this when packets are lost, or once everything is healed.
const WAIT_MAX: Duration = Duration::from_millis(2500);

/// Chunks of parity that a code has, in the plans of this soak, for both directions.
const PARITY_CHUNKS_MAX: u64 = 2 * 8;

/// How a half of a message has ended.
pub(super) enum Outcome {
    Sent(MessageReport),
    /// A stream of `sdr`, which does not know whether it has arrived.
    Ended,
    Received(Received),
    Completed(ReceivedMessage, Option<u32>),
    /// Why; and whether the connection itself has failed.
    Failed(String, bool),
}

impl Outcome {
    pub(super) fn failed(error: &MessageError) -> Self {
        Outcome::Failed(with_sources(error), matches!(error, MessageError::Connection(_)))
    }
}

/// What has been seen.
pub(super) struct Judge {
    ground: Ground,
    round_trip: Duration,
    has_crash: bool,
    has_forgeries: bool,
    /// How long a host stands still at most.
    longest_pause: Duration,
    connections: Vec<ConnectionFacts>,
    pub(super) is_healed: bool,
    pub(super) violations: Vec<Violation>,
    pub(super) sent_packets: u64,
    pub(super) repeated_packets: u64,
    pub(super) duplicate_packets: u64,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
}

struct ConnectionFacts {
    timeout: Duration,
    has_liar: bool,
    agrees: bool,
    rate_bits_per_second: Option<u64>,
    part_bytes: u64,
    chunk_bytes: u64,
    receive_depth: u32,
}

impl Judge {
    pub(super) fn new(plan: &Plan) -> Self {
        let facts = |plan: &super::plan::ConnectionPlan| ConnectionFacts {
            timeout: plan.timeout,
            has_liar: plan.has_liar,
            agrees: plan.schemes.is_none_or(|[one, other]| one == other),
            rate_bits_per_second: plan.rate_bits_per_second,
            part_bytes: plan.part_packets * MTU as u64,
            chunk_bytes: u64::from(plan.chunk_packets) * MTU as u64,
            receive_depth: plan.receive_depth,
        };
        Judge {
            ground: plan.ground,
            round_trip: plan.round_trip(),
            has_crash: plan.has_crash(),
            longest_pause: plan.longest_pause(),
            has_forgeries: plan.items.iter().any(|item| matches!(item, Item::Forgery(_) | Item::Lie(_))),
            connections: plan.connections.iter().map(facts).collect(),
            is_healed: false,
            violations: Vec::new(),
            sent_packets: 0,
            repeated_packets: 0,
            duplicate_packets: 0,
            succeeded: 0,
            failed: 0,
        }
    }

    pub(super) fn accuse(&mut self, rule: Rule, at: Instant, text: String) {
        self.violations.push(Violation { rule, at, text });
    }

    /// A send has ended.
    pub(super) fn sent(
        &mut self,
        plan: &MessagePlan,
        message: usize,
        outcome: Outcome,
        half: Half<Sending>,
        now: Instant,
    ) -> Half<Sending> {
        match outcome {
            Outcome::Failed(why, is_connection) => {
                self.judge_failure(plan, message, "send", &why, is_connection, now);
                Half::Failed(why)
            }
            outcome => {
                if let Outcome::Sent(report) = outcome
                    && !self.connections[plan.connection].has_liar
                {
                    self.sent_packets += report.data_packets_sent + report.parity_packets_sent;
                    self.repeated_packets += report.data_packets_repeated;
                }
                match half {
                    // A stream is ended by dropping it.
                    Half::Pending(Sending::Stream(..)) => Half::Dropped,
                    Half::Pending(sending) => Half::Succeeded(sending),
                    other => other,
                }
            }
        }
    }

    /// A receive has ended.
    #[expect(clippy::too_many_arguments, reason = "all that is known of it")]
    pub(super) fn received(
        &mut self,
        plan: &MessagePlan,
        message: usize,
        label: Label,
        is_sent: bool,
        outcome: Outcome,
        half: Half<Receiving>,
        now: Instant,
    ) -> Half<Receiving> {
        let facts = &self.connections[plan.connection];
        let is_honest = !facts.has_liar;
        match outcome {
            Outcome::Failed(why, is_connection) => {
                self.judge_failure(plan, message, "receive", &why, is_connection, now);
                return Half::Failed(why);
            }
            Outcome::Received(received) if is_honest => {
                self.duplicate_packets += received.report().duplicate_packets;
                let bytes = received.bytes();
                let wrong = label.first_wrong(0, bytes);
                let mut say = |text: String| {
                    self.violations.push(Violation {
                        rule: Rule::Contents,
                        at: now,
                        text: format!(
                            "connection {}, message {message} of {} bytes: {text}",
                            plan.connection, plan.bytes
                        ),
                    });
                };
                match () {
                    () if !is_sent => say("it was received before it was sent".to_owned()),
                    () if bytes.len() != plan.bytes => say(format!("{} bytes were received", bytes.len())),
                    () if !received.missing().is_empty() => say(format!("{:?} are missing", received.missing())),
                    () => {}
                }
                if let Some(place) = wrong {
                    say(format!("byte {place} is not what was sent"));
                }
            }
            Outcome::Completed(completed, immediate) => {
                for (packet, bytes) in completed.bytes().chunks(MTU).enumerate() {
                    let text = match completed.bitmap().is_whole(packet as u32) {
                        true => label
                            .first_wrong(packet * MTU, bytes)
                            .map(|place| format!("the bit of packet {packet} is set, byte {place} is another")),
                        false => label
                            .first_foreign(packet * MTU, bytes)
                            .map(|place| format!("packet {packet} is missing, and byte {place} is another message's")),
                    };
                    let Some(text) = text else { continue };
                    let text = format!("connection {}, message {message}: {text}", plan.connection);
                    self.accuse(Rule::Contents, now, text);
                }
                if let Some(immediate) = immediate.filter(|immediate| *immediate != label.immediate()) {
                    let text = format!(
                        "message {message}: its immediate is {immediate:#x}, {:#x} was sent",
                        label.immediate()
                    );
                    self.accuse(Rule::Contents, now, text);
                }
            }
            _ => {}
        }
        self.succeeded += 1;
        match half {
            Half::Pending(receiving) => Half::Succeeded(receiving),
            other => other,
        }
    }

    fn judge_failure(
        &mut self,
        plan: &MessagePlan,
        message: usize,
        half: &str,
        why: &str,
        is_connection: bool,
        now: Instant,
    ) {
        self.failed += 1;
        let facts = &self.connections[plan.connection];
        if facts.has_liar {
            return;
        }
        let text =
            format!("connection {}, {half} of message {message} of {} bytes: {why}", plan.connection, plan.bytes);
        if is_connection {
            return self.accuse(Rule::Connection, now, text);
        }
        let must_succeed = plan.room >= plan.bytes && facts.agrees && !self.has_crash;
        let has_time = self.ground != Ground::Storm || facts.timeout >= LONG_TIMEOUT || fresh_round(plan).is_some();
        if must_succeed && has_time {
            self.accuse(Rule::Failure, now, text);
        }
    }

    /// Whether anybody waits too long is looked at now.
    pub(super) fn watches_waits(&self) -> bool {
        self.is_healed || self.ground != Ground::Storm
    }

    /// A message waits, of which both halves were posted, and nothing of its direction has ended since.
    pub(super) fn waits(
        &mut self,
        connection: usize,
        message: usize,
        plan: &MessagePlan,
        waits: Duration,
        now: Instant,
    ) {
        let facts = &self.connections[connection];
        let is_clean = match self.ground {
            Ground::Clean => !self.has_forgeries || fresh_round(plan).is_some(),
            // These links lose packets to the end.
            Ground::Lossy => false,
            Ground::Storm => fresh_round(plan).is_some(),
        };
        // A short message may have much more parity than data.
        let bytes = 4 * plan.bytes as u64 + PARITY_CHUNKS_MAX * facts.chunk_bytes;
        let pace = facts
            .rate_bits_per_second
            .map_or(Duration::ZERO, |rate| Duration::from_nanos(bytes * 8 * 1_000_000_000 / rate));
        let limit = match is_clean {
            true => 8 * self.round_trip + Duration::from_millis(2),
            // A host that stood still may have measured that as a round trip, and waits as long for the next answer.
            false => 8 * self.round_trip + WAIT_MAX + self.longest_pause,
        };
        // Parts may have to wait for each other, and packets (parity among them) for the receives of those before.
        let parts = (plan.bytes as u64).div_ceil(facts.part_bytes).max(1) - 1;
        let windows = 2 * plan.bytes as u64 / MTU as u64 / u64::from(facts.receive_depth);
        let limit = limit + self.round_trip * (5 * parts + windows) as u32;
        // A message that the peer does not take ends by its time-out.
        let limit = if facts.agrees && plan.room >= plan.bytes { limit } else { limit + facts.timeout + WAIT_MAX };
        if waits > limit + pace {
            let text = format!(
                "connection {connection}, message {message} of {} bytes: nothing for {waits:?}, with a round trip of {:?}",
                plan.bytes, self.round_trip
            );
            self.accuse(Rule::Wait, now, text);
        }
    }

    /// The end is gone: everything it waited for must have ended.
    pub(super) fn must_be_over(
        &mut self,
        connection: usize,
        side: usize,
        life: u32,
        now: Instant,
        messages: &[MessagePlan],
        states: &[MessageState],
    ) {
        for (index, (message, state)) in messages.iter().zip(states).enumerate() {
            if message.connection != connection || state.life != Some(life) {
                continue;
            }
            let is_open = match message.from == side {
                true => matches!(state.send, Half::Pending(Sending::Ticket(_))),
                false => matches!(state.receive, Half::Pending(Receiving::Ticket(_))),
            };
            if is_open {
                let text =
                    format!("connection {connection}, end {side}: it is closed, and message {index} is not over");
                self.accuse(Rule::Ending, now, text);
            }
        }
    }
}
