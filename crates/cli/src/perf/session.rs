//! One end of a measurement between a server and a client: its device, queue pairs and the half that it plays.

use std::net::IpAddr;

use longhaul_softnic::udp::UdpPortChoice;
use longhaul_verbs::Mtu;

use super::connection::{Connection, Contact, Group, GroupOptions};
use super::control::{CAREFUL_BITS_PER_SECOND, Plan, Rate, Test};
use super::nic::{self, Nic};
use super::options::EndOptions;
use super::path;
use super::ping_pong::PingPong;
use super::stop::Stop;
use super::stream::{Operation, Receiver, Run, Sender};

/// Each end has this much memory, and more for messages that are larger.
const BUFFER_BYTES: usize = 64 << 20;
/// Slots that there are at least, whatever the size of messages.
const SLOTS_MIN: usize = 4;
/// Credit that may wait to be sent, or to be taken.
const CREDIT_DEPTH: u32 = 64;
/// Queues of a ping-pong: one message is on its way at a time.
const PING_PONG_DEPTHS: [u32; 2] = [64, 16];

/// Which half an end plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The half.
pub(crate) enum Half {
    Sender(Sender),
    Receiver(Receiver),
    PingPong(PingPong),
}

/// One end.
pub(crate) struct Session {
    pub(crate) nic: Nic,
    pub(crate) address: IpAddr,
    pub(crate) half: Half,
    /// What this end's route carries, and after connecting what both do.
    pub(crate) mtu: Mtu,
}

impl Session {
    /// Opens the device and makes the queue pairs.
    pub(crate) fn open(
        side: Side,
        options: &EndOptions,
        plan: &Plan,
        local: IpAddr,
        peer: IpAddr,
        mtu_max: Mtu,
    ) -> Result<Session, Stop> {
        let addresses = options.addresses(local)?;
        let address = addresses[usize::from(options.gid_index)];
        let buffer_bytes = BUFFER_BYTES.max(plan.message_bytes_max as usize * SLOTS_MIN);
        // At one address only one of them can have RoCE's own port; it is the server, which is there first.
        let udp_port = match side {
            Side::Client if address == peer => UdpPortChoice::Free,
            _ => UdpPortChoice::RoceOrFree,
        };
        let mut udp = options.udp_config(udp_port)?;
        // The device paces each queue pair by itself.
        let each = |rate: u64| Some((rate / u64::from(plan.queue_pairs)).max(1));
        udp.off_host_rate_bits_per_second = match plan.rate {
            Rate::Careful => each(CAREFUL_BITS_PER_SECOND),
            Rate::BitsPerSecond(_) | Rate::Unlimited => None,
        };
        let nic = Nic::open(&addresses, udp, buffer_bytes, false)?;
        let mtu = path::route_mtu(address, peer)?.min(nic.mtu()?).min(mtu_max);
        let [send_depth, receive_depth] = depths(side, plan);
        let group = nic.create_group(GroupOptions {
            connection: plan.connection,
            queue_pairs: plan.queue_pairs,
            send_depth,
            receive_depth,
            sleeps: plan.sleeps,
            timeout: plan.timeout,
            rate_bits_per_second: match plan.rate {
                Rate::BitsPerSecond(rate) => each(rate),
                Rate::Careful | Rate::Unlimited => None,
            },
            gid_index: options.gid_index,
            seed: u64::from_le_bytes(nic::random()?),
        })?;
        let half = match side {
            _ if plan.test.is_latency() => Half::PingPong(PingPong::new(group)),
            Side::Client => Half::Sender(Sender::new(group)),
            Side::Server => Half::Receiver(Receiver::new(group)),
        };
        Ok(Session { nic, address, half, mtu })
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        match &mut self.half {
            Half::Sender(sender) => sender.group(),
            Half::Receiver(receiver) => receiver.group(),
            Half::PingPong(ping_pong) => ping_pong.group(),
        }
    }

    /// What the other end has to know.
    pub(crate) fn contact(&mut self) -> Contact {
        let (address, udp_port, mtu) = (self.address, self.nic.device.udp_port(), self.mtu);
        self.group().contact(address, udp_port, mtu)
    }

    /// Connects with the other end, with packets that both routes carry.
    pub(crate) fn connect(&mut self, plan: &Plan, peer: &Contact) -> Result<(), Stop> {
        let theirs = Mtu::largest_within(peer.mtu_bytes);
        let theirs =
            theirs.ok_or_else(|| Stop::Failed(format!("expected an MTU of the other end, came {}", peer.mtu_bytes)))?;
        self.mtu = self.mtu.min(theirs);
        if peer.memory_bytes < u64::from(plan.message_bytes_max) {
            let (needed, came) = (plan.message_bytes_max, peer.memory_bytes);
            return Err(Stop::Failed(format!("expected {needed} bytes of memory at the other end, came {came}")));
        }
        let mtu = self.mtu;
        self.group().connect(peer, mtu)?;
        match &mut self.half {
            Half::Sender(sender) => sender.start(),
            // A WRITE's receives, if any, have no memory; a SEND's are for the largest message.
            Half::Receiver(_) => Ok(()),
            Half::PingPong(ping_pong) => ping_pong.start(plan.message_bytes_max as usize),
        }
    }
}

/// Lengths of the send and the receive queue.
fn depths(side: Side, plan: &Plan) -> [u32; 2] {
    let is_reliable = plan.connection.is_reliable();
    let credit_depth = if is_reliable { 1 } else { CREDIT_DEPTH };
    match (plan.test, side) {
        (Test::WriteLat | Test::SendLat, _) => PING_PONG_DEPTHS,
        (_, Side::Client) => [plan.send_depth, credit_depth],
        // Nobody is told of RC's WRITEs.
        (Test::WriteBw, Side::Server) if plan.connection == Connection::Rc => [1, 1],
        (_, Side::Server) => [credit_depth, plan.receive_depth],
    }
}

/// The messages of a test.
pub(crate) const fn operation(test: Test) -> Operation {
    if test.is_write() { Operation::Write } else { Operation::Send }
}

/// Whether the server finds a WRITE's contents in memory only at the end.
pub(crate) fn is_checked_at_end(plan: &Plan, run: &Run) -> bool {
    plan.connection.is_reliable() && run.operation == Operation::Write
}
