//! Unreliable connection, receiving half: whole messages or nothing, no answers.
//!
//! A gap ends the message that was arriving; the next first packet starts anew, whatever its number (IBTA 9.8.2.2). So
//! single-packet messages are carried out in any order, and as often as the network delivers them.

use longhaul_verbs::CompletionStatus;
use longhaul_wire::Headers;

use crate::memory::Payload;
use crate::queue_pair::QueuePair;
use crate::receive::message::{Refusal, execute};
use crate::resources::Resources;

/// A request packet from the peer.
pub(crate) fn handle_request(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
) {
    let in_sequence = headers.bth.psn == queue_pair.responder().expected_psn();
    let is_start = headers.bth.opcode.position().is_start();
    if (is_start || !in_sequence) && queue_pair.arriving_mut().abandon_message() {
        shared.counters.dropped_messages += 1;
        queue_pair.return_receive(shared);
    }
    if !in_sequence {
        shared.counters.out_of_seq_request += 1;
        if !is_start {
            return;
        }
    }
    queue_pair.responder_mut().expect(headers.bth.psn.next());
    queue_pair.responder_mut().note_unreliable(headers.bth.psn, is_start);
    let is_in_message = is_start || queue_pair.arriving().is_in_message();
    match execute(queue_pair, shared, headers, payload) {
        Ok(_) => return,
        Err(Refusal::NotReady) => shared.counters.out_of_buffer += 1,
        Err(Refusal::RemoteAccess) => shared.counters.resp_remote_access_errors += 1,
        // The receive's own memory is the program's mistake, not the network's: it is told.
        Err(Refusal::LocalProtection) => {
            queue_pair.fail_receive(shared, CompletionStatus::LocalProtectionError);
            return;
        }
        Err(Refusal::InvalidRequest | Refusal::LocalLength | Refusal::Invalidation) => {}
    }
    queue_pair.arriving_mut().abandon_message();
    queue_pair.return_receive(shared);
    // The tail of a message whose head was dropped has been counted with its head.
    if is_in_message {
        shared.counters.dropped_messages += 1;
    }
}
