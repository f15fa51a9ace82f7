//! Any bytes, read as everything that can come from a network.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_wire::fuzzing::parse_packet(bytes));
