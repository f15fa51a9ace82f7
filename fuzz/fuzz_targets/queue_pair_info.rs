//! Any bytes, read as the info of an sdr queue pair.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_sdr::fuzzing::queue_pair_info(bytes));
