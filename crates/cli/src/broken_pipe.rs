//! `longhaul … | head`: a reader that has seen enough is no error of ours.
//!
//! Rust programs ignore SIGPIPE, so that a peer's closed socket does not end them, and `println!` then panics when nobody
//! reads. That panic unwinds as any other, so that what a command has started is ended too, but it is not shown, and the
//! exit status is the one of a program that SIGPIPE has ended.

use std::any::Any;
use std::panic::{self, UnwindSafe};
use std::process::ExitCode;

use crate::exit;

/// Runs a command; its output may lose its reader.
pub(crate) fn end_quietly(command: impl FnOnce() -> ExitCode + UnwindSafe) -> ExitCode {
    let show = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !is_broken_pipe(panic.payload()) {
            show(panic);
        }
    }));
    match panic::catch_unwind(command) {
        Ok(code) => code,
        Err(payload) if is_broken_pipe(&*payload) => ExitCode::from(exit::BROKEN_PIPE),
        Err(payload) => panic::resume_unwind(payload),
    }
}

/// Whether this is what `print!` and `eprint!` say when nobody reads.
fn is_broken_pipe(payload: &(dyn Any + Send)) -> bool {
    let text = payload.downcast_ref::<String>();
    text.is_some_and(|text| text.starts_with("failed printing to std") && text.contains("Broken pipe"))
}
