//! What is wrong with a host, each with its remedy. Functions of [`HostFacts`]: the tests plant each problem.

use std::net::IpAddr;

use longhaul_units::bytes_text;
use longhaul_verbs::Mtu;
use longhaul_wire::UDP_PORT_ROCE;

use crate::facts::{HostFacts, Interface, RocePort, SocketBuffer, unusable};
use crate::port_owner::Owner;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A device cannot be used.
    Error,
    /// Costs throughput, or peers that cannot be reached.
    Warning,
    /// Good to know.
    Note,
}

impl Severity {
    /// As people and `--json` read it.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// Something that is wrong with the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    fn error(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { severity: Severity::Error, what: what.into(), remedy: remedy.into() }
    }

    fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(what, remedy) }
    }

    fn note(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        Problem { severity: Severity::Note, ..Problem::error(what, remedy) }
    }
}

/// Everything that is wrong with the host, worst first.
pub(crate) fn of_host(facts: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(missing_addresses(facts));
    problems.extend(taken_ports(facts));
    problems.extend(hardware_on_the_port(facts));
    problems.extend(small_buffers(facts));
    problems.extend(missing_offloads(facts));
    for interface in used_interfaces(facts) {
        problems.extend(interface_state(interface));
        if interface.is_up {
            problems.extend(small_mtu(interface));
            problems.extend(switched_off_offloads(interface));
        }
    }
    problems.extend(locked_memory(facts));
    problems.sort_by_key(|problem| problem.severity);
    problems
}

/// Interfaces with an address that softnic can use.
fn used_interfaces(facts: &HostFacts) -> impl Iterator<Item = &Interface> {
    facts.interfaces.iter().filter(|interface| usable_addresses(interface).next().is_some())
}

fn usable_addresses(interface: &Interface) -> impl Iterator<Item = IpAddr> {
    interface.addresses.iter().map(|address| address.ip).filter(|ip| unusable(*ip).is_none())
}

fn missing_addresses(facts: &HostFacts) -> Option<Problem> {
    let has_one = used_interfaces(facts).next().is_some();
    (!has_one).then(|| {
        Problem::error(
            "no interface has an IP address that softnic could use",
            "`sudo ip link set lo up` brings at least the loopback addresses; `ip address` lists all addresses",
        )
    })
}

/// One problem for each owner, whatever the number of addresses that it holds.
fn taken_ports(facts: &HostFacts) -> Vec<Problem> {
    let mut owners: Vec<(&Owner, Vec<String>)> = Vec::new();
    for address in facts.interfaces.iter().flat_map(|interface| &interface.addresses) {
        let RocePort::Taken(owner) = &address.roce_port else { continue };
        if unusable(address.ip).is_some() {
            continue;
        }
        match owners.iter_mut().find(|(known, _)| *known == owner) {
            Some((_, addresses)) => addresses.push(address.ip.to_string()),
            None => owners.push((owner, vec![address.ip.to_string()])),
        }
    }
    let problem = |(owner, addresses): (&Owner, Vec<String>)| {
        let remedy = match owner {
            Owner::Process { id, .. } => format!("end process {id} to have the port"),
            Owner::Rxe { devices } => {
                let commands: Vec<String> =
                    devices.iter().map(|device| format!("`sudo rdma link delete {device}`")).collect();
                format!(
                    "use the kernel's device itself (-d {}), or {} lets go of the port",
                    devices.join(" or -d "),
                    commands.join(" and ")
                )
            }
            Owner::User(_) | Owner::Unknown => {
                format!("`sudo ss -ulpn sport = :{UDP_PORT_ROCE}` names the process; end it to have the port")
            }
        };
        Problem::warning(
            format!("UDP port {UDP_PORT_ROCE} is held by {owner} at {}", addresses.join(", ")),
            format!("{remedy}. Until then softnic can take a free port there, which works between softnics only"),
        )
    };
    owners.into_iter().map(problem).collect()
}

/// A NIC that speaks RoCEv2 itself may pick its datagrams out before the kernel sees them.
fn hardware_on_the_port(facts: &HostFacts) -> Vec<Problem> {
    let mut problems = Vec::new();
    for device in facts.rdma_devices.iter().filter(|device| !device.is_rxe) {
        let is_shared = |interface: &&Interface| device.roce_interfaces.contains(&interface.name);
        for interface in used_interfaces(facts).filter(is_shared) {
            let (device, interface) = (&device.name, &interface.name);
            problems.push(Problem::warning(
                format!(
                    "{interface} is also the RDMA device {device}: the NIC may keep datagrams to UDP port {UDP_PORT_ROCE} to itself, \
                     and softnic never sees them"
                ),
                "use softnic on another interface, or on a free port, which works between softnics only; or switch RoCE off in \
                 the NIC (mlx5: `devlink dev param` enable_roce)",
            ));
        }
    }
    problems
}

/// One problem for both buffers, because one command fixes both.
fn small_buffers(facts: &HostFacts) -> Option<Problem> {
    let sides =
        [("receive", "net.core.rmem_max", facts.receive_buffer), ("send", "net.core.wmem_max", facts.send_buffer)];
    let sides = sides.into_iter().filter_map(|(side, setting, buffer)| Some((side, setting, buffer?)));
    let small = |bytes_of: fn(&SocketBuffer) -> Option<usize>| -> Option<(String, String)> {
        let is_small = |buffer: &SocketBuffer| bytes_of(buffer).is_some_and(|bytes| bytes < buffer.asked_bytes);
        let small: Vec<_> = sides.clone().filter(|(_, _, buffer)| is_small(buffer)).collect();
        let amount = |(side, _, buffer): &(&str, &str, SocketBuffer)| {
            let bytes = bytes_of(buffer).unwrap_or_default();
            format!("{} instead of {} for {side}", bytes_text(bytes as u64), bytes_text(buffer.asked_bytes as u64))
        };
        let setting = |(_, setting, buffer): &(&str, &str, SocketBuffer)| format!("{setting}={}", buffer.asked_bytes);
        let amounts = small.iter().map(amount).collect::<Vec<_>>().join(", ");
        let settings = small.iter().map(setting).collect::<Vec<_>>().join(" ");
        (!small.is_empty()).then(|| {
            (amounts, format!("`sudo sysctl -w {settings}`; to keep it, put the same into /etc/sysctl.d/longhaul.conf"))
        })
    };
    if let Some((amounts, remedy)) = small(|buffer| Some(buffer.granted_bytes)) {
        let is_receiver_small = facts.receive_buffer.is_some_and(|buffer| buffer.granted_bytes < buffer.asked_bytes);
        let consequence =
            if is_receiver_small { "bursts are lost and sent again" } else { "sending stalls more often" };
        let what = format!("socket buffers are smaller than softnic asks for: {amounts}; {consequence}");
        return Some(Problem::warning(what, remedy));
    }
    let (amounts, remedy) = small(|buffer| buffer.limit_bytes)?;
    Some(Problem::note(
        format!("users without privileges get smaller socket buffers than softnic asks for: {amounts}"),
        remedy,
    ))
}

fn missing_offloads(facts: &HostFacts) -> Vec<Problem> {
    let offloads = [
        (facts.segmentation_offload, "segmentation offload (UDP_SEGMENT)", "sends", "4.18"),
        (facts.receive_offload, "receive offload (UDP_GRO)", "receives", "5.0"),
    ];
    let missing = offloads.into_iter().filter(|(is_there, ..)| !is_there);
    missing
        .map(|(_, offload, verb, version)| {
            Problem::warning(
                format!("this kernel has no UDP {offload}: softnic {verb} datagrams one by one, several times slower"),
                format!("Linux {version} or newer"),
            )
        })
        .collect()
}

fn interface_state(interface: &Interface) -> Option<Problem> {
    let name = &interface.name;
    match (interface.is_up, interface.has_carrier) {
        (true, true) => None,
        (true, false) => {
            Some(Problem::warning(format!("{name} has no link"), "plug in its cable, or bring up the other end"))
        }
        (false, _) => Some(Problem::warning(format!("{name} is down"), format!("`sudo ip link set {name} up`"))),
    }
}

fn small_mtu(interface: &Interface) -> Option<Problem> {
    let (name, mtu_bytes) = (&interface.name, interface.link.mtu_bytes?);
    let largest = Mtu::Bytes4096;
    let families = [
        ("IPv4", usable_addresses(interface).find(IpAddr::is_ipv4)),
        ("IPv6", usable_addresses(interface).find(IpAddr::is_ipv6)),
    ];
    let families: Vec<(&str, IpAddr)> = families.into_iter().filter_map(|(family, ip)| Some((family, ip?))).collect();
    let small: Vec<&(&str, IpAddr)> =
        families.iter().filter(|(_, ip)| interface.fitting_mtu(*ip) != Some(largest)).collect();
    let needed = small.iter().map(|(_, ip)| Interface::packet_bytes(*ip, largest)).max()?;
    let remedy = format!(
        "`sudo ip link set {name} mtu {}`, if the whole path to the peer carries such packets ({needed} bytes)",
        needed.next_multiple_of(100)
    );
    let fits = |(_, ip): &&(&str, IpAddr)| match interface.fitting_mtu(*ip) {
        Some(mtu) => format!("path MTU {} is the largest that fits", mtu.byte_count()),
        None => "no path MTU fits".to_owned(),
    };
    // Both families in one breath where they agree.
    let is_same = families.len() == small.len() && small.iter().all(|family| fits(family) == fits(&small[0]));
    let fits = match is_same {
        true => fits(&small[0]),
        false => {
            small.iter().map(|family| format!("{} over {}", fits(family), family.0)).collect::<Vec<_>>().join(", ")
        }
    };
    let what = format!("{name} has MTU {mtu_bytes}: {fits}");
    let is_unusable = small.iter().any(|(_, ip)| interface.fitting_mtu(*ip).is_none());
    Some(match is_unusable {
        true => Problem::error(what, remedy),
        false => Problem::note(format!("{what}; {} costs less per byte", largest.byte_count()), remedy),
    })
}

/// Between software interfaces packets travel uncut, whatever these switches say: only NICs are judged.
fn switched_off_offloads(interface: &Interface) -> Vec<Problem> {
    let Some(features) = interface.link.features.as_ref().filter(|_| interface.link.is_hardware) else {
        return Vec::new();
    };
    let name = &interface.name;
    let mut problems = Vec::new();
    if !features.is_on("rx-gro") {
        problems.push(Problem::warning(
            format!("receive offload is switched off on {name}: datagrams from the network arrive one by one"),
            format!("`sudo ethtool -K {name} gro on`"),
        ));
    }
    let checksums = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];
    if let Some(switch) = checksums.iter().find(|checksum| features.is_switched_off(checksum))
        && !checksums.iter().any(|checksum| features.is_on(checksum))
    {
        problems.push(Problem::warning(
            format!(
                "transmit checksums are switched off on {name} ({switch}): segmentation offload then costs more, and Linux before \
                 6.11 refuses it"
            ),
            format!("`sudo ethtool -K {name} tx on`"),
        ));
    }
    if features.is_switched_off("tx-udp-segmentation") {
        problems.push(Problem::note(
            format!("{name} could segment datagrams itself, but that is switched off: the kernel does it instead"),
            format!("`sudo ethtool -K {name} tx-udp-segmentation on`"),
        ));
    }
    problems
}

/// softnic locks nothing; devices that read memory themselves do.
fn locked_memory(facts: &HostFacts) -> Option<Problem> {
    let limit = facts.locked_memory.filter(|limit| !limit.is_exempt)?;
    let bytes = limit.limit_bytes?;
    Some(Problem::note(
        format!(
            "a process may lock {} of memory: softnic locks none, but RDMA hardware cannot register more than that",
            bytes_text(bytes)
        ),
        "`ulimit -l unlimited`, for good by `* - memlock unlimited` in /etc/security/limits.d/rdma.conf; in a systemd unit \
         LimitMEMLOCK=infinity, for a container `--ulimit memlock=-1`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Address, LockedMemory, RdmaDevice};
    use crate::link::{Features, Link};

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        let address = |ip: &&str| Address { ip: ip.parse().unwrap(), roce_port: RocePort::Free };
        let on = ["rx-gro", "tx-checksum-ipv4", "tx-udp-segmentation"].map(str::to_owned).to_vec();
        Interface {
            name: name.to_owned(),
            is_up: true,
            has_carrier: true,
            link: Link {
                is_hardware: true,
                mtu_bytes: Some(9000),
                features: Some(Features { changeable: on.clone(), active: on }),
                ..Link::default()
            },
            addresses: addresses.iter().map(address).collect(),
        }
    }

    fn good_host() -> HostFacts {
        let buffer = Some(SocketBuffer { asked_bytes: 16 << 20, granted_bytes: 16 << 20, limit_bytes: Some(16 << 20) });
        HostFacts {
            interfaces: vec![interface("eth0", &["10.0.0.1", "fd00::1", "fe80::1"])],
            segmentation_offload: true,
            receive_offload: true,
            receive_buffer: buffer,
            send_buffer: buffer,
            locked_memory: Some(LockedMemory { limit_bytes: None, is_exempt: false }),
            ..HostFacts::default()
        }
    }

    /// The only problem of a good host that was changed.
    fn only(change: impl FnOnce(&mut HostFacts)) -> Problem {
        let mut facts = good_host();
        change(&mut facts);
        let mut problems = of_host(&facts);
        assert_eq!(problems.len(), 1, "{problems:#?}");
        problems.remove(0)
    }

    #[track_caller]
    fn says(problem: &Problem, severity: Severity, what: &str, remedy: &str) {
        assert_eq!(problem.severity, severity, "{problem:?}");
        assert!(problem.what.contains(what), "{problem:?}");
        assert!(problem.remedy.contains(remedy), "{problem:?}");
    }

    #[test]
    fn a_good_host_has_no_problem() {
        assert_eq!(of_host(&good_host()), []);
    }

    #[test]
    fn a_host_without_addresses_has_no_device() {
        let problem = only(|facts| facts.interfaces.clear());
        says(&problem, Severity::Error, "no interface has an IP address", "ip link set lo up");
        let problem = only(|facts| facts.interfaces[0].addresses.retain(|address| unusable(address.ip).is_some()));
        says(&problem, Severity::Error, "no interface has an IP address", "ip address");
    }

    #[test]
    fn a_socket_buffer_below_what_we_ask_for_is_a_warning_with_the_command() {
        let small = Some(SocketBuffer { asked_bytes: 16 << 20, granted_bytes: 212_992, limit_bytes: Some(212_992) });
        let problem = only(|facts| facts.receive_buffer = small);
        says(
            &problem,
            Severity::Warning,
            "208 KiB instead of 16 MiB for receive;",
            "sysctl -w net.core.rmem_max=16777216`",
        );
        let problem = only(|facts| facts.send_buffer = small);
        says(&problem, Severity::Warning, "16 MiB for send; sending stalls", "sysctl -w net.core.wmem_max=16777216`");
        let problem = only(|facts| (facts.receive_buffer, facts.send_buffer) = (small, small));
        let both = "sysctl -w net.core.rmem_max=16777216 net.core.wmem_max=16777216`";
        says(&problem, Severity::Warning, "for receive, 208 KiB instead of 16 MiB for send", both);
        // Root gets what it asks for; that users do not is still worth knowing.
        let forced = small.map(|buffer| SocketBuffer { granted_bytes: 16 << 20, ..buffer });
        let problem = only(|facts| facts.receive_buffer = forced);
        says(
            &problem,
            Severity::Note,
            "users without privileges get smaller socket buffers",
            "sysctl -w net.core.rmem_max=16777216",
        );
        // Nothing could be asked: nothing is claimed.
        let mut facts = good_host();
        facts.receive_buffer = None;
        assert_eq!(of_host(&facts), []);
    }

    #[test]
    fn a_kernel_without_offload_is_named() {
        says(&only(|facts| facts.segmentation_offload = false), Severity::Warning, "UDP_SEGMENT", "Linux 4.18");
        says(&only(|facts| facts.receive_offload = false), Severity::Warning, "UDP_GRO", "Linux 5.0");
    }

    #[test]
    fn an_offload_that_is_switched_off_is_named_with_its_switch() {
        fn without(feature: &str) -> Problem {
            only(|facts| {
                let features = facts.interfaces[0].link.features.as_mut().unwrap();
                features.active.retain(|active| active != feature);
            })
        }
        says(&without("rx-gro"), Severity::Warning, "receive offload", "ethtool -K eth0 gro on");
        says(&without("tx-checksum-ipv4"), Severity::Warning, "checksums", "ethtool -K eth0 tx on");
        says(&without("tx-udp-segmentation"), Severity::Note, "eth0", "ethtool -K eth0 tx-udp-segmentation on");
    }

    #[test]
    fn nothing_is_claimed_about_offloads_of_software_interfaces_or_unknown_ones() {
        let mut facts = good_host();
        facts.interfaces[0].link.features = None;
        assert_eq!(of_host(&facts), []);
        facts.interfaces[0].link.features = Some(Features::default());
        facts.interfaces[0].link.is_hardware = false;
        assert_eq!(of_host(&facts), []);
    }

    #[test]
    fn a_small_mtu_is_told_with_what_fits_and_what_would_do() {
        let problem = only(|facts| facts.interfaces[0].link.mtu_bytes = Some(1500));
        says(
            &problem,
            Severity::Note,
            "eth0 has MTU 1500: path MTU 1024 is the largest that fits;",
            "ip link set eth0 mtu 4200`",
        );
        // Between the two families' needs.
        let problem = only(|facts| facts.interfaces[0].link.mtu_bytes = Some(4180));
        says(&problem, Severity::Note, "path MTU 2048 is the largest that fits over IPv6;", "mtu 4200`");
        let problem = only(|facts| {
            facts.interfaces[0].link.mtu_bytes = Some(1500);
            facts.interfaces[0].addresses.retain(|address| address.ip.is_ipv4());
        });
        says(&problem, Severity::Note, "path MTU 1024 is the largest that fits;", "4168 bytes");
        let problem = only(|facts| facts.interfaces[0].link.mtu_bytes = Some(300));
        says(&problem, Severity::Error, "eth0 has MTU 300: no path MTU fits", "mtu 4200`");
        let problem = only(|facts| facts.interfaces[0].link.mtu_bytes = Some(340));
        says(
            &problem,
            Severity::Error,
            "path MTU 256 is the largest that fits over IPv4, no path MTU fits over IPv6",
            "4188 bytes",
        );
    }

    #[test]
    fn a_taken_port_is_one_problem_for_each_owner() {
        let process = |id| RocePort::Taken(Owner::Process { name: "longhaul".to_owned(), id });
        let problem = only(|facts| {
            facts.interfaces[0].addresses.iter_mut().for_each(|address| address.roce_port = process(77));
        });
        // And not at the link-local address, which softnic does not use anyway.
        let what = "UDP port 4791 is held by longhaul (process 77) at 10.0.0.1, fd00::1";
        assert_eq!(problem.what, what);
        says(
            &problem,
            Severity::Warning,
            what,
            "end process 77 to have the port. Until then softnic can take a free port",
        );

        let mut facts = good_host();
        facts.interfaces[0].addresses[0].roce_port = process(77);
        facts.interfaces[0].addresses[1].roce_port = process(78);
        assert_eq!(of_host(&facts).len(), 2);

        let rxe = RocePort::Taken(Owner::Rxe { devices: vec!["rxe0".to_owned()] });
        let problem = only(|facts| facts.interfaces[0].addresses[0].roce_port = rxe);
        says(&problem, Severity::Warning, "the kernel's rxe driver (rxe0)", "`sudo rdma link delete rxe0` lets go");
        let problem = only(|facts| facts.interfaces[0].addresses[0].roce_port = RocePort::Taken(Owner::User(1000)));
        says(&problem, Severity::Warning, "a process of user 1000", "sudo ss -ulpn sport = :4791");
    }

    #[test]
    fn hardware_that_speaks_roce_at_the_interface_is_told() {
        let device = |is_rxe, interface: &str| RdmaDevice {
            name: "mlx5_0".to_owned(),
            is_rxe,
            roce_interfaces: vec![interface.to_owned()],
        };
        let problem = only(|facts| facts.rdma_devices.push(device(false, "eth0")));
        says(&problem, Severity::Warning, "eth0 is also the RDMA device mlx5_0", "on a free port");
        for other in [device(true, "eth0"), device(false, "eth1")] {
            let mut facts = good_host();
            facts.rdma_devices.push(other);
            assert_eq!(of_host(&facts), []);
        }
    }

    #[test]
    fn an_interface_that_is_down_is_told_and_nothing_else_of_it() {
        let problem = only(|facts| {
            facts.interfaces[0].is_up = false;
            facts.interfaces[0].link.mtu_bytes = Some(1500);
        });
        says(&problem, Severity::Warning, "eth0 is down", "ip link set eth0 up");
        let problem = only(|facts| facts.interfaces[0].has_carrier = false);
        says(&problem, Severity::Warning, "eth0 has no link", "cable");
        // Without a usable address it is nobody's business.
        let mut facts = good_host();
        facts.interfaces.push(Interface { is_up: false, ..interface("eth1", &["fe80::2"]) });
        assert_eq!(of_host(&facts), []);
    }

    #[test]
    fn a_limit_of_locked_memory_is_a_note_unless_it_does_not_bind() {
        let limited = LockedMemory { limit_bytes: Some(8 << 20), is_exempt: false };
        let problem = only(|facts| facts.locked_memory = Some(limited));
        says(&problem, Severity::Note, "8 MiB", "ulimit -l unlimited");
        let mut facts = good_host();
        facts.locked_memory = Some(LockedMemory { is_exempt: true, ..limited });
        assert_eq!(of_host(&facts), []);
    }

    #[test]
    fn the_worst_comes_first() {
        let mut facts = good_host();
        facts.receive_offload = false;
        facts.locked_memory = Some(LockedMemory { limit_bytes: Some(65536), is_exempt: false });
        facts.interfaces[0].link.mtu_bytes = Some(100);
        let severities: Vec<Severity> = of_host(&facts).iter().map(|problem| problem.severity).collect();
        assert_eq!(severities, [Severity::Error, Severity::Warning, Severity::Note]);
    }
}
