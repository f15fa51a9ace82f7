//! Shadow memory: what every registered byte must hold.
//!
//! For each region there is a copy of what is known to be in it: what the program wrote, and what messages wrote
//! that are known to be placed. A write that is in flight is *open*: packet by packet its range holds either the old
//! bytes or the message's. A range that a posted receive covers is *lent*: what may be there depends on the messages
//! sent to its queue pair, and is judged with the receive. Everywhere else memory equals the copy.

use std::collections::BTreeMap;
use std::ops::Range;

use super::contents::{self, MessageNumber};

/// One registration of some memory. Registering the same bytes again makes a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionNumber(pub usize);

/// A place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The region.
    pub region: RegionNumber,
    /// Bytes from its start.
    pub offset: usize,
}

/// The memory under test, as its program can read it.
pub trait ReadMemory {
    /// Copies bytes out.
    fn read(&self, place: Place, bytes: &mut [u8]);
}

/// Where memory is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The first wrong byte.
    pub(super) place: Place,
    /// What should be there.
    pub(super) expected: String,
    /// What is.
    pub(super) got: String,
    /// The message that it belongs to, if any.
    pub(super) message: Option<MessageNumber>,
}

/// The copy of all regions.
#[derive(Default)]
pub(super) struct ShadowMemory {
    regions: Vec<Region>,
    expects_guesses: bool,
}

struct Region {
    /// What is known to be there.
    known: Vec<u8>,
    /// Writes and READs in flight, by offset; they never overlap.
    open: BTreeMap<usize, Arrival>,
    /// Ranges of posted receives: start to end; they never overlap.
    lent: BTreeMap<usize, usize>,
    is_registered: bool,
}

/// Bytes that may arrive: those of a write, or what a READ brings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// The message that the bytes belong to, and which of its bytes is the first one here.
    pub(super) contents: MessageNumber,
    pub(super) contents_offset: usize,
    pub(super) length: usize,
    /// The length of a packet, and the offset of the first byte here in what is cut into packets.
    pub(super) packet_bytes: usize,
    pub(super) packet_phase: usize,
    /// The program itself asked for the bytes: no peer's key stands behind them.
    pub(super) is_read: bool,
}

impl Arrival {
    /// A whole write.
    pub(super) fn write(contents: MessageNumber, length: usize, packet_bytes: usize) -> Self {
        Arrival { contents, contents_offset: 0, length, packet_bytes, packet_phase: 0, is_read: false }
    }

    /// Bytes from `offset` on that come with one packet.
    fn packet_end(&self, offset: usize) -> usize {
        let left_in_packet = self.packet_bytes - (self.packet_phase + offset) % self.packet_bytes;
        self.length.min(offset + left_in_packet)
    }
}

impl ShadowMemory {
    /// See [`Judge::expect_guesses`](super::Judge::expect_guesses).
    pub(super) fn expect_guesses(&mut self) {
        self.expects_guesses = true;
    }

    /// A region was registered, holding these bytes.
    pub(super) fn register(&mut self, contents: Vec<u8>) -> RegionNumber {
        self.regions.push(Region {
            known: contents,
            open: BTreeMap::new(),
            lent: BTreeMap::new(),
            is_registered: true,
        });
        RegionNumber(self.regions.len() - 1)
    }

    /// All regions whose keys are valid.
    pub(super) fn registered(&self) -> impl Iterator<Item = RegionNumber> + '_ {
        let live = self.regions.iter().enumerate().filter(|(_, region)| region.is_registered);
        live.map(|(index, _)| RegionNumber(index))
    }

    /// The region's size in bytes.
    pub(super) fn region_bytes(&self, region: RegionNumber) -> usize {
        self.regions[region.0].known.len()
    }

    /// What is known to be in a range.
    pub(super) fn known(&self, place: Place, length: usize) -> &[u8] {
        &self.regions[place.region.0].known[place.offset..place.offset + length]
    }

    /// The program itself, or a message that is known to be complete, put these bytes there.
    pub(super) fn set_known(&mut self, place: Place, bytes: &[u8]) {
        self.regions[place.region.0].known[place.offset..place.offset + bytes.len()].copy_from_slice(bytes);
    }

    /// From now on these bytes may arrive there.
    pub(super) fn open(&mut self, place: Place, arrival: Arrival) {
        let region = &mut self.regions[place.region.0];
        assert!(place.offset + arrival.length <= region.known.len(), "what may arrive lies inside its region");
        if arrival.length > 0 {
            let before = region.open.range(..place.offset + arrival.length).next_back();
            let overlaps = before.is_some_and(|(start, other)| start + other.length > place.offset);
            assert!(!overlaps, "the program keeps open writes apart");
            region.open.insert(place.offset, arrival);
        }
    }

    /// What is open at a place must be complete now. From now on its bytes are what is known to be there.
    pub(super) fn settle(&mut self, place: Place, memory: &impl ReadMemory) -> Result<(), Difference> {
        let Some(arrival) = self.regions[place.region.0].open.remove(&place.offset) else {
            return Ok(());
        };
        let mut bytes = vec![0; arrival.length];
        memory.read(place, &mut bytes);
        let whole = match contents::first_difference(arrival.contents, arrival.contents_offset, &bytes) {
            None => Ok(()),
            Some(first) => Err(Difference {
                place: Place { offset: place.offset + first, ..place },
                expected: format!(
                    "{} bytes of message {} from its offset {} on",
                    arrival.length, arrival.contents, arrival.contents_offset
                ),
                got: contents::describe(&bytes[first..]),
                message: contents::find(&bytes[first..]),
            }),
        };
        // Also when it is wrong: one mistake is then reported once.
        contents::fill(arrival.contents, arrival.contents_offset, &mut bytes);
        self.set_known(place, &bytes);
        whole
    }

    /// Nothing arrives there any more: each packet is there whole or not at all, and what is there stays. Says whether
    /// all are.
    pub(super) fn close(&mut self, place: Place, memory: &impl ReadMemory) -> Result<bool, Difference> {
        let region = &mut self.regions[place.region.0];
        let Some(arrival) = region.open.remove(&place.offset) else {
            return Ok(true);
        };
        let mut bytes = vec![0; region.known.len()];
        let range = place.offset..place.offset + arrival.length;
        memory.read(place, &mut bytes[range.clone()]);
        let is_legal = region.check_open(place.region, &bytes, place.offset, &arrival, self.expects_guesses);
        region.known[range.clone()].copy_from_slice(&bytes[range.clone()]);
        is_legal.map(|()| contents::matches(arrival.contents, arrival.contents_offset, &bytes[range]))
    }

    /// A receive was posted over this range.
    pub(super) fn lend(&mut self, place: Place, length: usize) {
        if length > 0 {
            self.regions[place.region.0].lent.insert(place.offset, place.offset + length);
        }
    }

    /// The receive over this range has ended.
    pub(super) fn give_back(&mut self, place: Place) {
        self.regions[place.region.0].lent.remove(&place.offset);
    }

    /// Judges a whole region, given its bytes as they are now.
    pub(super) fn check(&self, number: RegionNumber, bytes: &[u8]) -> Result<(), Difference> {
        let region = &self.regions[number.0];
        assert_eq!(bytes.len(), region.known.len());
        // Ranges with their own rules, in order; between them memory equals the copy.
        let open = region.open.iter().map(|(start, write)| (*start, start + write.length, Some(write)));
        let lent = region.lent.iter().map(|(start, end)| (*start, *end, None));
        let mut special: Vec<_> = open.chain(lent).collect();
        special.sort_by_key(|(start, _, _)| *start);
        let mut position = 0;
        for (start, end, write) in special {
            region.check_known(number, bytes, position..start)?;
            if let Some(write) = write {
                region.check_open(number, bytes, start, write, self.expects_guesses)?;
            }
            position = end;
        }
        region.check_known(number, bytes, position..bytes.len())
    }

    /// The region's keys were revoked; these were its last bytes. Says of each open write whether it was complete.
    pub(super) fn revoke(&mut self, number: RegionNumber, bytes: &[u8]) -> Vec<(MessageNumber, bool)> {
        let region = &mut self.regions[number.0];
        region.is_registered = false;
        region.lent.clear();
        let open = std::mem::take(&mut region.open).into_iter();
        open.filter(|(_, arrival)| !arrival.is_read)
            .map(|(start, write)| {
                let got = &bytes[start..start + write.length];
                (write.contents, contents::matches(write.contents, 0, got))
            })
            .collect()
    }
}

impl Region {
    fn check_known(&self, number: RegionNumber, bytes: &[u8], range: Range<usize>) -> Result<(), Difference> {
        let known = &self.known[range.clone()];
        let got = &bytes[range.clone()];
        if known == got {
            return Ok(());
        }
        let first = known.iter().zip(got).position(|(known, got)| known != got);
        let first = first.expect("the slices differ");
        Err(Difference {
            place: Place { region: number, offset: range.start + first },
            expected: format!("no change: {}", contents::describe(&known[first..])),
            got: contents::describe(&got[first..]),
            message: contents::find(&got[first..]),
        })
    }

    /// Each packet is there whole or not at all.
    fn check_open(
        &self,
        number: RegionNumber,
        bytes: &[u8],
        start: usize,
        arrival: &Arrival,
        expects_guesses: bool,
    ) -> Result<(), Difference> {
        let mut offset = 0;
        while offset < arrival.length {
            let end = arrival.packet_end(offset);
            if expects_guesses && offset > 0 && end < arrival.length {
                offset = end;
                continue;
            }
            let range = start + offset..start + end;
            let got = &bytes[range.clone()];
            if got != &self.known[range.clone()]
                && let Some(first) = contents::first_difference(arrival.contents, arrival.contents_offset + offset, got)
            {
                let untouched = self.check_known(number, bytes, range.clone());
                let mut difference = untouched.expect_err("they were just found to differ");
                difference.place.offset = difference.place.offset.max(range.start + first);
                difference.got = contents::describe(&bytes[difference.place.offset..range.end]);
                difference.message = contents::find(&bytes[difference.place.offset..range.end]);
                difference.expected = format!(
                    "the packet at offset {} of message {} whole, or not at all",
                    arrival.contents_offset + offset,
                    arrival.contents
                );
                return Err(difference);
            }
            offset = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory under test, by hand.
    struct Hand(Vec<u8>);

    impl ReadMemory for Hand {
        fn read(&self, place: Place, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.0[place.offset..place.offset + bytes.len()]);
        }
    }

    fn shadow() -> (ShadowMemory, RegionNumber, Hand) {
        let mut bytes = vec![0; 4096];
        contents::fill_untouched(1, &mut bytes);
        let mut shadow = ShadowMemory::default();
        let region = shadow.register(bytes.clone());
        (shadow, region, Hand(bytes))
    }

    #[test]
    fn a_stray_byte_is_found() {
        let (shadow, region, mut memory) = shadow();
        assert_eq!(shadow.check(region, &memory.0), Ok(()));
        contents::fill(9, 0, &mut memory.0[100..164]);
        let difference = shadow.check(region, &memory.0).unwrap_err();
        assert_eq!(difference.place.offset, 100);
        assert!(difference.got.contains("message 9"), "{}", difference.got);
    }

    #[test]
    fn an_open_write_arrives_packet_by_packet_in_any_order() {
        let (mut shadow, region, mut memory) = shadow();
        let place = Place { region, offset: 512 };
        shadow.open(place, Arrival::write(9, 700, 256));
        assert_eq!(shadow.check(region, &memory.0), Ok(()));
        contents::fill(9, 512, &mut memory.0[512 + 512..512 + 700]);
        assert_eq!(shadow.check(region, &memory.0), Ok(()));
        assert!(shadow.settle(place, &memory).is_err(), "two packets are missing");
        shadow.open(place, Arrival::write(9, 700, 256));
        contents::fill(9, 0, &mut memory.0[512..512 + 512]);
        assert_eq!(shadow.settle(place, &memory), Ok(()));
        assert_eq!(shadow.check(region, &memory.0), Ok(()));
        // Once it is settled, an older state must not come back.
        memory.0[600] = 1;
        assert!(shadow.check(region, &memory.0).is_err());
    }

    #[test]
    fn half_a_packet_and_foreign_bytes_are_found() {
        let (mut shadow, region, mut memory) = shadow();
        shadow.open(Place { region, offset: 512 }, Arrival::write(9, 700, 256));
        contents::fill(9, 0, &mut memory.0[512..512 + 100]);
        let difference = shadow.check(region, &memory.0).unwrap_err();
        assert!(difference.expected.contains("whole"), "{}", difference.expected);
        contents::fill(8, 0, &mut memory.0[512..512 + 256]);
        let difference = shadow.check(region, &memory.0).unwrap_err();
        assert!(difference.got.contains("message 8"), "{}", difference.got);
        // One byte past the end of the message.
        contents::fill(9, 0, &mut memory.0[512..512 + 701]);
        assert_eq!(shadow.check(region, &memory.0).unwrap_err().place.offset, 512 + 700);
    }

    #[test]
    fn a_guess_may_be_wrong_between_first_and_last_packet_only() {
        let (mut shadow, region, mut memory) = shadow();
        shadow.expect_guesses();
        let place = Place { region, offset: 512 };
        shadow.open(place, Arrival::write(9, 1024, 256));
        contents::fill(8, 0, &mut memory.0[512 + 256..512 + 768]);
        assert_eq!(shadow.check(region, &memory.0), Ok(()));
        for wrong in [512 + 255, 512 + 768, 511, 512 + 1024] {
            let mut bytes = memory.0.clone();
            bytes[wrong] ^= 1;
            assert!(shadow.check(region, &bytes).is_err(), "byte {wrong}");
        }
        assert!(shadow.settle(place, &memory).is_err(), "when it is complete, every byte counts");
    }

    #[test]
    fn revocation_says_what_was_complete() {
        let (mut shadow, region, mut memory) = shadow();
        shadow.open(Place { region, offset: 0 }, Arrival::write(1, 300, 256));
        shadow.open(Place { region, offset: 512 }, Arrival::write(2, 300, 256));
        contents::fill(1, 0, &mut memory.0[..300]);
        contents::fill(2, 0, &mut memory.0[512..512 + 256]);
        assert_eq!(shadow.revoke(region, &memory.0), [(1, true), (2, false)]);
        assert_eq!(shadow.registered().count(), 0);
    }
}
