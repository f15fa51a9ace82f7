//! Forward error correction of single queue pairs: what both ends say about it when they connect, and the agreement that follows.
//!
//! ```text
//!   connection info, in a format of the program: … + fec ───▶ FecPeer ─▶ UdpDevice::protect_queue_pair ─▶ Protection
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use longhaul_shim::{Agreement, Fec};
use longhaul_softnic::ShimLayer;
use longhaul_verbs as verbs;

use crate::driver::Driver;

/// The other end of a queue pair, as its connection info describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FecPeer {
    /// The address of its device.
    pub address: IpAddr,
    /// Its queue pair.
    pub queue_pair: verbs::QueuePairNumber,
    /// [`UdpDevice::fec`](crate::UdpDevice::fec) of its device. As text it is `lowar:32,1` or `auto`, which [`Fec`] reads and writes.
    pub fec: Option<Fec>,
}

/// Why a queue pair cannot be protected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtectError {
    /// The device was opened without it.
    #[error("the device was opened without forward error correction; set UdpConfig::fec")]
    NotThere,
    /// The peer's device was opened without it, and would drop repair packets.
    #[error(
        "the device of {peer} was opened without forward error correction; set UdpConfig::fec at both ends or at neither"
    )]
    PeerHasNone {
        /// Its address.
        peer: IpAddr,
    },
    /// A code that follows the link needs reports, which only a device sends whose code does the same.
    #[error(
        "{ours} here and {theirs} at {peer}: a code that follows the link needs reports, which a device with a fixed code does not \
         send; use auto at both ends or a fixed code at both"
    )]
    OneFollows {
        /// Here.
        ours: Fec,
        /// There.
        theirs: Fec,
        /// Its address.
        peer: IpAddr,
    },
    /// Messages of UD are single packets, and go to many peers.
    #[error(
        "forward error correction is for RC and UC: every message of this {0} queue pair is a single packet, which would be sent twice"
    )]
    Transport(&'static str),
    /// The end of the first protection would end the second, too.
    #[error("queue pair {} has a protection already; drop that before you connect it again and ask for another",
        .0.value()
    )]
    AlreadyProtected(verbs::QueuePairNumber),
    /// The end of the first protection would end the second, too.
    #[error(
        "a protection towards queue pair {} of {peer} is still there; drop that before you connect another queue pair to it",
        .queue_pair.value()
    )]
    PeerAlreadyProtected {
        /// Its address.
        peer: IpAddr,
        /// Its queue pair.
        queue_pair: verbs::QueuePairNumber,
    },
    /// It cannot work with this code.
    #[error(transparent)]
    Code(#[from] longhaul_shim::ConfigError),
}

/// The queue pairs of a device that have a [`Protection`], and their peers: what is sent is known by the peer's number, what
/// arrives by ours, and the end of a protection ends both.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    ours: BTreeSet<u32>,
    theirs: BTreeSet<(IpAddr, u32)>,
}

/// Shared by the handles of a device and its protections.
pub(crate) type Protected = Arc<Mutex<Ends>>;

/// A queue pair whose losses are repaired. The protection ends when this is dropped; drop it when the queue pair is destroyed or
/// connected elsewhere.
pub struct Protection {
    driver: Weak<Driver>,
    protected: Protected,
    agreement: Agreement,
}

impl Protection {
    /// What the two ends have agreed on.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.tidy(|stack| disagree(stack, &self.agreement));
        }
        let mut all = ends(&self.protected);
        all.ours.remove(&self.agreement.ours);
        all.theirs.remove(&(self.agreement.peer, self.agreement.theirs));
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Protection").field(&self.agreement).finish()
    }
}

/// What [`UdpDevice::protect_queue_pair`](crate::UdpDevice::protect_queue_pair) does on a device with `fec`: each end
/// sends with its own code, and both must be able to repair.
pub(crate) fn protect_queue_pair(
    fec: Option<Fec>,
    driver: Weak<Driver>,
    protected: &Protected,
    ours: &verbs::QueuePair,
    peer: &FecPeer,
) -> Result<Protection, ProtectError> {
    let fec = fec.ok_or(ProtectError::NotThere)?;
    let theirs = peer.fec.ok_or(ProtectError::PeerHasNone { peer: peer.address })?;
    if !matches!(ours.transport(), verbs::Transport::ReliableConnection | verbs::Transport::UnreliableConnection) {
        return Err(ProtectError::Transport(ours.transport().abbreviation()));
    }
    if matches!(fec, Fec::Auto(_)) != matches!(theirs, Fec::Auto(_)) {
        return Err(ProtectError::OneFollows { ours: fec, theirs, peer: peer.address });
    }
    // What the peer sends must be decodable here: both have the same bounds, so its code is checked as if it were ours.
    longhaul_shim::Config::of(&theirs).check()?;
    let agreement = Agreement {
        // Packets of `::ffff:192.0.2.1` come from 192.0.2.1.
        peer: peer.address.to_canonical(),
        ours: ours.number().value(),
        theirs: peer.queue_pair.value(),
        code: fec.first_code(),
    };
    let mut all = ends(protected);
    if all.ours.contains(&agreement.ours) {
        return Err(ProtectError::AlreadyProtected(ours.number()));
    }
    if all.theirs.contains(&(agreement.peer, agreement.theirs)) {
        return Err(ProtectError::PeerAlreadyProtected { peer: agreement.peer, queue_pair: peer.queue_pair });
    }
    agree(&driver, &agreement)?;
    all.ours.insert(agreement.ours);
    all.theirs.insert((agreement.peer, agreement.theirs));
    drop(all);
    Ok(Protection { driver, protected: protected.clone(), agreement })
}

/// A panic elsewhere leaves the numbers as they are.
fn ends(protected: &Protected) -> std::sync::MutexGuard<'_, Ends> {
    protected.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes an agreement.
pub(crate) fn agree(driver: &Weak<Driver>, agreement: &Agreement) -> Result<(), ProtectError> {
    let agree = |layer: &mut ShimLayer| layer.agree(agreement);
    let driver = driver.upgrade().ok_or(ProtectError::NotThere)?;
    let agreed = driver.with_port(|_, stack, _| stack.layers_mut::<ShimLayer>().next().map(agree));
    Ok(agreed.ok_or(ProtectError::NotThere)??)
}

/// Ends an agreement, if there is forward error correction.
pub(crate) fn disagree(stack: &mut longhaul_softnic::Stack, agreement: &Agreement) {
    stack.layers_mut::<ShimLayer>().next().into_iter().for_each(|layer| layer.disagree(agreement));
}
