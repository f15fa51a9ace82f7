//! What a shim has done.

/// What was sent. Numbers are of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncoderCounters {
    /// Data packets in blocks.
    pub protected: u64,
    /// Data packets that found no free coding unit.
    pub no_unit: u64,
    /// Data packets that found no room in the table of flows.
    pub no_flow: u64,
    /// Data packets that are too long, or fragments.
    pub unfit: u64,
    /// Data packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Repair packets.
    pub repairs: u64,
    /// Blocks that ended before they or their message did, because their flow was idle or they were too old.
    pub flushed_blocks: u64,
    /// Announcements.
    pub announcements: u64,
    /// Copies of acknowledgements.
    pub copies: u64,
    /// Times that a flow went back to an earlier PSN.
    pub rewinds: u64,
}

/// What was received. Numbers are of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecoderCounters {
    /// Data packets of flows that are followed.
    pub received: u64,
    /// Data packets that were lost and restored.
    pub restored: u64,
    /// Acknowledgements that were lost and restored from their copies.
    pub restored_acknowledgements: u64,
    /// Data packets that had to wait for others.
    pub held: u64,
    /// Data packets that arrived although later ones had been handed on: duplicates and retransmissions.
    pub late: u64,
    /// Duplicates of packets that were waiting.
    pub duplicates: u64,
    /// Times that waiting packets were handed on with one missing: not enough repair packets.
    pub given_up: u64,
    /// Times that they were handed on because there was no more room for waiting packets.
    pub no_room: u64,
    /// Data packets that found no free coding unit.
    pub no_unit: u64,
    /// Data packets with a wrong ICRC.
    pub icrc_errors: u64,
    /// Repair packets of all kinds that were accepted.
    pub repairs: u64,
    /// Repair packets that are malformed, of another version, or have a wrong ICRC.
    pub malformed: u64,
    /// Repair packets from other sources than the configured ones, or without the right tag.
    pub refused: u64,
    /// Repair packets of an earlier epoch.
    pub stale: u64,
    /// Repair packets for which there was no room in the table of flows.
    pub no_flow: u64,
    /// Blocks whose restored packets did not have the right ICRC, place or digest. Nothing of them was handed on.
    pub wrong_blocks: u64,
}
