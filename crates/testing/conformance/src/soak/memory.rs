//! The program's memory: registered regions, cut into ranges that are handed out and taken back.

use std::ops::Range;

use longhaul_verbs::{Access, MemoryRegion, ProtectionDomain, RemoteMemory, ScatterGatherEntry};
use longhaul_world::Dice;

use crate::checker::{Judge, Piece, Place, ReadMemory, RegionNumber, fill_untouched};

/// All regions of the program, by the judge's numbers.
#[derive(Default)]
pub(super) struct ProgramMemory {
    regions: Vec<Slot>,
}

struct Slot {
    /// `None` once its keys are revoked.
    region: Option<MemoryRegion>,
    /// Not handed out, in order, neighbours joined.
    free: Vec<Range<usize>>,
}

impl ReadMemory for ProgramMemory {
    fn read(&self, place: Place, bytes: &mut [u8]) {
        self.region(place.region).copy_out(place.offset, bytes);
    }
}

impl ProgramMemory {
    fn region(&self, number: RegionNumber) -> &MemoryRegion {
        let slot = &self.regions[number.0];
        slot.region.as_ref().expect("the program uses registered regions only")
    }

    /// Registers a buffer, filled anew.
    pub(super) fn register(
        &mut self,
        judge: &mut Judge,
        domain: &ProtectionDomain,
        mut buffer: Vec<u8>,
        access: Access,
    ) -> RegionNumber {
        fill_untouched(self.regions.len() as u32, &mut buffer);
        let number = judge.register(buffer.clone());
        let length = buffer.len();
        // Soak runs stay far below every limit of a device, so a refusal is a mistake of the soak's.
        let region = domain.register(buffer, access).expect("a small region can be registered");
        self.regions.push(Slot { region: Some(region), free: std::iter::once(0..length).collect() });
        assert_eq!(number.0 + 1, self.regions.len());
        number
    }

    /// Revokes the keys; the buffer is the program's again.
    pub(super) fn revoke(&mut self, judge: &mut Judge, number: RegionNumber) -> Vec<u8> {
        let region = self.regions[number.0].region.take().expect("revoked once");
        let buffer = region.into_buffer().expect("a region without users can be deregistered");
        judge.revoked(number, &buffer);
        buffer
    }

    /// Hands out a range of the region, if one is free.
    pub(super) fn allocate(&mut self, number: RegionNumber, length: usize) -> Option<Place> {
        let free = &mut self.regions[number.0].free;
        let index = free.iter().position(|range| range.len() >= length)?;
        let offset = free[index].start;
        free[index].start += length;
        if free[index].is_empty() {
            free.remove(index);
        }
        Some(Place { region: number, offset })
    }

    /// Takes a range back.
    pub(super) fn release(&mut self, piece: Piece) {
        let slot = &mut self.regions[piece.place.region.0];
        if slot.region.is_none() || piece.length == 0 {
            return;
        }
        let (start, end) = (piece.place.offset, piece.place.offset + piece.length);
        let index = slot.free.partition_point(|range| range.start < start);
        slot.free.insert(index, start..end);
        if slot.free.get(index + 1).is_some_and(|next| next.start == end) {
            slot.free[index].end = slot.free.remove(index + 1).end;
        }
        if index > 0 && slot.free[index - 1].end == start {
            slot.free[index - 1].end = slot.free.remove(index).end;
        }
    }

    /// The program writes.
    pub(super) fn write(&self, judge: &mut Judge, place: Place, bytes: &[u8]) {
        self.region(place.region).copy_in(place.offset, bytes);
        judge.program_wrote(place, bytes);
    }

    /// The program writes bytes that belong to no message, and takes the range back.
    pub(super) fn refill_and_release(&mut self, judge: &mut Judge, piece: Piece, epoch: u32) {
        if self.regions[piece.place.region.0].region.is_none() {
            return;
        }
        let mut bytes = vec![0; piece.length];
        fill_untouched(epoch, &mut bytes);
        self.write(judge, piece.place, &bytes);
        self.release(piece);
    }

    /// An entry for a work request.
    pub(super) fn entry(&self, piece: Piece) -> ScatterGatherEntry {
        let offset = piece.place.offset;
        self.region(piece.place.region).entry(offset..offset + piece.length)
    }

    /// A place as a peer names it.
    pub(super) fn remote(&self, place: Place) -> RemoteMemory {
        self.region(place.region).remote(place.offset as u64)
    }

    /// The region itself, for bindings.
    pub(super) fn registered_region(&self, number: RegionNumber) -> &MemoryRegion {
        self.region(number)
    }

    /// The region's size.
    pub(super) fn region_bytes(&self, number: RegionNumber) -> usize {
        self.region(number).len()
    }

    /// All regions that are registered.
    pub(super) fn registered(&self) -> Vec<RegionNumber> {
        let live = self.regions.iter().enumerate().filter(|(_, slot)| slot.region.is_some());
        live.map(|(index, _)| RegionNumber(index)).collect()
    }
}

/// Regions for one purpose of one queue pair; grows by a region when they are full.
pub(super) struct Arena {
    pub(super) domain: ProtectionDomain,
    pub(super) access: Access,
    pub(super) region_bytes: usize,
    pub(super) regions: Vec<RegionNumber>,
}

impl Arena {
    /// One range.
    pub(super) fn allocate(
        &mut self,
        memory: &mut ProgramMemory,
        judge: &mut Judge,
        dice: &mut Dice,
        length: usize,
    ) -> Place {
        if !self.regions.is_empty() {
            let start = dice.index(self.regions.len());
            for step in 0..self.regions.len() {
                let region = self.regions[(start + step) % self.regions.len()];
                if let Some(place) = memory.allocate(region, length) {
                    return place;
                }
            }
        }
        let bytes = self.region_bytes.max(length);
        let region = memory.register(judge, &self.domain, vec![0; bytes], self.access);
        self.regions.push(region);
        memory.allocate(region, length).expect("a fresh region has room")
    }

    /// A range in up to `piece_count` pieces of random lengths, some perhaps empty.
    pub(super) fn allocate_pieces(
        &mut self,
        memory: &mut ProgramMemory,
        judge: &mut Judge,
        dice: &mut Dice,
        length: usize,
        piece_count: usize,
    ) -> Vec<Piece> {
        let mut left = length;
        let mut pieces = Vec::with_capacity(piece_count);
        for index in (0..piece_count).rev() {
            let length = match index {
                0 => left,
                _ => dice.within(0..=left as u64) as usize,
            };
            left -= length;
            if length > 0 {
                let place = self.allocate(memory, judge, dice, length);
                pieces.push(Piece { place, length });
            }
        }
        pieces
    }
}
