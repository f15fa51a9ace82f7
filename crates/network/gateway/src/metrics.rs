//! What a gateway has counted, for Prometheus, and a server that answers one request at a time.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::gateway::{SITE, WIDE};
use crate::running::RunningState;

/// Who asks has this long, all together: meanwhile nobody else is answered.
const PATIENCE: Duration = Duration::from_millis(500);
/// Bytes of the longest request.
const REQUEST_BYTES_MAX: usize = 4096;

/// Answers who asks for metrics, on a socket of this host.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
}

impl Server {
    /// Opens the socket.
    pub fn open(address: SocketAddr) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Server { listener })
    }

    /// Can be read when somebody asks.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Answers the next request, if there is one.
    pub fn answer_one(&self, text: impl FnOnce() -> String) {
        if let Ok((stream, _)) = self.listener.accept() {
            // Who does not ask in time, or does not listen, gets no answer.
            let _ = answer(stream, text);
        }
    }
}

fn answer(mut stream: TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let deadline = Instant::now() + PATIENCE;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(Some(left)),
    };
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let (status, body) = match request.split(|byte| *byte == b' ').take(2).collect::<Vec<_>>()[..] {
        [b"GET", b"/metrics" | b"/"] => ("200 OK", text()),
        [b"GET", _] => ("404 Not Found", "metrics are at /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET is answered\n".to_owned()),
    };
    stream.set_write_timeout(left()?)?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    let head =
        format!("HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// All metrics in Prometheus's text format.
pub fn text(state: &RunningState) -> String {
    let mut text = String::new();
    let gateway = &state.gateway;
    let (frames, sent, received) = (&gateway.frames, &gateway.sent, &gateway.received);
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        let _ = writeln!(text, "# HELP longhaul_gateway_{name} {help}\n# TYPE longhaul_gateway_{name} {kind}");
        for (label, value) in values {
            let label = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
            let _ = writeln!(text, "longhaul_gateway_{name}{label} {value}");
        }
    };
    let sides = |values: [u64; 2]| [("side=\"site\"", values[SITE] as f64), ("side=\"wide\"", values[WIDE] as f64)];
    let ways =
        |values: [usize; 2]| [("towards=\"wide\"", values[SITE] as f64), ("towards=\"site\"", values[WIDE] as f64)];
    let one = |value: u64| [("", value as f64)];
    let seconds = |value: Duration| [("", value.as_secs_f64())];
    metric("peer_heard", "gauge", "Whether the other gateway is heard.", &one(gateway.peer_heard.into()));
    metric("flows", "gauge", "Flows that were not idle of late.", &ways(gateway.flows));
    metric("host_pairs", "gauge", "Pairs of hosts that are remembered.", &ways(gateway.pairs));
    metric("memory_bytes", "gauge", "Memory for sums and waiting packets.", &one(gateway.memory_bytes as u64));
    metric("memory_bytes_max", "gauge", "The bound of that memory.", &one(gateway.memory_bytes_max as u64));
    metric("waiting_packets", "gauge", "Packets that wait for a missing one.", &one(gateway.waiting_packets as u64));
    metric("packets_total", "counter", "RoCEv2 packets that arrived.", &sides(frames.packets));
    metric("other_frames_total", "counter", "Frames that are not RoCEv2, forwarded untouched.", &sides(frames.other));
    metric(
        "not_peer_packets_total",
        "counter",
        "RoCEv2 packets of hosts that are not behind the other gateway, forwarded untouched.",
        &sides(frames.not_peer),
    );
    metric("protected_packets_total", "counter", "Packets in blocks that were sent.", &one(sent.protected));
    metric(
        "unprotected_packets_total",
        "counter",
        "Packets that were sent without protection, by reason.",
        &[
            ("reason=\"no_peer\"", frames.without_peer as f64),
            ("reason=\"no_host_pair\"", frames.no_pair[SITE] as f64),
            ("reason=\"no_flow\"", sent.no_flow as f64),
            ("reason=\"no_unit\"", sent.no_unit as f64),
            ("reason=\"unfit\"", sent.unfit as f64),
            ("reason=\"icrc\"", sent.icrc_errors as f64),
        ],
    );
    metric("repair_packets_sent_total", "counter", "Repair packets that were sent.", &one(sent.repairs));
    metric("greetings_total", "counter", "Greetings to the other gateway.", &one(frames.greetings));
    metric(
        "repair_packets_received_total",
        "counter",
        "Packets of the other gateway that were accepted.",
        &one(received.repairs),
    );
    metric(
        "repair_packets_refused_total",
        "counter",
        "Repair packets that were dropped, by reason.",
        &[
            ("reason=\"from_site\"", frames.site_repairs as f64),
            ("reason=\"not_authentic\"", received.refused as f64),
            ("reason=\"not_peer\"", frames.not_peer_repairs as f64),
            ("reason=\"malformed\"", received.malformed as f64),
            ("reason=\"stale\"", received.stale as f64),
            ("reason=\"too_long\"", received.too_long as f64),
        ],
    );
    metric(
        "unfollowed_packets_total",
        "counter",
        "Packets from the wide side that found no coding unit, or no room for their flow, by reason.",
        &[("reason=\"no_unit\"", received.no_unit as f64), ("reason=\"no_flow\"", received.no_flow as f64)],
    );
    metric(
        "restored_packets_total",
        "counter",
        "Packets that were lost and restored.",
        &one(received.restored + received.restored_acknowledgements),
    );
    metric(
        "lost_blocks_total",
        "counter",
        "Times that a missing packet could not be restored.",
        &one(received.given_up + received.no_room),
    );
    metric(
        "wrong_blocks_total",
        "counter",
        "Blocks whose restored packets were wrong: nothing of them was handed on.",
        &one(received.wrong_blocks),
    );
    metric("held_packets_total", "counter", "Packets that had to wait for a missing one.", &one(received.held));
    metric(
        "wait_seconds_total",
        "counter",
        "Time that packets waited for missing ones, added up over packets.",
        &seconds(Duration::from_nanos(frames.waited_nanos)),
    );
    metric("sent_frames_total", "counter", "Frames that left.", &one(state.forwarded.sent));
    metric("refused_frames_total", "counter", "Frames that an interface did not take.", &one(state.forwarded.refused));
    metric(
        "ring_full_frames_total",
        "counter",
        "Frames that arrived when there was no room.",
        &sides(state.arrived.map(|arrived| arrived.no_room)),
    );
    metric(
        "too_long_frames_total",
        "counter",
        "Frames that were longer than the MTU at the start, and dropped.",
        &sides(state.arrived.map(|arrived| arrived.too_long)),
    );
    metric(
        "unfinished_frames_total",
        "counter",
        "Frames that arrived without their checksum, and were dropped.",
        &sides(state.arrived.map(|arrived| arrived.unfinished)),
    );
    metric(
        "processor_seconds_total",
        "counter",
        "Processor time of the forwarding thread.",
        &seconds(state.processor_time),
    );
    metric("running_seconds", "gauge", "Time since the start.", &seconds(state.running_time));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &str) -> String {
        let server = Server::open("127.0.0.1:0".parse().unwrap()).expect("a socket");
        let address = server.listener().local_addr().unwrap();
        let mut stream = TcpStream::connect(address).expect("it listens");
        stream.write_all(request.as_bytes()).unwrap();
        // The connection is there at once on loopback.
        server.answer_one(|| text(&RunningState::default()));
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn metrics_are_served_and_nothing_else() {
        let answer = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        for metric in [
            "restored_packets_total",
            "repair_packets_refused_total{reason=\"too_long\"}",
            "unfollowed_packets_total{reason=\"no_unit\"}",
        ] {
            assert!(body.contains(&format!("longhaul_gateway_{metric} 0\n")), "{body}");
        }
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok() && line.starts_with("longhaul_gateway_"), "{line}");
        }
        assert!(ask("GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.0 405"));
        assert_eq!(ask(&"x".repeat(2 * REQUEST_BYTES_MAX)), "", "too long");
        let begun = Instant::now();
        assert_eq!(ask("GET /metrics"), "", "it does not end");
        assert!(begun.elapsed() < PATIENCE * 4);
    }
}
