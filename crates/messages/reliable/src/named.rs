//! The schemes that have names, made from them.

use std::sync::Arc;

use longhaul_scheme::NamedScheme;

use crate::best_effort::BestEffort;
use crate::erasure::Erasure;
use crate::scheme::Scheme;
use crate::selective_repeat::SelectiveRepeat;

/// The scheme with this name, with its usual parameters.
pub fn scheme_named(name: NamedScheme) -> Arc<dyn Scheme> {
    match name {
        NamedScheme::SelectiveRepeat => Arc::new(SelectiveRepeat::default()),
        NamedScheme::NegativeAcknowledgements => Arc::new(SelectiveRepeat::with_negative_acknowledgements()),
        NamedScheme::Erasure(code) => Arc::new(Erasure::new(code)),
        NamedScheme::BestEffort(None) => Arc::new(BestEffort::default()),
        NamedScheme::BestEffort(Some(code)) => Arc::new(BestEffort::with_parity(code)),
    }
}
