//! One end of a measurement between a server and a client: its device, queue pairs and the half that it plays.

use std::net::IpAddr;

use longhaul_congestion::ControllerName;
use longhaul_softnic_udp::path::is_of_this_host;
use longhaul_softnic_udp::{CAREFUL_BITS_PER_SECOND, Network, UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::{Mtu, Transport};

use crate::connection::{Connection, Contact, GRH_BYTES, Group, GroupOptions};
use crate::control::{Plan, Rate, Test};
use crate::device::{OpenedDevice, Towards};
use crate::error::PerfError;
use crate::nic::Nic;
use crate::operation::Operation;
use crate::path;
use crate::ping_pong::PingPong;
use crate::randomness::random_number;
use crate::scheme_stream;
use crate::settings::{Congestion, EndSettings};
use crate::stream::{Receiver, Run, Sender};

/// Each end has this much memory, and more for messages that are larger.
const BUFFER_BYTES: usize = 64 << 20;
/// But never more than this: a client says what it needs, and a server is not to give it all its memory.
const BUFFER_BYTES_MAX: usize = 512 << 20;
/// Slots that there are, whatever the size of messages, as long as that much memory holds them.
const SLOTS_WANTED: usize = 4;
/// Credit that may wait to be sent, or to be taken.
const CREDIT_DEPTH: u32 = 64;
/// Queues of a ping-pong: one message is in flight at a time.
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
    pub(crate) half: Half,
    /// What this end's route carries, and after connecting what both do.
    pub(crate) mtu: Mtu,
}

impl Session {
    /// Opens the device and makes the queue pairs.
    pub(crate) fn open(
        side: Side,
        settings: &EndSettings,
        plan: &Plan,
        towards: Towards,
        mtu_max: Mtu,
        note: &mut dyn FnMut(String),
    ) -> Result<Session, PerfError> {
        let buffer_bytes = buffer_bytes(plan)?;
        let (device, mtu) = open_device(side, settings, plan, towards, mtu_max, note)?;
        let each = |rate: u64| (rate / u64::from(plan.queue_pairs)).max(1);
        let rate_bits_per_second = rate(settings, plan, towards).map(each);
        let nic = Nic::new(device, buffer_bytes, plan.operation.remote_access())?;
        let [send_depth, receive_depth] = depths(side, plan);
        let group = nic.create_group(GroupOptions {
            connection: plan.connection,
            queue_pairs: plan.queue_pairs,
            send_depth,
            receive_depth,
            outstanding_reads: plan.outstanding_reads,
            remote_access: plan.operation.remote_access(),
            sleeps: plan.sleeps,
            timeout: plan.timeout,
            rate_bits_per_second,
            seed: random_number()?,
        })?;
        let half = match side {
            // The peer's device answers READs and atomics; it takes no second half to time them.
            _ if plan.test.is_latency() && !plan.operation.is_answered() => Half::PingPong(PingPong::new(group)),
            Side::Client => Half::Sender(Sender::new(group)),
            Side::Server => Half::Receiver(Receiver::new(group)),
        };
        Ok(Session { nic, half, mtu })
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
        let mtu = self.mtu;
        self.group().contact(mtu)
    }

    /// Connects with the other end, with packets that both routes carry.
    pub(crate) fn connect(&mut self, plan: &Plan, peer: &Contact) -> Result<(), PerfError> {
        let theirs = Mtu::largest_within(peer.mtu_bytes);
        let theirs = theirs.ok_or_else(|| {
            PerfError::Failed(format!(
                "the other end sent {} as its MTU, which is none: use the same release at both ends",
                peer.mtu_bytes
            ))
        })?;
        self.mtu = self.mtu.min(theirs);
        if peer.memory_bytes < u64::from(plan.message_bytes_max) {
            let (needed, got) = (plan.message_bytes_max, peer.memory_bytes);
            return Err(PerfError::Failed(format!(
                "the other end registered {got} bytes of memory, and {needed} are needed: use the same release at both ends"
            )));
        }
        let mtu = self.mtu;
        if let Some(fec) = plan.agreed_fec()? {
            self.group().protect(peer, fec)?;
        }
        self.group().connect(peer, mtu)?;
        match &mut self.half {
            Half::Sender(sender) => sender.start(),
            // A WRITE's receives, if any, have no memory; a SEND's are for the largest message.
            Half::Receiver(_) => Ok(()),
            Half::PingPong(ping_pong) => ping_pong.start(plan.message_bytes_max as usize),
        }
    }
}

/// Opens the device of an end. Says also which payload of a packet its route carries.
pub(crate) fn open_device(
    side: Side,
    settings: &EndSettings,
    plan: &Plan,
    towards: Towards,
    mtu_max: Mtu,
    note: &mut dyn FnMut(String),
) -> Result<(OpenedDevice, Mtu), PerfError> {
    let choice = &settings.device;
    // At one address only one of them can have RoCE's own port; it is the server, which is there first.
    let udp_port = match side {
        Side::Client if choice.address_towards(towards) == Some(towards.peer) => UdpPortChoice::Free,
        _ => UdpPortChoice::RoceOrFree,
    };
    let mut udp = settings.softnic.udp_config(udp_port)?;
    udp.fec = plan.agreed_fec()?;
    if let Some(fec) = settings.softnic.fec_gateway {
        let prefix_bits = if towards.peer.is_ipv4() { 32 } else { 128 };
        udp.fec_gateways = vec![Network { address: towards.peer, prefix_bits }];
        udp.fec = Some(fec);
    }
    if udp.fec.is_some() && !choice.is_softnic() {
        return Err(PerfError::Request(
            "--fec needs the software RNIC, at both ends unless --fec-peer is gateway: other devices cannot restore packets; use -d softnic at both, or leave it out"
                .to_owned(),
        ));
    }
    udp.off_host_rate_bits_per_second = match plan.rate {
        // The device paces each queue pair separately.
        Rate::Careful => Some((CAREFUL_BITS_PER_SECOND / u64::from(plan.queue_pairs)).max(1)),
        Rate::BitsPerSecond(_) | Rate::Unlimited => None,
    };
    if !matches!(plan.rate, Rate::Careful) && settings.softnic.congestion == Congestion::Default {
        // The user has named a rate, or wants none.
        udp.off_host_congestion = None;
    }
    let device = OpenedDevice::open(choice, towards, udp)?;
    device.warnings().for_each(|warning| note(format!("warning: {warning}")));
    let overhead_bytes = device.endpoint().softnic().map_or(0, UdpDevice::overhead_bytes);
    let mtu = path::route_mtu(device.address, towards.peer, overhead_bytes)?.min(device.mtu()?).min(mtu_max);
    Ok((device, mtu))
}

/// What controls the rate of an end's reliable connections to a peer; `None` if nothing does.
pub(crate) fn congestion(settings: &EndSettings, plan: &Plan, peer: IpAddr) -> Option<ControllerName> {
    let is_controlled = settings.device.is_softnic()
        && plan.scheme.is_none()
        && plan.connection.transport() == Transport::ReliableConnection
        && !is_of_this_host(peer);
    match settings.softnic.congestion {
        _ if !is_controlled => None,
        Congestion::By(name) => Some(name),
        Congestion::Default if plan.rate == Rate::Careful => UdpConfig::default().off_host_congestion,
        Congestion::Default | Congestion::Off => None,
    }
}

/// What an end sends at most; `None` leaves it to the device.
pub(crate) fn rate(settings: &EndSettings, plan: &Plan, towards: Towards) -> Option<u64> {
    // The software RNIC is careful on its own.
    let is_careful_itself = matches!(plan.rate, Rate::Careful) && settings.device.is_softnic();
    plan.rate_towards(towards.peer).filter(|_| !is_careful_itself)
}

/// Memory of an end.
pub(crate) fn buffer_bytes(plan: &Plan) -> Result<usize, PerfError> {
    if let Some(depth) = plan.scheme.as_ref().and_then(|scheme| scheme.depth) {
        let place_bytes = (plan.message_bytes_max as usize).next_multiple_of(scheme_stream::ALIGNMENT);
        let needed = place_bytes.saturating_mul(depth as usize);
        if needed > BUFFER_BYTES_MAX {
            let most = BUFFER_BYTES_MAX / place_bytes;
            let bytes = plan.message_bytes_max;
            return Err(PerfError::Request(format!(
                "-r {depth}: at most {most} messages of {bytes} bytes fit {} MiB of memory at each end: \
                 take fewer with -r, or smaller ones with -s",
                BUFFER_BYTES_MAX >> 20
            )));
        }
        return Ok(needed.max(BUFFER_BYTES));
    }
    // Room for a datagram's header, and for each message to begin at a cache line.
    let slot_bytes = (plan.message_bytes_max as usize).saturating_add(GRH_BYTES).next_multiple_of(64);
    let slots_min = match plan.test {
        // One message comes, one goes.
        Test::WriteLat | Test::SendLat => 2,
        // Contents that are to be checked must not be overwritten by those of another queue pair.
        Test::SendBw if plan.verify_seed.is_some() => plan.queue_pairs as usize,
        // Each queue pair has a place of its own for compare-and-swap.
        Test::AtomicBw => plan.queue_pairs as usize,
        Test::WriteBw | Test::SendBw | Test::ReadBw | Test::ReadLat | Test::AtomicLat => 1,
    };
    let needed = slot_bytes.saturating_mul(slots_min);
    if needed > BUFFER_BYTES_MAX {
        return Err(PerfError::Request(format!(
            "expected messages that fit {} MiB of memory at each end, got {slots_min} at a time of {} bytes: \
             take smaller ones with -s{}",
            BUFFER_BYTES_MAX >> 20,
            plan.message_bytes_max,
            if plan.queue_pairs > 1 { ", or fewer queue pairs with -q" } else { "" }
        )));
    }
    Ok(slot_bytes.saturating_mul(SLOTS_WANTED).clamp(BUFFER_BYTES, BUFFER_BYTES_MAX).max(needed))
}

/// Lengths of the send and the receive queue.
fn depths(side: Side, plan: &Plan) -> [u32; 2] {
    let is_reliable = plan.connection.is_reliable();
    let credit_depth = if is_reliable { 1 } else { CREDIT_DEPTH };
    match (plan.test, side) {
        (Test::WriteLat | Test::SendLat, _) => PING_PONG_DEPTHS,
        // READs and atomics make no completion at the responder.
        _ if plan.operation.is_answered() && side == Side::Server => [1, 1],
        (_, Side::Client) => [plan.send_depth, credit_depth],
        // RC's WRITEs make no completion at the responder.
        (Test::WriteBw, Side::Server) if plan.connection == Connection::Rc => [1, 1],
        (_, Side::Server) => [credit_depth, plan.receive_depth],
    }
}

/// Whether the server gets no completions for messages and looks at memory at the end instead.
pub(crate) fn is_checked_at_end(plan: &Plan, run: &Run) -> bool {
    plan.connection.is_reliable() && run.operation != Operation::Send
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(test: Test, message_bytes_max: u32, queue_pairs: u32, verify_seed: Option<u64>) -> Plan {
        Plan {
            test,
            operation: Operation::Write,
            connection: Connection::Rc,
            queue_pairs,
            message_bytes_max,
            send_depth: 1,
            receive_depth: 1,
            outstanding_reads: 0,
            sleeps: false,
            timeout: 14,
            rate: Rate::Careful,
            verify_seed,
            fec: None,
            scheme: None,
        }
    }

    #[test]
    fn memory_is_bounded_whatever_a_client_says() {
        let bytes = |test, size, queue_pairs| buffer_bytes(&plan(test, size, queue_pairs, Some(1)));
        assert_eq!(bytes(Test::WriteBw, 2, 1).unwrap(), BUFFER_BYTES);
        assert_eq!(bytes(Test::SendBw, 65_536, 1).unwrap(), BUFFER_BYTES);
        assert!(bytes(Test::SendBw, 65_536, 2000).unwrap() >= 2000 * 65_536, "a slot for each queue pair");
        assert_eq!(bytes(Test::WriteBw, 256 << 20, 1).unwrap(), BUFFER_BYTES_MAX);
        assert!(bytes(Test::WriteLat, 200 << 20, 1).is_ok());
        for refused in [bytes(Test::WriteBw, 1 << 30, 1), bytes(Test::WriteLat, 256 << 20, 1)] {
            assert!(refused.is_err_and(|stop| stop.to_string().contains("512 MiB")));
        }
        assert!(bytes(Test::SendBw, u32::MAX, u32::MAX).is_err());
    }
}
