//! The two ends of `longhaul perf sdr`: the sender on the calling thread, the receiver on one of its own.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::time::{Duration, Instant};

use longhaul::with_sources;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, Memory, QueuePair, Receive, ReceiveError, SendError, SendStream};
use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};
use longhaul_time::Instant as Moment;
use longhaul_verbs::Mtu;

use super::queue_pair::create_queue_pair;
use crate::connection::{Connection, Contact, Group, GroupOptions};
use crate::device::{DeviceChoice, OpenedDevice, Towards};
use crate::error::PerfError;
use crate::nic::Nic;
use crate::operation::Operation;
use crate::randomness::random_number;
use crate::stream::{Bound, Receiver, Run, Sender};

/// How long the other thread may take to carry out an order, apart from measuring.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// A sender whose messages are not acknowledged for this long gives up.
const ACKNOWLEDGEMENT_PATIENCE: Duration = Duration::from_secs(10);
/// When messages have begun to arrive and no packet has come for this long, the first of them has lost one.
const LOST_AFTER: Duration = Duration::from_millis(250);
/// Acknowledgements are cumulative, and said again after this long, because they can be lost.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(5);
/// Acknowledgement time-out of RC, 4.096 µs · 2^14, perftest's.
const TIMEOUT: u8 = 14;
/// Messages begin at multiples of this.
const ALIGNMENT: usize = 4096;

/// What is measured.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) message_bytes: usize,
    /// A queue pair of SDR for each.
    pub(super) chunks: Vec<u32>,
    /// Messages in flight.
    pub(super) depth: u32,
}

impl Work {
    fn memory_bytes(&self) -> usize {
        self.message_bytes.next_multiple_of(ALIGNMENT) * self.depth as usize
    }

    fn range(&self, number: u64) -> std::ops::Range<usize> {
        let place = (number % u64::from(self.depth)) as usize;
        let start = place * self.message_bytes.next_multiple_of(ALIGNMENT);
        start..start + self.message_bytes
    }

    fn rc_run(&self, duration: Duration) -> Run {
        let (message_bytes, bound) = (self.message_bytes as u32, Bound::Time(duration));
        Run { operation: Operation::Write, message_bytes, bound, verify_seed: None }
    }

    fn rc_options(&self) -> Result<GroupOptions, PerfError> {
        Ok(GroupOptions {
            connection: Connection::Rc,
            queue_pairs: 1,
            send_depth: self.depth,
            receive_depth: 1,
            outstanding_reads: 0,
            remote_access: Operation::Write.remote_access(),
            sleeps: false,
            timeout: TIMEOUT,
            rate_bits_per_second: None,
            seed: random_number()?,
        })
    }
}

/// The result of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) messages: u64,
    /// Of them, those that lost a packet.
    pub(super) incomplete: u64,
    elapsed: Duration,
}

impl Round {
    pub(super) fn gigabits_per_second(&self, message_bytes: usize) -> f64 {
        let messages = self.messages - self.incomplete.min(self.messages);
        messages as f64 * message_bytes as f64 * 8.0 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// How one end reaches the other.
#[derive(Clone)]
struct Contacts {
    rc: Contact,
    sdr: Vec<QueuePairInfo>,
}

enum Order {
    Connect(Contacts),
    /// Subject 0 is RC, the others are SDR's queue pairs.
    Run(usize),
}

enum Reply {
    Contacts(Contacts),
    Connected,
    Running,
    Done,
}

/// The sender, and how it speaks with the receiver's thread.
pub(super) struct Pair {
    work: Work,
    rc: Sender,
    sdr: Vec<SdrSender>,
    orders: Option<Outbox<Order>>,
    replies: Inbox<Result<Reply, PerfError>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    _nic: Nic,
}

impl Pair {
    /// Starts and connects both ends.
    pub(super) fn start(work: Work) -> Result<Pair, PerfError> {
        let (orders, inbox) = channel();
        let (outbox, replies) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_there, work_there) = (stop.clone(), work.clone());
        let thread = std::thread::spawn(move || {
            if let Err(error) = receive_as_told(&work_there, &inbox, &outbox, &stop_there) {
                // The other thread takes it for the next reply.
                let _ = outbox.send(Err(error));
            }
        });
        let theirs = match reply(&replies)? {
            Reply::Contacts(contacts) => contacts,
            _ => return Err(out_of_order()),
        };
        let device = open(SENDER, RECEIVER)?;
        let sdr: Result<Vec<_>, PerfError> =
            work.chunks.iter().map(|&chunk| SdrSender::new(&device, &work, chunk)).collect();
        let sdr = sdr?;
        let mtu = device.mtu()?;
        let nic = Nic::new(device, work.memory_bytes(), Operation::Write.remote_access())?;
        let mut rc = Sender::new(nic.create_group(work.rc_options()?)?);
        let ours = Contacts { rc: rc.group().contact(mtu), sdr: sdr.iter().map(|one| one.queue_pair.info()).collect() };
        send(&orders, Order::Connect(ours))?;
        connect(rc.group(), sdr.iter().map(|one| &one.queue_pair), &theirs, mtu)?;
        rc.start()?;
        let pair = Pair { work, rc, sdr, orders: Some(orders), replies, stop, thread: Some(thread), _nic: nic };
        match reply(&pair.replies)? {
            Reply::Connected => Ok(pair),
            _ => Err(out_of_order()),
        }
    }

    /// One round of RC (0) or of SDR with one of the sizes of chunks.
    pub(super) fn round(&mut self, subject: usize, duration: Duration) -> Result<Round, PerfError> {
        self.stop.store(false, Ordering::Release);
        if let Some(orders) = &self.orders {
            send(orders, Order::Run(subject))?;
        }
        match reply(&self.replies)? {
            Reply::Running => {}
            _ => return Err(out_of_order()),
        }
        let round = match subject.checked_sub(1) {
            None => self.rc.run(&self.work.rc_run(duration), &|| false).map(|sent| Round {
                messages: sent.messages,
                incomplete: 0,
                elapsed: sent.elapsed,
            }),
            Some(index) => self.sdr[index].run(&self.work, duration),
        };
        self.stop.store(true, Ordering::Release);
        let replied = reply(&self.replies);
        // The receiver's reason says more than that it did not answer.
        match (round, replied) {
            (_, Err(stop)) => Err(stop),
            (round, Ok(Reply::Done)) => round,
            (_, Ok(_)) => Err(out_of_order()),
        }
    }

    /// Ends the receiver's thread.
    pub(super) fn end(mut self) -> Result<(), PerfError> {
        self.orders = None;
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Err(_)) => Err(PerfError::Failed("the receiver's thread panicked".to_owned())),
            _ => Ok(()),
        }
    }
}

fn send(orders: &Outbox<Order>, order: Order) -> Result<(), PerfError> {
    orders.send(order).map_err(|_| PerfError::Failed("the receiver has ended early".to_owned()))
}

fn reply(replies: &Inbox<Result<Reply, PerfError>>) -> Result<Reply, PerfError> {
    let reply = replies.recv_timeout(ANSWER_PATIENCE);
    reply.unwrap_or_else(|error| Err(PerfError::failed("the receiver has not answered in time", error)))
}

fn out_of_order() -> PerfError {
    PerfError::Failed("the receiver's answers are out of order".to_owned())
}

fn connect<'a>(
    rc: &mut Group,
    sdr: impl Iterator<Item = &'a QueuePair>,
    peer: &Contacts,
    mtu: Mtu,
) -> Result<(), PerfError> {
    rc.connect(&peer.rc, mtu)?;
    for (queue_pair, info) in sdr.zip(&peer.sdr) {
        queue_pair.connect(info).map_err(|error| PerfError::failed("cannot connect", with_sources(&error)))?;
    }
    Ok(())
}

/// The receiver's thread.
fn receive_as_told(
    work: &Work,
    orders: &Inbox<Order>,
    replies: &Outbox<Result<Reply, PerfError>>,
    stop: &AtomicBool,
) -> Result<(), PerfError> {
    let device = open(RECEIVER, SENDER)?;
    let sdr: Result<Vec<_>, PerfError> =
        work.chunks.iter().map(|&chunk| SdrReceiver::new(&device, work, chunk)).collect();
    let mut sdr = sdr?;
    let mtu = device.mtu()?;
    let nic = Nic::new(device, work.memory_bytes(), Operation::Write.remote_access())?;
    let mut rc = Receiver::new(nic.create_group(work.rc_options()?)?);
    let say = |reply| replies.send(Ok(reply)).map_err(|_| PerfError::Failed("the sender has ended early".to_owned()));
    let infos = sdr.iter().map(|one| one.queue_pair.info()).collect();
    say(Reply::Contacts(Contacts { rc: rc.group().contact(mtu), sdr: infos }))?;
    // The end of the orders is the end of the work.
    while let Ok(order) = orders.recv() {
        match order {
            Order::Connect(peer) => {
                connect(rc.group(), sdr.iter().map(|one| &one.queue_pair), &peer, mtu)?;
                say(Reply::Connected)?;
            }
            Order::Run(subject) => {
                say(Reply::Running)?;
                let is_stopped = || stop.load(Ordering::Acquire);
                match subject.checked_sub(1) {
                    None => drop(rc.run(&work.rc_run(Duration::ZERO), work.message_bytes, &is_stopped)?),
                    Some(index) => sdr[index].run(work, &is_stopped)?,
                }
                say(Reply::Done)?;
            }
        }
    }
    Ok(())
}

/// A queue pair of SDR with memory.
struct End {
    context: Context,
    memory: Memory,
    started: Instant,
}

fn create(device: &OpenedDevice, work: &Work, chunk_bytes: u32) -> Result<(End, QueuePair), PerfError> {
    let (context, queue_pair) = create_queue_pair(device, chunk_bytes, work.message_bytes as u64)?;
    let memory = context.register(vec![0x5a; work.memory_bytes()]);
    let memory = memory.map_err(|error| PerfError::failed("cannot register memory", with_sources(&error)))?;
    Ok((End { context, memory, started: Instant::now() }, queue_pair))
}

impl End {
    fn poll(&self, queue_pair: &QueuePair) -> Result<(), PerfError> {
        let taken = self.context.poll();
        taken.map_err(|error| PerfError::failed("cannot take completions", with_sources(&error)))?;
        let now = Moment::from_nanos(self.started.elapsed().as_nanos() as u64);
        queue_pair.poll(now).map_err(|error| PerfError::failed("the queue pair has failed", with_sources(&error)))
    }
}

/// What an acknowledgement says: messages that have ended so far, and those of them that were incomplete.
fn acknowledgement(ended: u64, incomplete: u64) -> Vec<u8> {
    [ended.to_be_bytes(), incomplete.to_be_bytes()].concat()
}

fn read_acknowledgement(bytes: &[u8]) -> Option<(u64, u64)> {
    let (ended, incomplete) = bytes.split_at_checked(8)?;
    Some((u64::from_be_bytes(ended.try_into().ok()?), u64::from_be_bytes(incomplete.try_into().ok()?)))
}

struct SdrSender {
    end: End,
    queue_pair: QueuePair,
    in_flight: VecDeque<SendStream>,
    /// Messages that were posted, that were acknowledged, and that were so as incomplete.
    posted: u64,
    ended: u64,
    incomplete: u64,
}

impl SdrSender {
    fn new(device: &OpenedDevice, work: &Work, chunk_bytes: u32) -> Result<Self, PerfError> {
        let (end, queue_pair) = create(device, work, chunk_bytes)?;
        Ok(SdrSender { end, queue_pair, in_flight: VecDeque::new(), posted: 0, ended: 0, incomplete: 0 })
    }

    fn run(&mut self, work: &Work, duration: Duration) -> Result<Round, PerfError> {
        let begin = Instant::now();
        let (ended_before, incomplete_before) = (self.ended, self.incomplete);
        let mut progress = begin;
        loop {
            let now = Instant::now();
            let is_over = now.duration_since(begin) >= duration;
            if is_over && self.in_flight.is_empty() {
                break;
            }
            while !is_over && self.in_flight.len() < work.depth as usize && self.post(work)? {}
            self.end.poll(&self.queue_pair)?;
            if self.take_acknowledgements() {
                progress = Instant::now();
            } else if now.duration_since(progress) > ACKNOWLEDGEMENT_PATIENCE {
                return Err(PerfError::Failed(format!(
                    "none of {} messages in flight to {RECEIVER} was acknowledged for {} s: a firewall drops UDP on the loopback \
                     device, or it loses packets (firewall or loss)",
                    self.in_flight.len(),
                    ACKNOWLEDGEMENT_PATIENCE.as_secs()
                )));
            }
        }
        Ok(Round {
            messages: self.ended - ended_before,
            incomplete: self.incomplete - incomplete_before,
            elapsed: progress.duration_since(begin),
        })
    }

    /// Whether there was room for one more message.
    fn post(&mut self, work: &Work) -> Result<bool, PerfError> {
        match self.queue_pair.post_send(&self.end.memory, work.range(self.posted), None) {
            Ok(stream) => {
                self.in_flight.push_back(stream);
                self.posted += 1;
                Ok(true)
            }
            Err(SendError::TableFull(_)) => Ok(false),
            Err(error) => Err(PerfError::failed("cannot send a message", with_sources(&error))),
        }
    }

    /// Whether messages have ended.
    fn take_acknowledgements(&mut self) -> bool {
        let before = self.ended;
        while let Some(bytes) = self.queue_pair.take_from_peer() {
            // An older one may come later.
            if let Some((ended, incomplete)) = read_acknowledgement(&bytes)
                && (self.ended..=self.posted).contains(&ended)
            {
                self.in_flight.drain(..(ended - self.ended) as usize);
                (self.ended, self.incomplete) = (ended, self.incomplete.max(incomplete));
            }
        }
        self.ended != before
    }
}

struct SdrReceiver {
    end: End,
    queue_pair: QueuePair,
    posted: VecDeque<Receive>,
    /// Messages that have receives, that have ended, and that ended incomplete.
    next: u64,
    ended: u64,
    incomplete: u64,
}

impl SdrReceiver {
    fn new(device: &OpenedDevice, work: &Work, chunk_bytes: u32) -> Result<Self, PerfError> {
        let (end, queue_pair) = create(device, work, chunk_bytes)?;
        Ok(SdrReceiver { end, queue_pair, posted: VecDeque::new(), next: 0, ended: 0, incomplete: 0 })
    }

    fn run(&mut self, work: &Work, is_stopped: &dyn Fn() -> bool) -> Result<(), PerfError> {
        let mut progress = Instant::now();
        let mut acknowledged = progress;
        let mut arrived = self.queue_pair.counters().1.arrived;
        while !is_stopped() {
            while self.posted.len() < work.depth as usize && self.post(work)? {}
            self.end.poll(&self.queue_pair)?;
            let now = Instant::now();
            let before = self.ended;
            // The reliability layer of the paper's loop: look at the bitmap until every chunk is there.
            while self.posted.front().is_some_and(|receive| receive.bitmap().is_complete()) {
                self.complete_first()?;
            }
            if self.ended == before && now.duration_since(progress) > LOST_AFTER && self.has_begun() {
                let arrived_now = self.queue_pair.counters().1.arrived;
                if arrived_now == arrived {
                    self.incomplete += 1;
                    self.complete_first()?;
                }
                (progress, arrived) = (now, arrived_now);
            }
            if self.ended != before {
                progress = now;
            }
            if self.ended != before || now.duration_since(acknowledged) > ACKNOWLEDGE_EVERY {
                acknowledged = now;
                self.queue_pair.send_to_peer(acknowledgement(self.ended, self.incomplete));
                self.end.poll(&self.queue_pair)?;
            }
        }
        Ok(())
    }

    /// Whether any of the messages has begun to arrive.
    fn has_begun(&self) -> bool {
        self.posted.iter().any(|receive| receive.bitmap().whole_chunks() > 0)
    }

    fn complete_first(&mut self) -> Result<(), PerfError> {
        if let Some(receive) = self.posted.pop_front() {
            let message = receive.complete();
            drop(message.map_err(|error| PerfError::failed("cannot complete a message", with_sources(&error)))?);
            self.ended += 1;
        }
        Ok(())
    }

    /// Whether there was room for one more receive.
    fn post(&mut self, work: &Work) -> Result<bool, PerfError> {
        match self.queue_pair.post_receive(&self.end.memory, work.range(self.next)) {
            Ok(receive) => {
                self.posted.push_back(receive);
                self.next += 1;
                Ok(true)
            }
            Err(ReceiveError::TableFull(_)) => Ok(false),
            Err(error) => Err(PerfError::failed("cannot post a receive", with_sources(&error))),
        }
    }
}

/// The device of an end.
fn open(address: IpAddr, peer: IpAddr) -> Result<OpenedDevice, PerfError> {
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let towards = Towards { local: address, peer, gid_index: None };
    OpenedDevice::open(&DeviceChoice::softnic_at(address), towards, udp)
}

const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const RECEIVER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
