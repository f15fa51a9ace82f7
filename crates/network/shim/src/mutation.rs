//! Deliberate mistakes, for testing the checkers.

/// Deliberate mistakes, for testing the checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A repair packet of another epoch is used as if it were of this one, and nothing else that binds it to its block is checked.
    IgnoreEpoch,
    /// What was restored is handed on whether its ICRC is right or not.
    SkipIcrc,
    /// A block goes on when its message ends.
    BlocksAcrossMessages,
}
