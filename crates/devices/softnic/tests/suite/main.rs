//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../two_ends/mod.rs"]
mod two_ends;

mod device;
mod fuzzing;
mod pacing;
mod peer_window;
mod reliable_atomics;
mod reliable_connection;
mod reliable_corners;
mod reliable_read;
mod reliable_trouble;
mod slotted;
mod unreliable_connection;
mod windows;
