//! No peer harms a connection: the fuzz target `peer`, without a fuzzer.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn no_peer_harms_a_connection() {
    replay::run("peer", longhaul_scheme_testing::fuzzing::peer);
}
