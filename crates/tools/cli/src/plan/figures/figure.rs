//! What all figures are.

/// A figure that is done.
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) svg: String,
    pub(super) csv: String,
}
