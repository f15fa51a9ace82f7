//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../ends/mod.rs"]
mod ends;

mod adaptive;
mod costly;
mod following;
mod fuzzing;
mod live_flows;
mod mutations;
mod repairs;
mod soak;
mod strangers;
