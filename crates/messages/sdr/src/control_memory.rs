//! Memory for control messages: one pool, which all queue pairs of an endpoint take places from.
//!
//! A connection that rests needs a few places, a busy one hundreds. Registered memory is pinned on most devices, and a region of its own for
//! each queue pair would cost each at least some pages; so they share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_verbs::{Access, MemoryRegion, ProtectionDomain, RegisterError, ScatterGatherEntry};

/// Bytes of a place: the longest control message. Most are much shorter; what does not fit goes into the next one.
pub(crate) const PLACE_BYTES: usize = 512;
/// Places that are registered at once.
const SLAB_PLACES: usize = 1024;

/// Memory for control messages of all queue pairs of a protection domain. Clones are the same memory. It grows with the queue pairs that use it,
/// and stays as large as it once was.
#[derive(Clone)]
pub struct ControlMemory {
    inner: Arc<Inner>,
}

struct Inner {
    domain: ProtectionDomain,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// That came back.
    free: Vec<Place>,
    /// The last region, and how many of its places were ever taken.
    newest: Option<(Arc<MemoryRegion>, usize)>,
}

/// Room for one control message.
pub(crate) struct Place {
    region: Arc<MemoryRegion>,
    start: usize,
}

impl ControlMemory {
    /// None yet.
    pub fn new(domain: &ProtectionDomain) -> Self {
        ControlMemory { inner: Arc::new(Inner { domain: domain.clone(), places: Mutex::default() }) }
    }

    /// Where it is registered.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.inner.domain
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.inner.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(&self) -> Result<Place, RegisterError> {
        let mut places = self.places();
        if let Some(place) = places.free.pop() {
            return Ok(place);
        }
        if !matches!(places.newest, Some((_, taken)) if taken < SLAB_PLACES) {
            let region = self.inner.domain.register_zeroed(SLAB_PLACES * PLACE_BYTES, Access::LOCAL_WRITE)?;
            places.newest = Some((Arc::new(region), 0));
        }
        let (region, taken) = places.newest.as_mut().expect("there is one now");
        let start = *taken * PLACE_BYTES;
        *taken += 1;
        Ok(Place { region: region.clone(), start })
    }

    /// Nobody uses these any more, and no device either.
    pub(crate) fn give_back(&self, places: impl IntoIterator<Item = Place>) {
        self.places().free.extend(places);
    }
}

impl Place {
    /// Its first bytes, for a request.
    pub(crate) fn entry(&self, byte_count: usize) -> ScatterGatherEntry {
        debug_assert!(byte_count <= PLACE_BYTES);
        self.region.entry(self.start..self.start + byte_count)
    }

    pub(crate) fn copy_in(&self, bytes: &[u8]) {
        debug_assert!(bytes.len() <= PLACE_BYTES);
        self.region.copy_in(self.start, bytes);
    }

    pub(crate) fn copy_out(&self, bytes: &mut [u8]) {
        debug_assert!(bytes.len() <= PLACE_BYTES);
        self.region.copy_out(self.start, bytes);
    }
}
