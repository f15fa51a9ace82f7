//! No packet harms a device: the fuzz target `nic`, without a fuzzer.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn no_packet_harms_a_device() {
    replay::run("nic", longhaul_softnic::fuzzing::nic);
}
