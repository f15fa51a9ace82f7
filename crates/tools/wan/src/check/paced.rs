//! Datagrams with a number and a time in each: at a steady rate, or as many as can be sent.

use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_link::namespaces::{Namespaces, Side};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};

use super::report::{CheckError, PacedRow, Percentiles};
use crate::clock::now;
use crate::witness::Stalls;

/// IPv4's and UDP's headers.
const HEADERS_BYTES: usize = 28;
const ETHERNET_BYTES: usize = 14;
/// The receiver waits this long for more, once nothing is sent any more.
const SILENCE: Duration = Duration::from_millis(300);
/// So that a receiver that has no processor for a moment loses nothing.
const SOCKET_BYTES: usize = 64 << 20;

fn failed(what: &'static str) -> impl Fn(io::Error) -> CheckError {
    move |error| CheckError::End(what, error)
}

/// A socket on each side.
fn sockets(namespaces: &Namespaces) -> Result<[UdpSocket; 2], CheckError> {
    let open = |side: Side| namespaces.within(side, || UdpSocket::bind((side.address(), 0)));
    let left = open(Side::Left)?.map_err(failed("open a socket"))?;
    let right = open(Side::Right)?.map_err(failed("open a socket"))?;
    left.connect(right.local_addr().map_err(failed("open a socket"))?).map_err(failed("connect a socket"))?;
    right.set_read_timeout(Some(SILENCE)).map_err(failed("open a socket"))?;
    // Only root may have more than the system's limit; others get that limit.
    let larger = setsockopt(&right, sockopt::RcvBufForce, &SOCKET_BYTES);
    let _ = larger.or_else(|_| setsockopt(&right, sockopt::RcvBuf, &SOCKET_BYTES));
    setsockopt(&right, sockopt::ReceiveTimestampns, &true).map_err(|error| failed("ask for times")(error.into()))?;
    Ok([left, right])
}

/// Datagrams at a steady rate, and when each was sent and has arrived.
pub(super) struct Paced {
    sent: Vec<Duration>,
    /// By number.
    arrived: Vec<Option<Duration>>,
    frame_bytes: usize,
}

impl Paced {
    /// Sends for a while.
    pub(super) fn send(
        namespaces: &Namespaces,
        mtu: usize,
        bits_per_second: f64,
        duration: Duration,
    ) -> Result<Self, CheckError> {
        let [left, right] = sockets(namespaces)?;
        let frame_bytes = mtu + ETHERNET_BYTES;
        let gap = Duration::from_secs_f64(8.0 * frame_bytes as f64 / bits_per_second);
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let receiver = std::thread::spawn(move || receive(&right, mtu, &ends));
        let mut datagram = vec![0; mtu - HEADERS_BYTES];
        let (begun, mut sent) = (now(), Vec::new());
        let mut next = begun;
        while next - begun < duration {
            while now() < next {
                std::hint::spin_loop();
            }
            datagram[..8].copy_from_slice(&(sent.len() as u64).to_be_bytes());
            let at = now();
            left.send(&datagram).map_err(failed("send"))?;
            sent.push(at);
            // After a stall it goes on at the same rate: a burst would measure the sender.
            next = (next + gap).max(now());
        }
        is_over.store(true, Ordering::Relaxed);
        let received = receiver.join().map_err(|_| CheckError::Nothing)?.map_err(failed("receive"))?;
        let mut arrived = vec![None; sent.len()];
        for (number, at) in received {
            if let Some(place) = arrived.get_mut(number as usize) {
                place.get_or_insert(at);
            }
        }
        Ok(Paced { sent, arrived, frame_bytes })
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.len() as u64
    }

    pub(super) fn missing(&self) -> u64 {
        self.arrived.iter().filter(|at| at.is_none()).count() as u64
    }

    /// How much longer than `delay` frames took, with and without those that met a stall.
    pub(super) fn row(&self, asked: f64, delay: Duration, stalls: &Stalls) -> Result<PacedRow, CheckError> {
        let (mut all, mut outside) = (Vec::new(), Vec::new());
        for (sent, arrived) in self.sent.iter().zip(&self.arrived) {
            let Some(arrived) = arrived else { continue };
            let error = (arrived.as_secs_f64() - (*sent + delay).as_secs_f64()) * 1e6;
            all.push(error);
            if !stalls.explain(*sent + delay, *arrived) {
                outside.push(error);
            }
        }
        let (Some(first), Some(last)) = (self.sent.first(), self.sent.last()) else { return Err(CheckError::Nothing) };
        if outside.is_empty() {
            return Err(CheckError::Nothing);
        }
        let bits = 8.0 * (self.frame_bytes * self.sent.len()) as f64;
        Ok(PacedRow {
            asked_bits_per_second: asked,
            sent_bits_per_second: bits / (*last - *first).as_secs_f64().max(1e-9),
            frames: self.sent(),
            missing_frames: self.missing(),
            set_aside_share: 1.0 - outside.len() as f64 / all.len() as f64,
            delay_error_us: percentiles(outside),
            delay_error_all_us: percentiles(all),
            stalled_share: stalls.share(),
            ..PacedRow::default()
        })
    }
}

pub(crate) fn percentiles(mut values: Vec<f64>) -> Percentiles {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
    Percentiles { p50: at(0.5), p99: at(0.99) }
}

/// Numbers of datagrams with the time at which the kernel got them, by the monotonic clock.
fn receive(socket: &UdpSocket, mtu: usize, is_over: &AtomicBool) -> io::Result<Vec<(u64, Duration)>> {
    let mut received = Vec::new();
    let mut datagram = vec![0; mtu];
    let mut space = nix::cmsg_space!(nix::sys::time::TimeSpec);
    loop {
        let mut parts = [IoSliceMut::new(&mut datagram)];
        let message = recvmsg::<SockaddrIn>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::empty());
        let (bytes, stamp) = match message {
            Ok(message) => {
                let stamp = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                    _ => None,
                });
                (message.bytes, stamp)
            }
            // Silence in the middle is a stall of the sender.
            Err(nix::Error::EAGAIN) if is_over.load(Ordering::Relaxed) => return Ok(received),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let time_of_day = clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::ZERO, Duration::from);
        let age = stamp.map_or(Duration::ZERO, |stamp| time_of_day.saturating_sub(stamp));
        if bytes >= 8 {
            let number = u64::from_be_bytes(datagram[..8].try_into().expect("eight bytes"));
            received.push((number, now().saturating_sub(age)));
        }
    }
}

/// As many datagrams as can be sent, until it is ended.
pub(super) struct Flood {
    is_over: Arc<AtomicBool>,
    threads: [JoinHandle<io::Result<()>>; 2],
}

pub(super) fn flood(namespaces: &Namespaces, mtu: usize) -> Result<Flood, CheckError> {
    let [left, right] = sockets(namespaces)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let (sends, receives) = (is_over.clone(), is_over.clone());
    let sender = std::thread::spawn(move || {
        let datagram = vec![0; mtu - HEADERS_BYTES];
        while !sends.load(Ordering::Relaxed) {
            left.send(&datagram)?;
        }
        Ok(())
    });
    let receiver = std::thread::spawn(move || {
        let mut datagram = vec![0; mtu];
        while !receives.load(Ordering::Relaxed) {
            match right.recv(&mut datagram) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    Ok(Flood { is_over, threads: [sender, receiver] })
}

impl Flood {
    /// How fast a count grows meanwhile.
    pub(super) fn frames_per_second(
        &self,
        duration: Duration,
        count: impl Fn() -> Result<u64, CheckError>,
    ) -> Result<f64, CheckError> {
        // Queues fill first.
        std::thread::sleep(duration / 10);
        let (before, begun) = (count()?, now());
        std::thread::sleep(duration);
        let (after, ended) = (count()?, now());
        Ok((after - before) as f64 / (ended - begun).as_secs_f64())
    }

    pub(super) fn end(self) -> Result<(), CheckError> {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| CheckError::Nothing)?.map_err(failed("send or receive"))?;
        }
        Ok(())
    }
}
