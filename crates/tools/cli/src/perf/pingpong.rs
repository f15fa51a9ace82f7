//! `longhaul perf pingpong`: one message there and back, again and again, with rdma-core's programs.

use std::time::Duration;

use longhaul_perf::MESSAGE_BYTES_MAX;
use longhaul_perf::pingpong::{self, PingPong, PingPongEvent, PingPongRequest};
use longhaul_verbs::{Gid, Mtu};
use serde_json::json;

use super::options::{ConnectionType, EndOptions, mtu};
use super::table::wrong_contents;
use crate::stop::{Stop, with_error};

/// Exchange messages with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong of rdma-core
///
/// Without HOST this is the server and waits for one client. The other end is one of rdma-core's programs, or another
/// `longhaul perf pingpong`: `ibv_rc_pingpong -d rxe0 -g 1` there, `longhaul perf pingpong HOST` here. Give both ends
/// the same size, number of messages and MTU; those programs do not exchange them.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Host that runs the server; without it, this end is the server
    host: Option<String>,

    #[command(flatten)]
    pub(crate) end: EndOptions,

    /// GID table index to use, as rdma-core's programs spell it
    #[arg(short = 'g', long = "gid-idx", value_name = "INDEX", conflicts_with = "gid_index")]
    gid_idx: Option<u8>,

    /// Connection type: RC for ibv_rc_pingpong, and so on
    #[arg(short, long, value_enum, default_value = "RC")]
    connection: ConnectionType,

    /// Message size [default: 4096; UD: 2048]
    #[arg(short, long, value_name = "BYTES", value_parser = longhaul_units::bytes_within::<u32>(1..=MESSAGE_BYTES_MAX.into()))]
    size: Option<u32>,

    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "BYTES", default_value = "1024", value_parser = mtu)]
    mtu: Mtu,

    /// Receive queue depth
    #[arg(short, long, value_name = "NUMBER", default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    rx_depth: u32,

    /// Messages in each direction
    #[arg(short = 'n', long = "iters", value_name = "NUMBER", default_value_t = 1000, value_parser = longhaul_units::whole_number(1_u64..))]
    iterations: u64,

    /// RC acknowledgement timeout, 4.096 µs · 2^N; rdma-core's programs use 14
    #[arg(short = 'u', long = "qp-timeout", value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u8).range(0..=31))]
    timeout: u8,

    /// Sleep until there is a completion, instead of polling
    #[arg(short, long)]
    events: bool,

    /// Verify every message received; exit with status 1 if one is wrong
    #[arg(long, visible_alias = "verify")]
    chk: bool,

    /// Give up after this long without a message: UC and UD do not retransmit lost ones
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = patience)]
    patience: f64,
}

fn patience(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds between 0.01 and 86400".to_owned()),
    }
}

impl Arguments {
    fn request(&self) -> Result<PingPongRequest, Stop> {
        let mut end = self.end.settings()?;
        end.gid_index = end.gid_index.or(self.gid_idx);
        Ok(PingPongRequest {
            host: self.host.clone(),
            end,
            connection: self.connection.into(),
            size: self.size,
            mtu: self.mtu,
            rx_depth: self.rx_depth,
            iterations: self.iterations,
            timeout: self.timeout,
            events: self.events,
            verify: self.chk,
            patience: Duration::from_secs_f64(self.patience),
        })
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.end.check()?;
    let request = arguments.request()?;
    let counterpart = request.counterpart();
    let is_json = arguments.end.json;
    let measured = pingpong::exchange(&request, &mut |event| match event {
        PingPongEvent::Note(note) => eprintln!("{note}"),
        PingPongEvent::Waiting(port) => {
            eprintln!("waiting on TCP port {port} for: {counterpart} HOST (or longhaul perf pingpong HOST)");
        }
        PingPongEvent::Local(address) => println_unless(is_json, &address.to_line("local")),
        PingPongEvent::Remote(address) => println_unless(is_json, &address.to_line("remote")),
    })?;
    report(arguments, &request, &measured);
    let wrong = measured.outcome.mismatch.as_deref().map(wrong_contents);
    measured.linger();
    wrong.map_or(Ok(()), Err)
}

fn println_unless(json: bool, line: &str) {
    if !json {
        println!("{line}");
    }
}

/// As rdma-core's programs do it.
fn report(arguments: &Arguments, request: &PingPongRequest, measured: &PingPong) {
    let outcome = &measured.outcome;
    let iterations = arguments.iterations;
    let bytes = u64::from(request.size()) * iterations * 2;
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let mbits_per_second = bytes as f64 * 8.0 / seconds / 1e6;
    let microseconds = seconds * 1e6 / iterations as f64;
    if arguments.end.json {
        let address = |gid: Gid| gid.to_ip().to_string();
        let line = json!({
            "schema": 1,
            "test": "pingpong",
            "role": if arguments.host.is_some() { "client" } else { "server" },
            "device": measured.device,
            "connection": request.connection.transport().abbreviation(),
            "mtu_bytes": measured.mtu.byte_count(),
            "local_address": address(measured.local.gid),
            "remote_address": address(measured.remote.gid),
            "bytes": request.size(),
            "iterations": iterations,
            "seconds": seconds,
            "bw_average_mbps": mbits_per_second,
            "iteration_us": microseconds,
            "messages_verified": outcome.verified,
        });
        let line = with_error(line, outcome.mismatch.as_deref().map(wrong_contents).as_ref());
        println!("{line}");
        return;
    }
    println!("{bytes} bytes in {seconds:.2} seconds = {mbits_per_second:.2} Mbit/sec");
    println!("{iterations} iters in {seconds:.2} seconds = {microseconds:.2} usec/iter");
    if arguments.chk && outcome.mismatch.is_none() {
        println!("contents of {} messages checked", outcome.verified);
    }
}
