//! What was measured, and why it could not be.

use std::io;

use longhaul_forward::ForwardError;
use longhaul_link::LinkError;
use longhaul_link::namespaces::NamespaceError;
use thiserror::Error;

/// Why a link could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// No namespaces.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// No link.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Frames could not be moved.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// An end has failed.
    #[error("an end of the link could not {0}")]
    End(&'static str, #[source] io::Error),
    /// Nothing has arrived.
    #[error("nothing of what was sent has arrived")]
    Nothing,
}

/// What a link can do with packets of one length.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the longest packet.
    pub mtu: usize,
    /// Frames a second that the link moved, delayed and impaired, as many as the sender could send.
    pub frames_per_second: f64,
    /// The same of a forwarder that does nothing to frames.
    pub bare_frames_per_second: f64,
    /// The median of the ratios of both, each of one round.
    pub over_bare_forwarder: f64,
    /// Frames a second of processor time of the link's thread.
    pub frames_per_second_per_core: f64,
    /// What one TCP connection carried over the link without delay, bits a second.
    pub tcp_bits_per_second: f64,
    /// Datagrams that left at a steady rate, with delay.
    pub paced: PacedRow,
}

/// Datagrams at a steady rate.
#[derive(Clone, Debug, Default)]
pub struct PacedRow {
    /// Bits a second on the link, as asked for.
    pub asked_bits_per_second: f64,
    /// As sent.
    pub sent_bits_per_second: f64,
    /// Frames that were sent, and those of them that did not arrive.
    pub frames: u64,
    /// Of them did not arrive.
    pub missing_frames: u64,
    /// Frames for which the link's ring had no room.
    pub ring_full_frames: u64,
    /// Frames that left more than a millisecond late.
    pub late_frames: u64,
    /// How much longer than set frames took, outside stalls, in microseconds.
    pub delay_error_us: Percentiles,
    /// Of all frames.
    pub delay_error_all_us: Percentiles,
    /// Share of frames that met a stall.
    pub set_aside_share: f64,
    /// Share of the link's processor that the witness missed; zero where it could not watch that processor before others.
    pub stalled_share: f64,
    /// Share of that processor that the host gave to others, as the kernel counts it.
    pub steal_share: f64,
    /// Frames that an interface did not take.
    pub refused_frames: u64,
}

/// Of many values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Above it are 1 % of them.
    pub p99: f64,
}

/// Loss, as set and as seen.
#[derive(Clone, Copy, Debug)]
pub struct LossRow {
    /// As set.
    pub set: f64,
    /// Frames that entered.
    pub frames: u64,
    /// Frames that did not arrive.
    pub lost_frames: u64,
    /// Frames that the link counted as lost.
    pub counted_frames: u64,
    /// Whether that many are as likely as they should be.
    pub is_within_interval: bool,
}

/// What a link can do on this machine.
#[derive(Clone, Debug)]
pub struct Report {
    /// By MTU.
    pub rows: Vec<Row>,
    /// Loss.
    pub loss: LossRow,
    /// Whether the link's thread ran before all ordinary ones.
    pub has_priority: bool,
    /// Share of processor time that the host gave to others, over the whole check.
    pub steal_share: f64,
}
