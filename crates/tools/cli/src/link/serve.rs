//! A link that runs: answers other processes until it is to end.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use longhaul_link::control::{Answer, ControlSocket, Request};
use longhaul_link::{DirectionCounters, RunningCounters, RunningLink, Towards};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serde_json::{Value, json};

use super::options;
use crate::stop::Stop;

/// How often is looked whether the link has ended by itself.
const LOOK_MILLIS: u16 = 200;

/// Signals that end a link in order.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// From here on they are waited for, on all threads that are started after this.
    pub(crate) fn wait_for_end() -> Result<Self, Stop> {
        let failed = |error: nix::Error| Stop::failed("cannot wait for signals", std::io::Error::from(error));
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            // Who starts it with `nohup` wants it to outlive the terminal.
            if !is_ignored(signal) {
                signals.add(signal);
            }
        }
        signals.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&signals, flags).map(Signals).map_err(failed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or_default() & 1 << (signal as u32 - 1) != 0
}

/// What a link says about itself.
pub(super) struct Described {
    pub(super) name: String,
    /// What its ends are called.
    pub(super) ends: [String; 2],
    pub(super) seed: u64,
    /// What happens to frames, as it was asked for.
    pub(super) settings: [String; 2],
    /// Descriptors of the namespaces of its ends, if it holds some.
    pub(super) namespaces: Option<[i32; 2]>,
}

/// Answers until the link is to end, or has ended by itself. Returns what was counted.
pub(super) fn serve(
    link: RunningLink,
    mut described: Described,
    control: ControlSocket,
    signals: &Signals,
) -> Result<Value, Stop> {
    let mut is_over = false;
    while !is_over && !link.has_ended() {
        let mut polled = [
            PollFd::new(control.listener().as_fd(), PollFlags::POLLIN),
            PollFd::new(signals.0.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted look is one more look.
        let _ = poll(&mut polled, PollTimeout::from(LOOK_MILLIS));
        let is_ready = |polled: &PollFd<'_>| polled.any().unwrap_or(false);
        is_over = is_ready(&polled[1]);
        if is_ready(&polled[0]) {
            control.answer_one(|request| {
                is_over |= request == Request::End;
                answer(&link, &mut described, request)
            });
        }
    }
    let mut counted = link.counters().map(|counters| to_json(&described, &counters));
    // The name is free, and the link gone, when the process that asked for the end goes on.
    let ended = link.end().map_err(options::stop_of);
    if let Err(stop) = &ended {
        control.leave_reason(&stop.to_string());
    }
    drop(control);
    if let (Some(captured), Ok(counted)) = (ended?, &mut counted) {
        counted["captured_frames"] = captured.frames_written.into();
        counted["not_captured_frames"] = captured.frames_left_out.into();
    }
    counted.map_err(options::stop_of)
}

fn answer(link: &RunningLink, described: &mut Described, request: Request) -> Answer {
    match request {
        Request::Set { forth, back } => {
            // Both are read before one is changed.
            let mut changes = Vec::new();
            for (index, (towards, text)) in Towards::BOTH.into_iter().zip([forth, back]).enumerate() {
                if let Some(text) = text {
                    changes.push((index, towards, options::profile(&text)?, text));
                }
            }
            for (index, towards, profile, text) in changes {
                link.set_profile(towards, Arc::new(profile)).map_err(|error| error.to_string())?;
                described.settings[index] = text;
            }
            Ok(json!({ "schema": 1 }))
        }
        Request::Show | Request::End => {
            let counters = link.counters().map_err(|error| error.to_string())?;
            Ok(to_json(described, &counters))
        }
    }
}

fn to_json(described: &Described, counters: &RunningCounters) -> Value {
    let direction = |index: usize, counted: &DirectionCounters| {
        let impaired = &counted.impaired;
        json!({
            "settings": described.settings[index],
            "frames": impaired.packets,
            "bytes": impaired.bytes,
            "queue_full_frames": impaired.queue_full,
            "lost_frames": impaired.lost,
            "marked_frames": counted.marked,
            "not_markable_frames": counted.not_markable,
            "reordered_frames": impaired.reordered,
            "duplicated_frames": impaired.duplicated,
            "corrupted_frames": impaired.corrupted,
            "no_memory_frames": counted.no_memory,
            "kept_frames": counted.kept,
            "kept_bytes": counted.kept_bytes,
            "ring_full_frames": counters.arrived[index].no_room,
            "too_long_frames": counters.arrived[index].too_long,
        })
    };
    json!({
        "schema": 1,
        "name": described.name,
        "ends": described.ends,
        "seed": described.seed,
        "process": std::process::id(),
        "namespaces": described.namespaces,
        "forth": direction(0, &counters.link.towards_second),
        "back": direction(1, &counters.link.towards_first),
        "sent_frames": counters.forwarded.sent,
        "refused_frames": counters.forwarded.refused,
        "late_frames": counters.forwarded.late,
        "latest_us": counters.forwarded.latest_nanos as f64 / 1e3,
    })
}
