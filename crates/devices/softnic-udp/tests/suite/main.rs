//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../udp_ends/mod.rs"]
mod udp_ends;
#[path = "../udp_forger/mod.rs"]
mod udp_forger;

mod udp;
mod udp_driver;
mod udp_fec;
mod udp_impaired;
mod udp_in_place;
mod udp_in_place_slots;
mod udp_layers;
mod udp_port_taken;
mod udp_revocation;
mod udp_shared;
mod udp_storm;
mod udp_translated;
