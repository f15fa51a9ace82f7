//! The state diagram, step by step: every pair of states on every transport, with and without the attributes that
//! the step needs (IBTA 10.3.1 and 11.2.5.2; the table is `longhaul_verbs::TRANSITIONS`).

use longhaul_verbs::{
    AttributeMask, Capabilities, CompletionStatus, ModifyError, QueuePairAttributes, QueuePairState,
    ScatterGatherEntry, SendOperation, TRANSITIONS, Transport, find_transition,
};

use super::Test;
use super::context::{Context, prefix};
use super::drain::drain_to_the_end;
use super::failure::{Failure, Outcome, ensure, equal, refusal};
use super::pair::{Pair, Setup};
use super::transfer::test;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for transport in Transport::ALL {
        for from in QueuePairState::ALL {
            let reachable = from != QueuePairState::SendQueueError || transport != Transport::ReliableConnection;
            if reachable {
                let name = format!("{}/state-table/from-{}", prefix(transport), name(from));
                tests
                    .push(Test::new(name, needs(transport, from), move |context| every_step(context, transport, from)));
            }
        }
        let rows = TRANSITIONS.iter().filter(move |row| row.transport.is_none_or(|only| only == transport));
        for row in rows {
            let case = format!("{}-to-{}", name(row.from), name(row.to));
            let needs = needs(transport, row.from) | needs(transport, row.to);
            let (from, to) = (row.from, row.to);
            if !row.required.is_empty() {
                let name = format!("{}/required-attributes/{case}", prefix(transport));
                tests.push(Test::new(name, needs, move |context| required(context, transport, from, to)));
            }
            let name = format!("{}/other-attributes/{case}", prefix(transport));
            tests.push(Test::new(name, needs, move |context| others(context, transport, from, to)));
        }
        tests.push(test(transport, "state-table/wrong-current-state", move |context| {
            wrong_current_state(context, transport)
        }));
    }
    tests
}

/// A state's name within the names of tests.
pub(super) fn name(state: QueuePairState) -> &'static str {
    match state {
        QueuePairState::Reset => "reset",
        QueuePairState::Initialized => "initialized",
        QueuePairState::ReadyToReceive => "ready-to-receive",
        QueuePairState::ReadyToSend => "ready-to-send",
        QueuePairState::SendQueueDrained => "send-queue-drained",
        QueuePairState::SendQueueError => "send-queue-error",
        _ => "error",
    }
}

fn needs(transport: Transport, state: QueuePairState) -> Capabilities {
    match state {
        QueuePairState::SendQueueDrained => transport.capability() | Capabilities::SEND_QUEUE_DRAIN,
        _ => transport.capability(),
    }
}

/// A pair whose first end is in this state. The second end is ready for it.
pub(super) fn pair_in(context: &mut Context<'_>, transport: Transport, state: QueuePairState) -> Outcome<Pair> {
    let pair = Pair::unconnected(context, &Setup::new(transport))?;
    pair.advance(1, QueuePairState::ReadyToSend)?;
    let end = &pair.ends[0];
    match state {
        QueuePairState::Reset => {}
        QueuePairState::Error => {
            pair.advance(0, QueuePairState::Initialized)?;
            end.go(state)?;
        }
        QueuePairState::SendQueueDrained => {
            pair.advance(0, QueuePairState::ReadyToSend)?;
            drain_to_the_end(context, &pair, 0)?;
        }
        QueuePairState::SendQueueError => {
            pair.advance(0, QueuePairState::ReadyToSend)?;
            fail_a_send(context, &pair)?;
            if end.queue_pair.state() == QueuePairState::Error {
                context.tolerate(end.is_in(state))?;
                return Err(Failure::not_applicable("state SQE"));
            }
        }
        _ => pair.advance(0, state)?,
    }
    end.is_in(state)?;
    Ok(pair)
}

/// Posts a send from memory that is not registered, at the first end, and takes its completion.
pub(super) fn fail_a_send(context: &mut Context<'_>, pair: &Pair) -> Outcome {
    let nowhere = [ScatterGatherEntry { address: 0x1000, length: 16, local_key: 0 }];
    let end = &pair.ends[0];
    end.send(13, SendOperation::Send, &nowhere)?;
    let failed = context.completion("sender without memory", &end.send_queue)?;
    context.failed("sender without memory", &failed, 13, &[CompletionStatus::LocalProtectionError])
}

/// Every attribute that any ordinary step needs.
fn all_attributes(pair: &Pair) -> QueuePairAttributes {
    let setup = &pair.setup;
    QueuePairAttributes {
        access: Some(setup.access),
        partition_key_index: Some(0),
        port: Some(pair.path(0).port),
        queue_key: Some(setup.queue_key),
        timeout: Some(setup.timeout),
        retry_count: Some(setup.retry_count),
        receiver_not_ready_retry: Some(setup.receiver_not_ready_retry),
        send_psn: Some(setup.first_psn[0]),
        max_read_atomic: Some(0),
        ..QueuePairAttributes::ready_to_receive(pair.path(0), pair.mtu(), pair.ends[1].number(), setup.first_psn[1])
            .reliable_receive(0, 12)
    }
}

/// Those of the attributes that the mask names, and the state to go to.
fn only(all: &QueuePairAttributes, mask: AttributeMask, to: QueuePairState) -> QueuePairAttributes {
    use AttributeMask as M;
    fn keep<T: Clone>(value: &Option<T>, kept: bool) -> Option<T> {
        value.clone().filter(|_| kept)
    }
    QueuePairAttributes {
        access: keep(&all.access, mask.contains(M::ACCESS)),
        partition_key_index: keep(&all.partition_key_index, mask.contains(M::PARTITION_KEY_INDEX)),
        port: keep(&all.port, mask.contains(M::PORT)),
        queue_key: keep(&all.queue_key, mask.contains(M::QUEUE_KEY)),
        path: keep(&all.path, mask.contains(M::PATH)),
        path_mtu: keep(&all.path_mtu, mask.contains(M::PATH_MTU)),
        timeout: keep(&all.timeout, mask.contains(M::TIMEOUT)),
        retry_count: keep(&all.retry_count, mask.contains(M::RETRY_COUNT)),
        receiver_not_ready_retry: keep(&all.receiver_not_ready_retry, mask.contains(M::RECEIVER_NOT_READY_RETRY)),
        receive_psn: keep(&all.receive_psn, mask.contains(M::RECEIVE_PSN)),
        send_psn: keep(&all.send_psn, mask.contains(M::SEND_PSN)),
        max_read_atomic: keep(&all.max_read_atomic, mask.contains(M::MAX_READ_ATOMIC)),
        max_destination_read_atomic: keep(
            &all.max_destination_read_atomic,
            mask.contains(M::MAX_DESTINATION_READ_ATOMIC),
        ),
        min_receiver_not_ready_timer: keep(
            &all.min_receiver_not_ready_timer,
            mask.contains(M::MIN_RECEIVER_NOT_READY_TIMER),
        ),
        destination_queue_pair: keep(&all.destination_queue_pair, mask.contains(M::DESTINATION_QUEUE_PAIR)),
        ..QueuePairAttributes::to_state(to)
    }
}

/// From one state to each of the seven: allowed exactly where the diagram has an arrow.
fn every_step(context: &mut Context<'_>, transport: Transport, from: QueuePairState) -> Outcome {
    let can_drain = context.capabilities()?.contains(Capabilities::SEND_QUEUE_DRAIN);
    for to in QueuePairState::ALL {
        let pair = pair_in(context, transport, from)?;
        let end = &pair.ends[0];
        let what = format!("{from:?} to {to:?}");
        let step = find_transition(transport, from, to).filter(|_| to != QueuePairState::SendQueueDrained || can_drain);
        match step {
            Some(row) => {
                let attributes = only(&all_attributes(&pair), row.required, to);
                end.queue_pair.modify(&attributes).map_err(|error| Failure::from(error).context(&what))?;
                context.wait_for(|| equal(&what, to, end.queue_pair.state()))?;
                equal("state by query", Some(to), end.queue_pair.query()?.state)?;
            }
            None => {
                let attributes = pair.attributes(0, to);
                refusal(&what, end.queue_pair.modify(&attributes))?;
                equal("state after a refused step", from, end.queue_pair.state())?;
            }
        }
    }
    Ok(())
}

/// Each required attribute is missed when it is not there, and nothing else is required.
fn required(context: &mut Context<'_>, transport: Transport, from: QueuePairState, to: QueuePairState) -> Outcome {
    let row = find_transition(transport, from, to).expect("made from the table's rows");
    let pair = pair_in(context, transport, from)?;
    let queue_pair = &pair.ends[0].queue_pair;
    let all = all_attributes(&pair);
    for attribute in row.required {
        let what = format!("without {attribute:?}");
        let error = refusal(&what, queue_pair.modify(&only(&all, row.required - attribute, to)))?;
        let fits = matches!(error, ModifyError::Transition(_) | ModifyError::System(_));
        ensure(fits, || format!("{what}: expected a refusal of the attributes, got {error}"))?;
        equal("state after a refused step", from, queue_pair.state())?;
    }
    queue_pair.modify(&only(&all, row.required, to))?;
    equal("state", to, queue_pair.state())
}

/// An attribute that a step neither needs nor allows is refused.
fn others(context: &mut Context<'_>, transport: Transport, from: QueuePairState, to: QueuePairState) -> Outcome {
    let row = find_transition(transport, from, to).expect("made from the table's rows");
    let pair = pair_in(context, transport, from)?;
    let queue_pair = &pair.ends[0].queue_pair;
    let all = all_attributes(&pair);
    let known = all.mask() - AttributeMask::STATE;
    for attribute in known - row.required - row.optional {
        let what = format!("with {attribute:?}");
        refusal(&what, queue_pair.modify(&only(&all, row.required | attribute, to)))?;
        equal("state after a refused step", from, queue_pair.state())?;
    }
    let allowed = known & (row.required | row.optional);
    queue_pair.modify(&only(&all, allowed, to))?;
    equal("state", to, queue_pair.state())
}

/// A caller who believes the queue pair to be in another state gets an error that says so.
fn wrong_current_state(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let pair = Pair::of(context, transport)?;
    let queue_pair = &pair.ends[0].queue_pair;
    let believed = QueuePairAttributes {
        current_state: Some(QueuePairState::Initialized),
        ..QueuePairAttributes::to_state(QueuePairState::ReadyToSend)
    };
    refusal("a step from a state that it is not in", queue_pair.modify(&believed))?;
    queue_pair.modify(&QueuePairAttributes { current_state: Some(QueuePairState::ReadyToSend), ..believed })?;
    equal("state", QueuePairState::ReadyToSend, queue_pair.state())
}
