//! Any bytes, read as a record or an acknowledgement of a reliability scheme.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| longhaul_reliable::fuzzing::record(bytes));
