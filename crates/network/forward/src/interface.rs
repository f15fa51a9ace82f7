//! An interface as the loop sees it: a source of frames and a sink for them.

use std::os::fd::BorrowedFd;

use longhaul_time::Instant;

use crate::error::ForwardError;

/// An interface: where its frames come from, and where frames for it go.
pub struct Interface {
    /// Frames that arrive at it.
    pub source: Box<dyn Source>,
    /// Frames that leave by it.
    pub sink: Box<dyn Sink>,
}

/// Frames that are taken from an interface at once to be dropped, and how often: more than a ring has.
const DISCARDED: usize = 1024;
const DISCARDS_MAX: usize = 64;

impl Interface {
    /// Drops what has arrived so far.
    pub fn discard(&mut self) -> Result<(), ForwardError> {
        for _ in 0..DISCARDS_MAX {
            let mut arrivals = Vec::new();
            self.source.receive(DISCARDED, &mut arrivals)?;
            if arrivals.is_empty() {
                break;
            }
        }
        // Their memory goes back.
        self.source.receive(0, &mut Vec::new())
    }
}

/// A frame that has arrived, as it was on the wire.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// From the destination's address on, without the frame check sequence.
    pub bytes: &'a mut [u8],
    /// When the kernel got it.
    pub at: Instant,
}

/// Frames that arrive.
pub trait Source: Send {
    /// Can be read when there are frames.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Adds up to `most` frames. Those of the call before are gone.
    fn receive<'a>(&'a mut self, most: usize, arrivals: &mut Vec<Arrival<'a>>) -> Result<(), ForwardError>;

    /// Whether the interface is still there: an error if it is gone. Asked when its descriptor reports an error, and now and
    /// then, because not every interface reports its end.
    fn check(&mut self) -> Result<(), ForwardError>;

    /// What has been counted so far.
    fn counters(&mut self) -> SourceCounters;
}

/// What a source counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCounters {
    /// Frames that were passed on.
    pub frames: u64,
    /// Frames that arrived when there was no room for them.
    pub no_room: u64,
    /// Frames that were longer than the interface's MTU allowed when it was opened, and are lost.
    pub too_long: u64,
    /// Frames that arrived without their checksum, and are lost.
    pub unfinished: u64,
}

/// Frames that leave.
pub trait Sink: Send {
    /// Send frames in this order. Returns how many of them the interface did not take, which are lost.
    fn send(&mut self, frames: &[&[u8]]) -> Result<u64, ForwardError>;
}
