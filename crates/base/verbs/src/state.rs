//! The states of a queue pair, as a table.
//!
//! ```text
//!          ┌───────┐  modify   ┌──────┐  modify   ┌─────┐  modify   ┌─────┐ ◀──────── ┌─────┐
//! create ─▶│ RESET │ ────────▶ │ INIT │ ────────▶ │ RTR │ ────────▶ │ RTS │ ────────▶ │ SQD │
//!          └───────┘           └──────┘           └─────┘           └─────┘           └─────┘
//!              ▲                                                     ▲   │ a send fails (UC, UD)
//!              │ modify, from every state                            │   ▼
//!          ┌───────┐                                                ┌─────┐
//!          │  ERR  │ ◀── modify, from all but RESET; an error (RC)  │ SQE │
//!          └───────┘                                                └─────┘
//! ```
//!
//! InfiniBand Architecture Specification, volume 1, section 10.3.1 (states) and 11.2.5.2 (Modify Queue Pair:
//! required and optional attributes of each step).

use std::fmt;

use crate::{AttributeMask, Transport};

/// The state of a queue pair. Numbers are libibverbs' `ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum QueuePairState {
    /// RESET: just made; takes no requests.
    #[default]
    Reset = 0,
    /// INIT: takes receives, processes nothing.
    Initialized = 1,
    /// RTR: receives.
    ReadyToReceive = 2,
    /// RTS: receives and sends.
    ReadyToSend = 3,
    /// SQD: finishes what it has begun to send; starts nothing new.
    SendQueueDrained = 4,
    /// SQE (UC, UD): a send failed; later sends are flushed; receiving goes on.
    SendQueueError = 5,
    /// ERR: everything is flushed.
    Error = 6,
}

impl QueuePairState {
    /// All of them.
    pub const ALL: [QueuePairState; 7] = [
        QueuePairState::Reset,
        QueuePairState::Initialized,
        QueuePairState::ReadyToReceive,
        QueuePairState::ReadyToSend,
        QueuePairState::SendQueueDrained,
        QueuePairState::SendQueueError,
        QueuePairState::Error,
    ];

    /// Whether incoming packets are processed.
    pub fn receives(self) -> bool {
        use QueuePairState::*;
        matches!(self, ReadyToReceive | ReadyToSend | SendQueueDrained | SendQueueError)
    }

    /// Whether a send request may be posted (in SQE and ERR it is, to be flushed).
    pub fn takes_sends(self) -> bool {
        use QueuePairState::*;
        matches!(self, ReadyToSend | SendQueueDrained | SendQueueError | Error)
    }

    /// Whether a receive request may be posted (in ERR it is, to be flushed).
    pub fn takes_receives(self) -> bool {
        self != QueuePairState::Reset
    }
}

/// As the specification writes it: `INIT`, `RTR`.
impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            QueuePairState::Reset => "RESET",
            QueuePairState::Initialized => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::SendQueueDrained => "SQD",
            QueuePairState::SendQueueError => "SQE",
            QueuePairState::Error => "ERR",
        })
    }
}

/// One step of the state diagram for one transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Before.
    pub from: QueuePairState,
    /// After.
    pub to: QueuePairState,
    /// For which transport; `None` is for all.
    pub transport: Option<Transport>,
    /// Attributes that must be given.
    pub required: AttributeMask,
    /// Attributes that may be given.
    pub optional: AttributeMask,
}

const fn step(
    from: QueuePairState,
    to: QueuePairState,
    transport: Option<Transport>,
    required: &[AttributeMask],
    optional: &[AttributeMask],
) -> Transition {
    Transition { from, to, transport, required: union(required), optional: union(optional) }
}

const fn union(masks: &[AttributeMask]) -> AttributeMask {
    let mut all = AttributeMask::empty();
    let mut index = 0;
    while index < masks.len() {
        all = all.union(masks[index]);
        index += 1;
    }
    all
}

use AttributeMask as M;
use QueuePairState::{Error, Initialized, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError};
const RC: Option<Transport> = Some(Transport::ReliableConnection);
const UC: Option<Transport> = Some(Transport::UnreliableConnection);
const UD: Option<Transport> = Some(Transport::UnreliableDatagram);

/// The steps that carry attributes. In addition, every state can go to RESET, and all but RESET to ERR, with no
/// attribute but the state itself.
#[rustfmt::skip]
pub const TRANSITIONS: &[Transition] = &[
    step(Reset, Initialized, RC, &[M::PARTITION_KEY_INDEX, M::PORT, M::ACCESS], &[]),
    step(Reset, Initialized, UC, &[M::PARTITION_KEY_INDEX, M::PORT, M::ACCESS], &[]),
    step(Reset, Initialized, UD, &[M::PARTITION_KEY_INDEX, M::PORT, M::QUEUE_KEY], &[]),

    step(Initialized, Initialized, RC, &[], &[M::PARTITION_KEY_INDEX, M::PORT, M::ACCESS]),
    step(Initialized, Initialized, UC, &[], &[M::PARTITION_KEY_INDEX, M::PORT, M::ACCESS]),
    step(Initialized, Initialized, UD, &[], &[M::PARTITION_KEY_INDEX, M::PORT, M::QUEUE_KEY]),

    step(Initialized, ReadyToReceive, RC,
        &[M::PATH, M::PATH_MTU, M::DESTINATION_QUEUE_PAIR, M::RECEIVE_PSN, M::MAX_DESTINATION_READ_ATOMIC,
          M::MIN_RECEIVER_NOT_READY_TIMER],
        &[M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY_INDEX]),
    step(Initialized, ReadyToReceive, UC,
        &[M::PATH, M::PATH_MTU, M::DESTINATION_QUEUE_PAIR, M::RECEIVE_PSN],
        &[M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY_INDEX]),
    step(Initialized, ReadyToReceive, UD, &[], &[M::PARTITION_KEY_INDEX, M::QUEUE_KEY]),

    step(ReadyToReceive, ReadyToSend, RC,
        &[M::TIMEOUT, M::RETRY_COUNT, M::RECEIVER_NOT_READY_RETRY, M::SEND_PSN, M::MAX_READ_ATOMIC],
        &[M::CURRENT_STATE, M::ALTERNATE_PATH, M::ACCESS, M::MIN_RECEIVER_NOT_READY_TIMER, M::PATH_MIGRATION_STATE,
          M::RATE_LIMIT]),
    step(ReadyToReceive, ReadyToSend, UC, &[M::SEND_PSN],
        &[M::CURRENT_STATE, M::ALTERNATE_PATH, M::ACCESS, M::PATH_MIGRATION_STATE, M::RATE_LIMIT]),
    step(ReadyToReceive, ReadyToSend, UD, &[M::SEND_PSN], &[M::CURRENT_STATE, M::QUEUE_KEY, M::RATE_LIMIT]),

    step(ReadyToSend, ReadyToSend, RC, &[],
        &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::PATH_MIGRATION_STATE, M::MIN_RECEIVER_NOT_READY_TIMER,
          M::RATE_LIMIT]),
    step(ReadyToSend, ReadyToSend, UC, &[],
        &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::PATH_MIGRATION_STATE, M::RATE_LIMIT]),
    step(ReadyToSend, ReadyToSend, UD, &[], &[M::CURRENT_STATE, M::QUEUE_KEY, M::RATE_LIMIT]),

    step(ReadyToSend, SendQueueDrained, None, &[], &[M::SEND_QUEUE_DRAINED_EVENT]),

    step(SendQueueDrained, ReadyToSend, RC, &[],
        &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::PATH_MIGRATION_STATE, M::MIN_RECEIVER_NOT_READY_TIMER]),
    step(SendQueueDrained, ReadyToSend, UC, &[],
        &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::PATH_MIGRATION_STATE]),
    step(SendQueueDrained, ReadyToSend, UD, &[], &[M::CURRENT_STATE, M::QUEUE_KEY]),

    step(SendQueueDrained, SendQueueDrained, RC, &[],
        &[M::PORT, M::PATH, M::TIMEOUT, M::RETRY_COUNT, M::RECEIVER_NOT_READY_RETRY, M::MAX_READ_ATOMIC,
          M::MAX_DESTINATION_READ_ATOMIC, M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY_INDEX,
          M::MIN_RECEIVER_NOT_READY_TIMER, M::PATH_MIGRATION_STATE]),
    step(SendQueueDrained, SendQueueDrained, UC, &[],
        &[M::PATH, M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY_INDEX, M::PATH_MIGRATION_STATE]),
    step(SendQueueDrained, SendQueueDrained, UD, &[], &[M::PARTITION_KEY_INDEX, M::QUEUE_KEY]),

    step(SendQueueError, ReadyToSend, UC, &[], &[M::CURRENT_STATE, M::ACCESS]),
    step(SendQueueError, ReadyToSend, UD, &[], &[M::CURRENT_STATE, M::QUEUE_KEY]),
];

/// A step that the state diagram does not allow, or not with these attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// There is no such step.
    #[error("{transport} queue pairs cannot go from {from} to {to}")]
    NoSuchStep {
        /// The transport.
        transport: Transport,
        /// Before.
        from: QueuePairState,
        /// After.
        to: QueuePairState,
    },
    /// Attributes are missing, or not allowed here.
    #[error("from {from} to {to}: {}", differences(*missing, *unexpected))]
    Attributes {
        /// Before.
        from: QueuePairState,
        /// After.
        to: QueuePairState,
        /// Required and not given.
        missing: AttributeMask,
        /// Given and not allowed.
        unexpected: AttributeMask,
    },
}

/// What is wrong with the attributes of a step.
fn differences(missing: AttributeMask, unexpected: AttributeMask) -> String {
    match (missing.is_empty(), unexpected.is_empty()) {
        (_, true) => format!("missing attributes: {missing}"),
        (true, false) => format!("attributes not allowed here: {unexpected}"),
        (false, false) => format!("missing attributes: {missing}; attributes not allowed here: {unexpected}"),
    }
}

/// The row of the table for a step, if there is such a step.
pub fn find_transition(transport: Transport, from: QueuePairState, to: QueuePairState) -> Option<Transition> {
    // As in Linux, a queue pair that was never initialized cannot fail.
    if to == Reset || (to == Error && from != Reset) {
        return Some(step(from, to, None, &[], &[]));
    }
    TRANSITIONS
        .iter()
        .find(|row| row.from == from && row.to == to && row.transport.is_none_or(|only| only == transport))
        .copied()
}

/// Whether a queue pair may take this step with these attributes.
///
/// `given` may contain `STATE`, and `CURRENT_STATE` wherever the caller knows it.
pub fn check_transition(
    transport: Transport,
    from: QueuePairState,
    to: QueuePairState,
    given: AttributeMask,
) -> Result<(), TransitionError> {
    let row = find_transition(transport, from, to).ok_or(TransitionError::NoSuchStep { transport, from, to })?;
    let missing = row.required - given;
    let unexpected = given - row.required - row.optional - M::STATE - M::CURRENT_STATE;
    if missing.is_empty() && unexpected.is_empty() {
        return Ok(());
    }
    Err(TransitionError::Attributes { from, to, missing, unexpected })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// A changed transition must be seen in review: the whole table, all states by all states, is a snapshot.
    #[test]
    fn the_whole_state_diagram() {
        let mut table = String::new();
        for transport in Transport::ALL {
            for from in QueuePairState::ALL {
                for to in QueuePairState::ALL {
                    let Some(row) = find_transition(transport, from, to) else {
                        continue;
                    };
                    let name = transport.abbreviation();
                    writeln!(
                        table,
                        "{name} {from:?} -> {to:?}: required [{:?}] optional [{:?}]",
                        row.required, row.optional
                    )
                    .unwrap();
                }
            }
        }
        insta::assert_snapshot!("state_diagram", table);
    }

    #[test]
    fn the_error_names_what_is_missing() {
        let error = check_transition(
            Transport::UnreliableConnection,
            Initialized,
            ReadyToReceive,
            M::STATE | M::PATH | M::PATH_MTU | M::RECEIVE_PSN | M::QUEUE_KEY,
        );
        assert_eq!(
            error,
            Err(TransitionError::Attributes {
                from: Initialized,
                to: ReadyToReceive,
                missing: M::DESTINATION_QUEUE_PAIR,
                unexpected: M::QUEUE_KEY,
            })
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "from INIT to RTR: missing attributes: destination queue pair; attributes not allowed here: queue key"
        );
        let error =
            check_transition(Transport::ReliableConnection, Initialized, ReadyToReceive, M::all() - M::PATH_MTU);
        assert!(error.unwrap_err().to_string().starts_with("from INIT to RTR: missing attributes: path MTU; "));
        let error = check_transition(Transport::UnreliableDatagram, Reset, ReadyToSend, M::STATE);
        assert_eq!(error.unwrap_err().to_string(), "UD queue pairs cannot go from RESET to RTS");
    }

    #[test]
    fn send_queue_error_is_not_for_reliable_connections() {
        assert_eq!(find_transition(Transport::ReliableConnection, SendQueueError, ReadyToSend), None);
        assert!(find_transition(Transport::UnreliableDatagram, SendQueueError, ReadyToSend).is_some());
    }
}
