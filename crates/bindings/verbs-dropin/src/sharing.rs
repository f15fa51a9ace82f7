//! Opens the device at an address: at a port that it shares with other processes of the user, or alone where nobody hands sockets
//! over.

use std::net::IpAddr;
use std::path::Path;

use longhaul_port_broker::{Lease, LeaseError, Refusal as BrokerRefusal, default_name};
use longhaul_softnic::Config;
use longhaul_softnic_udp::sharing::queue_pair_numbers;
use longhaul_softnic_udp::{OpenError, UdpConfig, UdpDevice, UdpPortChoice};
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::refusal::{Refusal, refusal, refused};

/// The program that is run to be the port broker: `longhaul run` names itself.
const BROKER: &str = "LONGHAUL_RUN_BROKER";
/// Programs with different names here do not share, and each name has a broker of its own.
const BROKER_NAME: &str = "LONGHAUL_RUN_BROKER_NAME";

/// A device, and what it must not outlive.
pub(crate) struct Opened {
    pub(crate) device: UdpDevice,
    pub(crate) lease: Option<Lease>,
}

pub(crate) fn open(address: IpAddr, mut config: Config, mut udp: UdpConfig) -> Result<Opened, Refusal> {
    // Programs exchange no port, so no other can be used.
    udp.udp_port = UdpPortChoice::Roce;
    let program = std::env::var_os(BROKER).filter(|program| !program.is_empty());
    let name = std::env::var(BROKER_NAME).unwrap_or_else(|_| default_name());
    match Lease::ask(&name, program.as_deref().map(Path::new), address) {
        Ok(lease) => {
            config.queue_pair_numbers = queue_pair_numbers(lease.part());
            config.queue_pairs_max = config.queue_pairs_max.min(config.queue_pair_numbers.len() as u32 / 2);
            let socket = lease.socket().map_err(|error| {
                let source = OpenError::System { what: "copy a descriptor", address, source: error };
                refusal(&source)
            })?;
            let device = without_signals(|| UdpDevice::open_shared(config, udp, vec![socket]));
            Ok(Opened { device: device.map_err(|error| refusal(&error))?, lease: Some(lease) })
        }
        // Sandboxes may forbid the one or the other. If it is the port that is taken, both reasons are told.
        Err(error @ (LeaseError::NoBroker { .. } | LeaseError::Refused { refusal: BrokerRefusal::System(_), .. })) => {
            let device = without_signals(|| UdpDevice::open(config, udp)).map_err(|open_error| {
                let mut refusal = refusal(&open_error);
                if matches!(open_error, OpenError::PortTaken { .. }) {
                    refusal.text = format!("{}; {error}", refusal.text);
                }
                refusal
            })?;
            Ok(Opened { device, lease: None })
        }
        Err(error) => Err(refused(&error)),
    }
}

/// The program's signals are for its own threads.
fn without_signals<T>(open: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let result = open();
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    result
}
