//! Any bytes, read as a message of connection management.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_wire::fuzzing::connection_management(bytes));
