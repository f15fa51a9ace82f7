//! The two ends, and what they print.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use longhaul::with_sources;
use longhaul_perf::{Sorted, meeting};
use longhaul_wan::quic::{self, Amount, Delivery, QuicError, Received, Receiver, Sender, Settings, Statistics};
use serde_json::{Value, json};

use super::{Arguments, Congestion};
use crate::stop::{self, Stop};

/// No end goes on longer than this; a client has its duration on top.
const LIMIT: Duration = Duration::from_secs(600);

impl Arguments {
    fn settings(&self) -> Settings {
        Settings {
            congestion: match self.congestion {
                Congestion::Cubic => quic::Congestion::Cubic,
                Congestion::Newreno => quic::Congestion::NewReno,
                Congestion::Bbr => quic::Congestion::Bbr,
            },
            link_mtu: self.mtu,
            bandwidth_delay_bytes: self.bdp,
            silence: Duration::from_secs_f64(self.patience),
            limit: LIMIT + Duration::from_secs_f64(self.duration.unwrap_or_default()),
        }
    }
}

fn stop_of(error: QuicError) -> Stop {
    let text = with_sources(&error);
    match error {
        QuicError::Mtu { .. } => Stop::Usage(text),
        QuicError::Socket(..) | QuicError::NoAnswer(..) | QuicError::NotACertificate(_) => Stop::Missing(text),
        _ => Stop::Failed(text),
    }
}

/// The server.
pub(super) fn receive(arguments: &Arguments) -> Result<(), Stop> {
    let address = (arguments.address, arguments.port).into();
    let mut receiver = Receiver::listen(address, &arguments.settings()).map_err(stop_of)?;
    let file = &arguments.certificate;
    write_whole(file, receiver.certificate())
        .map_err(|error| Stop::missing(format!("cannot write --certificate {}", file.display()), error))?;
    let (port, file) = (receiver.address().port(), file.display());
    eprintln!("waiting on UDP port {port} for: longhaul perf quic HOST -p {port} --certificate {file}");
    let received = receiver.receive().map_err(stop_of)?;
    let Received { connections, refused, streams, wrong_streams, bytes } = received;
    let wrong = (wrong_streams > 0).then(|| Stop::Failed(format!("{wrong_streams} streams had wrong contents")));
    let value = || {
        json!({
            "schema": 1,
            "test": "quic",
            "role": "server",
            "connections": connections,
            "connections_refused": refused,
            "streams": streams,
            "bytes": bytes,
        })
    };
    let table = || format!("{bytes} bytes in {streams} streams of {connections} connections\n");
    stop::tell(arguments.json, value, table, wrong)
}

/// A client that finds the file finds all of it.
fn write_whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    fs::write(&unfinished, bytes)?;
    fs::rename(&unfinished, file)
}

/// The client.
pub(super) fn send(arguments: &Arguments, host: &str) -> Result<(), Stop> {
    let addresses = meeting::resolve(host, arguments.port)?;
    let address = *addresses.first().ok_or_else(|| Stop::Missing(format!("the host {host} has no address")))?;
    let file = &arguments.certificate;
    let certificate = fs::read(file)
        .map_err(|error| Stop::missing(format!("cannot read --certificate {}", file.display()), error))?;
    let settings = arguments.settings();
    let mut sender = Sender::connect(address, &certificate, arguments.connections, &settings).map_err(stop_of)?;
    let deliveries = match (arguments.iterations, arguments.duration) {
        (Some(count), _) => sender.send_messages(arguments.size, count),
        (None, Some(seconds)) => sender.send_bulk(Amount::Time(Duration::from_secs_f64(seconds))),
        (None, None) => sender.send_bulk(Amount::Bytes(arguments.size)),
    };
    let deliveries = deliveries.map_err(stop_of)?;
    let handshakes = sender.handshakes().iter().map(|handshake| handshake.as_secs_f64() * 1e3);
    let sent = Sent { handshakes_ms: Sorted::new(handshakes), statistics: sender.statistics(), deliveries };
    sender.close().map_err(stop_of)?;
    stop::tell(arguments.json, || sent.to_json(arguments), || sent.to_table(arguments), None)
}

struct Sent {
    handshakes_ms: Sorted,
    statistics: Statistics,
    deliveries: Vec<Delivery>,
}

impl Sent {
    fn bytes(&self) -> u64 {
        self.deliveries.iter().map(|delivery| delivery.bytes).sum()
    }

    fn times_us(&self) -> Sorted {
        Sorted::new(self.deliveries.iter().map(|delivery| delivery.time().as_secs_f64() * 1e6))
    }

    /// Of bulk, whose connections began together.
    fn gbps(&self) -> f64 {
        8.0 * self.bytes() as f64 / (self.times_us().maximum() * 1e3).max(1.0)
    }

    fn has_one_clock(&self) -> bool {
        self.deliveries.iter().all(|delivery| delivery.completion.is_some())
    }

    fn to_json(&self, arguments: &Arguments) -> Value {
        let (statistics, times) = (&self.statistics, self.times_us());
        let mut value = json!({
            "schema": 1,
            "test": "quic",
            "role": "client",
            "connections": arguments.connections,
            "streams": self.deliveries.len(),
            "bytes": self.bytes(),
            "handshake_ms": { "min": self.handshakes_ms.minimum(), "max": self.handshakes_ms.maximum() },
            "round_trip_min_ms": statistics.round_trip_min.as_secs_f64() * 1e3,
            "sent_packets": statistics.sent_packets,
            "lost_packets": statistics.lost_packets,
            "congestion_events": statistics.congestion_events,
            "datagram_bytes": statistics.datagram_bytes,
            "has_one_clock": self.has_one_clock(),
        });
        match arguments.iterations {
            Some(_) => {
                value["completion_us"] = json!({
                    "p50": times.percentile(50.0),
                    "p99": times.percentile(99.0),
                    "max": times.maximum(),
                });
            }
            None => {
                value["seconds"] = (times.maximum() / 1e6).into();
                value["bw_average_gbps"] = self.gbps().into();
            }
        }
        value
    }

    fn to_table(&self, arguments: &Arguments) -> String {
        let (statistics, times) = (&self.statistics, self.times_us());
        let result = match arguments.iterations {
            Some(_) => format!(
                "completion time us: p50 {:.1}, p99 {:.1}, max {:.1}\n",
                times.percentile(50.0),
                times.percentile(99.0),
                times.maximum()
            ),
            None => format!("{:.1} Mbit/s, {:.2} s\n", self.gbps() * 1e3, times.maximum() / 1e6),
        };
        let until = if self.has_one_clock() { "the last byte was there" } else { "the answer was back" };
        format!(
            "{} bytes in {} streams of {} connections, until {until}\n{result}\
             handshake {:.1} to {:.1} ms, shortest round trip {:.1} ms\n\
             {} packets of up to {} bytes, {} lost, {} congestion events\n",
            self.bytes(),
            self.deliveries.len(),
            arguments.connections,
            self.handshakes_ms.minimum(),
            self.handshakes_ms.maximum(),
            statistics.round_trip_min.as_secs_f64() * 1e3,
            statistics.sent_packets,
            statistics.datagram_bytes,
            statistics.lost_packets,
            statistics.congestion_events,
        )
    }
}
