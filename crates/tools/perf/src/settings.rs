//! What an end of a measurement is made with.

use std::path::PathBuf;

use longhaul_congestion::ControllerName;
use longhaul_impair::Profile;
use longhaul_softnic_udp::{Fec, Impair, UdpConfig, UdpPortChoice};

use crate::device::DeviceChoice;
use crate::error::PerfError;
use crate::randomness::random_number;

/// One end: its device, and where the ends meet.
#[derive(Clone, Debug)]
pub struct EndSettings {
    /// TCP port of the exchange.
    pub port: u16,
    /// The device.
    pub device: DeviceChoice,
    /// Row of the GID table; the one that fits the peer if there is none.
    pub gid_index: Option<u8>,
    /// What is done to the packets of a software RNIC.
    pub softnic: SoftnicSettings,
}

/// What is done to the packets of a software RNIC: they pass through this program.
#[derive(Clone, Debug, Default)]
pub struct SoftnicSettings {
    /// The bad network that they go through.
    pub impair: Option<Profile>,
    /// The pcapng file that they are written to.
    pub capture: Option<PathBuf>,
    /// What controls the rate of reliable connections to other hosts.
    pub congestion: Congestion,
    /// Forward error correction towards a gateway before the peer, without asking the peer.
    pub fec_gateway: Option<Fec>,
}

/// What controls the rate of reliable connections to other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Congestion {
    /// What the device has by default, if the user names no rate.
    #[default]
    Default,
    /// Nothing.
    Off,
    /// This controller. A fixed rate is that of unreliable transports, too.
    By(ControllerName),
}

impl SoftnicSettings {
    /// How the device uses UDP.
    pub fn udp_config(&self, udp_port: UdpPortChoice) -> Result<UdpConfig, PerfError> {
        let mut config = UdpConfig::default();
        config.udp_port = udp_port;
        if let Some(profile) = &self.impair {
            config.impair = Some(Impair { profile: profile.clone(), seed: random_number()? });
        }
        config.capture = self.capture.clone();
        match self.congestion {
            // Messages alone can have credit; the device keeps its own for RC.
            Congestion::Default | Congestion::By(ControllerName::Credit) => {}
            Congestion::Off => config.off_host_congestion = None,
            Congestion::By(name) => config.off_host_congestion = Some(name),
        }
        Ok(config)
    }
}
