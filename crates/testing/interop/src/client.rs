//! The client: decides what is checked, and carries it out check by check.

use std::net::TcpStream;
use std::time::Duration;

use longhaul_verbs::{Capabilities, Mtu};

use crate::contents::{memory_bytes, mix};
use crate::control::Control;
use crate::death::{self, DeathReport, Role};
use crate::endpoint::{End, Endpoint};
use crate::fault::{Fault, InteropError};
use crate::messages::{EndInfo, PairInfo, Reply, Request, SessionPlan, VERSION};
use crate::plan::{Check, CheckResult, Connection, Operation, Size, Summary, Wanted, checks};
use crate::requester::Requester;

/// How long the server may take to answer. It looks at memory, and waits for what may still arrive.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(60);

/// What a client is to do.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The transport.
    pub connection: Connection,
    /// Payload of a packet; the largest that both devices have unless given.
    pub mtu: Option<Mtu>,
    /// Sizes of messages.
    pub sizes: Vec<Size>,
    /// Operations of each check.
    pub operations: u32,
    /// One more size.
    pub large_bytes: u32,
    /// Operations of its checks; 0 leaves them out.
    pub large_operations: u32,
    /// The operations to check.
    pub only: Vec<Operation>,
    /// How fast to send; `None` is as fast as it goes.
    pub rate_bits_per_second: Option<u64>,
    /// RC: acknowledgement time-out, 4.096 µs · 2^n.
    pub timeout: u8,
    /// Contents and sequence numbers follow from it.
    pub seed: u64,
}

impl ClientOptions {
    fn checks(&self, mtu: Mtu) -> Vec<Check> {
        let wanted = Wanted {
            connection: self.connection,
            only: &self.only,
            sizes: &self.sizes,
            operations: self.operations,
            large_bytes: self.large_bytes,
            large_operations: self.large_operations,
            seed: self.seed,
        };
        checks(&wanted, mtu)
    }
}

/// A client that a server has welcomed.
pub struct Client {
    options: ClientOptions,
    plan: SessionPlan,
    pub(crate) control: Control,
    pub(crate) endpoint: Endpoint,
    server: EndInfo,
    mtu: Mtu,
}

impl Client {
    /// Says hello over a connection to a server.
    pub fn connect(stream: TcpStream, end: End, options: ClientOptions) -> Result<Client, InteropError> {
        let mut control = Control::new(stream)?;
        let largest = options.mtu.unwrap_or(Mtu::Bytes4096);
        let memory = options.checks(largest).iter().map(memory_bytes).max().unwrap_or(0);
        let memory_bytes = memory.max(death::MEMORY_BYTES) as u64;
        let endpoint = Endpoint::new(end, memory_bytes)?;
        let plan = SessionPlan {
            connection: options.connection,
            memory_bytes,
            rate_bits_per_second: options.rate_bits_per_second,
            timeout: options.timeout,
        };
        control.send(&Request::Hello { version: VERSION, plan: plan.clone(), end: endpoint.info() })?;
        let server = match control.receive(ANSWER_PATIENCE, "this end waited for a welcome")? {
            Reply::Welcome { version: VERSION, end } => end,
            Reply::Welcome { version, .. } => {
                return Err(InteropError::Version { expected: VERSION, got: format!("version {version}") });
            }
            other => return Err(unexpected("a welcome", other)),
        };
        if server.memory_bytes < memory_bytes {
            let got = format!("{}", server.memory_bytes);
            return Err(InteropError::Unexpected { expected: "as much memory as was asked for", got });
        }
        let mtu = agreed_mtu(options.mtu, &endpoint, &server)?;
        Ok(Client { options, plan, control, endpoint, server, mtu })
    }

    /// The payload of a packet that was agreed on.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// The server's device.
    pub fn server_device(&self) -> &str {
        &self.server.description
    }

    /// Carries out all checks; `report` is called for each when it is done.
    pub fn run(mut self, report: &mut dyn FnMut(&CheckResult)) -> Result<Summary, InteropError> {
        let mut summary = self.new_summary();
        for check in self.options.checks(self.mtu) {
            if let Some(reason) = self.why_impossible(check.operation) {
                summary.skipped.push((check.name(), reason));
                continue;
            }
            let message = match self.carry_out(check) {
                Ok(()) => None,
                Err(Fault::Check(message)) => Some(message),
                Err(Fault::Session(error)) => return Err(error),
            };
            let (name, operations) = (check.name(), check.operations);
            let result = CheckResult { name, operations, passed: message.is_none(), message };
            report(&result);
            summary.checks.push(result);
        }
        self.control.send(&Request::Goodbye)?;
        Ok(summary)
    }

    pub(crate) fn new_summary(&self) -> Summary {
        Summary {
            checks: Vec::new(),
            skipped: Vec::new(),
            mtu: self.mtu,
            client_device: self.endpoint.end.description.clone(),
            server_device: self.server.description.clone(),
        }
    }

    /// Writes until the server dies. `from_server`: the server writes as well, until the client dies.
    pub fn run_until_death(
        mut self,
        from_server: bool,
        in_progress: &mut dyn FnMut(u64),
    ) -> Result<DeathReport, InteropError> {
        if self.options.connection != Connection::Rc {
            return Err(InteropError::Impossible("only RC finds out that its peer has died; say -c RC".to_owned()));
        }
        let first_psn = self.first_psn(0);
        let role = Role { writes: true, mtu: self.mtu, rate_bits_per_second: self.plan.rate_bits_per_second };
        let survived = death::Survivor::new(&self.endpoint, role, first_psn).and_then(|mut survivor| {
            let pair = survivor.info();
            self.control.send(&Request::UntilDeath { pair, from_server })?;
            let theirs = prepared(&mut self.control)?;
            survivor.connect(&self.plan, (&self.server, &theirs))?;
            survivor.run(&self.server, &mut self.control, in_progress)
        });
        match survived {
            Ok(report) => Ok(report),
            Err(Fault::Check(message)) => Err(InteropError::Impossible(message)),
            Err(Fault::Session(error)) => Err(error),
        }
    }

    fn why_impossible(&self, operation: Operation) -> Option<String> {
        let needed = operation.capability() | self.options.connection.transport().capability();
        let lacks = |capabilities: Capabilities| (needed - capabilities).iter_names().map(|(name, _)| name).next();
        let ours = lacks(self.endpoint.attributes.capabilities).map(|name| format!("the client's device lacks {name}"));
        ours.or_else(|| lacks(self.server.capabilities()).map(|name| format!("the server's device lacks {name}")))
    }

    /// Anything; for every second check just before the numbers wrap around.
    fn first_psn(&self, number: u64) -> u32 {
        match number % 2 {
            0 => (mix(self.options.seed ^ number) >> 40) as u32,
            _ => 0xff_ffff - (number % 64) as u32,
        }
    }

    fn carry_out(&mut self, check: Check) -> Result<(), Fault> {
        let first_psn = self.first_psn(check.seed.wrapping_sub(self.options.seed));
        let mut requester = Requester::new(&self.endpoint, check, self.mtu, first_psn)?;
        self.control.send(&Request::Check { check, pair: requester.pair.info(self.mtu) })?;
        let theirs = prepared(&mut self.control)?;
        let ran = requester
            .pair
            .connect(&self.endpoint, &self.plan, (&self.server, &theirs), self.mtu)
            .and_then(|()| requester.run(&self.plan, &self.server, requester.pair.numbers(&theirs), &mut self.control));
        let failure = match ran {
            Ok(()) => None,
            Err(Fault::Check(message)) => Some(message),
            Err(Fault::Session(error)) => return Err(Fault::Session(error)),
        };
        self.control.send(&Request::Done { completed: requester.completed(), failure: failure.clone() })?;
        let verdict = loop {
            match self.control.receive(ANSWER_PATIENCE, "this end waited for a verdict")? {
                // Still in flight when the last operation was done.
                Reply::Arrived(_) => {}
                verdict => break verdict,
            }
        };
        match (failure, verdict) {
            (None, Reply::Verdict { failure: None }) => Ok(()),
            (None, Reply::Verdict { failure: Some(theirs) }) => Err(Fault::Check(format!("at the server: {theirs}"))),
            (Some(ours), Reply::Verdict { failure: None }) => Err(Fault::Check(format!("at the client: {ours}"))),
            (Some(ours), Reply::Verdict { failure: Some(theirs) }) => {
                Err(Fault::Check(format!("at the client: {ours}; at the server: {theirs}")))
            }
            (_, other) => Err(Fault::Session(unexpected("a verdict", other))),
        }
    }
}

/// The server's queue pair.
fn prepared(control: &mut Control) -> Result<PairInfo, Fault> {
    match control.receive(ANSWER_PATIENCE, "this end waited for the server to prepare itself")? {
        Reply::Prepared(pair) => Ok(pair),
        // It can go on with the next check.
        Reply::Verdict { failure: Some(reason) } => Err(Fault::Check(format!("at the server: {reason}"))),
        other => Err(Fault::Session(unexpected("that it is prepared", other))),
    }
}

fn unexpected(expected: &'static str, got: Reply) -> InteropError {
    match got {
        Reply::Refused { reason, .. } => InteropError::Refused { reason },
        other => InteropError::Unexpected { expected, got: format!("{other:?}") },
    }
}

/// What the user wants, if both devices can; else the largest that both can.
fn agreed_mtu(wanted: Option<Mtu>, endpoint: &Endpoint, server: &EndInfo) -> Result<Mtu, InteropError> {
    let theirs = Mtu::largest_within(server.mtu_bytes).ok_or_else(|| InteropError::Unexpected {
        expected: "an MTU of at least 256",
        got: server.mtu_bytes.to_string(),
    })?;
    let most = endpoint.mtu.min(theirs);
    match wanted {
        Some(wanted) if wanted > most => Err(InteropError::Impossible(format!(
            "expected devices whose packets carry {} bytes, got {} at the client and {} at the server: raise the MTU of their \
             interfaces (`ip link set NAME mtu BYTES`), or take less with -m",
            wanted.byte_count(),
            endpoint.mtu.byte_count(),
            server.mtu_bytes
        ))),
        Some(wanted) => Ok(wanted),
        None => Ok(most),
    }
}
