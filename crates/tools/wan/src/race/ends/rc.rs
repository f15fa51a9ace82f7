//! RC of the software RNIC, through verbs: SENDs of whole messages, go-back-N below. What hardware does.
//!
//! The ends exchange queue pair numbers over TCP, as programs that use verbs do.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul::softnic::UdpConfig;
use longhaul::{DeviceName, Endpoint, Towards};
use longhaul_link::namespaces::Side;
use longhaul_verbs::{
    Access, CompletionChannel, CompletionQueue, Gid, MemoryRegion, Mtu, QueuePair, QueuePairAttributes,
    QueuePairLimits, QueuePairNumber, QueuePairOptions, ReceiveRequest, SendFlags, SendOperation, SendRequest,
    Transport, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::clock::now;
use crate::race::end_error::EndError;
use crate::race::orders::{Contact, Measure, Work};
use crate::race::prepared::{End, PATIENCE};
use crate::race::tally::{Tally, sleep_until};

/// Receiver-not-ready timer of 0.64 ms, as the specification encodes it; retries without end while it is not ready.
const NOT_READY_TIMER: u8 = 12;
const NOT_READY_RETRIES: u8 = 7;
const RETRIES: u8 = 7;
/// The longest time-out that can be said.
const TIMEOUT_MAX: u8 = 31;
/// A thread that waits looks at the clock at least this often.
const LOOK_MILLIS: u16 = 100;

/// What the other end must know.
#[derive(Serialize, Deserialize)]
struct Hello {
    address: IpAddr,
    udp_port: u16,
    mtu_bytes: u32,
    /// Number and first sequence number of each queue pair.
    queue_pairs: Vec<(u32, u32)>,
}

/// Queue pairs with one completion queue, and memory for one message, which all share: bytes are not looked at.
struct Group {
    endpoint: Endpoint,
    completions: CompletionQueue,
    channel: CompletionChannel,
    queue_pairs: Vec<QueuePair>,
    region: MemoryRegion,
    mtu: Mtu,
    work: Work,
}

impl Group {
    fn open(side: Side, work: &Work) -> Result<Self, EndError> {
        let (local, peer) = match side {
            Side::Left => (Side::Left, Side::Right),
            Side::Right => (Side::Right, Side::Left),
        };
        let [local, peer] = [local, peer].map(|side| IpAddr::from(side.address()));
        let name = DeviceName::Softnic { addresses: vec![local] };
        let towards = Towards { local, peer, gid_index: None };
        let endpoint = Endpoint::open(&name, towards, UdpConfig::default());
        let endpoint = endpoint.map_err(EndError::failed("open the software RNIC"))?;
        let mtu = endpoint.mtu_towards(peer).map_err(EndError::failed("ask for the MTU"))?.unwrap_or_default();
        let device = endpoint.device();
        let failed = |error| EndError::failed("make a queue pair")(error);
        let channel = device.create_completion_channel().map_err(failed)?;
        let depth = work.depth() as u32 + 2;
        let entries = 2 * depth * work.connections as u32;
        let completions = device.create_completion_queue_on(entries, &channel, 0).map_err(failed)?;
        let domain = device.allocate_protection_domain().map_err(failed)?;
        let region = domain.register(vec![0x5a; work.message_bytes], Access::LOCAL_WRITE);
        let region = region.map_err(EndError::failed("register memory"))?;
        let limits = QueuePairLimits {
            send_requests: depth,
            receive_requests: depth,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let options = QueuePairOptions { limits, signal_all: true, shared_receive_queue: None };
        let make = |_| domain.create_queue_pair(Transport::ReliableConnection, &completions, &completions, &options);
        let queue_pairs = (0..work.connections).map(make).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        for queue_pair in &queue_pairs {
            let attributes = QueuePairAttributes::init_connected(Access::empty());
            let attributes = QueuePairAttributes { port: Some(endpoint.port()), ..attributes };
            queue_pair.modify(&attributes).map_err(EndError::failed("initialize a queue pair"))?;
        }
        Ok(Group { endpoint, completions, channel, queue_pairs, region, mtu, work: work.clone() })
    }

    fn hello(&self) -> Hello {
        Hello {
            address: self.endpoint.address(),
            udp_port: self.endpoint.udp_port(),
            mtu_bytes: self.mtu.byte_count(),
            queue_pairs: self.queue_pairs.iter().map(|pair| (pair.number().value(), first_psn(pair))).collect(),
        }
    }

    /// Exchanges numbers over a TCP connection, and connects.
    fn connect(&self, stream: TcpStream) -> Result<(), EndError> {
        let failed = EndError::failed::<io::Error>("exchange queue pair numbers");
        stream.set_read_timeout(Some(PATIENCE)).map_err(&failed)?;
        let line = serde_json::to_string(&self.hello()).map_err(EndError::failed("say who we are"))?;
        writeln!(&stream, "{line}").map_err(&failed)?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map_err(&failed)?;
        let theirs: Hello = serde_json::from_str(&line).map_err(EndError::failed("understand the other end"))?;
        let mtu = Mtu::largest_within(theirs.mtu_bytes).unwrap_or_default().min(self.mtu);
        let path = self.endpoint.path_to(Gid::from_ip(theirs.address), theirs.udp_port);
        let timeout = timeout(Duration::from_nanos(self.work.round_trip_max_nanos));
        for (queue_pair, (number, psn)) in self.queue_pairs.iter().zip(theirs.queue_pairs) {
            let receive = QueuePairAttributes::ready_to_receive(path, mtu, QueuePairNumber::new(number), psn);
            let send = QueuePairAttributes::ready_to_send(first_psn(queue_pair));
            for attributes in [
                receive.reliable_receive(1, NOT_READY_TIMER),
                send.reliable_send(timeout, RETRIES, NOT_READY_RETRIES, 1),
            ] {
                queue_pair.modify(&attributes).map_err(EndError::failed("connect a queue pair"))?;
            }
        }
        Ok(())
    }

    fn post_send(&self, index: usize) -> Result<(), EndError> {
        let entry = [self.region.entry(0..self.work.message_bytes)];
        let request = SendRequest::new(index as u64, SendOperation::Send, &entry).with_flags(SendFlags::SIGNALED);
        self.queue_pairs[index].post_send(&[request]).map_err(EndError::failed("post a SEND"))
    }

    fn post_receive(&self, index: usize) -> Result<(), EndError> {
        let entry = [self.region.entry(0..self.work.message_bytes)];
        let request = ReceiveRequest { id: index as u64, local: &entry };
        self.queue_pairs[index].post_receive(&[request]).map_err(EndError::failed("post a receive"))
    }

    /// Sleeps until something has completed, and takes it: the queue pair of each. Empty when time is over.
    fn completed(&self, until: Duration) -> Result<Vec<usize>, EndError> {
        let mut room = [WorkCompletion::default(); 16];
        let failed = EndError::failed::<&str>("wait for completions");
        while now() < until {
            let mut count = self.completions.poll(&mut room).map_err(EndError::failed("poll completions"))?;
            if count == 0 {
                self.completions.request_notification(false).map_err(EndError::failed("ask for an event"))?;
                // What completed before that makes no event.
                count = self.completions.poll(&mut room).map_err(EndError::failed("poll completions"))?;
            }
            if count > 0 {
                if let Some(bad) = room[..count].iter().find(|completion| !completion.is_success()) {
                    return Err(EndError::failed("send over RC")(format!("completed with {:?}", bad.status)));
                }
                return Ok(room[..count].iter().map(|completion| completion.id as usize).collect());
            }
            let descriptor = self.channel.descriptor();
            let descriptor = descriptor.ok_or_else(|| failed("this device wakes nobody"))?;
            let _ = poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], PollTimeout::from(LOOK_MILLIS));
            while self.channel.next_event().map_err(EndError::failed("take an event"))?.is_some() {}
        }
        Ok(Vec::new())
    }
}

fn first_psn(queue_pair: &QueuePair) -> u32 {
    queue_pair.number().value().wrapping_mul(0x9e37_79b9) >> 8
}

/// 4.096 µs · 2ⁿ, at least twice the round trip: a shorter one would repeat what has arrived.
fn timeout(round_trip: Duration) -> u8 {
    let is_enough = |exponent: &u8| Duration::from_nanos(4096) * (1_u32 << *exponent) >= 2 * round_trip;
    (1..TIMEOUT_MAX).find(is_enough).unwrap_or(TIMEOUT_MAX)
}

struct Receiver {
    group: Arc<Group>,
}

pub(super) fn receiver(work: &Work, tally: &Arc<Tally>) -> Result<(Contact, Box<dyn End>), EndError> {
    let group = Arc::new(Group::open(Side::Right, work)?);
    let failed = EndError::failed::<io::Error>("listen for the other end");
    let listener = TcpListener::bind((Side::Right.address(), 0)).map_err(&failed)?;
    let contact = Contact { address: listener.local_addr().map_err(&failed)?.to_string(), ..Contact::default() };
    let connecting = group.clone();
    tally.spawn(move |_| {
        let (stream, _) = listener.accept().map_err(EndError::failed("accept the other end"))?;
        connecting.connect(stream)
    });
    Ok((contact, Box::new(Receiver { group })))
}

impl End for Receiver {
    fn start(&mut self, _: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        let group = self.group.clone();
        for index in 0..group.work.connections {
            (0..group.work.depth() + 1).try_for_each(|_| group.post_receive(index))?;
        }
        tally.spawn(move |tally| {
            let flows: Vec<_> = (0..group.work.connections).map(|_| tally.meter.flow()).collect();
            let mut arrived = 0;
            loop {
                let completed = group.completed(until)?;
                if completed.is_empty() {
                    return Ok(());
                }
                for index in completed {
                    flows[index].fetch_add(group.work.message_bytes as u64, Ordering::Relaxed);
                    arrived += 1;
                    if let Measure::Completion(count) = group.work.measure {
                        tally.stamp();
                        if arrived == count {
                            tally.end();
                        }
                    }
                    group.post_receive(index)?;
                }
            }
        });
        Ok(())
    }
}

struct Sender {
    group: Arc<Group>,
}

pub(super) fn sender(work: &Work, contact: &Contact) -> Result<Box<dyn End>, EndError> {
    let address: SocketAddr = contact.address.parse().map_err(EndError::failed("understand an address"))?;
    let group = Arc::new(Group::open(Side::Left, work)?);
    let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(EndError::failed("reach the other end"))?;
    group.connect(stream)?;
    Ok(Box::new(Sender { group }))
}

impl End for Sender {
    fn start(&mut self, start: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        let group = self.group.clone();
        tally.spawn(move |tally| {
            sleep_until(start);
            match group.work.measure {
                Measure::Bulk => send_bulk(&group, until),
                Measure::Completion(count) => {
                    for _ in 0..count {
                        if now() >= until {
                            break;
                        }
                        tally.stamp();
                        group.post_send(0)?;
                        group.completed(until)?;
                    }
                    tally.end();
                    Ok(())
                }
            }
        });
        Ok(())
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.group.endpoint.statistics().iter().map(|(name, count)| (name.to_owned(), count)).collect()
    }
}

fn send_bulk(group: &Group, until: Duration) -> Result<(), EndError> {
    for _ in 0..group.work.depth() {
        (0..group.work.connections).try_for_each(|index| group.post_send(index))?;
    }
    loop {
        let completed = group.completed(until)?;
        if completed.is_empty() {
            return Ok(());
        }
        completed.into_iter().try_for_each(|index| group.post_send(index))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_at_least_two_round_trips() {
        let time = |exponent: u8| Duration::from_nanos(4096) * (1 << exponent);
        for millis in [1, 25, 30, 120] {
            let round_trip = Duration::from_millis(millis);
            let chosen = timeout(round_trip);
            assert!(time(chosen) >= 2 * round_trip && time(chosen - 1) < 2 * round_trip, "{millis} ms: {chosen}");
        }
        assert_eq!(timeout(Duration::from_secs(100_000)), TIMEOUT_MAX);
    }
}
