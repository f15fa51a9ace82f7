//! Everything that is known about a host.

use std::io;

use longhaul_softnic_udp::UdpConfig;
use thiserror::Error;

use crate::facts::HostFacts;
use crate::libibverbs::{self, Libibverbs, RdmaEntry};
use crate::list::{self, Entry};
use crate::problems::{self, Problem};

/// A host, its devices and its problems.
#[derive(Clone, Debug, Default)]
pub struct Diagnosis {
    /// The host.
    pub facts: HostFacts,
    /// Its software RNICs.
    pub devices: Vec<Entry>,
    /// What libibverbs knows.
    pub libibverbs: Libibverbs,
    /// What is wrong with it, worst first.
    pub problems: Vec<Problem>,
}

/// Why a host cannot be diagnosed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DiagnosisError {
    /// The kernel does not list its interfaces.
    #[error("the interfaces of this host cannot be listed")]
    Interfaces(#[source] io::Error),
}

impl Diagnosis {
    /// Looks at this host.
    pub fn of_this_host() -> Result<Diagnosis, DiagnosisError> {
        let udp = UdpConfig::default();
        let facts =
            HostFacts::gather(udp.receive_buffer_bytes, udp.send_buffer_bytes).map_err(DiagnosisError::Interfaces)?;
        let (devices, mut problems) = list::devices(&facts);
        let (libibverbs, of_libibverbs) = libibverbs::look(&facts);
        problems.extend(of_libibverbs);
        problems.extend(problems::of_host(&facts));
        problems.sort_by_key(|problem| problem.severity);
        Ok(Diagnosis { facts, devices, libibverbs, problems })
    }

    /// Whether any device of this host can be used.
    pub fn is_usable(&self) -> bool {
        self.devices.iter().any(Entry::is_usable) || self.libibverbs.devices.iter().any(RdmaEntry::is_usable)
    }
}
