//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../ends/mod.rs"]
mod ends;

mod blocked_udp;
mod bounded;
mod choosing;
mod credit;
mod fec;
mod fuzzing;
mod guide;
mod idle;
mod many;
mod meeting;
mod strangers;
mod waiters;
