//! Completions held against what must come: each request once, in the order of posting, with the right words in it.

use longhaul_verbs::{CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, WorkCompletion};

use crate::contents::{immediate, operation_with};
use crate::plan::{Check, Connection};

/// Ids have bits in every byte, so that a device that keeps only a part of them is found out.
const REQUEST_ID_BASE: u64 = 0x51d5_a7e1_0000_0000;
const RECEIVE_ID_BASE: u64 = 0xc93b_62f8_0000_0000;

/// Which queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
}

impl Queue {
    /// The id of the request with this number.
    pub(crate) const fn id(self, number: u64) -> u64 {
        self.base() + number
    }

    const fn base(self) -> u64 {
        match self {
            Queue::Send => REQUEST_ID_BASE,
            Queue::Receive => RECEIVE_ID_BASE,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Queue::Send => "request",
            Queue::Receive => "receive",
        }
    }
}

/// Who is on the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) own: QueuePairNumber,
    pub(crate) peer: QueuePairNumber,
}

/// Which request of a queue completes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    queue: Queue,
    posted: u64,
    completed: u64,
}

impl Order {
    pub(crate) const fn new(queue: Queue) -> Order {
        Order { queue, posted: 0, completed: 0 }
    }

    /// One more was posted; its number.
    pub(crate) const fn post(&mut self) -> u64 {
        self.posted += 1;
        self.posted - 1
    }

    pub(crate) const fn posted(&self) -> u64 {
        self.posted
    }

    pub(crate) const fn completed(&self) -> u64 {
        self.completed
    }

    pub(crate) const fn outstanding(&self) -> u64 {
        self.posted - self.completed
    }

    /// The number of the request that completes; it must be the next one.
    pub(crate) fn take(&mut self, completion: &WorkCompletion) -> Result<u64, String> {
        let (word, expected, posted) = (self.queue.word(), self.completed, self.posted);
        let number = completion.id.wrapping_sub(self.queue.base());
        let status = completion.status;
        match number {
            _ if number == expected && number < posted => {
                self.completed += 1;
                Ok(number)
            }
            _ if number < expected => {
                Err(format!("{word} {number} completed twice: {status:?} after {expected} completions in order"))
            }
            _ if number < posted => Err(format!(
                "expected the completion of {word} {expected}, got that of {word} {number} ({status:?}): out of order, or the \
                 first is lost"
            )),
            _ if expected == posted => Err(format!(
                "expected no completion after all {posted} of {word}s, got one with id {:#x} ({status:?})",
                completion.id
            )),
            _ => Err(format!(
                "expected the completion of {word} {expected} with id {:#x}, got one with id {:#x} ({status:?}), which \
                 belongs to none",
                self.queue.id(expected),
                completion.id
            )),
        }
    }
}

/// The client's completions of a check.
pub(crate) fn verify_request(
    check: &Check,
    numbers: Numbers,
    order: &mut Order,
    completion: &WorkCompletion,
) -> Result<u64, String> {
    let number = order.take(completion)?;
    let in_context = |error: String| format!("request {number}: {error}");
    verify_status(completion).map_err(in_context)?;
    equal("operation", check.operation.completion(), completion.operation).map_err(in_context)?;
    if check.operation.is_answered() {
        equal("bytes", check.bytes, completion.byte_count).map_err(in_context)?;
    }
    equal("queue pair", numbers.own, completion.queue_pair).map_err(in_context)?;
    Ok(number)
}

/// The server's completions of receives.
pub(crate) fn verify_receive(
    check: &Check,
    numbers: Numbers,
    order: &mut Order,
    completion: &WorkCompletion,
) -> Result<u64, String> {
    let number = order.take(completion)?;
    let in_context = |error: String| format!("receive {number}: {error}");
    verify_status(completion).map_err(in_context)?;
    verify_immediate(check, number, completion).map_err(in_context)?;
    let operation: CompletionOperation = check.operation.receive_completion();
    equal("operation", operation, completion.operation).map_err(in_context)?;
    let header_bytes = check.connection.header_bytes() as u32;
    equal("bytes", check.bytes + header_bytes, completion.byte_count).map_err(in_context)?;
    equal("queue pair", numbers.own, completion.queue_pair).map_err(in_context)?;
    if check.connection == Connection::Ud {
        equal("source queue pair", numbers.peer, completion.source_queue_pair).map_err(in_context)?;
        let has_header = completion.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER);
        equal("flag of a global route header", true, has_header).map_err(in_context)?;
    }
    Ok(number)
}

fn verify_immediate(check: &Check, number: u64, completion: &WorkCompletion) -> Result<(), String> {
    match (check.operation.has_immediate(), completion.immediate()) {
        (false, None) => Ok(()),
        (false, Some(bits)) => Err(format!("expected no immediate, got {bits:#010x}")),
        (true, None) => Err(format!("expected immediate {:#010x}, got none", immediate(check, number))),
        (true, Some(bits)) if bits == immediate(check, number) => Ok(()),
        (true, Some(bits)) => {
            let expected = immediate(check, number);
            let whose = match operation_with(check, bits) {
                Some(other) if other > number => {
                    format!("operation {other}'s; {} before it are missing", other - number)
                }
                Some(other) => format!("operation {other}'s, which has come already"),
                None => "nobody's".to_owned(),
            };
            Err(format!("expected immediate {expected:#010x}, got {bits:#010x}, {whose}"))
        }
    }
}

fn verify_status(completion: &WorkCompletion) -> Result<(), String> {
    match completion.status {
        CompletionStatus::Success => Ok(()),
        status => {
            Err(format!("expected Success, got {status:?} (the device's own code: {:#x})", completion.vendor_error))
        }
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, got: T) -> Result<(), String> {
    if expected == got { Ok(()) } else { Err(format!("{what}: expected {expected:?}, got {got:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Operation;

    const NUMBERS: Numbers = Numbers { own: QueuePairNumber::new(17), peer: QueuePairNumber::new(18) };

    fn check(connection: Connection, operation: Operation) -> Check {
        Check { connection, operation, bytes: 100, operations: 500, seed: 9 }
    }

    fn posted(queue: Queue, count: u64) -> Order {
        let mut order = Order::new(queue);
        (0..count).for_each(|_| assert!(order.post() < u64::MAX));
        order
    }

    /// As a device that does everything right completes a receive.
    fn received(check: &Check, number: u64) -> WorkCompletion {
        let is_datagram = check.connection == Connection::Ud;
        let mut completion = WorkCompletion {
            id: Queue::Receive.id(number),
            operation: check.operation.receive_completion(),
            byte_count: check.bytes + if is_datagram { 40 } else { 0 },
            queue_pair: NUMBERS.own,
            source_queue_pair: if is_datagram { NUMBERS.peer } else { QueuePairNumber::default() },
            ..WorkCompletion::default()
        };
        if is_datagram {
            completion.flags |= CompletionFlags::GLOBAL_ROUTE_HEADER;
        }
        if check.operation.has_immediate() {
            completion.flags |= CompletionFlags::IMMEDIATE;
            completion.immediate_or_key = immediate(check, number);
        }
        completion
    }

    fn sent(check: &Check, number: u64) -> WorkCompletion {
        WorkCompletion {
            id: Queue::Send.id(number),
            operation: check.operation.completion(),
            byte_count: check.bytes,
            queue_pair: NUMBERS.own,
            ..WorkCompletion::default()
        }
    }

    #[test]
    fn what_a_right_device_does_passes() {
        for connection in Connection::ALL {
            for operation in Operation::ALL.into_iter().filter(|operation| operation.is_possible(connection)) {
                let check = check(connection, operation);
                let (mut requests, mut receives) = (posted(Queue::Send, 5), posted(Queue::Receive, 5));
                for number in 0..5 {
                    let request = verify_request(&check, NUMBERS, &mut requests, &sent(&check, number));
                    assert_eq!(request, Ok(number));
                    let receive = verify_receive(&check, NUMBERS, &mut receives, &received(&check, number));
                    assert_eq!(receive, Ok(number));
                }
                assert_eq!((requests.outstanding(), receives.outstanding()), (0, 0));
            }
        }
    }

    /// The completion that comes third, after two right ones, and words that must be in what is said of it.
    #[track_caller]
    fn refused(check: &Check, completion: WorkCompletion, words: &str) {
        let mut order = posted(Queue::Receive, 5);
        for number in 0..2 {
            verify_receive(check, NUMBERS, &mut order, &received(check, number)).expect("it is right");
        }
        let error = verify_receive(check, NUMBERS, &mut order, &completion).expect_err("it is wrong");
        assert!(error.contains(words), "\"{words}\" in: {error}");
    }

    #[test]
    fn what_a_wrong_device_does_is_said() {
        let check = check(Connection::Rc, Operation::SendImmediate);
        let right = received(&check, 2);
        refused(&check, received(&check, 1), "receive 1 completed twice");
        refused(&check, received(&check, 3), "expected the completion of receive 2, got that of receive 3");
        refused(&check, received(&check, 5), "belongs to none");
        refused(&check, WorkCompletion { id: 2, ..right }, "belongs to none");
        let status = CompletionStatus::LocalLengthError;
        refused(&check, WorkCompletion { status, ..right }, "receive 2: expected Success, got LocalLengthError");
        refused(&check, WorkCompletion { byte_count: 99, ..right }, "bytes: expected 100, got 99");
        let operation = CompletionOperation::ReceiveWriteWithImmediate;
        refused(&check, WorkCompletion { operation, ..right }, "operation: expected Receive, got");
        refused(&check, WorkCompletion { queue_pair: NUMBERS.peer, ..right }, "queue pair: expected");
        refused(&check, WorkCompletion { flags: CompletionFlags::empty(), ..right }, "got none");
        let lost = WorkCompletion { immediate_or_key: immediate(&check, 4), ..right };
        refused(&check, lost, "operation 4's; 2 before it are missing");
        let twice = WorkCompletion { immediate_or_key: immediate(&check, 1), ..right };
        refused(&check, twice, "operation 1's, which has come already");
        let swapped = WorkCompletion { immediate_or_key: right.immediate_or_key.swap_bytes(), ..right };
        refused(&check, swapped, "nobody's");
        let plain = Check { operation: Operation::Send, ..check };
        refused(&plain, right, "expected no immediate");
        let datagrams = Check { connection: Connection::Ud, ..check };
        let right = received(&datagrams, 2);
        refused(&datagrams, WorkCompletion { source_queue_pair: NUMBERS.own, ..right }, "source queue pair");
        refused(&datagrams, WorkCompletion { flags: CompletionFlags::IMMEDIATE, ..right }, "global route header");
        refused(&datagrams, WorkCompletion { byte_count: 100, ..right }, "expected 140, got 100");
    }

    #[test]
    fn the_clients_completions_are_held_to_the_same() {
        let check = check(Connection::Rc, Operation::Read);
        let refused = |completion: WorkCompletion| {
            verify_request(&check, NUMBERS, &mut posted(Queue::Send, 5), &completion).expect_err("it is wrong")
        };
        assert!(refused(sent(&check, 1)).contains("got that of request 1"));
        assert!(refused(WorkCompletion { byte_count: 1, ..sent(&check, 0) }).contains("bytes"));
        let write = Check { operation: Operation::Write, ..check };
        assert!(refused(sent(&write, 0)).contains("expected Read, got Write"));
        let mut order = posted(Queue::Send, 1);
        verify_request(&check, NUMBERS, &mut order, &sent(&check, 0)).expect("it is right");
        let error = verify_request(&check, NUMBERS, &mut order, &sent(&check, 1)).expect_err("one too many");
        assert!(error.contains("expected no completion after all 1"), "{error}");
    }
}
