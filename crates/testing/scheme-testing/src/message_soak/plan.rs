//! What a seed stands for: hosts, connections, and a program as a list of items.
//!
//! Items are independent of each other, so that any of them can be left out: that is how a failing program is shrunk.

use longhaul_impair::{Loss, Profile};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_time::Duration;
use longhaul_world::Dice;

/// Payload of a packet.
pub(super) const MTU: usize = 256;
/// Links between two hosts: each has one to the switch.
pub(super) const HOPS: u32 = 2;

/// How bad the network is, and so what can be asked of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// Nothing is lost, late, repeated or broken: no message fails, none waits, nothing is sent twice.
    Clean,
    /// Packets are lost at random, and nothing else: no message fails, and no more is repeated than was lost.
    Lossy,
    /// Everything goes wrong. What completes is right, and all ends once it is healed.
    Storm,
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) ground: Ground,
    /// Hosts with connections; the attacker is the node after them.
    pub(super) hosts: usize,
    /// Of each link, one way.
    pub(super) delay: Duration,
    pub(super) link: Profile,
    pub(super) connections: Vec<ConnectionPlan>,
    pub(super) items: Vec<Item>,
}

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionPlan {
    pub(super) nodes: [usize; 2],
    /// The schemes of both ends; `None`: no scheme at all, `sdr` alone.
    pub(super) schemes: Option<[&'static str; 2]>,
    pub(super) chunk_packets: u32,
    pub(super) layout: ImmediateLayout,
    pub(super) generations: u8,
    /// The longest part of a message.
    pub(super) part_packets: u64,
    pub(super) receive_depth: u32,
    pub(super) first_number: u64,
    pub(super) timeout: Duration,
    pub(super) rate_bits_per_second: Option<u64>,
    /// The ends do not know each other's source ports, as on devices that do not show them.
    pub(super) hides_ports: bool,
    /// The second end lies.
    pub(super) has_liar: bool,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Message(MessagePlan),
    Fault(FaultPlan),
    Forgery(ForgeryPlan),
    Lie(LiePlan),
}

/// A message, sent by one end of a connection and received by the other. The sends of a direction are posted in the
/// order of their items, and so are its receives.
#[derive(Clone, Debug)]
pub(super) struct MessagePlan {
    pub(super) connection: usize,
    /// Which end sends.
    pub(super) from: usize,
    pub(super) bytes: usize,
    /// Bytes of the receive; a message that is longer must be refused.
    pub(super) room: usize,
    pub(super) send_at: Duration,
    pub(super) receive_at: Duration,
    /// The program drops the ticket of the send, or of the receive.
    pub(super) drops: [bool; 2],
    /// Without a scheme: how long after the receive was posted it is completed, whole or not.
    pub(super) complete_after: Duration,
}

/// Something goes wrong for a while.
#[derive(Clone, Debug)]
pub(super) struct FaultPlan {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) kind: FaultKind,
}

#[derive(Clone, Debug)]
pub(super) enum FaultKind {
    /// Links lose, hold back, repeat and break packets.
    Weather(Profile),
    /// What a host sends is lost, or what is sent to it.
    Cut { node: usize, upwards: bool },
    /// The device and the program stand still.
    PauseHost(usize),
    /// Only the program does.
    PauseProgram(usize),
    /// The host is switched off, and comes back under the same address with nothing.
    Crash(usize),
}

/// A burst of packets by somebody who knows addresses and queue pair numbers, but no key.
#[derive(Clone, Debug)]
pub(super) struct ForgeryPlan {
    pub(super) at: Duration,
    pub(super) connection: usize,
    /// The victim.
    pub(super) end: usize,
    pub(super) count: u32,
    pub(super) seed: u64,
}

/// Frames of a peer that speaks the protocol and lies.
#[derive(Clone, Debug)]
pub(super) struct LiePlan {
    pub(super) at: Duration,
    pub(super) connection: usize,
    pub(super) count: u32,
    pub(super) seed: u64,
}

const SCHEMES: [&str; 7] = ["sr:rto", "sr:nack", "sr:nack", "ec:xor:4,2", "ec:xor:8,2", "ec:mds:4,2", "ec:mds:8,4"];

impl Plan {
    pub(super) fn draw(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0x6d65_7373_6167_6573);
        let delay = Duration::from_micros(dice.pick(&[5, 50, 500, 2500, 5000]));
        let ground = match dice.within(0..=99) {
            0..=24 => Ground::Clean,
            25..=39 => Ground::Lossy,
            _ => Ground::Storm,
        };
        let clean = Profile::default().with_propagation_delay(delay);
        let link = match ground {
            Ground::Lossy => clean.with_loss(Loss::Independent { probability: dice.pick(&[0.001, 0.005, 0.01]) }),
            _ => clean,
        };
        let hosts = if dice.chance(70) { 2 } else { 3 };
        let mut plan = Plan { seed, ground, hosts, delay, link, connections: Vec::new(), items: Vec::new() };
        match (ground, dice.within(0..=9)) {
            (Ground::Clean, 0..=2) => plan.draw_burst(&mut dice),
            (Ground::Clean, 3..=4) => plan.draw_paced(&mut dice),
            (Ground::Lossy, 0..=4) => plan.draw_bulk(&mut dice),
            (Ground::Storm, 0) if dice.chance(50) => plan.draw_refusals(&mut dice),
            _ => plan.draw_mixture(&mut dice),
        }
        if dice.chance(30) {
            plan.draw_forgeries(&mut dice);
        }
        if dice.chance(20) {
            plan.draw_liar(&mut dice);
        }
        plan
    }

    /// There and back, of a packet that nothing holds up.
    pub(super) fn round_trip(&self) -> Duration {
        2 * HOPS * self.delay
    }

    /// When the last item has begun, or ended.
    pub(super) fn length(&self) -> Duration {
        let end = |item: &Item| match item {
            Item::Message(message) => message.send_at.max(message.receive_at),
            Item::Fault(fault) => fault.at + fault.lasts,
            Item::Forgery(forgery) => forgery.at,
            Item::Lie(lie) => lie.at,
        };
        self.items.iter().map(end).max().unwrap_or_default()
    }

    pub(super) fn has_crash(&self) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Fault(FaultPlan { kind: FaultKind::Crash(_), .. })))
    }

    /// How long a host or its program stands still at most.
    pub(super) fn longest_pause(&self) -> Duration {
        let pauses = self.items.iter().filter_map(|item| match item {
            Item::Fault(fault) if matches!(fault.kind, FaultKind::PauseHost(_) | FaultKind::PauseProgram(_)) => {
                Some(fault.lasts)
            }
            _ => None,
        });
        pauses.max().unwrap_or_default()
    }

    fn draw_connection(&self, dice: &mut Dice) -> ConnectionPlan {
        let first = dice.index(self.hosts);
        let second = (first + 1 + dice.index(self.hosts - 1)) % self.hosts;
        let has_scheme = dice.chance(80);
        let name = dice.pick(&SCHEMES);
        let message_bits = dice.pick(&[1, 2, 3, 6]);
        let generations = dice.pick(&[1, 2, 4]);
        let slots = 1u64 << message_bits;
        let space = slots * u64::from(generations);
        let part_packets = dice.pick(&[8u64, 32, 64]);
        let most = part_packets * MTU as u64;
        let back = dice.within(0..=6);
        ConnectionPlan {
            nodes: [first, second],
            schemes: has_scheme.then_some([name; 2]),
            // The parity of the smallest part must fit: four chunks of it at most.
            chunk_packets: if has_scheme && part_packets > 8 { dice.pick(&[1, 1, 2, 4]) } else { 1 },
            layout: ImmediateLayout::new(message_bits, 28 - message_bits, 4).expect("it sums up"),
            generations,
            part_packets,
            receive_depth: dice.pick(&[32, 128]),
            first_number: match dice.within(0..=4) {
                0 => 0,
                1 => space - back.min(space),
                2 => (1 << 32) - back,
                // Where addresses that follow from the number pass the end of theirs.
                3 => (u64::MAX / most).min(1 << 63) - back,
                _ => (1 << 63) - back,
            },
            timeout: match self.ground {
                Ground::Storm => {
                    dice.pick(&[Duration::from_millis(700), Duration::from_secs(3), Duration::from_secs(25)])
                }
                _ => Duration::from_secs(25),
            },
            rate_bits_per_second: None,
            hides_ports: dice.chance(60),
            has_liar: false,
        }
    }

    /// Anything.
    fn draw_mixture(&mut self, dice: &mut Dice) {
        let count = dice.pick(&[1, 1, 2, 2, 3, 4, 8]);
        let span = match dice.within(0..=3) {
            0 => 20 * self.round_trip(),
            1 => 100 * self.round_trip() + Duration::from_millis(100),
            2 => Duration::from_secs(1),
            _ => Duration::from_secs(if self.ground == Ground::Storm { 6 } else { 2 }),
        };
        for index in 0..count {
            let connection = self.draw_connection(dice);
            for from in 0..2 {
                self.draw_messages(dice, index, &connection, from, span, 48 / count as u64);
            }
            self.connections.push(connection);
        }
        if self.ground == Ground::Storm {
            self.draw_faults(dice, span);
        }
    }

    fn draw_messages(
        &mut self,
        dice: &mut Dice,
        index: usize,
        connection: &ConnectionPlan,
        from: usize,
        span: Duration,
        count_max: u64,
    ) {
        let count = dice.within(0..=count_max.max(2)) as usize;
        let part = connection.part_packets as usize * MTU;
        // Times in order: the sends of a direction, and its receives.
        let times = |dice: &mut Dice, percent_of_span: u64| {
            let most = span.as_nanos() as u64 * percent_of_span / 100;
            let mut times: Vec<u64> = (0..count).map(|_| dice.within(0..=most)).collect();
            times.sort_unstable();
            times
        };
        let (ahead, late) = dice.pick(&[(100, 100), (10, 100), (100, 10), (1, 1)]);
        let (receives, sends) = (times(dice, ahead), times(dice, late));
        let has_parts = dice.chance(30);
        for (receive_at, send_at) in receives.into_iter().zip(sends) {
            let bytes = match dice.within(0..=9) {
                0 => 0,
                1 => 1,
                2 => MTU - 1 + dice.index(3),
                3 if has_parts && connection.schemes.is_some() => part + dice.index(2 * part),
                4 => part,
                _ => dice.index(part.min(24 * MTU)),
            };
            let room = match dice.within(0..=19) {
                // A message that does not fit.
                0 if self.ground == Ground::Storm && bytes > 0 && connection.schemes.is_some() => dice.index(bytes),
                1..=8 if connection.schemes.is_some() => bytes + dice.index(2 * MTU),
                _ => bytes,
            };
            let drops = [dice.chance(8), dice.chance(8)];
            let complete_after = self.round_trip() * dice.within(1..=12) as u32;
            let (send_at, receive_at) = (Duration::from_nanos(send_at), Duration::from_nanos(receive_at));
            self.items.push(Item::Message(MessagePlan {
                connection: index,
                from,
                bytes,
                room,
                send_at,
                receive_at,
                drops,
                complete_after,
            }));
        }
    }

    /// Many small messages whose receives are posted ahead, all at once.
    fn draw_burst(&mut self, dice: &mut Dice) {
        self.delay = Duration::from_micros(dice.pick(&[500, 5000]));
        self.link.propagation_delay = self.delay;
        let mut connection = self.draw_connection(dice);
        connection.schemes = Some([dice.pick(&SCHEMES); 2]);
        connection.layout = ImmediateLayout::new(10, 18, 4).expect("it sums up");
        connection.receive_depth = 1024;
        let count = dice.within(150..=400);
        let bytes = dice.pick(&[1, 64, 200]);
        let step = dice.pick(&[Duration::ZERO, self.round_trip() / 100]);
        for number in 0..count as u32 {
            self.push_message(0, bytes, number * step, Duration::ZERO);
        }
        self.connections.push(connection);
    }

    /// More than the time-out takes, at a rate.
    fn draw_paced(&mut self, dice: &mut Dice) {
        let mut connection = self.draw_connection(dice);
        connection.schemes = Some([dice.pick(&SCHEMES); 2]);
        connection.layout = ImmediateLayout::new(6, 22, 4).expect("it sums up");
        connection.part_packets = 64;
        connection.receive_depth = 512;
        connection.rate_bits_per_second = Some(dice.pick(&[2_000_000, 8_000_000]));
        connection.timeout = Duration::from_millis(600);
        let count = dice.within(24..=40);
        for _ in 0..count {
            self.push_message(0, 64 * MTU, Duration::ZERO, Duration::ZERO);
        }
        self.connections.push(connection);
    }

    /// Enough for losses to show what is repeated for them.
    fn draw_bulk(&mut self, dice: &mut Dice) {
        let mut connection = self.draw_connection(dice);
        connection.schemes = Some(["sr:nack"; 2]);
        connection.chunk_packets = dice.pick(&[1, 4, 16]);
        connection.part_packets = 1024;
        connection.receive_depth = 2048;
        connection.layout = ImmediateLayout::new(6, 22, 4).expect("it sums up");
        self.link.loss = Loss::Independent { probability: 0.005 };
        for _ in 0..4 {
            self.push_message(0, 600 * MTU, Duration::ZERO, Duration::ZERO);
        }
        self.connections.push(connection);
    }

    /// Ends that do not agree on a scheme, and more messages than refusals are remembered, of which the sender hears
    /// late.
    fn draw_refusals(&mut self, dice: &mut Dice) {
        let mut connection = self.draw_connection(dice);
        connection.schemes = Some(["sr:rto", "sr:nack"]);
        connection.layout = ImmediateLayout::new(11, 17, 4).expect("it sums up");
        connection.receive_depth = 512;
        connection.timeout = Duration::from_secs(25);
        for _ in 0..1100 + dice.within(0..=100) {
            self.push_message(0, 1, Duration::ZERO, Duration::ZERO);
        }
        let cut = FaultKind::Cut { node: connection.nodes[1], upwards: true };
        let at = 2 * self.round_trip() + Duration::from_micros(dice.within(0..=2000));
        self.items.push(Item::Fault(FaultPlan { at, lasts: Duration::from_secs(2), kind: cut }));
        self.connections.push(connection);
    }

    fn push_message(&mut self, connection: usize, bytes: usize, send_at: Duration, receive_at: Duration) {
        let complete_after = Duration::from_secs(1);
        let message = MessagePlan {
            connection,
            from: 0,
            bytes,
            room: bytes,
            send_at,
            receive_at,
            drops: [false; 2],
            complete_after,
        };
        self.items.push(Item::Message(message));
    }

    fn draw_faults(&mut self, dice: &mut Dice, span: Duration) {
        let at = |dice: &mut Dice| Duration::from_nanos(dice.within(0..=span.as_nanos() as u64));
        for _ in 0..dice.within(1..=3) {
            let (at, lasts) = (at(dice), at(dice));
            let kind = FaultKind::Weather(self.draw_weather(dice));
            self.items.push(Item::Fault(FaultPlan { at, lasts, kind }));
        }
        for _ in 0..dice.within(0..=3) {
            let node = dice.index(self.hosts);
            let kind = match dice.within(0..=9) {
                0..=3 => FaultKind::Cut { node, upwards: dice.chance(50) },
                4..=5 => FaultKind::PauseHost(node),
                6..=7 => FaultKind::PauseProgram(node),
                _ => FaultKind::Crash(node),
            };
            let lasts = Duration::from_micros(dice.pick(&[100, 10_000, 300_000, 1_000_000, 3_000_000]));
            self.items.push(Item::Fault(FaultPlan { at: at(dice), lasts, kind }));
        }
    }

    fn draw_weather(&self, dice: &mut Dice) -> Profile {
        let mut link = Profile::default().with_propagation_delay(self.delay);
        link.loss = match dice.within(0..=3) {
            0 => Loss::None,
            1 => Loss::bursts(0.001 + dice.fraction(0.04), dice.within(2..=8) as f64),
            _ => Loss::Independent { probability: dice.fraction(0.1) },
        };
        if dice.chance(60) {
            // Held back for a fraction of a round trip up to 10 s.
            let shortest = self.delay.as_nanos() as u64;
            let held = (shortest << dice.within(0..=20)).min(10_000_000_000);
            link = link.with_reordering(0.002 + dice.fraction(0.1), Duration::from_nanos(held));
        }
        if dice.chance(40) {
            link = link.with_duplication(dice.fraction(0.3));
        }
        if dice.chance(30) {
            link = link.with_corruption(dice.fraction(0.05), dice.within(1..=6) as u8);
        }
        if dice.chance(30) {
            link = link.with_jitter(self.delay * dice.within(1..=8) as u32, dice.chance(50));
        }
        link
    }

    fn draw_forgeries(&mut self, dice: &mut Dice) {
        let span = self.length() + 10 * self.round_trip();
        for _ in 0..dice.within(2..=12) {
            let at = match dice.chance(50) {
                // Where much begins.
                true => self.round_trip() * dice.within(0..=8) as u32 / 4,
                false => Duration::from_nanos(dice.within(0..=span.as_nanos() as u64)),
            };
            let (connection, end) = (dice.index(self.connections.len()), dice.index(2));
            let (count, seed) = (dice.within(1..=8) as u32, dice.within(0..=u64::MAX));
            self.items.push(Item::Forgery(ForgeryPlan { at, connection, end, count, seed }));
        }
    }

    fn draw_liar(&mut self, dice: &mut Dice) {
        let span = self.length().max(20 * self.round_trip());
        let index = self.connections.len();
        let mut connection = self.draw_connection(dice);
        connection.schemes = Some([dice.pick(&SCHEMES); 2]);
        connection.has_liar = true;
        connection.timeout = connection.timeout.min(Duration::from_secs(3));
        for from in 0..2 {
            self.draw_messages(dice, index, &connection, from, span, 16);
        }
        self.connections.push(connection);
        for _ in 0..dice.within(4..=40) {
            let at = Duration::from_nanos(dice.within(0..=span.as_nanos() as u64));
            let (count, seed) = (dice.within(1..=6) as u32, dice.within(0..=u64::MAX));
            self.items.push(Item::Lie(LiePlan { at, connection: index, count, seed }));
        }
    }
}
