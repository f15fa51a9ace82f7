//! `longhaul perf pingpong`: one message there and back, again and again, with rdma-core's `ibv_rc_pingpong`,
//! `ibv_uc_pingpong` and `ibv_ud_pingpong` at the other end, or with another one of ours.

mod contents;
mod exchange;
mod volley;

use std::time::Duration;

use longhaul_verbs::{Access, Gid, Mtu};
use serde_json::json;

use self::exchange::Address;
use self::volley::{Outcome, Volley};
use super::connection::{Connection, Contact, Group, GroupOptions};
use super::meeting;
use super::nic::Nic;
use super::options::{EndOptions, MESSAGE_BYTES_MAX, mtu};
use super::path;
use super::table::wrong_contents;
use crate::opened_device::{OpenedDevice, Towards, UDP_PORT_ROCE};
use crate::randomness::random_number;
use crate::stop::{Stop, with_error};
use longhaul_softnic_udp::UdpPortChoice;

/// How long a queue pair of RC stays when all is done: if its last acknowledgement was lost, the other end sends again
/// for a few timeouts, and must get an answer.
const LINGER: Duration = Duration::from_millis(300);

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
    connection: Connection,

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
    fn size(&self) -> u32 {
        self.size.unwrap_or(if self.connection == Connection::Ud { 2048 } else { 4096 })
    }

    /// Whether packets fit, of what carries so much payload.
    fn check_packets(&self, carried: Mtu, what: &str) -> Result<(), Stop> {
        let (most, size) = (carried.byte_count(), self.size());
        match self.connection {
            Connection::Ud if size > most => Err(Stop::Usage(format!(
                "-s {size}: UD messages are single packets, and {what} carries at most {most} bytes; give both ends -s {most}"
            ))),
            Connection::Rc | Connection::Uc if self.mtu > carried => Err(Stop::Usage(format!(
                "-m {}: {what} carries packets of at most {most} bytes; give both ends -m {most}",
                self.mtu.byte_count()
            ))),
            _ => Ok(()),
        }
    }

    /// The program that the other end may be.
    fn counterpart(&self) -> &'static str {
        match self.connection {
            Connection::Rc => "ibv_rc_pingpong",
            Connection::Uc => "ibv_uc_pingpong",
            Connection::Ud => "ibv_ud_pingpong",
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.end.check()?;
    let counterpart = arguments.counterpart();
    let mut stream = match &arguments.host {
        Some(host) => {
            let program = format!("{counterpart} (or longhaul perf pingpong)");
            meeting::connect(host, arguments.end.port, &program)?
        }
        None => {
            // At all addresses, as their servers do: what the two meet over and what their devices speak over are two
            // things.
            let listener = meeting::listen(None, arguments.end.port)?;
            // Port 0 has the system choose one.
            let local = listener.local_addr().map_err(|error| Stop::failed("cannot ask for the TCP port", error))?;
            eprintln!("waiting on TCP port {} for: {counterpart} HOST (or longhaul perf pingpong HOST)", local.port());
            listener.accept().map_err(|error| Stop::failed("cannot accept a client", error))?.0
        }
    };
    let (local, peer) = meeting::addresses(&stream)?;
    let gid_index = arguments.end.gid_index.or(arguments.gid_idx);
    let mut end = End::open(arguments, Towards { local, peer, gid_index })?;
    println_unless(arguments.end.json, &end.address.to_line("local"));
    let theirs = if arguments.host.is_some() {
        let theirs = exchange::ask(&mut stream, end.address)?;
        end.connect(arguments, theirs)?;
        end.volley(arguments).prepare()?;
        theirs
    } else {
        let theirs = exchange::listen(&mut stream)?;
        end.connect(arguments, theirs)?;
        end.volley(arguments).prepare()?;
        exchange::answer(&mut stream, end.address)?;
        theirs
    };
    drop(stream);
    println_unless(arguments.end.json, &theirs.to_line("remote"));
    let outcome = end.volley(arguments).run()?;
    report(arguments, &end, theirs, &outcome);
    if arguments.connection.is_reliable() {
        std::thread::sleep(LINGER);
    }
    outcome.mismatch.map_or(Ok(()), |mismatch| Err(wrong_contents(&mismatch)))
}

fn println_unless(json: bool, line: &str) {
    if !json {
        println!("{line}");
    }
}

/// Our end: the device and one queue pair.
struct End {
    nic: Nic,
    group: Group,
    mtu: Mtu,
    address: Address,
}

impl End {
    fn open(arguments: &Arguments, towards: Towards) -> Result<End, Stop> {
        let udp = arguments.end.softnic.udp_config(UdpPortChoice::RoceOrFree)?;
        let device = OpenedDevice::open(&arguments.end.choice()?, towards, udp)?;
        device.show_warnings();
        let size = arguments.size();
        let mtu = match arguments.connection {
            // -m is not for datagrams, which are single packets.
            Connection::Ud => device.mtu()?,
            Connection::Rc | Connection::Uc => arguments.mtu,
        };
        arguments.check_packets(device.mtu()?, "the device")?;
        let (gid, udp_port) = (device.gid, device.udp_port);
        let nic = Nic::new(device, size as usize + super::connection::GRH_BYTES, Access::empty())?;
        let group = nic.create_group(GroupOptions {
            connection: arguments.connection,
            queue_pairs: 1,
            send_depth: 1,
            receive_depth: arguments.rx_depth,
            outstanding_reads: 0,
            remote_access: Access::empty(),
            sleeps: arguments.events,
            timeout: arguments.timeout,
            rate_bits_per_second: None,
            seed: random_number()?,
        })?;
        let contact = group.contact(mtu);
        let (number, psn) = contact.queue_pairs[0];
        let lid = if udp_port == UDP_PORT_ROCE { 0 } else { udp_port };
        let address = Address { lid, queue_pair: longhaul_verbs::QueuePairNumber::new(number), psn, gid };
        Ok(End { nic, group, mtu, address })
    }

    fn connect(&mut self, arguments: &Arguments, theirs: Address) -> Result<(), Stop> {
        let (from, to) = (self.nic.device.address, theirs.gid.to_ip());
        arguments.check_packets(path::route_mtu(from, to)?, &format!("the path from {from} to {to}"))?;
        let peer = Contact {
            device: String::new(),
            address: to,
            udp_port: if theirs.lid == 0 { UDP_PORT_ROCE } else { theirs.lid },
            mtu_bytes: self.mtu.byte_count(),
            outstanding_reads: 0,
            queue_pairs: vec![(theirs.queue_pair.value(), theirs.psn)],
            memory_address: 0,
            memory_key: 0,
            memory_bytes: 0,
        };
        self.group.connect(&peer, self.mtu)
    }

    fn volley<'a>(&'a self, arguments: &Arguments) -> Volley<'a> {
        Volley {
            group: &self.group,
            message_bytes: arguments.size() as usize,
            iterations: arguments.iterations,
            is_client: arguments.host.is_some(),
            is_checked: arguments.chk,
            patience: Duration::from_secs_f64(arguments.patience),
        }
    }
}

/// As rdma-core's programs do it.
fn report(arguments: &Arguments, end: &End, theirs: Address, outcome: &Outcome) {
    let iterations = arguments.iterations;
    let bytes = u64::from(arguments.size()) * iterations * 2;
    let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
    let mbits_per_second = bytes as f64 * 8.0 / seconds / 1e6;
    let microseconds = seconds * 1e6 / iterations as f64;
    if arguments.end.json {
        let address = |gid: Gid| gid.to_ip().to_string();
        let line = json!({
            "schema": 1,
            "test": "pingpong",
            "role": if arguments.host.is_some() { "client" } else { "server" },
            "device": end.nic.device.describe(),
            "connection": arguments.connection.transport().abbreviation(),
            "mtu_bytes": end.mtu.byte_count(),
            "local_address": address(end.address.gid),
            "remote_address": address(theirs.gid),
            "bytes": arguments.size(),
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
