//! The server: does what the client decides, within bounds, and says whether all has come.

use std::net::TcpStream;
use std::time::Duration;

use longhaul_runtime::with_sources;
use longhaul_verbs::Mtu;

use crate::contents::mix;
use crate::control::Control;
use crate::death::{self, DeathReport, Role};
use crate::endpoint::{End, Endpoint};
use crate::fault::{Fault, InteropError};
use crate::messages::{EndInfo, PairInfo, Reply, Request, SessionPlan, VERSION};
use crate::plan::{Check, CheckResult};
use crate::reliable;
use crate::responder::Responder;

/// How long a client may take to say what it wants.
const HELLO_PATIENCE: Duration = Duration::from_secs(30);
/// How long it may take from one check to the next: it looks at its memory.
const NEXT_PATIENCE: Duration = Duration::from_secs(120);
/// A client must not make this end do just anything.
const OPERATIONS_MAX: u32 = 1 << 20;

/// The outcome of a client.
#[derive(Debug)]
pub enum ServerOutcome {
    /// The client has said goodbye after these checks, as this end saw them.
    Checked(Vec<CheckResult>),
    /// The client has died, or was to.
    Died(DeathReport),
}

/// One client, from hello to goodbye. `report` is called for each check; `in_progress` when a session until death has
/// begun.
pub fn serve(
    stream: TcpStream,
    end: End,
    report: &mut dyn FnMut(&CheckResult),
    in_progress: &mut dyn FnMut(u64),
) -> Result<ServerOutcome, InteropError> {
    let mut control = Control::new(stream)?;
    let served = Session::begin(&mut control, end).and_then(|session| session.run(&mut control, report, in_progress));
    if let Err(error) = &served {
        // If the client is gone, it does not matter.
        let _ = control.send(&Reply::Refused { version: VERSION, reason: with_sources(error) });
    }
    served
}

struct Session {
    plan: SessionPlan,
    endpoint: Endpoint,
    client: EndInfo,
}

impl Session {
    fn begin(control: &mut Control, end: End) -> Result<Session, InteropError> {
        let (plan, client) = match control.receive(HELLO_PATIENCE, "a hello of `longhaul interop client`")? {
            Request::Hello { version: VERSION, plan, end } => (plan, end),
            Request::Hello { version, .. } => {
                return Err(InteropError::Version { expected: VERSION, got: format!("version {version}") });
            }
            other => return Err(unexpected("a hello", &other)),
        };
        let transport = plan.connection.transport();
        let endpoint = Endpoint::new(end, plan.memory_bytes)?;
        if !endpoint.has(transport.capability()) {
            let (device, name) = (&endpoint.end.description, plan.connection.name());
            return Err(InteropError::Impossible(format!("{device} has no {name}")));
        }
        control.send(&Reply::Welcome { version: VERSION, end: endpoint.info() })?;
        Ok(Session { plan, endpoint, client })
    }

    fn run(
        self,
        control: &mut Control,
        report: &mut dyn FnMut(&CheckResult),
        in_progress: &mut dyn FnMut(u64),
    ) -> Result<ServerOutcome, InteropError> {
        let mut results = Vec::new();
        let mut reliable = None;
        loop {
            match control.receive(NEXT_PATIENCE, "this end waited for the next check")? {
                Request::Check { check, pair } => {
                    let failure = match self.serve_check(control, check, &pair) {
                        Ok(()) => None,
                        Err(Fault::Check(message)) => Some(message),
                        Err(Fault::Session(error)) => return Err(error),
                    };
                    control.send(&Reply::Verdict { failure: failure.clone() })?;
                    let (name, operations) = (check.name(), check.operations);
                    let result = CheckResult { name, operations, passed: failure.is_none(), message: failure };
                    report(&result);
                    results.push(result);
                }
                Request::UntilDeath { pair, from_server } => {
                    return self.serve_until_death(control, &pair, from_server, in_progress).map(ServerOutcome::Died);
                }
                Request::Connect(plan) => {
                    // The connection of the one before goes first.
                    drop(reliable.take());
                    match reliable::Listening::start(plan, &self.endpoint.end, control.local_address()?) {
                        Ok(listening) => {
                            control.send(&Reply::Listening { listener: listening.handle() })?;
                            reliable = Some(listening);
                        }
                        Err(message) => control.send(&Reply::Verdict { failure: Some(message) })?,
                    }
                }
                Request::Messages(check) => {
                    let Some(listening) = &mut reliable else {
                        return Err(unexpected("a connection first", &Request::Messages(check)));
                    };
                    let failure = match listening.serve(check, control) {
                        Ok(()) => None,
                        Err(Fault::Check(message)) => Some(message),
                        Err(Fault::Session(error)) => return Err(error),
                    };
                    control.send(&Reply::Verdict { failure: failure.clone() })?;
                    let result = check.result(listening.scheme(), failure);
                    report(&result);
                    results.push(result);
                }
                // This end had nothing more to wait for and has given its verdict before the client was done.
                Request::Done { .. } => {}
                Request::Goodbye => return Ok(ServerOutcome::Checked(results)),
                other @ Request::Hello { .. } => return Err(unexpected("a check", &other)),
            }
        }
    }

    fn serve_check(&self, control: &mut Control, check: Check, pair: &PairInfo) -> Result<(), Fault> {
        if check.connection != self.plan.connection
            || !check.operation.is_possible(check.connection)
            || !(1..=OPERATIONS_MAX).contains(&check.operations)
        {
            return Err(Fault::Check(format!("the client asks for more than a server allows: {check:?}")));
        }
        let mtu = self.mtu(pair)?;
        let first_psn = (mix(check.seed ^ u64::from(pair.first_psn)) >> 40) as u32;
        let mut responder = Responder::new(&self.endpoint, check, self.client.address, first_psn)?;
        responder.pair.connect(&self.endpoint, &self.plan, (&self.client, pair), mtu)?;
        control.send(&Reply::Prepared(responder.info(mtu)))?;
        let numbers = responder.pair.numbers(pair);
        responder.run(numbers, control)
    }

    fn serve_until_death(
        &self,
        control: &mut Control,
        pair: &PairInfo,
        from_server: bool,
        in_progress: &mut dyn FnMut(u64),
    ) -> Result<DeathReport, InteropError> {
        let survived = self.mtu(pair).map_err(Fault::Check).and_then(|mtu| {
            let role = Role { writes: from_server, mtu, rate_bits_per_second: self.plan.rate_bits_per_second };
            let first_psn = (mix(u64::from(pair.first_psn)) >> 40) as u32;
            let mut survivor = death::Survivor::new(&self.endpoint, role, first_psn)?;
            survivor.connect(&self.plan, (&self.client, pair))?;
            control.send(&Reply::Prepared(survivor.info()))?;
            survivor.run(&self.client, control, in_progress)
        });
        match survived {
            Ok(report) => Ok(report),
            Err(Fault::Check(message)) => Err(InteropError::Impossible(message)),
            Err(Fault::Session(error)) => Err(error),
        }
    }

    fn mtu(&self, pair: &PairInfo) -> Result<Mtu, String> {
        let most = self.endpoint.mtu;
        let wanted = Mtu::ALL.into_iter().find(|mtu| mtu.byte_count() == pair.mtu_bytes && *mtu <= most);
        wanted.ok_or_else(|| format!("expected packets of at most {} bytes, got {}", most.byte_count(), pair.mtu_bytes))
    }
}

fn unexpected(expected: &'static str, got: &Request) -> InteropError {
    InteropError::Unexpected { expected, got: format!("{got:?}") }
}
