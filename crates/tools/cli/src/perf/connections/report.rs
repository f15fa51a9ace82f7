//! What is printed of it.

use std::time::Duration;

use serde_json::{Value, json};

use super::usage::Usage;
use super::{Arguments, CONNECTIONS_BEFORE, MESSAGE_BYTES};

/// One number of connections; where the ends differ, the larger figure.
pub(super) struct Row {
    connections: u32,
    threads: u64,
    descriptors: u64,
    bytes_per_idle_connection: u64,
    idle_cpu_share: f64,
    messages_per_second: f64,
    jain: f64,
}

impl Row {
    /// From the messages that each connection sent in a time, and what both ends used before the connections, after their messages and after
    /// the silence.
    pub(super) fn new(
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

    fn descriptors_per_connection(&self) -> f64 {
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

pub(super) fn to_json(rows: &[Row], arguments: &Arguments) -> Value {
    let row = |row: &Row| {
        json!({
            "connections": row.connections,
            "threads": row.threads,
            "descriptors": row.descriptors,
            "descriptors_per_connection": row.descriptors_per_connection(),
            "bytes_per_idle_connection": row.bytes_per_idle_connection,
            "idle_cpu_share": row.idle_cpu_share,
            "messages_per_second": row.messages_per_second,
            "jain": row.jain,
        })
    };
    json!({
        "schema": 1,
        "scheme": arguments.scheme.to_string(),
        "message_bytes": MESSAGE_BYTES,
        "in_flight_per_connection": arguments.in_flight,
        "seconds": arguments.seconds,
        "idle_seconds": arguments.idle_seconds,
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

pub(super) fn to_table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>11} {:>8} {:>12} {:>16} {:>9} {:>11} {:>6}\n",
        "connections", "threads", "descriptors", "KiB, idle each", "idle CPU", "messages/s", "Jain"
    );
    for row in rows {
        text += &format!(
            "{:>11} {:>8} {:>12} {:>16.1} {:>7.2} % {:>11.0} {:>6.3}\n",
            row.connections,
            row.threads,
            row.descriptors,
            row.bytes_per_idle_connection as f64 / 1024.0,
            100.0 * row.idle_cpu_share,
            row.messages_per_second,
            row.jain
        );
    }
    text + "\nEach end is a process of its own; the larger figure of the two. KiB: growth of resident memory for each connection beside 32\n\
            that were there before and are not counted, after at least 100 messages each and the silence; pages of the program's\n\
            file are not counted. Messages have 64 bytes; --in-flight says how many are on their way at once on each connection.\n"
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
