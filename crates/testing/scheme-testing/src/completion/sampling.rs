//! Many samples on many threads; the result does not depend on how many.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Completion, CompletionOptions, Sample};
use crate::end_to_end::CaseError;

/// Samples to take.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// Of what.
    pub options: CompletionOptions,
    /// How many.
    pub sample_count: u32,
    /// Threads to take them on.
    pub thread_count: usize,
}

impl Sampling {
    /// Samples are taken in batches of this size, each on a link of its own with a seed of its own, so that it does not
    /// matter which thread takes which. Setting up a link costs about as much as a sample.
    pub const BATCH_SAMPLES: u32 = 10;

    /// Batches to take.
    pub fn batch_count(&self) -> u32 {
        self.sample_count.div_ceil(Self::BATCH_SAMPLES)
    }

    /// Takes all samples; `progress` is called after each.
    pub fn run(&self, progress: impl Fn() + Sync) -> Result<Vec<Sample>, CaseError> {
        let next = AtomicU32::new(0);
        let taken = Mutex::new(Vec::<(u32, Result<_, CaseError>)>::new());
        let work = || loop {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch >= self.batch_count() {
                return;
            }
            let samples = self.take_batch(batch, &progress);
            if samples.is_err() {
                // Nobody begins another. Those before it have been begun, so the first failure is always the same one.
                next.store(self.batch_count(), Ordering::Relaxed);
            }
            taken.lock().expect("no thread panics while it holds the lock").push((batch, samples));
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.thread_count.clamp(1, 1024)).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                // A panic in a sample is a bug: it stays a panic.
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
        let mut taken = taken.into_inner().expect("all threads have ended well");
        taken.sort_by_key(|(batch, _)| *batch);
        let mut samples = Vec::with_capacity(self.sample_count as usize);
        for (_, batch) in taken {
            samples.extend(batch?);
        }
        Ok(samples)
    }

    fn take_batch(&self, batch: u32, progress: &(impl Fn() + Sync)) -> Result<Vec<Sample>, CaseError> {
        let mut options = self.options.clone();
        // The odd factor keeps the batches of neighbouring seeds apart.
        options.seed = options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(batch.into());
        let mut completion = Completion::new(options);
        let first = batch * Self::BATCH_SAMPLES;
        let count = Self::BATCH_SAMPLES.min(self.sample_count - first);
        let take = |_| completion.sample().inspect(|_| progress());
        (0..count).map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_time::Duration;

    use super::*;

    fn sampling(thread_count: usize, seed: u64) -> Sampling {
        let options = CompletionOptions {
            rate_bits_per_second: 10_000_000_000,
            round_trip: Duration::from_millis(1),
            loss: 0.05,
            burst_packets: None,
            message_bytes: 256 << 10,
            chunk_bytes: 4096,
            scheme: "sr:nack".parse().expect("a scheme"),
            seed,
        };
        Sampling { options, sample_count: 43, thread_count }
    }

    #[test]
    fn threads_do_not_change_the_samples() {
        let take = |threads, seed| sampling(threads, seed).run(|| ()).expect("they are done");
        let one = take(1, 5);
        assert_eq!(one.len(), 43);
        assert_eq!(one, take(4, 5));
        assert_ne!(one, take(1, 6));
        // Batches are different from each other.
        assert_ne!(one[..10], one[10..20]);
    }

    #[test]
    fn a_failure_ends_the_run() {
        let mut sampling = sampling(2, 1);
        // Nothing ever arrives.
        sampling.options.loss = 0.999_999;
        sampling.options.round_trip = Duration::from_micros(1);
        assert!(sampling.run(|| ()).is_err());
    }

    #[test]
    fn progress_is_told() {
        let reported = AtomicU32::new(0);
        sampling(3, 1)
            .run(|| {
                reported.fetch_add(1, Ordering::Relaxed);
            })
            .expect("they are done");
        assert_eq!(reported.into_inner(), 43);
    }
}
