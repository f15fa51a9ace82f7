//! Forward error correction in the ports of the devices, as an option: the programs and what is demanded of them stay as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_shim::{Agreement, BlockCode, Config};
use longhaul_softnic::{Direction, Layer, Onward, Packet, ShimLayer};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Transport;
use longhaul_wire::{icrc, repair};
use longhaul_world::{Dice, LayersOf};

use super::ground::Ground;
use super::program::Program;
use crate::checker::EndNumber;

/// The shims of a seed: times, and bounds that are too tight in some.
pub(super) fn draw(seed: u64, code: BlockCode, lies: bool) -> Config {
    let dice = &mut Dice::new(seed ^ 0x7368_696d);
    let timeout = Duration::from_micros(dice.pick(&[300, 1000, 5000, 5000, 20_000]));
    Config {
        timeout,
        block_age_max: timeout / 3,
        idle_flush: Duration::from_micros(dice.pick(&[20, 200])),
        reordering: Duration::from_micros(dice.pick(&[20, 100])),
        held_packets_max: dice.pick(&[2048, 2048, 24]),
        units_max: dice.pick(&[1024, 1024, usize::from(code.repair_packets()) + 1]),
        flows_max: dice.pick(&[1024, 1024, 12]),
        flow_idle: Duration::from_micros(dice.pick(&[1_000_000, 1000])),
        copies_acknowledgements: dice.chance(50),
        key: (dice.chance(50) && !lies).then_some(*b"a key of 16 byte"),
        ..Config::new(code)
    }
}

/// What went through the shims of a run.
#[derive(Debug, Default)]
pub(super) struct Watched {
    /// Packets with a wrong ICRC that came from the network.
    wrong_before: AtomicU64,
    /// Those that came out of shims, and repair packets that did.
    wrong_behind: AtomicU64,
    repairs_behind: AtomicU64,
}

impl Watched {
    /// What is wrong, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        let [before, behind, repairs] =
            [&self.wrong_before, &self.wrong_behind, &self.repairs_behind].map(|count| count.load(Ordering::Relaxed));
        let is_wrong = behind > before || repairs > 0;
        is_wrong
            .then(|| format!("{behind} packets with a wrong ICRC of {before} that arrived, {repairs} repair packets"))
    }
}

/// What stands next to the device, behind its shim.
struct Behind(Arc<Watched>);

impl Layer for Behind {
    fn handle(&mut self, direction: Direction, packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        if direction == Direction::Incoming {
            count_if(&self.0.wrong_behind, is_wrong(&packet));
            count_if(&self.0.repairs_behind, repair::is_repair(&packet.datagram));
        }
        onward.pass(direction, packet);
    }
}

/// What stands before a shim. It may change the sums of repair packets, with a right ICRC.
struct Before {
    watched: Arc<Watched>,
    liar: Option<Dice>,
}

impl Layer for Before {
    fn handle(&mut self, direction: Direction, mut packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        if direction == Direction::Incoming {
            count_if(&self.watched.wrong_before, is_wrong(&packet));
            let sum = repair::HEADER_BYTES + repair::CODED_PREFIX_BYTES;
            let is_repair = repair::is_repair(&packet.datagram) && packet.datagram.len() > sum + 4;
            if let Some(dice) = self.liar.as_mut().filter(|_| is_repair && !is_wrong(&packet))
                && dice.chance(50)
            {
                let place = dice.within(sum as u64..=packet.datagram.len() as u64 - 5) as usize;
                packet.datagram[place] ^= 1 << dice.index(8);
                icrc::write(&packet.envelope.icrc_scope, &mut packet.datagram);
            }
        }
        onward.pass(direction, packet);
    }
}

fn count_if(count: &AtomicU64, is_counted: bool) {
    count.fetch_add(is_counted.into(), Ordering::Relaxed);
}

fn is_wrong(packet: &Packet) -> bool {
    !icrc::verify(&packet.envelope.icrc_scope, &packet.datagram)
}

/// A shim in the port of each node. One that comes back begins with other epochs.
pub(super) fn layers(
    seed: u64,
    config: Config,
    configure: fn(ShimLayer) -> ShimLayer,
    lies: bool,
    watched: Arc<Watched>,
) -> LayersOf {
    let next = AtomicU64::new(seed << 8);
    Arc::new(move |_| {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let shim = ShimLayer::new(config.clone(), seed).expect("a configuration that was checked");
        let liar = lies.then(|| Dice::new(seed ^ 0x6c69_6172));
        let layers: [Box<dyn Layer>; 3] = [
            Box::new(Behind(watched.clone())),
            Box::new(configure(shim)),
            Box::new(Before { watched: watched.clone(), liar }),
        ];
        layers.into()
    })
}

impl Program {
    /// Both ends of a connection agree on a code, and no more on what they did before.
    pub(super) fn protect_pair(&mut self, pair: usize, ground: &mut dyn Ground) {
        let Some(code) = self.plan.code else { return };
        if self.plan.pairs[pair].transport == Transport::UnreliableDatagram {
            return;
        }
        for (node, agreement) in std::mem::take(&mut self.agreements[pair]) {
            ground.disagree(node, &agreement);
        }
        for side in 0..2 {
            let [end, peer] = [EndNumber(2 * pair + side), EndNumber(2 * pair + 1 - side)];
            let gid = ground.device(self.node(peer)).gid(1, self.pair(end).gid_index.into());
            let [ours, theirs] = [end, peer].map(|end| self.ends[end.0].queue_pair.number().value());
            let peer = gid.expect("each node has an IPv4 and an IPv6 address").gid.to_ip();
            let agreement = Agreement { peer, ours, theirs, code };
            let node = self.node(end);
            ground.agree(node, &agreement);
            self.agreements[pair].push((node, agreement));
        }
    }
}
