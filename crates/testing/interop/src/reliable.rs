//! Messages with reliability schemes between the two ends: a part of the suite of
//! [`longhaul_scheme_testing::end_to_end`], where each end has its half of a case.
//!
//! ```text
//!   client ── Connect {scheme} ──▶ server            for each scheme, a connection of its own
//!          ◀── Listening {handle} ──                 then the client connects, as programs do
//!          ── Messages {size, number, direction} ──▶ then each does its half until all has come
//!          ── Done ──▶  ◀── Verdict ──
//! ```
//!
//! The ends are connections of the library, which drives them: what an end sent last may have been lost, and is sent
//! again.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use longhaul::{Listener, Options};
use longhaul_conformance::DeviceEnd;
use longhaul_runtime::with_sources;
use longhaul_scheme_testing::end_to_end::{
    Case, CaseError, LibraryEnd, LibraryReceiver, LibrarySender, accept, endpoint_of, patient_options, scheme_by_name,
    schemes,
};
use longhaul_verbs::Mtu;

use crate::client::{ANSWER_PATIENCE, Client};
use crate::control::Control;
use crate::endpoint::{End, MEMORY_BYTES_MAX};
use crate::fault::{Fault, InteropError};
use crate::messages::{MessagesCheck, ReliablePlan, Reply, Request};
use crate::plan::{CheckResult, Summary};

/// Data in flight: what a virtual machine without hardware's help can take in.
const WINDOW_BYTES: u64 = 1 << 20;
/// A half looks this often at what the other end says.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A check that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(100);
/// A client must not make this end do just anything.
const MESSAGES_MAX: u32 = 1 << 20;

/// What a client is to send and to receive.
#[derive(Clone, Debug)]
pub struct ReliableOptions {
    /// Names of schemes; all of the suite when there are none.
    pub schemes: Vec<String>,
    /// Bytes of messages.
    pub sizes: Vec<u32>,
    /// Messages of each size, in each direction.
    pub messages: u32,
}

impl ReliablePlan {
    /// In the library's words.
    fn options(&self) -> Result<Options, String> {
        let mtu = Mtu::ALL.into_iter().find(|mtu| mtu.byte_count() == self.mtu_bytes);
        let mtu = mtu.ok_or_else(|| format!("{} is not a path MTU", self.mtu_bytes))?;
        if self.memory_bytes > MEMORY_BYTES_MAX {
            return Err(format!(
                "too much memory: the limit is {MEMORY_BYTES_MAX} bytes, and the other end wants {}",
                self.memory_bytes
            ));
        }
        let mut options = patient_options();
        options.scheme = scheme_by_name(&self.scheme).map_err(|error| error.to_string())?;
        options.mtu = mtu;
        options.window_bytes = Some(WINDOW_BYTES);
        Ok(options)
    }
}

/// The device as the library has it.
fn endpoint(end: &End) -> Result<longhaul::Endpoint, String> {
    let at = DeviceEnd { device: end.device.clone(), port: end.port, gid_index: end.gid_index, udp_port: end.udp_port };
    endpoint_of(&at).map_err(|error| error.to_string())
}

/// An end's half of a case.
enum Half {
    Sender(LibrarySender),
    Receiver(LibraryReceiver),
}

impl MessagesCheck {
    fn half(&self, sends: bool, end: &LibraryEnd) -> Half {
        let case = Case::new(self.messages as usize, self.message_bytes as usize);
        match sends {
            true => Half::Sender(LibrarySender::new(&case, end.memory.len())),
            false => Half::Receiver(LibraryReceiver::new(&case, end.memory.len())),
        }
    }

    fn name(&self, scheme: &str) -> String {
        let direction = if self.from_server { "from-server" } else { "to-server" };
        format!("{scheme}/{}/{direction}", self.message_bytes)
    }
}

impl Half {
    /// One round: what can begin, what has ended, and a moment to wait for more. Whether all is done.
    fn step(&mut self, end: &LibraryEnd) -> Result<bool, CaseError> {
        match self {
            Half::Sender(half) => {
                half.poll(end)?;
                half.wait(LOOK_EVERY);
                Ok(half.is_done())
            }
            Half::Receiver(half) => {
                half.poll(end)?;
                half.wait(LOOK_EVERY);
                Ok(half.is_done())
            }
        }
    }

    fn done_count(&self) -> usize {
        match self {
            Half::Sender(half) => half.done_count(),
            Half::Receiver(half) => half.done_count(),
        }
    }

    fn out_of_time(&self, begin: Instant) -> Option<String> {
        let is_late = begin.elapsed() > PATIENCE;
        is_late.then(|| format!("{} messages were done at this end within {PATIENCE:?}", self.done_count()))
    }
}

impl Client {
    /// Sends messages to the server and receives messages from it, with one scheme after the other; `report` is called
    /// for each check.
    pub fn run_reliable(
        mut self,
        options: &ReliableOptions,
        report: &mut dyn FnMut(&CheckResult),
    ) -> Result<Summary, InteropError> {
        let mut summary = self.new_summary();
        let names = match options.schemes.is_empty() {
            true => schemes().iter().map(|scheme| scheme.name()).collect(),
            false => options.schemes.clone(),
        };
        for scheme in names {
            let longest = options.sizes.iter().copied().max().unwrap_or(0);
            let plan = ReliablePlan {
                scheme,
                mtu_bytes: self.mtu().byte_count(),
                // A few of the largest at a time.
                memory_bytes: u64::from(longest).max(1 << 16) * 2,
            };
            let mut add = |name, operations, message: Option<String>| {
                let result = CheckResult { name, operations, passed: message.is_none(), message };
                report(&result);
                summary.checks.push(result);
            };
            let end = match self.connect_reliable(&plan) {
                Ok(end) => end,
                Err(Fault::Check(message)) => {
                    add(format!("{}/connect", plan.scheme), 0, Some(message));
                    continue;
                }
                Err(Fault::Session(error)) => return Err(error),
            };
            for (&message_bytes, from_server) in options.sizes.iter().flat_map(|size| [(size, false), (size, true)]) {
                let check = MessagesCheck { messages: options.messages, message_bytes, from_server };
                let failure = self.exchange(check, &end)?;
                let is_over = failure.is_some();
                add(check.name(&plan.scheme), check.messages, failure);
                // What was in flight may arrive in the middle of the next one.
                if is_over {
                    break;
                }
            }
        }
        self.control.send(&Request::Goodbye)?;
        Ok(summary)
    }

    fn connect_reliable(&mut self, plan: &ReliablePlan) -> Result<LibraryEnd, Fault> {
        let options = plan.options()?;
        self.control.send(&Request::Connect(plan.clone()))?;
        let listener = match self.control.receive(ANSWER_PATIENCE, "this end waited for the server to listen")? {
            Reply::Listening { listener } => listener,
            Reply::Verdict { failure } => return Err(Fault::Check(failure.unwrap_or_default())),
            Reply::Refused { reason, .. } => return Err(InteropError::Refused { reason }.into()),
            other => {
                let got = format!("{other:?}");
                return Err(InteropError::Unexpected { expected: "where the server listens", got }.into());
            }
        };
        let connecting = endpoint(&self.endpoint.end)?.connect(&listener, &options);
        let connection = connecting.wait().map_err(|error| with_sources(&error))?;
        Ok(LibraryEnd::new(connection, plan.memory_bytes as usize).map_err(|error| error.to_string())?)
    }

    /// One check; what went wrong, if something did.
    fn exchange(&mut self, check: MessagesCheck, end: &LibraryEnd) -> Result<Option<String>, InteropError> {
        self.control.send(&Request::Messages(check))?;
        let begin = Instant::now();
        let mut half = check.half(!check.from_server, end);
        let mut is_reported = false;
        loop {
            let stepped = half.step(end);
            let verdict = match self.control.try_receive("this end waited for the server's verdict")? {
                None => None,
                Some(Reply::Verdict { failure }) => Some(failure),
                Some(Reply::Refused { reason, .. }) => return Err(InteropError::Refused { reason }),
                Some(other) => {
                    return Err(InteropError::Unexpected { expected: "a verdict", got: format!("{other:?}") });
                }
            };
            if begin.elapsed() > PATIENCE + ANSWER_PATIENCE {
                let seconds = begin.elapsed().as_secs();
                return Err(InteropError::Silent { seconds, during: "this end waited for the server's verdict" });
            }
            if let Some(failure) = verdict {
                return Ok(failure.map(|failure| format!("server: {failure}")));
            }
            let is_done = matches!(stepped, Ok(true));
            let failure = match stepped {
                Ok(_) => half.out_of_time(begin).filter(|_| !is_reported),
                Err(error) => Some(error.to_string()),
            };
            if (is_done || failure.is_some()) && !is_reported {
                is_reported = true;
                self.control.send(&Request::Done { completed: half.done_count() as u64, failure: failure.clone() })?;
            }
            if let Some(failure) = failure {
                // The server's verdict follows; it is about the same.
                let _: Reply = self.control.receive(ANSWER_PATIENCE, "this end waited for the server's verdict")?;
                return Ok(Some(format!("client: {failure}")));
            }
        }
    }
}

/// The server's side of [`Request::Connect`]: it listens, and has a connection when the client has made it.
pub(crate) struct Listening {
    plan: ReliablePlan,
    listener: Listener,
    end: Option<LibraryEnd>,
}

impl Listening {
    pub(crate) fn start(plan: ReliablePlan, end: &End, at: IpAddr) -> Result<Self, String> {
        let listener = endpoint(end)?.listen((at, 0), &plan.options()?).map_err(|error| with_sources(&error))?;
        listener.require_token();
        Ok(Listening { plan, listener, end: None })
    }

    /// What the client must know to connect.
    pub(crate) fn handle(&self) -> String {
        self.listener.handle().to_string()
    }

    pub(crate) fn scheme(&self) -> &str {
        &self.plan.scheme
    }

    /// The server's side of [`Request::Messages`], which a client that has not connected does not send.
    pub(crate) fn serve(&mut self, check: MessagesCheck, control: &mut Control) -> Result<(), Fault> {
        if check.messages > MESSAGES_MAX || u64::from(check.message_bytes) > self.plan.memory_bytes {
            return Err(Fault::Check(format!("the client asks for more than a server allows: {check:?}")));
        }
        let end = match self.end.take() {
            Some(end) => end,
            None => {
                let connection = accept(&self.listener, ANSWER_PATIENCE).map_err(|error| error.to_string())?;
                LibraryEnd::new(connection, self.plan.memory_bytes as usize).map_err(|error| error.to_string())?
            }
        };
        serve(check, self.end.insert(end), control)
    }
}

fn serve(check: MessagesCheck, end: &LibraryEnd, control: &mut Control) -> Result<(), Fault> {
    let begin = Instant::now();
    let mut half = check.half(check.from_server, end);
    let mut client_is_done = false;
    loop {
        let is_done = half.step(end).map_err(|error| Fault::Check(error.to_string()))?;
        match control.try_receive("this end waited for the client to be done")? {
            None => {}
            Some(Request::Done { failure: None, .. }) => client_is_done = true,
            Some(Request::Done { failure: Some(failure), .. }) => {
                return Err(Fault::Check(format!("client: {failure}")));
            }
            Some(other) => {
                return Err(InteropError::Unexpected { expected: "done", got: format!("{other:?}") }.into());
            }
        }
        if is_done && client_is_done {
            return Ok(());
        }
        if let Some(late) = half.out_of_time(begin) {
            return Err(Fault::Check(late));
        }
    }
}

impl MessagesCheck {
    /// As the server calls it.
    pub(crate) fn result(&self, scheme: &str, failure: Option<String>) -> CheckResult {
        CheckResult { name: self.name(scheme), operations: self.messages, passed: failure.is_none(), message: failure }
    }
}
