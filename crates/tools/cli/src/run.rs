//! `longhaul run`: runs a verbs program as it is, on software RNICs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stop::Stop;

/// Names the library, where it is not next to the command.
const LIBRARY: &str = "LONGHAUL_VERBS_LIBRARY";
/// Names the devices for the library.
const DEVICES: &str = "LONGHAUL_RUN_DEVICES";
/// Names the program that is run to be the port broker for the library: this one.
const BROKER: &str = "LONGHAUL_RUN_BROKER";
/// The library as it is installed, and as Cargo builds it.
const LIBRARY_NAMES: [&str; 2] = ["liblonghaul_verbs.so", "liblonghaul_verbs_dropin.so"];
/// Where it is looked for, seen from the folder of the command.
const LIBRARY_FOLDERS: [&str; 4] = [".", "deps", "../lib/longhaul", "../lib"];

/// Run an unmodified verbs program, and what it starts, on software RNICs of this host's addresses
///
/// The command becomes the program: signals, job control, the exit status and a death by signal are the program's own.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, two programs on one host:
  longhaul run -d 127.0.0.1 -- ib_write_bw
  longhaul run -d 127.0.0.1 -- ib_write_bw 127.0.0.1")]
pub(crate) struct Arguments {
    /// The program's device: a software RNIC at this address of the host, `softnic:ADDRESS` or just the address; several
    /// with commas between them [default: all addresses of this host]
    #[arg(short, long, value_name = "ADDRESS", value_delimiter = ',')]
    device: Vec<String>,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let addresses = arguments.device.iter().map(|name| address(name)).collect::<Result<Vec<_>, _>>()?;
    let library = library()?;
    let (program, rest) = arguments.command.split_first().expect("clap has asked for it");
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload(&library, env::var_os("LD_PRELOAD").as_deref())?);
    if let (None, Ok(own)) = (env::var_os(BROKER), env::current_exe()) {
        command.env(BROKER, own);
    }
    if !addresses.is_empty() {
        let list: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        command.env(DEVICES, list.join(","));
    }
    // It comes back only with an error. Becoming the program leaves nothing between it and its parent: no signal to pass on,
    // no status to translate. The standard library gives it the default action of SIGPIPE again, which Rust ignores.
    let error = command.exec();
    let hint = if error.kind() == std::io::ErrorKind::NotFound { "; is it installed, and in PATH?" } else { "" };
    Err(Stop::missing(format!("{} cannot be run{hint}", program.to_string_lossy()), error))
}

/// The address that a device's name stands for.
fn address(name: &str) -> Result<IpAddr, Stop> {
    let text = name.strip_prefix("softnic:").unwrap_or(name);
    text.parse().map_err(|_| {
        Stop::Usage(format!(
            "there is no device \"{name}\" for programs: give an address of this host, such as 127.0.0.2 (`longhaul devices` \
             lists them; devices of the host's own libibverbs are not passed on yet)"
        ))
    })
}

/// Where the library is.
fn library() -> Result<PathBuf, Stop> {
    if let Some(path) = env::var_os(LIBRARY) {
        let path = PathBuf::from(path);
        return path.canonicalize().map_err(|error| Stop::missing(format!("{LIBRARY}={}", path.display()), error));
    }
    let own = env::current_exe().map_err(|error| Stop::missing("cannot find the folder of this command", error))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let candidates = LIBRARY_FOLDERS.iter().flat_map(|place| LIBRARY_NAMES.map(|name| folder.join(place).join(name)));
    let found = candidates.filter_map(|path| path.canonicalize().ok()).next();
    found.ok_or_else(|| {
        Stop::Missing(format!(
            "{} is not next to this command in {}: build it (`cargo build --release -p longhaul-verbs-dropin`), or name it \
             with {LIBRARY}",
            LIBRARY_NAMES[0],
            folder.display()
        ))
    })
}

/// Ours first, then what others have already asked for. The loader splits the list at spaces and colons, and starts the
/// program without a library that it does not find: the program would get the host's libibverbs.
fn preload(library: &Path, others: Option<&OsStr>) -> Result<OsString, Stop> {
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(Stop::Missing(format!(
            "the system's loader cannot load \"{}\": its path has a space or a colon, which separate libraries in LD_PRELOAD; \
             copy the library elsewhere and name it with {LIBRARY}",
            library.display()
        )));
    }
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_addresses() {
        assert_eq!(address("127.0.0.2").unwrap(), "127.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(address("softnic:fd00::1").unwrap(), "fd00::1".parse::<IpAddr>().unwrap());
        let error = address("rxe0").unwrap_err();
        assert!(matches!(&error, Stop::Usage(text) if text.contains("rxe0")), "{error}");
    }

    #[test]
    fn what_others_preload_comes_behind_ours() {
        let library = Path::new("/l.so");
        assert_eq!(preload(library, None).unwrap(), "/l.so");
        assert_eq!(preload(library, Some(OsStr::new(""))).unwrap(), "/l.so");
        assert_eq!(preload(library, Some(OsStr::new("/a.so"))).unwrap(), "/l.so:/a.so");
    }

    #[test]
    fn paths_that_the_loader_would_split_are_refused() {
        for path in ["/a b/l.so", "/a:b/l.so"] {
            let error = preload(Path::new(path), None).unwrap_err();
            assert!(matches!(&error, Stop::Missing(text) if text.contains(path)), "{error}");
        }
    }
}
