//! Any bytes, read as what a reliability scheme sends: the fuzz target `record`, without a fuzzer.

#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn records() {
    replay::run("record", longhaul_reliable::fuzzing::record);
}
