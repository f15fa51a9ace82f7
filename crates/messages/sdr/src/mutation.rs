//! Deliberate mistakes, for testing the checkers.

/// Deliberate mistakes, for testing the checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A packet of an earlier generation sets a bit.
    SkipGenerationCheck,
    /// A message's key stays valid when it is complete.
    SkipKeyChange,
    /// Messages that have the same slot of the table have the same addresses under the root key, as the paper has it.
    ShareSlots,
    /// Addresses under the root key are used again when all generations have gone round.
    ReuseAddresses,
    /// A write of nothing, for which no key was checked, gives a fragment of the user's immediate.
    BelieveEmptyPackets,
    /// Control messages of other connections are taken for ours.
    IgnoreReceiver,
    /// A clear-to-send is sent once.
    NeverRepeatClear,
}
