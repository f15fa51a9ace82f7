//! How fast tensors are encoded and decoded, next to copying.

use std::time::Duration;

use longhaul_coding::{Bf16, ElementKind, F16, Hadamard, HadamardElement};

use super::loss::Draws;
use super::request::{HadamardRequest, MeasuredLayout};
use crate::error::PerfError;
use crate::processor::thread_time_used;
use crate::statistics::Sorted;

/// Bytes that are copied at a time when a copy is in pieces. One call of memcpy for everything may write past the
/// caches, as encoding does: which of the two is faster depends on the processor and its C library, so both are
/// measured.
const COPY_BYTES: usize = 1 << 20;

/// Tensors of three types, and what each is encoded to.
const BUFFERS: u64 = 6;

/// Whether there is memory for all buffers, if it is known how much is available.
fn check_memory(buffer_bytes: usize, available: Option<u64>) -> Result<(), PerfError> {
    let need = BUFFERS.saturating_mul(buffer_bytes as u64);
    match available.filter(|available| *available < need) {
        None => Ok(()),
        Some(available) => Err(PerfError::Missing(format!(
            "tensors of {buffer_bytes} bytes need {need} bytes of memory, {BUFFERS} times as much, and {available} are \
             available: use a smaller --buffer"
        ))),
    }
}

/// Memory that programs can have without swapping; `None` if the system does not say.
fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Medians, in bytes of tensors a second.
pub(super) struct Speeds {
    /// Of copies in pieces of 1 MiB, and of the whole tensor at once.
    pub(super) copies: [f64; 2],
    pub(super) layouts: Vec<Speed>,
}

pub(super) struct Speed {
    pub(super) encode: f64,
    pub(super) decode: f64,
}

/// A tensor, and what it is encoded to.
struct Buffers<E> {
    tensor: Vec<E>,
    encoded: Vec<E>,
}

impl<E: HadamardElement> Buffers<E> {
    /// Both written once: nobody measures how the system hands out memory. There is room for a layout that fills up.
    fn new(bytes: usize, request: &HadamardRequest, most: usize) -> Buffers<E> {
        let elements = bytes / size_of::<E>();
        let mut draws = Draws::new(request.seed, 99);
        let tensor: Vec<E> = (0..elements).map(|_| E::from_f32(draws.share() as f32 - 0.5)).collect();
        let zero = [E::default(), E::from_f32(1.0)];
        Buffers { tensor, encoded: (0..elements.next_multiple_of(most)).map(|at| zero[at % 2]).collect() }
    }

    /// Seconds of encoding and decoding.
    fn round(&mut self, hadamard: &Hadamard) -> Result<[f64; 2], PerfError> {
        let Buffers { tensor, encoded } = self;
        let encoded = &mut encoded[..hadamard.layout().encoded_elements(tensor.len())];
        let failed = |error| PerfError::failed("cannot transform", error);
        let start = thread_time_used()?;
        hadamard.encode(tensor, encoded).map_err(failed)?;
        let middle = thread_time_used()?;
        hadamard.decode(encoded, &[], tensor).map_err(failed)?;
        let end = thread_time_used()?;
        Ok([seconds(start, middle), seconds(middle, end)])
    }
}

fn seconds(start: Duration, end: Duration) -> f64 {
    end.saturating_sub(start).as_secs_f64().max(1e-9)
}

/// Measures all layouts, interleaved.
pub(super) fn measure(layouts: &[MeasuredLayout], request: &HadamardRequest) -> Result<Speeds, PerfError> {
    let bytes = request.buffer_bytes;
    check_memory(bytes, memory_available())?;
    let most = layouts.iter().map(|layout| layout.block.max(layout.packet)).max().unwrap_or(1);
    let mut long = Buffers::<f32>::new(bytes, request, most);
    let mut brain = Buffers::<Bf16>::new(bytes, request, most);
    let mut half = Buffers::<F16>::new(bytes, request, most);
    let mut copies = [Vec::new(), Vec::new()];
    let mut times = vec![(Vec::new(), Vec::new()); layouts.len()];
    // The first round is for caches, pages and clocks, and is not counted.
    for round in 0..=request.rounds {
        for (number, (layout, (encodes, decodes))) in layouts.iter().zip(&mut times).enumerate() {
            let hadamard = layout.hadamard(request.seed);
            let [encode, decode] = match layout.kind {
                ElementKind::F32 => long.round(&hadamard)?,
                ElementKind::Bf16 => brain.round(&hadamard)?,
                ElementKind::F16 => half.round(&hadamard)?,
            };
            // A copy after each, so that whatever slows down the machine for a while hits copies, too. It is of other
            // buffers than those that were just used.
            // In pieces and at once in turn, each layout next to both.
            let way = (number + round as usize) % 2;
            let at_once = [COPY_BYTES, usize::MAX][way];
            let copy = match layout.kind {
                ElementKind::F32 => copy(&brain.tensor, &mut brain.encoded, at_once)?,
                _ => copy(&long.tensor, &mut long.encoded, at_once)?,
            };
            if round > 0 {
                encodes.push(encode);
                decodes.push(decode);
                copies[way].push(copy);
            }
        }
    }
    let rate = |seconds: Vec<f64>| bytes as f64 / Sorted::new(seconds).median();
    let layouts = times.into_iter().map(|(encode, decode)| Speed { encode: rate(encode), decode: rate(decode) });
    Ok(Speeds { layouts: layouts.collect(), copies: copies.map(rate) })
}

/// Seconds of copying, at most `at_once` bytes with one call.
fn copy<E: Copy>(from: &[E], to: &mut [E], at_once: usize) -> Result<f64, PerfError> {
    let at_once = at_once / size_of::<E>();
    let start = thread_time_used()?;
    for (to, from) in to.chunks_mut(at_once).zip(from.chunks(at_once)) {
        to[..from.len()].copy_from_slice(from);
    }
    Ok(seconds(start, thread_time_used()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_copies_copy_everything() {
        let from: Vec<u32> = (0..700_000).collect();
        for at_once in [COPY_BYTES, usize::MAX] {
            let mut to = vec![0; 700_001];
            assert!(copy(&from, &mut to, at_once).expect("a clock") > 0.0);
            assert!(to[..700_000] == from && to[700_000] == 0);
        }
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused_with_what_they_need() {
        assert!(check_memory(4 << 30, None).is_ok() && check_memory(4 << 30, Some(24 << 30)).is_ok());
        let error = check_memory(4 << 30, Some((24 << 30) - 1)).expect_err("too little").to_string();
        assert!(error.contains("need 25769803776 bytes") && error.contains("--buffer"), "{error}");
        #[cfg(target_os = "linux")]
        assert!(memory_available().is_some_and(|bytes| bytes > 1 << 20));
    }
}
