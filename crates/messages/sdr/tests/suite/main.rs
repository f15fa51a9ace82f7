//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../ends/mod.rs"]
mod ends;

mod bitmap;
mod clear_to_send;
mod congestion;
mod control;
mod fan_in;
mod forger_udp;
mod fuzzing;
mod join;
mod late_packets;
mod messages;
mod news;
mod rate;
mod skipped;
