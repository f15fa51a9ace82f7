//! How fast one core of this machine codes: measured once, and kept.

use std::path::PathBuf;

use longhaul_coding::Code;
use longhaul_plan::question::CodingSpeed;
use serde::{Deserialize, Serialize};

use crate::perf;
use crate::stop::Stop;

/// What is kept.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// Another processor has another speed.
    processor: String,
    /// And another version of the code.
    version: String,
    mds_bytes_per_second: f64,
    xor_bytes_per_second: f64,
}

/// What was kept, or else is measured now (which takes a moment, said on standard error).
pub(super) fn measured() -> Result<CodingSpeed, Stop> {
    let processor = processor();
    let path = path();
    let kept = path.as_ref().and_then(|path| std::fs::read(path).ok());
    let kept = kept.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
    let version = env!("CARGO_PKG_VERSION");
    if let Some(kept) = kept.filter(|kept| kept.processor == processor && kept.version == version) {
        return Ok(kept.speed());
    }
    let of = |code: Result<Code, _>| match code {
        Ok(code) => perf::encoding_bytes_per_second(code),
        Err(error) => Err(Stop::failed("making a code", error)),
    };
    let kept = Kept {
        processor,
        version: version.to_owned(),
        mds_bytes_per_second: of(Code::mds(32, 8))?,
        xor_bytes_per_second: of(Code::xor(32, 8))?,
    };
    let where_kept = path.map_or(Err("there is neither XDG_CACHE_HOME nor HOME".to_owned()), |path| kept.write(path));
    let told = match where_kept {
        Ok(path) => format!("kept in {}", path.display()),
        Err(error) => format!("not kept: {error}"),
    };
    eprintln!(
        "measured how fast a core of this machine codes: MDS(32,8) {:.1} GB/s, XOR(32,8) {:.1} GB/s; {told}",
        kept.mds_bytes_per_second / 1e9,
        kept.xor_bytes_per_second / 1e9
    );
    Ok(kept.speed())
}

impl Kept {
    fn speed(&self) -> CodingSpeed {
        CodingSpeed { mds_bytes_per_second: self.mds_bytes_per_second, xor_bytes_per_second: self.xor_bytes_per_second }
    }

    fn write(&self, path: PathBuf) -> Result<PathBuf, String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let written = match path.parent() {
            Some(directory) => std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&path, text + "\n")),
            None => std::fs::write(&path, text + "\n"),
        };
        match written {
            Ok(()) => Ok(path),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }
}

fn path() -> Option<PathBuf> {
    let directory = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = directory("XDG_CACHE_HOME").or_else(|| directory("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("longhaul").join("coding-speed.json"))
}

/// The processor's name; nothing where it is not told.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|line| line.starts_with("model name"));
    name.and_then(|line| line.split_once(':')).map_or(String::new(), |(_, name)| name.trim().to_owned())
}
