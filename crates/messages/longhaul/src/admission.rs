//! Which handshakes a listener has in progress, and which of them gives way when somebody else comes.
//!
//! Connecting costs a stranger nothing, so strangers must not be able to hold all places. A place is limited per
//! source; when a source, or the listener, has no place left, the oldest handshake that has shown least gives way. One
//! that has shown the listener's token never does.

use std::net::IpAddr;

/// What a peer has shown so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// Nothing.
    Silent,
    /// A hello that can be accepted.
    Heard,
    /// A hello with the listener's token.
    Trusted,
}

/// Identifies a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeId(u64);

/// Handshakes in progress, oldest first, each with what ends it (`T`).
pub(crate) struct Admission<T> {
    places: usize,
    places_per_source: usize,
    next: u64,
    open: Vec<Handshake<T>>,
}

struct Handshake<T> {
    id: HandshakeId,
    source: IpAddr,
    standing: Standing,
    held: T,
}

impl<T> Admission<T> {
    pub(crate) fn new(places: usize, places_per_source: usize) -> Self {
        Admission { places, places_per_source, next: 0, open: Vec::new() }
    }

    /// Whether nobody can be admitted: every place belongs to somebody who has shown the token.
    pub(crate) fn is_full(&self) -> bool {
        self.open.len() >= self.places && self.open.iter().all(|open| open.standing == Standing::Trusted)
    }

    /// Admit somebody. Returns what is held of the handshake that has to give way for it, if any.
    pub(crate) fn admit(&mut self, source: IpAddr, held: T) -> (HandshakeId, Option<T>) {
        let source = source_of(source);
        let of_source = self.open.iter().filter(|open| open.source == source && open.standing != Standing::Trusted);
        let evicted = if of_source.count() >= self.places_per_source {
            self.evict(|open| open.source == source)
        } else if self.open.len() >= self.places {
            self.evict(|_| true)
        } else {
            None
        };
        let id = HandshakeId(self.next);
        self.next += 1;
        self.open.push(Handshake { id, source, standing: Standing::Silent, held });
        (id, evicted)
    }

    fn evict(&mut self, may_go: impl Fn(&Handshake<T>) -> bool) -> Option<T> {
        let open = self.open.iter().enumerate();
        let candidates = open.filter(|(_, open)| open.standing != Standing::Trusted && may_go(open));
        // The first of several that are equal, which is the oldest.
        let (index, _) = candidates.min_by_key(|(_, open)| open.standing)?;
        Some(self.open.remove(index).held)
    }

    /// A peer has shown something.
    pub(crate) fn promote(&mut self, id: HandshakeId, standing: Standing) {
        if let Some(open) = self.open.iter_mut().find(|open| open.id == id) {
            open.standing = standing;
        }
    }

    /// A handshake has ended. Returns whether it still had its place.
    pub(crate) fn finish(&mut self, id: HandshakeId) -> bool {
        let place = self.open.iter().position(|open| open.id == id);
        place.map(|index| self.open.remove(index)).is_some()
    }
}

/// One who has an IPv6 address usually has all of its /64.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_source_gives_way_to_itself() {
        let mut admission = Admission::new(8, 2);
        let (first, none) = admission.admit(address("192.0.2.1"), 1);
        assert_eq!(none, None);
        assert_eq!(admission.admit(address("192.0.2.1"), 2).1, None);
        assert_eq!(admission.admit(address("192.0.2.2"), 3).1, None, "another source has places of its own");
        assert_eq!(admission.admit(address("192.0.2.1"), 4).1, Some(1), "the oldest goes");
        assert!(!admission.finish(first));
        assert_eq!(admission.admit(address("::ffff:192.0.2.1"), 5).1, Some(2), "the same address, mapped");
        assert_eq!(admission.admit(address("2001:db8::1"), 6).1, None);
        assert_eq!(admission.admit(address("2001:db8::2"), 7).1, None);
        assert_eq!(admission.admit(address("2001:db8::3"), 8).1, Some(6), "a /64 is one source");
    }

    #[test]
    fn those_that_have_shown_more_stay() {
        let mut admission = Admission::new(3, 3);
        let (trusted, _) = admission.admit(address("192.0.2.1"), 1);
        admission.promote(trusted, Standing::Trusted);
        let (heard, _) = admission.admit(address("192.0.2.2"), 2);
        admission.promote(heard, Standing::Heard);
        admission.admit(address("192.0.2.3"), 3);
        assert_eq!(admission.admit(address("192.0.2.4"), 4).1, Some(3), "the silent one goes");
        assert_eq!(admission.admit(address("192.0.2.5"), 5).1, Some(4));
        assert!(!admission.is_full());
        assert!(admission.finish(trusted) && admission.finish(heard));
        let ids: Vec<_> = (6..8).map(|held| admission.admit(address("192.0.2.6"), held).0).collect();
        ids.iter().for_each(|id| admission.promote(*id, Standing::Trusted));
        let (last, evicted) = admission.admit(address("192.0.2.6"), 9);
        assert_eq!(evicted, Some(5));
        admission.promote(last, Standing::Trusted);
        assert!(admission.is_full());
    }
}
