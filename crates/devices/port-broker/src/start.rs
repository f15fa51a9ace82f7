//! Starts a broker, unnoticed by the program in whose process this runs: it is not a child that the program's own `wait` could
//! return, no SIGCHLD is sent for it, it has none of the program's descriptors, and its environment is empty.
//!
//! ```text
//!   program's thread ──clone──▶ in between ──clone──▶ runs the broker (exec)
//!         waits ◀───────────────── ends ◀───────────── (or fails, and leaves the error)
//! ```
//!
//! Both clones share memory with the program and stop their parent until they end or run something else, as vfork does: forking
//! a program that has threads, or much memory, costs more. The one in between has no signal for its end, which hides it, and
//! when it is gone, the broker is a child of the system.
#![allow(unsafe_code, reason = "clone, and system calls in the processes that it makes")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// For each of the two. They call the system, and nothing else.
const STACK_BYTES: usize = 64 << 10;
/// Descriptors that are closed one by one where the kernel cannot close all (before Linux 5.9).
const DESCRIPTORS_MAX: c_int = 1 << 16;

/// Everything that the new processes need: they must not allocate.
struct Plan {
    program: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    listener: c_int,
    nothing: c_int,
    second_stack: *mut c_void,
    /// What went wrong, or 0.
    errno: c_int,
}

/// Run a program as broker: with the arguments `port-broker` and a name, and the listener as standard input.
pub(crate) fn start(program: &Path, listener: &UnixListener, name: &str) -> io::Result<()> {
    let program = CString::new(program.as_os_str().as_bytes())?;
    let (command, name) = (c"port-broker", CString::new(name)?);
    let arguments = [program.as_ptr(), command.as_ptr(), name.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null()];
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let mut stacks = vec![0_u128; 2 * STACK_BYTES / size_of::<u128>()];
    let stack_end = |number: usize| {
        let end = stacks.as_mut_ptr().wrapping_byte_add(number * STACK_BYTES);
        end.cast::<c_void>()
    };
    let [first_stack, second_stack] = [1, 2].map(stack_end);
    let mut plan = Plan {
        program: program.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        listener: listener.as_raw_fd(),
        nothing: nothing.as_raw_fd(),
        second_stack,
        errno: 0,
    };
    // A handler of the program must not run in the new processes, in its memory.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    // SAFETY: the stack ends there and is used by nobody else; what the plan points to outlives the call, which returns when the
    // new process has ended.
    let child = unsafe { libc::clone(in_between, first_stack, CLONE_FLAGS, (&raw mut plan).cast()) };
    let child = Errno::result(child);
    if let Ok(child) = child {
        // It has ended. Somebody who waits for everything may have been faster.
        let _ = waitpid(Pid::from_raw(child), Some(WaitPidFlag::__WALL));
    }
    let _ = before.thread_set_mask();
    child?;
    match plan.errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// No signal when it ends, in the lowest byte.
const CLONE_FLAGS: c_int = libc::CLONE_VM | libc::CLONE_VFORK;

extern "C" fn in_between(plan: *mut c_void) -> c_int {
    let plan = plan.cast::<Plan>();
    // SAFETY: `start` waits, and has made the plan for this; the second stack is used by the new process only.
    unsafe {
        if libc::clone(run_broker, (*plan).second_stack, CLONE_FLAGS, plan.cast()) < 0 {
            (*plan).errno = *libc::__errno_location();
        }
    }
    0
}

extern "C" fn run_broker(plan: *mut c_void) -> c_int {
    let plan = plan.cast::<Plan>();
    // SAFETY: both others wait, and the plan has been made for this. Only system calls are made, on descriptors of this process.
    unsafe {
        // What a program before it has as 0, 1 or 2 must not be overwritten too early.
        let listener = libc::fcntl((*plan).listener, libc::F_DUPFD, 3);
        let nothing = libc::fcntl((*plan).nothing, libc::F_DUPFD, 3);
        if listener >= 0
            && nothing >= 0
            && libc::setsid() >= 0
            && libc::dup2(listener, 0) >= 0
            && libc::dup2(nothing, 1) >= 0
            && libc::dup2(nothing, 2) >= 0
        {
            if libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) != 0 {
                for descriptor in 3..DESCRIPTORS_MAX {
                    libc::close(descriptor);
                }
            }
            libc::execve((*plan).program, (*plan).arguments, (*plan).environment);
        }
        (*plan).errno = *libc::__errno_location();
    }
    0
}
