//! Any packets, sent and received through two shims.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_shim::fuzzing::shim(bytes));
