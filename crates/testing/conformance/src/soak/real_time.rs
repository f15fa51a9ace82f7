//! The soak on real time: software RNICs on UDP sockets of the loopback addresses, with a bad network in process.
//!
//! The seed still decides on devices, queue pairs, requests and what becomes of the n-th datagram of a device, but the
//! scheduler has its say too: a failing seed need not fail again. The rules are the same as on virtual time, with two
//! exceptions that [`Judge::expect_guesses`](crate::checker::Judge::expect_guesses) and `loses` in the plan stand for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use longhaul_impair::Profile;
use longhaul_softnic::{Config, Counters};
use longhaul_softnic_udp::{Background, Impair, OpenError, UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Device;
use longhaul_world::Dice;

use super::ground::Ground;
use super::plan::Plan;

/// Between two looks of the program; the kernel adds some 50 µs.
const STEP: Duration = Duration::from_micros(20);
/// After everything is done nothing may happen for so long: more than a few time-outs.
const SILENCE: Duration = Duration::from_millis(300);

/// What the bad network did, to packets of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Troubles {
    /// Lost, or found a queue full.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back, so that later ones overtook them.
    pub reordered: u64,
    /// Arrived with flipped bits.
    pub corrupted: u64,
}

impl Troubles {
    /// Adds another's.
    pub(super) fn add(&mut self, other: &Troubles) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupted += other.corrupted;
    }
}

/// Software RNICs on UDP sockets.
pub(super) struct RealGround {
    udp: Vec<UdpDevice>,
    has_guesses: bool,
    begin: std::time::Instant,
}

impl RealGround {
    /// As many devices as the plan has nodes. Some of them, at least the first, have a bad network in front of their
    /// sockets; it makes both ways of all their connections bad. The others receive in place and with offload, if the
    /// seed says so.
    pub(super) fn open(
        plan: &Plan,
        seed: u64,
        addresses: &[IpAddr],
        capture: Option<&Path>,
        configure: impl Fn(&mut Config),
    ) -> Result<RealGround, OpenError> {
        let dice = &mut Dice::new(seed ^ 0x7564_7073);
        let are_all_impaired = dice.chance(30);
        let mut udp = UdpConfig::default();
        udp.udp_port = UdpPortChoice::Free;
        udp.offload = dice.chance(80);
        udp.receive_in_place = dice.chance(80);
        udp.background =
            dice.pick(&[Background::Sleep, Background::Sleep, Background::Spin(Duration::from_micros(50))]);
        let open = |node: usize| {
            let mut udp = udp.clone();
            let is_impaired = are_all_impaired || node.is_multiple_of(2);
            udp.impair =
                is_impaired.then(|| Impair { profile: plan.link.clone(), seed: seed.wrapping_mul(16) + node as u64 });
            udp.capture = capture.map(|path| with_node(path, node));
            let mut random_seed = [0; 32];
            random_seed[..8].copy_from_slice(&seed.to_le_bytes());
            random_seed[8..16].copy_from_slice(&(node as u64).to_le_bytes());
            let addresses = if addresses.is_empty() { loopback(node).to_vec() } else { addresses.to_vec() };
            let mut config = Config::new(format!("softnic{node}"), addresses, random_seed);
            plan.configure(&mut config);
            configure(&mut config);
            UdpDevice::open(config, udp)
        };
        let devices = (0..plan.node_count).map(open).collect::<Result<_, _>>()?;
        Ok(RealGround { udp: devices, has_guesses: udp.receive_in_place, begin: std::time::Instant::now() })
    }

    /// Packets that the devices have sent.
    pub(super) fn packet_count(&self) -> u64 {
        self.activity().iter().map(|counters| counters.sent_pkts).sum()
    }

    /// What the bad network did.
    pub(super) fn troubles(&self) -> Troubles {
        let mut troubles = Troubles::default();
        for counters in self.udp.iter().filter_map(UdpDevice::impairment_counters).flatten() {
            troubles.add(&Troubles {
                lost: counters.lost + counters.queue_full,
                duplicated: counters.duplicated,
                reordered: counters.reordered,
                corrupted: counters.corrupted,
            });
        }
        troubles
    }
}

/// Rows 0 and 1 of a node's GID table: IPv4, and IPv6 where this host has it.
fn loopback(node: usize) -> [IpAddr; 2] {
    let v4 = |subnet| IpAddr::V4(Ipv4Addr::new(127, 0, subnet, node as u8 + 1));
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    // All nodes share the one IPv6 address of the loopback interface; their ports differ.
    let has_v6 = std::net::UdpSocket::bind((v6, 0)).is_ok();
    [v4(0), if has_v6 { v6 } else { v4(1) }]
}

/// A capture has one file for each node.
fn with_node(path: &Path, node: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{node}.{extension}"))
}

impl Ground for RealGround {
    fn device(&self, node: usize) -> Device {
        self.udp[node].verbs()
    }

    fn udp_port(&self, node: usize) -> u16 {
        self.udp[node].udp_port()
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }

    fn run_until(&mut self, deadline: Instant, condition: &mut dyn FnMut() -> bool) -> bool {
        loop {
            if condition() {
                return true;
            }
            let left = deadline - self.now();
            if left.is_zero() {
                return condition();
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    fn set_link_profile(&mut self, profile: Profile) {
        for device in &self.udp {
            device.set_impairment(&profile).expect("a valid profile");
        }
    }

    fn silence(&self) -> Duration {
        SILENCE
    }

    fn has_guesses(&self) -> bool {
        self.has_guesses
    }

    fn activity(&self) -> Vec<Counters> {
        self.udp.iter().map(|device| device.device().nic().counters()).collect()
    }

    fn look_at_rest(&self, activity: &[Counters], look: &mut dyn FnMut()) -> bool {
        // Nothing is placed while the devices are locked.
        let locked: Vec<_> = self.udp.iter().map(|device| device.device().nic()).collect();
        let is_at_rest = locked.iter().zip(activity).all(|(nic, before)| nic.counters() == *before);
        if is_at_rest {
            look();
        }
        is_at_rest
    }
}
