//! Runs the body of a fuzz target without a fuzzer: over the corpus that is kept, over the same bytes changed in places,
//! and over noise. What is drawn comes from fixed seeds, so that every run is the same.
//!
//! A module of the tests of several crates (`tests/fuzzing.rs`), each of which has the bodies of its own targets.

use std::path::{Path, PathBuf};

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// Changed copies of each file of the corpus, and inputs of noise.
const CHANGED: usize = 4;
const NOISE: usize = 300;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Runs a body; says which input it was that it panics on.
pub(crate) fn run(target: &str, body: fn(&[u8])) {
    let mut random = ChaCha12Rng::from_seed([3; 32]);
    for (path, bytes) in corpus(target) {
        attempt(&path.display().to_string(), &bytes, body);
        for copy in 0..CHANGED {
            let mut changed = bytes.clone();
            for _ in 0..random.next_u32() % 8 {
                let place = random.next_u32() as usize % changed.len().max(1);
                if let Some(byte) = changed.get_mut(place) {
                    *byte = random.next_u32() as u8;
                }
            }
            attempt(&format!("copy {copy} of {}", path.display()), &changed, body);
        }
    }
    for index in 0..NOISE {
        let mut bytes = vec![0; random.next_u32() as usize % 2048];
        random.fill_bytes(&mut bytes);
        // Zeros choose what is right, so that a part of the noise goes deeper.
        let zeros = random.next_u32() % 4;
        bytes.iter_mut().for_each(|byte| {
            if random.next_u32() % 4 < zeros {
                *byte = 0;
            }
        });
        attempt(&format!("noise {index}"), &bytes, body);
    }
}

fn attempt(name: &str, bytes: &[u8], body: fn(&[u8])) {
    let result = std::panic::catch_unwind(|| body(bytes));
    assert!(result.is_ok(), "{name}: {}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
}
