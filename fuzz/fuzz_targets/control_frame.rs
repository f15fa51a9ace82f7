//! Any bytes, read as a control message of sdr.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_sdr::fuzzing::control_frame(bytes));
