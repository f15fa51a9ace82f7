//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

mod fan_in;
mod fuzzing;
mod message_soak;
mod message_soak_mutations;
mod reliable;
mod reliable_answers;
mod reliable_bounded;
mod reliable_bounded_long;
mod reliable_checksum;
mod reliable_clear_to_send;
mod reliable_long;
mod reliable_progress;
mod reliable_repeats;
mod reliable_terms;
mod reliable_udp;
mod reliable_waiting;
