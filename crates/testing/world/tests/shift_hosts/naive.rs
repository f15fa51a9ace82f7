//! Failover as one would write it without a second thought: what failed on one NIC is asked again on the other.

use std::collections::VecDeque;
use std::rc::Rc;

use longhaul_verbs::{
    CompletionStatus, QueuePairAttributes, QueuePairState, ReceiveRequest, SendOperation, SendRequest,
};

use super::{Host, RAILS};

/// What the sender asks for. Places are words of the hosts' memories; each is eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    Write { to: usize },
    FetchAndAdd { at: usize, add: u64 },
    CompareAndSwap { at: usize, compare: u64, swap: u64 },
}

/// One request, on whichever NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    /// The word of the sender's memory that is sent, or that takes the answer.
    pub(crate) local: usize,
}

/// How a request ended for the program that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    pub(crate) id: u64,
    pub(crate) status: CompletionStatus,
    /// The NIC that it ended on.
    pub(crate) rail: usize,
}

/// What to do with a request that a NIC has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Ask again on the next NIC, as long as there is one.
    SendAgain,
    /// Report the failure.
    GiveUp,
}

/// The sender's half. It knows its own completions and nothing else.
pub(crate) struct NaiveFailover {
    host: Rc<Host>,
    peer: Rc<Host>,
    policy: Policy,
    rail: usize,
    unfinished: VecDeque<Request>,
    pub(crate) finished: Vec<Finished>,
}

impl NaiveFailover {
    /// Begins on NIC 0. Of the peer only the keys are used, which a program would know.
    pub(crate) fn new(host: &Rc<Host>, peer: &Rc<Host>, policy: Policy) -> Self {
        let (host, peer) = (host.clone(), peer.clone());
        NaiveFailover { host, peer, policy, rail: 0, unfinished: VecDeque::new(), finished: Vec::new() }
    }

    pub(crate) fn post(&mut self, request: Request) {
        self.unfinished.push_back(request);
        self.post_on_rail(request);
    }

    fn post_on_rail(&self, request: Request) {
        let remote = |word| self.peer.words.remote(self.rail, word);
        let operation = match request.operation {
            Operation::Send => SendOperation::Send,
            Operation::Write { to } => SendOperation::Write(remote(to)),
            Operation::FetchAndAdd { at, add } => SendOperation::FetchAndAdd { remote: remote(at), add },
            Operation::CompareAndSwap { at, compare, swap } => {
                SendOperation::CompareAndSwap { remote: remote(at), compare, swap }
            }
        };
        let entry = [self.host.words.entry(self.rail, request.local)];
        let posted = self.host.nics[self.rail].queue_pair.post_send(&[SendRequest::new(request.id, operation, &entry)]);
        posted.expect("a queue with room takes a good request");
    }

    /// Takes completions and does what the policy says with failures. Whether everything has ended.
    pub(crate) fn is_idle(&mut self) -> bool {
        while let Some(completion) = self.host.nics[self.rail].completions.poll_one().expect("a queue with room") {
            let may_go_on = self.policy == Policy::SendAgain && self.rail + 1 < RAILS;
            if !completion.is_success() && may_go_on {
                // Requests end in order, so this is the first that failed, and all behind it will be flushed.
                self.rail += 1;
                self.unfinished.iter().for_each(|&request| self.post_on_rail(request));
                continue;
            }
            let request = self.unfinished.pop_front().expect("each request ends once on a rail");
            assert_eq!(completion.id, request.id, "requests end in order");
            self.finished.push(Finished { id: request.id, status: completion.status, rail: self.rail });
        }
        self.unfinished.is_empty()
    }
}

/// The receiver's half: one queue of buffers for the program, whichever NIC they are posted to.
pub(crate) struct NaiveReceives {
    host: Rc<Host>,
    rail: usize,
    posted: VecDeque<usize>,
    /// The buffers that messages have been received into, in order, with the messages.
    pub(crate) received: Vec<(usize, u64)>,
}

impl NaiveReceives {
    /// Posts buffers, each of them a word of memory, to NIC 0.
    pub(crate) fn new(host: &Rc<Host>, buffers: impl IntoIterator<Item = usize>) -> Self {
        let posted = buffers.into_iter().collect();
        let receives = NaiveReceives { host: host.clone(), rail: 0, posted, received: Vec::new() };
        receives.post_all();
        receives
    }

    fn post_all(&self) {
        for &buffer in &self.posted {
            let entry = [self.host.words.entry(self.rail, buffer)];
            let request = ReceiveRequest { id: buffer as u64, local: &entry };
            self.host.nics[self.rail].queue_pair.post_receive(&[request]).expect("a queue with room");
        }
    }

    /// Takes what has come.
    pub(crate) fn poll(&mut self) {
        while let Some(completion) = self.host.nics[self.rail].completions.poll_one().expect("a queue with room") {
            assert!(completion.is_success(), "{completion:?}");
            let buffer = self.posted.pop_front().expect("a receive was posted");
            assert_eq!(completion.id, buffer as u64, "receives are used in order");
            self.received.push((buffer, self.host.words.get(buffer)));
        }
    }

    /// The NIC has failed: its unused buffers are posted to the next.
    pub(crate) fn fail_over(&mut self) {
        self.poll();
        let queue_pair = &self.host.nics[self.rail].queue_pair;
        queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).expect("any state can fail");
        self.rail += 1;
        self.post_all();
    }
}
