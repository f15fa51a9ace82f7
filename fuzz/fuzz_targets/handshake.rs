//! Any bytes, read as each message of the handshake and as a listener's handle.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul::fuzzing::handshake(bytes));
