//! What many connections of one endpoint cost, busy and idle.
//!
//! For each number of connections two processes are started: one listens (`end`), one connects. Both are new each time, because memory that a
//! process has given back may stay with it, and would hide what the next connections take.

mod end;
mod exchange;
mod usage;

use std::time::Duration;

use longhaul_reliable::NamedScheme;

use self::exchange::{Answer, CONNECTIONS_BEFORE, Order};
use self::usage::Usage;
use crate::child::Child;
use crate::error::PerfError;
use crate::message::kind_of;

pub use self::end::{EndRequest, Role, run_end};
pub use self::exchange::MESSAGE_BYTES;

/// Messages that each connection sends at least before it rests.
const MESSAGES_BEFORE_REST: u64 = 100;
/// How long they send, and rest.
const WARM_UP: Duration = Duration::from_secs(1);

/// What is measured.
#[derive(Clone, Debug)]
pub struct ConnectionsRequest {
    /// In which messages are counted.
    pub seconds: f64,
    /// Of silence.
    pub idle_seconds: f64,
    /// Messages in flight at once on each connection.
    pub in_flight: u32,
    /// How messages are sent.
    pub scheme: NamedScheme,
    /// The arguments that make this program an end, before the end's own: its role, `--scheme` and `--in-flight`.
    pub end_command: &'static [&'static str],
}

/// One number of connections; where the ends differ, the larger figure.
pub struct Row {
    /// Connections.
    pub connections: u32,
    /// Threads of a process.
    pub threads: u64,
    /// Open descriptors of a process.
    pub descriptors: u64,
    /// Growth of resident memory for each connection.
    pub bytes_per_idle_connection: u64,
    /// Share of one processor in the silence.
    pub idle_cpu_share: f64,
    /// On all connections together.
    pub messages_per_second: f64,
    /// Jain's index of fairness: 1 when all sent the same.
    pub jain: f64,
}

impl Row {
    /// From the messages that each connection sent in a time, and what both ends used before the connections, after their messages and after
    /// the silence.
    fn new(
        connections: u32,
        messages: &[u64],
        elapsed: Duration,
        before: [Usage; 2],
        busy: [Usage; 2],
        idle: [Usage; 2],
    ) -> Self {
        let larger = |of: &dyn Fn(usize) -> u64| of(0).max(of(1));
        let growth = |end: usize| idle[end].resident_bytes.saturating_sub(before[end].resident_bytes);
        let share = |end: usize| {
            let used = idle[end].processor_time.saturating_sub(busy[end].processor_time);
            used.as_secs_f64() / idle[end].at.saturating_sub(busy[end].at).as_secs_f64().max(1e-9)
        };
        Row {
            connections,
            threads: larger(&|end| idle[end].threads),
            descriptors: larger(&|end| idle[end].descriptors.saturating_sub(CONNECTIONS_BEFORE.into())),
            bytes_per_idle_connection: larger(&growth) / u64::from(connections),
            idle_cpu_share: share(0).max(share(1)),
            messages_per_second: messages.iter().sum::<u64>() as f64 / elapsed.as_secs_f64().max(1e-9),
            jain: jain(messages),
        }
    }

    /// Open descriptors for each of them.
    pub fn descriptors_per_connection(&self) -> f64 {
        self.descriptors as f64 / f64::from(self.connections)
    }
}

/// Jain's index of fairness: 1 when all are the same, 1/n when one has everything.
fn jain(shares: &[u64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), &share| {
        let share = share as f64;
        (sum + share, squares + share * share)
    });
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Measures with this many connections. `step` gets what it does, as it does it.
pub fn measure(connections: u32, request: &ConnectionsRequest, step: impl Fn(&str)) -> Result<Row, PerfError> {
    let scheme = request.scheme.to_string();
    let in_flight = request.in_flight.to_string();
    let start = |name, role| {
        Child::start(name, &[request.end_command, &[role, "--scheme", &scheme, "--in-flight", &in_flight]].concat())
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
    connecting.order(&Order::Run(Duration::from_secs_f64(request.seconds)))?;
    let (messages, elapsed) = match connecting.answer()? {
        Answer::Sent { messages, elapsed } => (messages, elapsed),
        other => return Err(unexpected("how many messages it sent", &other)),
    };
    step("messages before the silence");
    done(&mut connecting, &Order::Send(MESSAGES_BEFORE_REST))?;

    step("silence");
    let busy = [used(&mut listening)?, used(&mut connecting)?];
    std::thread::sleep(Duration::from_secs_f64(request.idle_seconds));
    let idle = [used(&mut listening)?, used(&mut connecting)?];
    Ok(Row::new(connections, &messages, elapsed, before, busy, idle))
}

fn done(end: &mut Child, order: &Order) -> Result<(), PerfError> {
    end.order(order)?;
    match end.answer()? {
        Answer::Done => Ok(()),
        other => Err(unexpected("that it is done", &other)),
    }
}

fn used(end: &mut Child) -> Result<Usage, PerfError> {
    end.order(&Order::Use)?;
    match end.answer()? {
        Answer::Uses(usage) => Ok(usage),
        other => Err(unexpected("what it uses", &other)),
    }
}

fn unexpected(expected: &str, got: &Answer) -> PerfError {
    PerfError::Failed(format!("expected of an end {expected}, got \"{}\"", kind_of(got)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_1_when_all_have_the_same() {
        assert_eq!(jain(&[7; 10]), 1.0);
        assert_eq!(jain(&[5, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 0.0);
        assert!((jain(&[1, 2, 3]) - 36.0 / 42.0).abs() < 1e-12);
    }
}
