//! A tap: an interface whose other end is this process. Frames that the host sends by it arrive here.
#![allow(unsafe_code, reason = "one ioctl call that nix does not know")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use crate::clock::Clock;
use crate::error::ForwardError;
use crate::interface::{Arrival, Interface, Sink, Source, SourceCounters};
use crate::offloads;

/// Bytes of the longest frame: a jumbo frame with two VLAN tags, and more than any Ethernet carries.
const FRAME_BYTES_MAX: usize = 16 << 10;
/// Frames that are read at once.
const FRAMES: usize = 64;

/// Makes a tap of this name, or opens one that is there and that nobody has open. It is gone when both halves are, unless
/// it was made to stay (`ip tuntap add`).
pub fn open(name: &str, clock: Clock) -> Result<Interface, ForwardError> {
    let failed = |what, source| ForwardError::Open { interface: name.to_owned(), what, source };
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open("/dev/net/tun").map_err(|source| failed("/dev/net/tun cannot be opened", source))?;
    let mut request =
        offloads::request_for(name).map_err(|source| failed("no interface can have this name", source))?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as i16;
    // SAFETY: the request is alive, and this call reads and writes no more than it.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if made < 0 {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::EPERM) => ForwardError::NotAllowed { interface: name.to_owned(), source },
            Some(libc::EBUSY) => failed("another process has this tap open", source),
            _ => failed("no tap of this name", source),
        });
    }
    let sending = file.try_clone().map_err(|source| failed("no second descriptor", source))?;
    let memory = vec![0; FRAMES * FRAME_BYTES_MAX].into_boxed_slice();
    let source = TapSource { name: name.to_owned(), file, memory, clock, counters: SourceCounters::default() };
    let sink = TapSink { name: name.to_owned(), file: sending };
    Ok(Interface { source: Box::new(source), sink: Box::new(sink) })
}

struct TapSource {
    name: String,
    file: File,
    memory: Box<[u8]>,
    clock: Clock,
    counters: SourceCounters,
}

impl Source for TapSource {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn receive<'a>(&'a mut self, most: usize, arrivals: &mut Vec<Arrival<'a>>) -> Result<(), ForwardError> {
        for bytes in self.memory.chunks_exact_mut(FRAME_BYTES_MAX).take(most) {
            match self.file.read(bytes) {
                // It may have been longer, and is cut then.
                Ok(FRAME_BYTES_MAX) => self.counters.too_long += 1,
                Ok(count) => {
                    self.counters.frames += 1;
                    // A tap does not say when a frame came.
                    arrivals.push(Arrival { bytes: &mut bytes[..count], at: self.clock.now() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Its interface is down.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => break,
                Err(error) if error.raw_os_error() == Some(libc::EBADFD) => {
                    return Err(ForwardError::Gone(self.name.clone()));
                }
                Err(source) => return Err(ForwardError::Receive { interface: self.name.clone(), source }),
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), ForwardError> {
        // Without its interface, a tap reports an error for ever.
        match offloads::mtu(&self.name) {
            Ok(_) => Ok(()),
            Err(_) => Err(ForwardError::Gone(self.name.clone())),
        }
    }

    fn counters(&mut self) -> SourceCounters {
        self.counters
    }
}

struct TapSink {
    name: String,
    file: File,
}

impl Sink for TapSink {
    fn send(&mut self, frames: &[&[u8]]) -> Result<u64, ForwardError> {
        let mut refused = 0;
        for frame in frames {
            match self.file.write(frame) {
                Ok(written) => refused += u64::from(written < frame.len()),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EBADFD) => return Err(ForwardError::Gone(self.name.clone())),
                    // Its interface is down, has no room, or does not take such a frame.
                    Some(libc::EIO | libc::EAGAIN | libc::EINVAL | libc::ENOBUFS | libc::EMSGSIZE | libc::ENOMEM) => {
                        refused += 1
                    }
                    _ => return Err(ForwardError::Send { interface: self.name.clone(), source: error }),
                },
            }
        }
        Ok(refused)
    }
}
