//! Output that cannot be written: a reader that has seen enough (`longhaul … | head`), or a disk that is full.
//!
//! Rust programs ignore SIGPIPE, so that a peer's closed socket does not end them, and `println!` panics when it cannot
//! write. That panic unwinds as any other, so that what a command has started is ended too, but it is not shown as one.
//! A reader that has gone is no error of ours: the exit status is the one of a program that SIGPIPE has ended. Anything
//! else is an error in a line.

use std::any::Any;
use std::io::Write as _;
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use crate::exit;

/// Runs a command; its output may not be writable.
pub(crate) fn end_without_panic(command: impl FnOnce() -> ExitCode + UnwindSafe) -> ExitCode {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if not_written(panic.payload()).is_none() {
            show(panic);
        }
    }));
    match panic::catch_unwind(command) {
        Ok(code) => code,
        Err(payload) => match not_written(&*payload) {
            Some(why) if why.contains("Broken pipe") => ExitCode::from(exit::BROKEN_PIPE),
            Some(why) => {
                // Standard error may be what cannot be written.
                let why = why.split_once(": ").map_or(why, |(_, why)| why);
                let _ = writeln!(std::io::stderr(), "standard output cannot be written: {why}; is the disk full?");
                ExitCode::from(exit::MISSING)
            }
            None => panic::resume_unwind(payload),
        },
    }
}

/// What `print!` and `eprint!` say when they cannot write: where, and why.
fn not_written(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>()?.strip_prefix("failed printing to ")
}
