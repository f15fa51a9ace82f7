//! Random flows over random networks: loss, reordering, duplicates, go-back-N with other contents, READs that skip PSNs. What comes
//! out was sent, waits no longer than allowed, is executed once on UC, and is nearly everything.
//!
//! A tenth as many seeds without optimization.

use crate::ends;

use std::collections::{BTreeMap, HashMap};

use ends::{Flow, at, config, psn, with};
use longhaul_shim::{Config, Direction, Onward, Packet, Shim};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{Operation, Position, Transport, icrc, repair};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const SEEDS: u64 = if cfg!(debug_assertions) { 100 } else { 1000 };
/// One way.
const DELAY: Duration = Duration::from_micros(300);

#[derive(Clone, Copy, Debug)]
struct Network {
    /// Of a million packets.
    loss: u32,
    duplicates: u32,
    late: u32,
}

/// One end to end run of one flow.
struct Run {
    random: ChaCha8Rng,
    network: Network,
    sender: Shim,
    receiver: Shim,
    now: Instant,
    /// Packets in flight, in order of arrival.
    wire: BTreeMap<(Instant, u64), Packet>,
    sent: u64,
    /// When each datagram last arrived; all that were ever sent are here.
    arrived: HashMap<Vec<u8>, Option<Instant>>,
    delivered: Vec<Packet>,
    longest_wait: Duration,
}

impl Run {
    fn new(seed: u64, config: Config, network: Network) -> Run {
        let (sender, receiver) = with(config);
        Run {
            random: ChaCha8Rng::seed_from_u64(seed),
            network,
            sender,
            receiver,
            now: at(0),
            wire: BTreeMap::new(),
            sent: 0,
            arrived: HashMap::new(),
            delivered: Vec::new(),
            longest_wait: Duration::ZERO,
        }
    }

    fn happens(&mut self, of_a_million: u32) -> bool {
        self.random.next_u32() % 1_000_000 < of_a_million
    }

    fn send(&mut self, packet: Packet) {
        self.arrived.entry(packet.datagram.clone()).or_insert(None);
        let mut onward = Onward::default();
        self.sender.handle(Direction::Outgoing, packet, self.now, &mut onward);
        self.transmit(onward.outgoing);
    }

    fn transmit(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            let copies = 1 + u32::from(self.happens(self.network.duplicates));
            for _ in 0..copies {
                if self.happens(self.network.loss) {
                    continue;
                }
                let is_late = self.happens(self.network.late);
                let late = if is_late {
                    Duration::from_micros(u64::from(self.random.next_u32() % 60))
                } else {
                    Duration::ZERO
                };
                self.wire.insert((self.now + DELAY + late, self.sent), packet.clone());
                self.sent += 1;
            }
        }
    }

    /// Time passes until `until`; what the receiver got goes to `delivered`.
    fn advance(&mut self, until: Instant) {
        loop {
            let arrival = self.wire.first_key_value().map(|((at, _), _)| *at);
            let deadline = Instant::earlier_of(self.sender.next_deadline(), self.receiver.next_deadline());
            let Some(next) = Instant::earlier_of(arrival, deadline).filter(|at| *at <= until) else { break };
            self.now = self.now.max(next);
            let mut onward = Onward::default();
            self.sender.poll(self.now, &mut onward);
            self.receiver.poll(self.now, &mut onward);
            if arrival == Some(next)
                && let Some((_, packet)) = self.wire.pop_first()
            {
                if let Some(last) = self.arrived.get_mut(&packet.datagram) {
                    last.get_or_insert(self.now);
                }
                self.receiver.handle(Direction::Incoming, packet, self.now, &mut onward);
            }
            self.transmit(std::mem::take(&mut onward.outgoing));
            for packet in onward.incoming {
                assert!(!repair::is_repair(&packet.datagram), "a repair packet got through");
                let arrived = self.arrived.get_mut(&packet.datagram).expect("a packet that was never sent");
                // What did not arrive was restored.
                let wait = arrived.take().map_or(Duration::ZERO, |arrived| self.now.saturating_since(arrived));
                self.longest_wait = self.longest_wait.max(wait);
                self.delivered.push(packet);
            }
        }
        self.now = until;
    }
}

/// The packets of some messages, READ requests among them if the transport has them.
fn messages(random: &mut ChaCha8Rng, flow: &mut Flow, packets: usize) -> Vec<Packet> {
    let mut made = Vec::new();
    while made.len() < packets {
        if flow.transport == Transport::ReliableConnection && random.next_u32().is_multiple_of(8) {
            let read = Flow { operation: Operation::ReadRequest, ..flow.clone() };
            made.push(read.packet(flow.psn, Position::Only, 0));
            let skipped = [1, 7, 300, 100_000][random.next_u32() as usize % 4];
            flow.psn = (flow.psn + skipped) & 0xff_ffff;
        }
        let count = [1, 2, 5, 40, 100][random.next_u32() as usize % 5];
        made.extend(flow.message(count));
        flow.psn &= 0xff_ffff;
    }
    made
}

fn draw(seed: u64) -> (Config, Network, ChaCha8Rng, u32) {
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let code = ["xor:8,1", "xor:32,4", "mds:8,2", "mds:32,4", "mds:64,8", "xor:4,2"][random.next_u32() as usize % 6];
    let network = Network {
        loss: [0, 1_000, 10_000, 50_000][random.next_u32() as usize % 4],
        duplicates: 0,
        late: [0, 0, 10_000, 100_000][random.next_u32() as usize % 4],
    };
    let first_psn = [100, 0xff_ff80, 0x7f_ff00][random.next_u32() as usize % 3];
    let held_packets_max = [2048, 2048, 24][random.next_u32() as usize % 3];
    let units_max = [1024, 1024, 9][random.next_u32() as usize % 3];
    (Config { held_packets_max, units_max, ..config(code) }, network, random, first_psn)
}

#[test]
fn uc_executes_everything_once_and_loses_little() {
    let (mut lost, mut total) = (0, 0);
    for seed in 0..SEEDS {
        let (config, network, mut random, first_psn) = draw(seed);
        let timeout = config.timeout;
        let is_roomy = config.held_packets_max > 1000 && config.units_max > 1000;
        let mut flow = Flow { transport: Transport::UnreliableConnection, ..Flow::writes(7, first_psn) };
        let packets = messages(&mut random, &mut flow, 600);
        let mut run = Run::new(seed, config, network);
        for packet in &packets {
            run.send(packet.clone());
            // Some pauses are longer than anything waits.
            let pause = match random.next_u32() % 100 {
                0 => 3000,
                1 => 20_000,
                _ => random.next_u32() % 8,
            };
            let until = run.now + Duration::from_micros(pause.into());
            run.advance(until);
        }
        let until = run.now + Duration::from_millis(100);
        run.advance(until);
        assert_eq!((run.receiver.next_deadline(), run.receiver.decoder().held_packets()), (None, 0), "seed {seed}");
        assert!(run.longest_wait <= timeout, "seed {seed}: {:?}", run.longest_wait);
        let mut places: Vec<usize> = Vec::new();
        let index: HashMap<&[u8], usize> =
            packets.iter().enumerate().map(|(place, packet)| (&packet.datagram[..], place)).collect();
        places.extend(run.delivered.iter().map(|packet| index[&packet.datagram[..]]));
        let in_order = places.is_sorted();
        assert!(in_order || network.late > 0, "seed {seed}: out of order");
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}: a packet was delivered twice");
        if network.loss == 0 {
            assert_eq!(places.len(), packets.len(), "seed {seed}");
        }
        if network.loss <= 10_000 && is_roomy {
            lost += packets.len() - places.len();
            total += packets.len();
        }
    }
    println!("{lost} of {total} lost with up to 1 % of loss");
    assert!(lost * 500 < total, "{lost} of {total}");
}

#[test]
fn rc_completes_with_few_repetitions() {
    let (mut repeated, mut total) = (0, 0);
    for seed in 0..SEEDS {
        let (config, mut network, mut random, first_psn) = draw(seed);
        network.duplicates = [0, 10_000][random.next_u32() as usize % 2];
        let timeout = config.timeout;
        let is_roomy = config.held_packets_max > 1000 && config.units_max > 1000;
        let is_responses = random.next_u32() % 3 == 0;
        let operation = if is_responses { Operation::ReadResponse } else { Operation::Write };
        let mut flow = Flow { operation, ..Flow::writes(7, first_psn) };
        let mut packets = Vec::new();
        match is_responses {
            false => packets = messages(&mut random, &mut flow, 400),
            true => {
                while packets.len() < 400 {
                    packets.extend(flow.message(1 + random.next_u32() % 60));
                    flow.psn = (flow.psn + random.next_u32() % 3) & 0xff_ffff;
                }
            }
        }
        let mut run = Run::new(seed, config, network);
        // Go-back-N: what the receiver expects, what the sender knows of that, and where the sender is.
        let (mut expected, mut cursor, mut furthest, mut attempts) = (0, 0, 0, 0);
        let mut news: Vec<(Instant, usize, bool)> = Vec::new();
        let (mut heard, mut heard_at, mut has_refused) = (0, run.now, false);
        while heard < packets.len() {
            attempts += 1;
            assert!(attempts < 400_000, "seed {seed}: {heard} of {} packets", packets.len());
            if cursor < packets.len().min(heard + 128) {
                let mut packet = packets[cursor].clone();
                if is_responses && cursor < furthest {
                    // Memory that is read again has changed.
                    let place = packet.datagram.len() - 5 - random.next_u32() as usize % 100;
                    packet.datagram[place] ^= 1 + random.next_u32() as u8 % 255;
                    icrc::write(&packet.envelope.icrc_scope, &mut packet.datagram);
                }
                furthest = furthest.max(cursor + 1);
                run.send(packet);
                cursor += 1;
                total += usize::from(is_roomy);
            }
            let until = run.now + Duration::from_micros(1 + u64::from(random.next_u32() % 4));
            run.advance(until);
            for packet in run.delivered.drain(..) {
                if psn(&packet) == packets.get(expected).map_or(u32::MAX, psn) {
                    expected += 1;
                    has_refused = false;
                    news.push((run.now + DELAY, expected, false));
                } else if !has_refused && !packets[..expected].iter().any(|past| psn(past) == psn(&packet)) {
                    has_refused = true;
                    news.push((run.now + DELAY, expected, true));
                }
            }
            let now = run.now;
            for (_, next, is_refusal) in news.extract_if(.., |(at, ..)| *at <= now) {
                if next > heard || is_refusal {
                    (heard, heard_at) = (next, now);
                }
                if is_refusal {
                    repeated += if is_roomy { cursor.saturating_sub(next) } else { 0 };
                    cursor = next;
                }
            }
            if now.saturating_since(heard_at) > Duration::from_millis(20) {
                repeated += if is_roomy { cursor - heard } else { 0 };
                (cursor, heard_at, has_refused) = (heard, now, false);
            }
        }
        assert!(run.longest_wait <= timeout, "seed {seed}: {:?}", run.longest_wait);
    }
    println!("{repeated} repetitions of {total} packets");
    assert!(repeated * 4 < total, "{repeated} repetitions of {total} packets");
}
