//! Bytes that have arrived so far, read by another thread while more arrive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Counts the bytes of several flows.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    flows: Mutex<Vec<Arc<AtomicU64>>>,
}

impl Meter {
    /// A new flow; its bytes are added to what this returns.
    pub(crate) fn flow(&self) -> Arc<AtomicU64> {
        let flow = Arc::new(AtomicU64::new(0));
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).push(flow.clone());
        flow
    }

    /// Bytes in messages of this length that have arrived whole, each flow being a sequence of them.
    pub(crate) fn whole_bytes(&self, message_bytes: u64) -> u64 {
        let flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = |flow: &Arc<AtomicU64>| {
            let bytes = flow.load(Ordering::Relaxed);
            bytes - bytes % message_bytes.max(1)
        };
        flows.iter().map(whole).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_does_not_count() {
        let meter = Meter::default();
        let (one, other) = (meter.flow(), meter.flow());
        one.fetch_add(250, Ordering::Relaxed);
        other.fetch_add(99, Ordering::Relaxed);
        assert_eq!((meter.whole_bytes(100), meter.whole_bytes(1)), (200, 349));
        other.fetch_add(1, Ordering::Relaxed);
        assert_eq!(meter.whole_bytes(100), 300);
    }
}
