//! One message there and back, again and again, with rdma-core's `ibv_rc_pingpong`, `ibv_uc_pingpong` and
//! `ibv_ud_pingpong` at the other end, or with another one of ours.

mod contents;
mod exchange;
mod volley;

use std::time::Duration;

use longhaul_softnic_udp::UdpPortChoice;
use longhaul_verbs::{Access, Mtu};

use self::volley::Volley;
use crate::connection::{Connection, Contact, GRH_BYTES, Group, GroupOptions};
use crate::device::{OpenedDevice, Towards, UDP_PORT_ROCE};
use crate::error::PerfError;
use crate::meeting;
use crate::nic::Nic;
use crate::path;
use crate::randomness::random_number;
use crate::settings::EndSettings;

pub use self::exchange::Address;
pub use self::volley::Outcome;

/// How long a queue pair of RC stays when all is done: if its last acknowledgement was lost, the other end sends again
/// for a few timeouts, and must get an answer.
const LINGER: Duration = Duration::from_millis(300);

/// What is exchanged. Both ends must have the same size, number of messages and MTU.
#[derive(Clone, Debug)]
pub struct PingPongRequest {
    /// Host that runs the server; without it, this end is the server.
    pub host: Option<String>,
    /// This end.
    pub end: EndSettings,
    /// The transport.
    pub connection: Connection,
    /// Bytes of a message, if not the default.
    pub size: Option<u32>,
    /// Path MTU.
    pub mtu: Mtu,
    /// Receive queue depth.
    pub rx_depth: u32,
    /// Messages in each direction.
    pub iterations: u64,
    /// Acknowledgement timeout, 4.096 µs · 2^N.
    pub timeout: u8,
    /// Sleep until there is a completion.
    pub events: bool,
    /// Check every message.
    pub verify: bool,
    /// Give up after this long without a message.
    pub patience: Duration,
}

/// What happens, as it happens.
#[derive(Clone, Debug)]
pub enum PingPongEvent {
    /// Something that people should know.
    Note(String),
    /// This end waits for a client at this TCP port.
    Waiting(u16),
    /// Our queue pair is here.
    Local(Address),
    /// Theirs is there.
    Remote(Address),
}

/// What was measured.
pub struct PingPong {
    /// Our device, for people.
    pub device: String,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// Where our queue pair is.
    pub local: Address,
    /// Where theirs is.
    pub remote: Address,
    /// The result.
    pub outcome: Outcome,
    end: End,
}

impl PingPongRequest {
    /// Bytes of a message.
    pub fn size(&self) -> u32 {
        self.size.unwrap_or(if self.connection == Connection::Ud { 2048 } else { 4096 })
    }

    /// Whether packets fit, of what carries so much payload.
    fn check_packets(&self, carried: Mtu, what: &str) -> Result<(), PerfError> {
        let (most, size) = (carried.byte_count(), self.size());
        match self.connection {
            Connection::Ud if size > most => Err(PerfError::Request(format!(
                "-s {size}: UD messages are single packets, and {what} carries at most {most} bytes; give both ends -s {most}"
            ))),
            Connection::Rc | Connection::Uc if self.mtu > carried => Err(PerfError::Request(format!(
                "-m {}: {what} carries packets of at most {most} bytes; give both ends -m {most}",
                self.mtu.byte_count()
            ))),
            _ => Ok(()),
        }
    }

    /// The program that the other end may be.
    pub fn counterpart(&self) -> &'static str {
        match self.connection {
            Connection::Rc => "ibv_rc_pingpong",
            Connection::Uc => "ibv_uc_pingpong",
            Connection::Ud => "ibv_ud_pingpong",
        }
    }
}

impl PingPong {
    /// Keeps the queue pair for a moment: the other end may need its last acknowledgement again.
    pub fn linger(self) {
        if self.end.group.options.connection.is_reliable() {
            std::thread::sleep(LINGER);
        }
    }
}

/// Exchanges messages.
pub fn exchange(request: &PingPongRequest, tell: &mut dyn FnMut(PingPongEvent)) -> Result<PingPong, PerfError> {
    let counterpart = request.counterpart();
    let mut stream = match &request.host {
        Some(host) => {
            let program = format!("{counterpart} (or longhaul perf pingpong)");
            meeting::connect(host, request.end.port, &program)?
        }
        None => {
            // At all addresses, as their servers do: what the two meet over and what their devices speak over are two
            // things.
            let listener = meeting::listen(None, request.end.port)?;
            // Port 0 has the system choose one.
            let local =
                listener.local_addr().map_err(|error| PerfError::failed("cannot ask for the TCP port", error))?;
            tell(PingPongEvent::Waiting(local.port()));
            listener.accept().map_err(|error| PerfError::failed("cannot accept a client", error))?.0
        }
    };
    let (local, peer) = meeting::addresses(&stream)?;
    let mut end = End::open(request, Towards { local, peer, gid_index: request.end.gid_index }, tell)?;
    tell(PingPongEvent::Local(end.address));
    let remote = if request.host.is_some() {
        let theirs = exchange::ask(&mut stream, end.address)?;
        end.connect(request, theirs)?;
        end.volley(request).prepare()?;
        theirs
    } else {
        let theirs = exchange::listen(&mut stream)?;
        end.connect(request, theirs)?;
        end.volley(request).prepare()?;
        exchange::answer(&mut stream, end.address)?;
        theirs
    };
    drop(stream);
    tell(PingPongEvent::Remote(remote));
    let outcome = end.volley(request).run()?;
    let device = end.nic.device.describe().to_owned();
    Ok(PingPong { device, mtu: end.mtu, local: end.address, remote, outcome, end })
}

/// Our end: the device and one queue pair.
struct End {
    nic: Nic,
    group: Group,
    mtu: Mtu,
    address: Address,
}

impl End {
    fn open(
        request: &PingPongRequest,
        towards: Towards,
        tell: &mut dyn FnMut(PingPongEvent),
    ) -> Result<End, PerfError> {
        let udp = request.end.softnic.udp_config(UdpPortChoice::RoceOrFree)?;
        let device = OpenedDevice::open(&request.end.device, towards, udp)?;
        device.warnings().for_each(|warning| tell(PingPongEvent::Note(format!("warning: {warning}"))));
        let size = request.size();
        let mtu = match request.connection {
            // -m is not for datagrams, which are single packets.
            Connection::Ud => device.mtu()?,
            Connection::Rc | Connection::Uc => request.mtu,
        };
        request.check_packets(device.mtu()?, "the device")?;
        let (gid, udp_port) = (device.gid, device.udp_port);
        let nic = Nic::new(device, size as usize + GRH_BYTES, Access::empty())?;
        let group = nic.create_group(GroupOptions {
            connection: request.connection,
            queue_pairs: 1,
            send_depth: 1,
            receive_depth: request.rx_depth,
            outstanding_reads: 0,
            remote_access: Access::empty(),
            sleeps: request.events,
            timeout: request.timeout,
            rate_bits_per_second: None,
            seed: random_number()?,
        })?;
        let contact = group.contact(mtu);
        let (number, psn) = contact.queue_pairs[0];
        let lid = if udp_port == UDP_PORT_ROCE { 0 } else { udp_port };
        let address = Address { lid, queue_pair: longhaul_verbs::QueuePairNumber::new(number), psn, gid };
        Ok(End { nic, group, mtu, address })
    }

    fn connect(&mut self, request: &PingPongRequest, theirs: Address) -> Result<(), PerfError> {
        let (from, to) = (self.nic.device.address, theirs.gid.to_ip());
        request.check_packets(path::route_mtu(from, to, 0)?, &format!("the path from {from} to {to}"))?;
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

    fn volley<'a>(&'a self, request: &PingPongRequest) -> Volley<'a> {
        Volley {
            group: &self.group,
            message_bytes: request.size() as usize,
            iterations: request.iterations,
            is_client: request.host.is_some(),
            is_checked: request.verify,
            patience: request.patience,
        }
    }
}
