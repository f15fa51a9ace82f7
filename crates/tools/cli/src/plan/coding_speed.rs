//! How fast one core of this machine codes: measured once, and kept for some days.
//!
//! A host that is busy while it is measured looks slower than it is. Such a figure is used for the answer at hand and
//! not kept. What disturbs without taking the core away, such as the other thread of a core or another guest of the
//! same machine, cannot be seen from here; so even a figure that is kept is measured again after some days.

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use longhaul_coding::Code;
use longhaul_plan::question::CodingSpeed;
use serde::{Deserialize, Serialize};

use crate::stop::Stop;

/// The best of this many rounds counts: other load only makes a round slower.
const ROUNDS: usize = 3;
/// A thread that runs for less than this share of the time shares its core with others.
const RUNNING_SHARE_MIN: f64 = 0.9;
/// A figure is kept for a week.
const KEPT_SECONDS: u64 = 7 * 86_400;

/// A debug build codes several times slower than a release build, which must not take its figure for its own.
const VERSION: &str = match cfg!(debug_assertions) {
    true => concat!(env!("CARGO_PKG_VERSION"), " debug"),
    false => env!("CARGO_PKG_VERSION"),
};

/// What is kept.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// Another processor has another speed.
    processor: String,
    /// And another version of the code.
    version: String,
    /// When it was measured, in seconds since 1970. A file without it is of an earlier version, and measured again.
    measured_at: u64,
    mds_bytes_per_second: f64,
    xor_bytes_per_second: f64,
}

/// What was kept, or else is measured now (which takes a moment, said on standard error).
pub(super) fn measured() -> Result<CodingSpeed, Stop> {
    let (processor, now) = (processor(), unix_seconds());
    let path = path();
    let kept = path.as_ref().and_then(|path| std::fs::read(path).ok());
    let kept = kept.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
    if let Some(kept) = kept.filter(|kept| kept.is_valid(&processor, VERSION, now)) {
        return Ok(kept.speed());
    }
    let (speed, running_share) = measure()?;
    let kept = Kept {
        processor,
        version: VERSION.to_owned(),
        measured_at: now,
        mds_bytes_per_second: speed.mds_bytes_per_second,
        xor_bytes_per_second: speed.xor_bytes_per_second,
    };
    let outcome = match path {
        _ if running_share < RUNNING_SHARE_MIN => format!(
            "not kept, because the host was busy: the measurement had {:.0} % of a core, so it may be too low",
            running_share * 100.0
        ),
        None => "not kept: there is neither XDG_CACHE_HOME nor HOME".to_owned(),
        Some(path) => match kept.write(&path) {
            Ok(()) => format!("kept in {} for a week", path.display()),
            Err(error) => format!("not kept: {}: {error}", path.display()),
        },
    };
    eprintln!(
        "measured how fast a core of this machine codes: MDS(32,8) {:.1} GB/s, XOR(32,8) {:.1} GB/s; {outcome}",
        speed.mds_bytes_per_second / 1e9,
        speed.xor_bytes_per_second / 1e9
    );
    Ok(speed)
}

/// The best of some rounds, and which share of the time this thread ran.
fn measure() -> Result<(CodingSpeed, f64), Stop> {
    let (began, used_before) = (Instant::now(), longhaul_perf::thread_time_used()?);
    let mut best = CodingSpeed { mds_bytes_per_second: 0.0, xor_bytes_per_second: 0.0 };
    for _ in 0..ROUNDS {
        let of = |code: Result<Code, _>| match code {
            Ok(code) => longhaul_perf::coding::encoding_bytes_per_second(code).map_err(Stop::from),
            Err(error) => Err(Stop::failed("making a code", error)),
        };
        best.mds_bytes_per_second = best.mds_bytes_per_second.max(of(Code::mds(32, 8))?);
        best.xor_bytes_per_second = best.xor_bytes_per_second.max(of(Code::xor(32, 8))?);
    }
    let used = longhaul_perf::thread_time_used()?.saturating_sub(used_before);
    Ok((best, used.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9)))
}

fn unix_seconds() -> u64 {
    // Before 1970 the clock is wrong, and what was kept with a right one is measured again.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl Kept {
    /// Whether it is of this processor and version, and not too old. What comes from the future was kept with a wrong
    /// clock.
    fn is_valid(&self, processor: &str, version: &str, now: u64) -> bool {
        let is_recent = now.checked_sub(self.measured_at).is_some_and(|age| age < KEPT_SECONDS);
        self.processor == processor && self.version == version && is_recent
    }

    fn speed(&self) -> CodingSpeed {
        CodingSpeed { mds_bytes_per_second: self.mds_bytes_per_second, xor_bytes_per_second: self.xor_bytes_per_second }
    }

    fn write(&self, path: &Path) -> Result<(), std::io::Error> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, serde_json::to_string(self)? + "\n")
    }
}

fn path() -> Option<PathBuf> {
    let directory = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = directory("XDG_CACHE_HOME").or_else(|| directory("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("longhaul").join("coding-speed.json"))
}

/// The processor's name; empty where the system does not give it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    name.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_for_one_processor_and_version_and_expires() {
        let kept = Kept {
            processor: "a".to_owned(),
            version: "1".to_owned(),
            measured_at: 1_000_000,
            mds_bytes_per_second: 1e9,
            xor_bytes_per_second: 2e9,
        };
        assert!(kept.is_valid("a", "1", 1_000_000) && kept.is_valid("a", "1", 1_000_000 + KEPT_SECONDS - 1));
        assert!(!kept.is_valid("b", "1", 1_000_000) && !kept.is_valid("a", "2", 1_000_000));
        assert!(!kept.is_valid("a", "1", 1_000_000 + KEPT_SECONDS) && !kept.is_valid("a", "1", 999_999));
    }
}
