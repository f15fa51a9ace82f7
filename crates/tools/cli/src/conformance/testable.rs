//! The devices that can be tested, by what users call them.

use std::net::IpAddr;

use longhaul_conformance::{Environment, RealTime, VirtualTime};
use longhaul_softnic_udp::UdpConfig;

use super::facts::Facts;
use super::{libibverbs, reachability};

/// The software RNIC's name, and that of its driver.
pub(super) const SOFTNIC: &str = "softnic";

/// A device, or two of them, one at each end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Testable {
    /// The software RNIC on virtual time.
    Virtual,
    /// Two software RNICs on UDP sockets of these addresses.
    Udp([IpAddr; 2]),
    /// Two devices of libibverbs, or twice the same.
    Libibverbs([String; 2]),
}

/// A device that is ready to be tested.
pub(super) struct Opened {
    pub(super) environment: Box<dyn Environment>,
    pub(super) facts: Facts,
}

impl Testable {
    pub(super) fn parse(name: &str) -> Result<Testable, String> {
        if name == SOFTNIC {
            return Ok(Testable::Virtual);
        }
        let (first, second) = name.split_once(',').unwrap_or((name, name));
        let Some(addresses) = name.strip_prefix("softnic:") else {
            return match [first, second].map(str::trim) {
                names if names.iter().any(|name| name.is_empty() || name.starts_with(SOFTNIC)) => Err(format!(
                    "cannot test \"{name}\": use softnic, softnic:ADDRESS, softnic:ADDRESS,ADDRESS, or one or two libibverbs \
                     devices such as rxe0 or rxe0,rxe1"
                )),
                names => Ok(Testable::Libibverbs(names.map(str::to_owned))),
            };
        };
        let parse = |text: &str| {
            text.parse::<IpAddr>()
                .map_err(|_| format!("\"{text}\" in \"{name}\" is not an IP address; use an address of this host, such as softnic:127.0.0.1"))
        };
        let (first, second) = addresses.split_once(',').unwrap_or((addresses, addresses));
        Ok(Testable::Udp([parse(first)?, parse(second)?]))
    }

    /// Says why its two ends cannot reach each other, before every test finds that out for itself.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Testable::Udp(addresses) => reachability::check(*addresses),
            Testable::Virtual | Testable::Libibverbs(_) => Ok(()),
        }
    }

    /// Says what is missing when it cannot be opened. `gid_indexes` overrides the choice of devices of libibverbs.
    pub(super) fn open(&self, seed: u64, gid_indexes: Option<[u8; 2]>) -> Result<Opened, String> {
        let (environment, drivers, rdma_core): (Box<dyn Environment>, _, _) = match self {
            Testable::Virtual => (Box::new(VirtualTime::new(seed)), [SOFTNIC, SOFTNIC].map(str::to_owned), None),
            Testable::Udp(addresses) => {
                let environment = RealTime::open(*addresses, &UdpConfig::default())
                    .map_err(|error| longhaul::with_sources(&error))?;
                for warning in environment.udp_devices()[0].warnings() {
                    eprintln!("{warning}");
                }
                (Box::new(environment), [SOFTNIC, SOFTNIC].map(str::to_owned), None)
            }
            Testable::Libibverbs(names) => {
                let opened = libibverbs::open(names, gid_indexes)?;
                (Box::new(opened.environment), opened.drivers, opened.rdma_core)
            }
        };
        let facts = Facts::of(&*environment, drivers.each_ref().map(String::as_str), rdma_core)
            .map_err(|error| format!("cannot query the device: {}", longhaul::with_sources(&error)))?;
        Ok(Opened { environment, facts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_their_addresses_or_by_libibverbs() {
        let [one, other]: [IpAddr; 2] = ["127.0.0.1", "::1"].map(|text| text.parse().expect("an address"));
        assert_eq!(Testable::parse("softnic"), Ok(Testable::Virtual));
        assert_eq!(Testable::parse("softnic:127.0.0.1"), Ok(Testable::Udp([one, one])));
        assert_eq!(Testable::parse("softnic:127.0.0.1,::1"), Ok(Testable::Udp([one, other])));
        let refused = Testable::parse("softnic:nowhere").expect_err("not an address");
        assert!(refused.contains("\"nowhere\""), "{refused}");
        let names = |[one, other]: [&str; 2]| Ok(Testable::Libibverbs([one.to_owned(), other.to_owned()]));
        assert_eq!(Testable::parse("mlx5_0"), names(["mlx5_0", "mlx5_0"]));
        assert_eq!(Testable::parse("rxe0,rxe1"), names(["rxe0", "rxe1"]));
        for wrong in ["", "rxe0,", "rxe0,softnic", "softnic,rxe0"] {
            let refused = Testable::parse(wrong).expect_err("half a pair");
            assert!(refused.contains("softnic:ADDRESS"), "{refused}");
        }
    }
}
