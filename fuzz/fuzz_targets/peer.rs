//! A peer that speaks the protocol of messages and lies.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_scheme_testing::fuzzing::peer(bytes));
