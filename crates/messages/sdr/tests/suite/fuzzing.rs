//! Any bytes, read as what a peer of `sdr` sends: fuzz targets, without a fuzzer.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn control_frames() {
    replay::run("control_frame", longhaul_sdr::fuzzing::control_frame);
}

#[test]
fn queue_pair_info() {
    replay::run("queue_pair_info", longhaul_sdr::fuzzing::queue_pair_info);
}
