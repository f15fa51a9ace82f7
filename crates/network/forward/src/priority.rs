//! What a thread needs to leave frames on time: a timer that is not rounded, and a processor when it wants one.
#![allow(unsafe_code, reason = "one system call that nix does not know")]

use std::io;

use nix::sys::prctl;

/// Wake this thread when its time has come, and not up to 50 µs later. Every thread may ask for that.
pub fn wake_on_time() -> io::Result<()> {
    Ok(prctl::set_timerslack(1)?)
}

/// Let this thread run before all ordinary ones (`SCHED_FIFO`), at a priority from 1 to 99. Only root may, as a rule; where it
/// is refused, frames leave later on a busy machine.
pub fn run_before_others(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are alive; 0 is this thread. Processes and threads that it starts get the ordinary policy.
    let set = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
