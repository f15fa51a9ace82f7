//! What an end of a measurement is made with.

use std::path::PathBuf;

use longhaul_impair::Profile;
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};

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
        Ok(config)
    }
}
