//! No packet harms a shim: the fuzz target `shim`, without a fuzzer.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn no_packet_harms_a_shim() {
    replay::run("shim", longhaul_shim::fuzzing::shim);
}
