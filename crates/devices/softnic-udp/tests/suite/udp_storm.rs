//! A million random datagrams, and a million that are nearly right, thrown at both ends of long WRITEs: every byte of every
//! region is as it must be at all times, every datagram is accounted for, and nothing grows.
//!
//! A datagram with the right addresses, queue pair, sequence number and ICRC is accepted as the peer's: RoCEv2
//! cannot tell who sent it. So each of the nearly right ones is wrong in one thing at least.

use crate::udp_ends;
use crate::udp_forger;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use longhaul_softnic_udp::UdpDevice;
use longhaul_verbs::{
    Access, CompletionStatus, MemoryRegion, Mtu, QueuePairState, SendOperation, SendRequest, Transport,
};
use longhaul_wire::{Headers, NakCode, Opcode, Psn, Syndrome, aeth};
use rand_chacha::ChaCha12Rng;
use rand_core::Rng;
use udp_ends::{End, PSN, device};
use udp_forger::{Forger, Message, POISON, contents, counter, damage, noise, random, seen};

const MTU: Mtu = Mtu::Bytes1024;
const MTU_BYTES: usize = 1024;
const MESSAGE_BYTES: usize = 4 << 20;
const MESSAGE_PACKETS: u32 = (MESSAGE_BYTES / MTU_BYTES) as u32;
const BYSTANDER_BYTES: usize = 64 << 10;
/// What the memory that nobody writes to holds.
const OLD: u8 = 0x55;
/// 4.096 µs · 2^16 = 268 ms.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;

/// The tests take all cores, and look at the memory of the process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Two devices with real traffic from the first to the second, and things that nobody may touch.
struct Battlefield {
    rc: (End, End),
    uc: (End, End),
    /// Connected to the first device's address like the others, and used by nobody else.
    quiet: End,
    /// In the domain of the second RC end; no message names it.
    bystander: MemoryRegion,
    /// In a domain without queue pairs.
    foreign: MemoryRegion,
    /// How many RC messages have been sent.
    round: AtomicU32,
    is_over: AtomicBool,
}

impl Battlefield {
    fn new() -> Battlefield {
        let (from, to) = (device("127.0.9.1"), device("127.0.9.2"));
        let pair = |transport, bytes| {
            let pair = (End::new(&from, transport, bytes), End::new(&to, transport, bytes));
            pair.0.connect_with(&pair.1, MTU, TIMEOUT, RETRIES);
            pair.1.connect_with(&pair.0, MTU, TIMEOUT, RETRIES);
            pair
        };
        let rc = pair(Transport::ReliableConnection, MESSAGE_BYTES);
        let uc = pair(Transport::UnreliableConnection, MESSAGE_BYTES);
        let quiet = pair(Transport::UnreliableConnection, BYSTANDER_BYTES).1;
        quiet.region.copy_in(0, &[OLD; BYSTANDER_BYTES]);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bystander = rc.1.domain.register(vec![OLD; BYSTANDER_BYTES], access).unwrap();
        let lonely = to.verbs().allocate_protection_domain().unwrap();
        let foreign = lonely.register(vec![OLD; BYSTANDER_BYTES], access).unwrap();
        // A receive that nothing may take.
        let entry = [quiet.region.entry(0..BYSTANDER_BYTES)];
        quiet.queue_pair.post_receive(&[longhaul_verbs::ReceiveRequest { id: 1, local: &entry }]).unwrap();
        Battlefield { rc, uc, quiet, bystander, foreign, round: AtomicU32::new(0), is_over: AtomicBool::new(false) }
    }

    fn from(&self) -> &UdpDevice {
        &self.rc.0.device
    }

    fn to(&self) -> &UdpDevice {
        &self.rc.1.device
    }

    /// Write whole regions over both connections, until the storm is over. How often.
    fn write_on(&self) -> u32 {
        let mut round = 0;
        let mut unreliable_arrived = 0;
        while !self.is_over.load(Ordering::Relaxed) || round < 3 {
            let bytes = contents(round.into(), MESSAGE_BYTES);
            self.rc.0.region.copy_in(0, &bytes);
            self.uc.0.region.copy_in(0, &bytes);
            self.uc.1.post_receive(round.into(), 1);
            let remote = self.uc.1.region.remote(0);
            let entry = [self.uc.0.region.entry(0..MESSAGE_BYTES)];
            let operation = SendOperation::WriteWithImmediate(remote, round);
            self.uc.0.queue_pair.post_send(&[SendRequest::new(2, operation, &entry)]).unwrap();
            self.rc.0.post_write(1, MESSAGE_BYTES, &self.rc.1);
            let start = Instant::now();
            loop {
                // The last packets come last: until then nothing may be seen there but old bytes or new ones.
                for end in [&self.rc.1, &self.uc.1] {
                    let last = end.region.to_vec(MESSAGE_BYTES - MTU_BYTES..MESSAGE_BYTES);
                    assert!(last.iter().all(|byte| byte & 0x80 == 0), "poison in the last packet of a message");
                }
                if let Some(completion) = self.rc.0.completions.poll_one().unwrap() {
                    assert_eq!(completion.status, CompletionStatus::Success, "round {round}");
                    break;
                }
                if start.elapsed() > Duration::from_secs(20) {
                    let (from, to) = (what_was_counted(self.from()), what_was_counted(self.to()));
                    panic!("a write hangs in round {round}\nfrom: {from}\nto: {to}");
                }
            }
            assert!(self.rc.1.region.to_vec(0..MESSAGE_BYTES) == bytes, "round {round}: RC contents differ");
            assert_eq!(self.uc.0.wait().status, CompletionStatus::Success);
            // It has arrived, or it never will: a packet of it was lost.
            if let Some(completion) = self.uc.1.wait_for(Duration::from_millis(50)) {
                assert_eq!(completion.status, CompletionStatus::Success);
                assert_eq!(completion.immediate_or_key, round, "messages of UC come in order");
                assert!(self.uc.1.region.to_vec(0..MESSAGE_BYTES) == bytes, "round {round}: UC contents differ");
                unreliable_arrived += 1;
            }
            self.check_bystanders();
            round += 1;
            self.round.store(round, Ordering::Relaxed);
        }
        assert!(unreliable_arrived > 0, "no unreliable message has arrived in {round} rounds");
        round
    }

    fn check_bystanders(&self) {
        for (name, region) in
            [("bystander", &self.bystander), ("foreign", &self.foreign), ("quiet", &self.quiet.region)]
        {
            assert!(region.to_vec(0..BYSTANDER_BYTES).iter().all(|&byte| byte == OLD), "{name} memory was written");
        }
    }

    /// All that was sent has been counted, or was dropped by the kernel and counted there.
    fn check_accounts(&self, forged_at_from: u64, forged_at_to: u64) {
        let mut last = (0, Instant::now());
        while last.1.elapsed() < Duration::from_millis(100) {
            let now = seen(self.from()) + seen(self.to());
            if now != last.0 {
                last = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for (device, peer, forged) in [(self.from(), self.to(), forged_at_from), (self.to(), self.from(), forged_at_to)]
        {
            let sent = forged + counter(peer, "sent_pkts");
            let (seen, drops) = (seen(device), kernel_drops(device));
            let missing = sent.checked_sub(seen).unwrap_or_else(|| panic!("{sent} were sent, and {seen} seen"));
            // A drop is of one datagram, or of all that were sent in one call.
            assert!((drops..=64 * drops).contains(&missing), "of {sent} datagrams {seen} were seen; dropped: {drops}");
            eprintln!("{sent} datagrams sent, {forged} of them forged; {seen} seen, {drops} drops in the kernel");
        }
        for end in [&self.rc.0, &self.rc.1, &self.uc.0, &self.uc.1, &self.quiet] {
            assert_eq!(end.queue_pair.state(), QueuePairState::ReadyToSend);
        }
        assert!(self.quiet.completions.poll_one().unwrap().is_none(), "a receive was taken");
    }
}

fn what_was_counted(device: &UdpDevice) -> String {
    let counters = device.verbs().counters().into_iter().filter(|counter| counter.value > 0);
    let counters: Vec<_> = counters.map(|counter| format!("{}={}", counter.name, counter.value)).collect();
    let windows = device.device().nic().peer_windows();
    format!("{} drops={} {windows:?}", counters.join(" "), kernel_drops(device))
}

/// What the kernel dropped at the socket of a device for want of room.
fn kernel_drops(device: &UdpDevice) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let std::net::IpAddr::V4(address) = device.verbs().gid(1, 0).unwrap().gid.to_ip() else { unreachable!() };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.octets()), device.udp_port());
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local)).expect("the device's socket");
    line.split_whitespace().last().unwrap().parse().unwrap()
}

fn resident_bytes() -> usize {
    let statistics = std::fs::read_to_string("/proc/self/statm").unwrap();
    statistics.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Throw `count` datagrams while there is traffic, and check everything.
fn storm(count: u64, throw: impl Fn(&Battlefield, u64) -> (u64, u64) + Sync) {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let field = Battlefield::new();
    let resident_before = resident_bytes();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let forging = scope.spawn(|| {
            let thrown = throw(&field, count);
            field.is_over.store(true, Ordering::Relaxed);
            thrown
        });
        let rounds = field.write_on();
        let (at_from, at_to) = forging.join().unwrap();
        assert_eq!(at_from + at_to, count);
        eprintln!("{rounds} messages of 4 MiB on each connection, {:.1} s", started.elapsed().as_secs_f64());
        field.check_accounts(at_from, at_to);
        field.check_bystanders();
    });
    let grown = resident_bytes().saturating_sub(resident_before);
    // AddressSanitizer keeps what was freed, to see whether somebody still uses it.
    let is_sanitized = std::env::var_os("ASAN_OPTIONS").is_some();
    // Regions are touched for the first time, and a copy of each is compared.
    assert!(is_sanitized || grown < 64 << 20, "the process has grown by {grown} bytes");
    eprintln!("the process has grown by {} KiB", grown >> 10);
}

/// Do not get far ahead of a device: what its socket drops tests nothing. (What was lost is not waited for.)
fn keep_pace(field: &Battlefield, at_from: u64, at_to: u64) {
    const QUEUED_MOST: u64 = 512;
    let start = Instant::now();
    let lag = |device: &UdpDevice, peer: &UdpDevice, forged: u64| {
        (forged + counter(peer, "sent_pkts")).saturating_sub(seen(device))
    };
    while (lag(field.to(), field.from(), at_to) > QUEUED_MOST || lag(field.from(), field.to(), at_from) > QUEUED_MOST)
        && start.elapsed() < Duration::from_millis(1)
    {
        std::thread::yield_now();
    }
}

fn throw_noise(field: &Battlefield, count: u64) -> (u64, u64) {
    // Each comes from the address of the peer.
    let forgers = [Forger::new("127.0.9.2", field.from()), Forger::new("127.0.9.1", field.to())];
    let mut random = random(2026);
    let pool = noise(&mut random, 1 << 20);
    let mut thrown = [0; 2];
    for index in 0..count {
        let choice = random.next_u32() as usize;
        let length = match choice % 64 {
            0 => random.next_u32() as usize % 65_508,
            1..8 => MTU_BYTES + 16,
            8..16 => random.next_u32() as usize % 1500,
            _ => random.next_u32() as usize % 64,
        };
        let start = random.next_u32() as usize % (pool.len() - length);
        // The first device gets an eighth.
        let at = usize::from(choice >> 8 & 7 != 0);
        forgers[at].send(&pool[start..start + length]);
        thrown[at] += 1;
        if index % 64 == 0 {
            keep_pace(field, thrown[0], thrown[1]);
        }
    }
    (thrown[0], thrown[1])
}

/// Makes datagrams that are nearly right.
struct Forge<'a> {
    field: &'a Battlefield,
    /// At the addresses of the peers.
    forgers: [Forger; 2],
    stranger: Forger,
    random: ChaCha12Rng,
    thrown: [u64; 2],
    strangers: u64,
    /// With a wrong ICRC.
    damaged: u64,
}

impl Forge<'_> {
    fn pick(&mut self, below: u32) -> u32 {
        self.random.next_u32() % below
    }

    /// The packets of the RC message that is in flight, or was a moment ago, all poison.
    fn current(&self) -> Message {
        let (queue_pair, region) = (&self.field.rc.1.queue_pair, &self.field.rc.1.region);
        let psn = PSN.wrapping_add(self.field.round.load(Ordering::Relaxed) * MESSAGE_PACKETS) & 0xff_ffff;
        let empty = Message::to(queue_pair, psn, MTU, region, 0, &[]);
        Message { contents: vec![POISON; MTU_BYTES * 3], ..empty }
    }

    /// A packet of the current RC message: middle or last.
    fn near(&mut self) -> (Headers, Vec<u8>) {
        let ahead = self.pick(MESSAGE_PACKETS);
        let mut headers = self.current().headers(if self.pick(4) == 0 { 2 } else { 1 });
        headers.bth.psn = headers.bth.psn.add(ahead);
        (headers, vec![POISON; MTU_BYTES])
    }

    /// A WRITE of one packet that would be carried out at once.
    fn write_only(&mut self, end: &End, region: &MemoryRegion) -> (Headers, Vec<u8>) {
        let length = 4 * (1 + self.pick(60) as usize);
        let offset = self.pick((region.len() - length) as u32) as usize;
        let psn = self.pick(1 << 24);
        let message = Message::to(&end.queue_pair, psn, MTU, region, offset, &vec![POISON; length]);
        (message.headers(0), message.contents)
    }

    /// Something that would change memory, if it were right.
    fn harmful(&mut self) -> (Headers, Vec<u8>) {
        let field = self.field;
        match self.pick(4) {
            0 => self.write_only(&field.uc.1, &field.uc.1.region),
            1 => self.write_only(&field.quiet, &field.quiet.region),
            _ => self.near(),
        }
    }

    fn at_to(&mut self, datagram: &[u8]) {
        self.forgers[1].send(datagram);
        self.thrown[1] += 1;
    }

    fn throw_one(&mut self) {
        let field = self.field;
        match self.pick(100) {
            // A foreign queue pair: nobody's number.
            0..10 => {
                let (mut headers, payload) = self.harmful();
                headers.bth.destination_qp ^= 0x80_0000 | self.pick(1 << 20);
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            10..16 => {
                let (mut headers, payload) = self.harmful();
                match self.pick(2) {
                    0 => headers.bth.version = 1 + self.pick(15) as u8,
                    _ => headers.bth.partition_key = 0x8000 | self.pick(0x7fff) as u16,
                }
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            // Somebody else's address.
            16..26 => {
                let (headers, payload) = self.harmful();
                self.stranger.send(&self.stranger.datagram(&headers, &payload));
                self.thrown[1] += 1;
                self.strangers += 1;
            }
            // Old sequence numbers, with keys that are right.
            26..36 => {
                let (mut headers, payload) = match self.pick(3) {
                    0 => self.write_only(&field.rc.1, &field.rc.1.region),
                    1 => self.write_only(&field.rc.1, &field.bystander),
                    _ => self.near(),
                };
                headers.bth.psn = Psn::new(PSN).back(1 + self.pick(1 << 20));
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            // Too early: each makes the sender repeat, so there are few.
            36 => {
                let (mut headers, payload) = self.near();
                headers.bth.psn = self.current_psn().add((1 << 20) + self.pick(1 << 20));
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            // Opcodes of another transport.
            37..45 => {
                let (mut headers, payload) = self.near();
                headers.bth.opcode = match self.pick(3) {
                    0 => Opcode::UcWriteMiddle,
                    1 => Opcode::UcSendLast,
                    _ => Opcode::RcReadResponseMiddle,
                };
                if self.pick(2) == 0 {
                    headers.bth.destination_qp = field.uc.1.queue_pair.number().value();
                    headers.bth.opcode = Opcode::RcWriteMiddle;
                }
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            // A damaged packet, headers or payload or ICRC.
            45..60 => {
                let (headers, payload) = self.harmful();
                let mut datagram = self.forgers[1].datagram(&headers, &payload);
                damage(&mut self.random, &mut datagram);
                self.damaged += 1;
                self.at_to(&datagram);
            }
            // A random ICRC on what would be taken only at one moment.
            60..65 => {
                let (headers, payload) = self.near();
                let mut datagram = self.forgers[1].datagram(&headers, &payload);
                let end = datagram.len();
                self.random.fill_bytes(&mut datagram[end - 4..]);
                self.damaged += 1;
                self.at_to(&datagram);
            }
            // Shorter or longer, with the ICRC of what it was, or a right one.
            65..80 => {
                let (headers, payload) = self.write_only(&field.quiet, &field.quiet.region);
                let mut datagram = self.forgers[1].datagram(&headers, &payload);
                let length = datagram.len();
                match self.pick(2) {
                    0 => datagram.truncate(self.pick(length as u32) as usize),
                    _ => datagram.resize(length + 4 * (1 + self.pick(400) as usize), POISON),
                }
                if self.pick(2) == 0 {
                    self.forgers[1].seal(&mut datagram);
                }
                self.at_to(&datagram);
            }
            // Keys that are wrong, or right for somebody else; ranges that are too long; lengths that lie.
            80..92 => {
                let (mut headers, payload) = self.write_only(&field.quiet, &field.quiet.region);
                let reth = headers.reth.as_mut().unwrap();
                match self.random.next_u32() % 6 {
                    0 => reth.remote_key ^= 1 << (self.random.next_u32() % 32),
                    1 => reth.remote_key = field.bystander.remote_key(),
                    2 => {
                        (reth.remote_key, reth.virtual_address) = (field.foreign.remote_key(), field.foreign.address())
                    }
                    3 => reth.virtual_address = field.quiet.region.address() + BYSTANDER_BYTES as u64 - 3,
                    4 => reth.virtual_address = field.quiet.region.address() - 1,
                    _ => reth.dma_length += 1 + self.random.next_u32() % 0x1_0000,
                }
                let datagram = self.forgers[1].datagram(&headers, &payload);
                self.at_to(&datagram);
            }
            // Answers to nothing: old ones, and ones about what was never sent.
            _ => {
                let number = field.rc.0.queue_pair.number().value();
                let psn = match self.pick(2) {
                    0 => Psn::new(PSN).back(1 + self.pick(1 << 20)),
                    _ => self.current_psn().add((1 << 20) + self.pick(1 << 20)),
                };
                let mut headers = Headers::new(Opcode::RcAcknowledge, number, psn);
                let syndrome = match self.pick(4) {
                    0 => Syndrome::Ack { credits: 31 },
                    1 => Syndrome::RnrNak { timer: 31 },
                    2 => Syndrome::Nak(NakCode::PsnSequenceError),
                    _ => Syndrome::Nak(NakCode::RemoteAccessError),
                };
                headers.aeth = Some(aeth::Header { syndrome, message_sequence_number: self.pick(1 << 24) });
                self.forgers[0].send(&self.forgers[0].datagram(&headers, &[]));
                self.thrown[0] += 1;
            }
        }
    }

    fn current_psn(&self) -> Psn {
        Psn::new(self.current().psn)
    }
}

fn throw_nearly_right(field: &Battlefield, count: u64) -> (u64, u64) {
    let forgers = [Forger::new("127.0.9.2", field.from()), Forger::new("127.0.9.1", field.to())];
    let stranger = Forger::new("127.0.9.3", field.to());
    let mut forge = Forge { field, forgers, stranger, random: random(1984), thrown: [0; 2], strangers: 0, damaged: 0 };
    for index in 0..count {
        forge.throw_one();
        if index % 64 == 0 {
            keep_pace(field, forge.thrown[0], forge.thrown[1]);
        }
    }
    udp_forger::wait_until("the last ones have been looked at", || {
        let drops = 64 * kernel_drops(field.to());
        counter(field.to(), "rx_wrong_peer") + drops >= forge.strangers
            && counter(field.to(), "rx_icrc_encapsulated") + drops + 100 >= forge.damaged
    });
    let wrong_peer = counter(field.to(), "rx_wrong_peer");
    assert!(wrong_peer <= forge.strangers, "{wrong_peer} of {} strangers", forge.strangers);
    assert!(counter(field.to(), "resp_remote_access_errors") > 0, "wrong keys are counted");
    assert!(counter(field.to(), "rx_no_queue_pair") > 0, "foreign queue pairs are counted");
    assert!(counter(field.to(), "duplicate_request") > 0, "old sequence numbers are counted");
    (forge.thrown[0], forge.thrown[1])
}

#[test]
fn a_million_random_datagrams() {
    storm(1_000_000, throw_noise);
}

#[test]
fn a_million_nearly_right_datagrams() {
    storm(1_000_000, throw_nearly_right);
}
