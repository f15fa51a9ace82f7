//! Memory for the parity of receives.

use std::collections::BTreeMap;

use super::{Incoming, Recovering};
use crate::receives::OpenReceive;
use crate::terms::Terms;

/// So many parts may have memory whatever the bound: one can arrive while the one before is completed.
const HOLDERS_MIN: usize = 2;

/// Memory of each part that has some: it is open, or being completed.
fn held(open: &BTreeMap<u64, Box<OpenReceive>>, recovering: &BTreeMap<u64, Recovering>) -> impl Iterator<Item = u64> {
    let open = open.values().filter_map(|receive| receive.parity_memory_bytes());
    open.chain(recovering.values().filter_map(|part| part.parity_bytes))
}

/// Bytes that the next part's parity may have; `None` if it needs more than that, and has to wait for those before.
pub(super) fn left(
    open: &BTreeMap<u64, Box<OpenReceive>>,
    recovering: &BTreeMap<u64, Recovering>,
    needed: Option<u64>,
    terms: &Terms,
) -> Option<u64> {
    let Some(needed) = needed else { return Some(0) };
    let (holders, bytes) = held(open, recovering).fold((0, 0), |(holders, all), bytes| (holders + 1, all + bytes));
    let left = terms.attributes.parity_bytes_max.saturating_sub(bytes);
    (holders < HOLDERS_MIN || needed <= left).then_some(left)
}

impl Incoming {
    /// Memory for the parity of all that is received.
    pub(crate) fn parity_bytes(&self) -> u64 {
        let spare = self.messages.get(&self.opening).and_then(|message| message.spare_bytes());
        held(&self.open, &self.recovering).chain(spare).sum()
    }
}
