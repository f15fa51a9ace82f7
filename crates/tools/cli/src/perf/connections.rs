//! `longhaul perf connections`: what many connections of one endpoint cost, busy and idle.

use longhaul_perf::connections::{self, ConnectionsRequest, EndRequest, MESSAGE_BYTES, Row};
use longhaul_reliable::NamedScheme;
use serde_json::{Value, json};

use crate::progress;
use crate::stop::{self, Stop};

/// What many connections of one endpoint cost, busy and idle
///
/// For each number of connections one process listens and another connects to it, each with one endpoint (a software RNIC on the loopback
/// device). Messages of 64 bytes go one at a time on each connection. After at least 100 messages each, nobody sends
/// anything. The table has the larger figure of the two ends: threads, open descriptors, the growth of resident memory for
/// each connection (without pages of the program's file), and the share of one processor that is used in the silence. 32
/// connections that were there before, and have sent for a second, are not counted. Jain's index says how evenly the connections got their turns: 1 if all sent
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

    /// Messages in flight at once on each connection
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = longhaul_units::whole_number(1_u32..=1000))]
    in_flight: u32,

    /// How messages are brought over: sr:rto, sr:nack, ec:mds:32,8, ec:xor:32,8
    #[arg(long, value_name = "SCHEME", default_value = "sr:nack")]
    scheme: longhaul_reliable::NamedScheme,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// One end of `perf connections`, which starts it
#[derive(Debug, clap::Args)]
pub(crate) struct EndArguments {
    role: Role,

    #[arg(long)]
    scheme: NamedScheme,

    /// Messages in flight at once on each connection
    #[arg(long)]
    in_flight: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Role {
    Listen,
    Connect,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let request = ConnectionsRequest {
        seconds: arguments.seconds,
        idle_seconds: arguments.idle_seconds,
        in_flight: arguments.in_flight,
        scheme: arguments.scheme,
        end_command: &["perf", "connections-end"],
    };
    let steps = arguments.connections.len() as u64 * 4;
    let progress = progress::bar(steps, "{bar:30} {pos}/{len} {msg}");
    let mut rows = Vec::new();
    for &connections in &arguments.connections {
        let step = |what: &str| {
            progress.set_message(format!("{connections} connections: {what}"));
            progress.inc(1);
        };
        rows.push(connections::measure(connections, &request, step)?);
    }
    progress.finish_and_clear();
    stop::tell(arguments.json, || to_json(&rows, arguments), || to_table(&rows), None)
}

/// Runs an end, until its standard input ends.
pub(crate) fn run_end(arguments: &EndArguments) -> Result<(), Stop> {
    let role = match arguments.role {
        Role::Listen => connections::Role::Listen,
        Role::Connect => connections::Role::Connect,
    };
    connections::run_end(&EndRequest { role, scheme: arguments.scheme, in_flight: arguments.in_flight });
    std::process::exit(0);
}

fn to_json(rows: &[Row], arguments: &Arguments) -> Value {
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

fn to_table(rows: &[Row]) -> String {
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
    text + "\nEach end is a process of its own; the larger figure of the two. KiB: growth of resident memory for each connection after 32\n\
            that were there before and are not counted, after at least 100 messages each and the silence; pages of the program's\n\
            file are not counted. Messages have 64 bytes; --in-flight says how many are in flight at once on each connection.\n"
}
