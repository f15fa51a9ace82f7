//! After the handshake: whether UDP packets pass between the devices, in both directions.
//!
//! The handshake is made on TCP, so it works where a firewall drops UDP. Each end waits until the peer has echoed one
//! of its packets. An end that gives up reports over TCP whether it has received anything; then both can say in which
//! direction packets are lost.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use longhaul_wire::handshake::Message;
use thiserror::Error;

use crate::carrier::to_bytes;
use crate::carrier::{Carrier, CarrierError};
use crate::connection::Connection;
use crate::transfer_error::TransferError;

/// How long an end that gives up waits for what the other has heard.
const REPORT_WAIT: Duration = Duration::from_secs(1);
/// It looks this often, at first and later.
const NAP_MIN: Duration = Duration::from_micros(100);
const NAP_MAX: Duration = Duration::from_millis(5);

/// UDP packets do not pass between two devices whose hosts are connected by TCP.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("TCP works, but no connection over UDP in {waited:?}: {}", self.explain())]
pub struct PathError {
    /// Our device.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// How long it was tried.
    pub waited: Duration,
    /// Where packets are lost.
    pub direction: LostDirection,
}

/// In which direction packets are lost, as far as the ends could find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostDirection {
    /// From the peer to us: the peer hears us.
    FromPeer,
    /// From us to the peer: we hear the peer.
    ToPeer,
    /// In both.
    Both,
    /// We hear nothing; the peer has not said what it hears.
    FromPeerAtLeast,
    /// We hear the peer, but it never answers what we send, and has not said what it hears.
    Unanswered,
}

impl PathError {
    fn explain(&self) -> String {
        let PathError { local, peer, .. } = self;
        match self.direction {
            LostDirection::FromPeer => format!(
                "nothing from {peer} arrived here at {local}, although the peer hears us; does a firewall drop UDP packets to port {} \
                 of this host?",
                local.port()
            ),
            LostDirection::ToPeer => format!(
                "the peer hears nothing from us ({local}), although its packets arrive here; does a firewall drop UDP packets to {peer}?"
            ),
            LostDirection::Both => format!(
                "nothing from {peer} arrived here at {local}, and the peer hears nothing from us; does a firewall drop UDP port {}?",
                peer.port()
            ),
            LostDirection::FromPeerAtLeast => format!(
                "nothing from {peer} arrived here at {local}; does a firewall drop UDP packets to port {} of this host, or to port {} of \
                 the peer's?",
                local.port(),
                peer.port()
            ),
            LostDirection::Unanswered => format!(
                "packets of {peer} arrive here at {local}, but none that answers ours; does a firewall drop UDP packets to {peer}?"
            ),
        }
    }
}

/// Why a path is not verified.
#[derive(Debug, Error)]
pub(crate) enum VerifyError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    #[error(transparent)]
    Ended(#[from] TransferError),
}

/// Wait until packets pass in both directions, for as long as the carrier has time.
pub(crate) fn verify(connection: &Connection, carrier: &mut Carrier) -> Result<(), VerifyError> {
    let begun = Instant::now();
    let mut nap = NAP_MIN;
    connection.drive_until(|connection| connection.is_path_verified());
    loop {
        if connection.is_path_verified() {
            let (local, peer, scheme) = (connection.local_udp(), connection.peer_udp(), connection.scheme());
            tracing::info!(%local, %peer, scheme, "connected");
            return Ok(());
        }
        connection.check()?;
        let failed = |theirs: Option<bool>| PathError {
            local: connection.local_udp(),
            peer: connection.peer_udp(),
            waited: begun.elapsed(),
            direction: match (connection.has_heard(), theirs) {
                (false, Some(true)) => LostDirection::FromPeer,
                (true, Some(false)) => LostDirection::ToPeer,
                (false, Some(false)) => LostDirection::Both,
                (false, None) => LostDirection::FromPeerAtLeast,
                (true, _) => LostDirection::Unanswered,
            },
        };
        let ours = || to_bytes(&Message::PathReport { has_heard: connection.has_heard() });
        // The peer says something only when it has given up.
        if carrier.is_readable_within(nap)? {
            carrier.set_patience(REPORT_WAIT);
            let theirs = heard_by_peer(&carrier.receive()?);
            let _ = carrier.send(&ours());
            return Err(failed(theirs).into());
        }
        if carrier.is_late() {
            carrier.set_patience(REPORT_WAIT);
            let theirs = carrier.send(&ours()).and_then(|()| carrier.receive());
            return Err(failed(theirs.ok().and_then(|bytes| heard_by_peer(&bytes))).into());
        }
        nap = (nap * 2).min(NAP_MAX);
    }
}

/// Whether the peer has heard anything, if that is what it says.
fn heard_by_peer(bytes: &[u8]) -> Option<bool> {
    match Message::parse(bytes) {
        Ok(Message::PathReport { has_heard }) => Some(has_heard),
        _ => None,
    }
}
