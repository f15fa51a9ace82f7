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
    /// Data packets that are too long, fragments, or of operations that we do not speak.
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
    /// Times that a flow skipped PSNs.
    pub jumps: u64,
    /// Blocks without repair packets, because those would have gone beyond the user's bound of overhead.
    pub over_bound: u64,
    /// Reports to peers of what was lost of their packets.
    pub reports: u64,
    /// Reports of peers that were used.
    pub reports_used: u64,
    /// Reports of peers that were duplicates, too old, of no flow of ours, or could not be true.
    pub reports_refused: u64,
    /// Times that the code of a path was changed.
    pub code_changes: u64,
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
    /// Packets that were dropped because they had been handed on before, restored, from a copy or far ahead: UC would execute them
    /// twice, and a NAK would be obeyed twice.
    pub overtaken: u64,
    /// Duplicates of packets that were waiting.
    pub duplicates: u64,
    /// Times that two different packets had one PSN, and both were dropped.
    pub contradictions: u64,
    /// Data packets too far ahead to wait, which were handed on at once.
    pub far_ahead: u64,
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
    /// Repair packets from others than the configured peers, without the right tag, or with more sums than allowed.
    pub refused: u64,
    /// Repair packets that are longer than a coding unit here: the peer has a larger `datagram_bytes_max`.
    pub too_long: u64,
    /// Repair packets of an earlier epoch.
    pub stale: u64,
    /// Repair packets, and packets of UC, for which there was no room in the table of flows.
    pub no_flow: u64,
    /// Blocks whose restored packets did not have the right ICRC, place or digest. Nothing of them was handed on. A lie, or a block of
    /// which a packet of another attempt with other bytes is at hand: data packets carry no epoch.
    pub wrong_blocks: u64,
}
