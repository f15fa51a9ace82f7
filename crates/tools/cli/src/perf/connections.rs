//! `longhaul perf connections`: what many connections of one endpoint cost, busy and idle.
//!
//! For each number of connections two processes are started: one listens (`end`), one connects. Both are new each time, because memory that a
//! process has given back may stay with it, and would hide what the next connections take.

mod end;
mod report;
mod usage;

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

use self::report::Row;
use self::usage::Usage;
use super::child::Child;
use crate::progress;
use crate::stop::{self, Stop};

pub(crate) use self::end::{EndArguments, run_end};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 64;
/// Each connection has had at least so many before it rests.
const MESSAGES_BEFORE_REST: u64 = 100;

/// Connections that are made first and not counted: with them comes what all share, a socket for each source port among it.
/// They do all that the counted ones do, so that what a process touches once (code, threads' stacks, the allocator's pools)
/// is not charged to the few connections of a short row.
const CONNECTIONS_BEFORE: u32 = 32;
/// How long they send, and rest.
const WARM_UP: Duration = Duration::from_secs(1);

/// What many connections of one endpoint cost, busy and idle
///
/// For each number of connections one process listens and another connects to it, each with one endpoint (a software RNIC on the loopback
/// device). Messages of 64 bytes go one at a time on each connection. After at least 100 messages each, nobody sends
/// anything. The table has the larger figure of the two ends: threads, open descriptors, the growth of resident memory for
/// each connection, and the share of one processor that is used in the silence. 32 connections that were there before, and
/// have sent for a second, are not counted. Jain's index says how evenly the connections got their turns: 1 if all sent
/// the same number of messages.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Numbers of connections, separated by commas
    #[arg(long, value_name = "NUMBER", default_value = "1,100,1000,10000", value_delimiter = ',',
          value_parser = longhaul_units::whole_number(1_u32..=100_000))]
    connections: Vec<u32>,

    /// Seconds in which messages are counted
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = longhaul_units::seconds_within(0.1..=600.0))]
    seconds: f64,

    /// Seconds of silence
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = longhaul_units::seconds_within(0.1..=600.0))]
    idle_seconds: f64,

    /// Messages that are on their way at once on each connection
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = longhaul_units::whole_number(1_u32..=1000))]
    in_flight: u32,

    /// How messages are brought over: sr:rto, sr:nack, ec:mds:32,8, ec:xor:32,8
    #[arg(long, value_name = "SCHEME", default_value = "sr:nack")]
    scheme: longhaul_reliable::NamedScheme,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the ends are told.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Connect so many times, beside what is connected already.
    Connect { to: SocketAddr, connections: u32 },
    /// Send on every connection for so long, and say how many messages each has sent.
    Run(Duration),
    /// Send on every connection for so long, and on the last alone.
    WarmUp(Duration),
    /// Send on every connection until it has sent so many altogether.
    Send(u64),
    /// Say what the process uses.
    Use,
}

/// What they answer.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Listening(SocketAddr),
    Done,
    Sent { messages: Vec<u64>, elapsed: Duration },
    Uses(Usage),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let steps = arguments.connections.len() as u64 * 4;
    let progress = progress::bar(steps, "{bar:30} {pos}/{len} {msg}");
    let mut rows = Vec::new();
    for &connections in &arguments.connections {
        let step = |what: &str| {
            progress.set_message(format!("{connections} connections: {what}"));
            progress.inc(1);
        };
        rows.push(measure(connections, arguments, step)?);
    }
    progress.finish_and_clear();
    stop::tell(arguments.json, || report::to_json(&rows, arguments), || report::to_table(&rows), None)
}

fn measure(connections: u32, arguments: &Arguments, step: impl Fn(&str)) -> Result<Row, Stop> {
    let scheme = arguments.scheme.to_string();
    let in_flight = arguments.in_flight.to_string();
    let start = |name, role| {
        Child::start(name, &["perf", "connections-end", role, "--scheme", &scheme, "--in-flight", &in_flight])
    };
    step("connecting");
    let mut listening = start("listening end", "listen")?;
    let to = match listening.answer()? {
        Answer::Listening(address) => address,
        other => return Err(unexpected("where it listens", &other)),
    };
    let mut connecting = start("connecting end", "connect")?;
    done(&mut connecting, &Order::Connect { to, connections: CONNECTIONS_BEFORE })?;
    done(&mut connecting, &Order::WarmUp(WARM_UP))?;
    std::thread::sleep(WARM_UP);
    let before = [used(&mut listening)?, used(&mut connecting)?];
    done(&mut connecting, &Order::Connect { to, connections })?;

    step("counting messages");
    connecting.order(&Order::Run(Duration::from_secs_f64(arguments.seconds)))?;
    let (messages, elapsed) = match connecting.answer()? {
        Answer::Sent { messages, elapsed } => (messages, elapsed),
        other => return Err(unexpected("how many messages it sent", &other)),
    };
    step("messages before the silence");
    done(&mut connecting, &Order::Send(MESSAGES_BEFORE_REST))?;

    step("silence");
    let busy = [used(&mut listening)?, used(&mut connecting)?];
    std::thread::sleep(Duration::from_secs_f64(arguments.idle_seconds));
    let idle = [used(&mut listening)?, used(&mut connecting)?];
    Ok(Row::new(connections, &messages, elapsed, before, busy, idle))
}

fn done(end: &mut Child, order: &Order) -> Result<(), Stop> {
    end.order(order)?;
    match end.answer()? {
        Answer::Done => Ok(()),
        other => Err(unexpected("that it is done", &other)),
    }
}

fn used(end: &mut Child) -> Result<Usage, Stop> {
    end.order(&Order::Use)?;
    match end.answer()? {
        Answer::Uses(usage) => Ok(usage),
        other => Err(unexpected("what it uses", &other)),
    }
}

fn unexpected(expected: &str, got: &Answer) -> Stop {
    Stop::Failed(format!("expected of an end {expected}, got \"{}\"", crate::message::kind_of(got)))
}
