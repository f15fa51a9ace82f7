//! Packets of a stranger into a device in use.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_softnic::fuzzing::nic(bytes));
