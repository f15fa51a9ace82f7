//! The stochastic twin: the same protocols played through, loss by loss, from a seed.
//!
//! What the models take at its mean or for independent, the twin does not: one wire with one packet at a time, every
//! lost packet drawn from the chain, every repetition queued behind what waits, every group of a code looked at. It
//! takes the timers from the same place as the models. Where nothing is lost nothing is walked: the distance to the
//! next loss is drawn, so that a sample costs as much as it has losses.
//!
//! Samples come in blocks, each with random numbers of its own, and threads take blocks: the same seed gives the same
//! samples on any number of cores.

mod channel;
mod erasure;
mod go_back_n;
mod selective_repeat;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use channel::Channel;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::link::PlanError;
use crate::model::{Case, Parts};
use crate::ring::Ring;

const BLOCK: usize = 256;

impl Case {
    /// Play it through `count` times. Samples are in seconds, and sorted.
    pub fn samples(&self, count: usize, seed: u64) -> Result<Vec<f64>, PlanError> {
        self.samples_on(cores(), count, seed)
    }

    /// The same on this many threads; the samples do not depend on it.
    pub fn samples_on(&self, threads: usize, count: usize, seed: u64) -> Result<Vec<f64>, PlanError> {
        let parts = self.parts()?;
        Ok(in_blocks(threads, count, |block, count| {
            let mut channel = self.channel(block, seed);
            (0..count).map(|_| sample(&parts, &mut channel)).collect()
        }))
    }

    /// Play a ring of sites through, each stage of which sends a part of this case's message.
    pub fn ring_samples(&self, sites: u32, count: usize, seed: u64) -> Result<Vec<f64>, PlanError> {
        self.ring_samples_on(cores(), sites, count, seed)
    }

    /// The same on this many threads; the samples do not depend on it.
    pub fn ring_samples_on(&self, threads: usize, sites: u32, count: usize, seed: u64) -> Result<Vec<f64>, PlanError> {
        if sites < 2 {
            return Err(PlanError::Ring(sites));
        }
        let stage = self.stage_of_ring(sites);
        let parts = stage.parts()?;
        Ok(in_blocks(threads, count, |block, count| {
            let mut channel = stage.channel(block, seed);
            let mut ring = Ring::new(sites);
            (0..count).map(|_| ring.sample(|times| times.fill_with(|| sample(&parts, &mut channel)))).collect()
        }))
    }

    fn channel(&self, block: usize, seed: u64) -> Channel {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(block as u64);
        Channel::new(&self.link, self.chunk_bytes, self.message_bytes, random)
    }
}

fn sample(parts: &Parts, channel: &mut Channel) -> f64 {
    channel.forget();
    match parts {
        Parts::SelectiveRepeat(parts) => selective_repeat::sample(parts, channel),
        Parts::Erasure(parts) => erasure::sample(parts, channel),
        Parts::GoBackN(parts) if parts.shim.is_some() => go_back_n::sample_with_shim(parts, channel),
        Parts::GoBackN(parts) => go_back_n::sample(parts, channel),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn in_blocks(threads: usize, count: usize, block_samples: impl Fn(usize, usize) -> Vec<f64> + Sync) -> Vec<f64> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Vec::with_capacity(count));
    let work = || loop {
        let block = next.fetch_add(1, Ordering::Relaxed);
        if block * BLOCK >= count {
            return;
        }
        let samples = block_samples(block, BLOCK.min(count - block * BLOCK));
        all.lock().unwrap_or_else(PoisonError::into_inner).extend(samples);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, count.div_ceil(BLOCK).max(1)) {
            scope.spawn(work);
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by(f64::total_cmp);
    all
}
