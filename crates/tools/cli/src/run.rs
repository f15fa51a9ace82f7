//! `longhaul run`: runs a verbs program as it is, on software RNICs.

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::stop::Stop;

/// Names the library, where it is not next to the command.
const LIBRARY: &str = "LONGHAUL_VERBS_LIBRARY";
/// Names the devices for the library.
const DEVICES: &str = "LONGHAUL_RUN_DEVICES";
/// The library as it is installed, and as Cargo builds it.
const LIBRARY_NAMES: [&str; 2] = ["liblonghaul_verbs.so", "liblonghaul_verbs_dropin.so"];
/// Where it is looked for, seen from the folder of the command.
const LIBRARY_FOLDERS: [&str; 4] = [".", "deps", "../lib/longhaul", "../lib"];

/// Run an unmodified verbs program, and what it starts, on software RNICs of this host's addresses
///
/// The program ends as it would alone: `longhaul run` exits with its status, or with 128 and the signal that killed it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, two programs on one host, which need an address each:
  longhaul run -d 127.0.0.1 -- ib_write_bw
  longhaul run -d 127.0.0.2 -- ib_write_bw 127.0.0.1")]
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
    command.args(rest).env("LD_PRELOAD", preload(&library, env::var_os("LD_PRELOAD").as_deref()));
    if !addresses.is_empty() {
        let list: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        command.env(DEVICES, list.join(","));
    }
    // Before the program is there, so that none is missed. The program itself starts with none blocked.
    let watch = Watch::begin().map_err(|error| Stop::failed("cannot wait for signals", error))?;
    let child = command.spawn().map_err(|error| {
        let hint = if error.kind() == std::io::ErrorKind::NotFound { "; is it installed, and in PATH?" } else { "" };
        Stop::missing(format!("{} cannot be run{hint}", program.to_string_lossy()), error)
    })?;
    let status = watch.until_end(child).map_err(|error| Stop::failed("cannot wait for the program", error))?;
    // The program's own status is the whole answer: nothing of ours is printed, and none of our statuses fits.
    std::process::exit(exit_status(status))
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

/// Ours first, then what others have already asked for.
fn preload(library: &Path, others: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// As shells show it.
fn exit_status(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(crate::exit::FAILED.into())
}

/// Signals to this process are the program's, and its end is ours.
struct Watch(SignalFd);

impl Watch {
    const PASSED_ON: [Signal; 6] =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

    fn begin() -> nix::Result<Watch> {
        let mut signals = SigSet::from_iter(Self::PASSED_ON);
        signals.add(Signal::SIGCHLD);
        signals.thread_block()?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).map(Watch)
    }

    fn until_end(&self, mut child: Child) -> std::io::Result<ExitStatus> {
        let pid = Pid::from_raw(child.id() as i32);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let Some(arrived) = self.0.read_signal()? else { continue };
            let signal = Signal::try_from(arrived.ssi_signo as i32).map_err(std::io::Error::from)?;
            // What the terminal sends, the program has got as well: it is in the same process group.
            let is_from_terminal = arrived.ssi_code > 0;
            if signal != Signal::SIGCHLD && !is_from_terminal {
                // It may have ended since, which the next turn finds out.
                let _ = kill(pid, signal);
            }
        }
    }
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
        assert_eq!(preload(library, None), "/l.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/l.so");
        assert_eq!(preload(library, Some(OsStr::new("/a.so"))), "/l.so:/a.so");
    }

    #[test]
    fn statuses_are_those_of_shells() {
        assert_eq!(exit_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_status(ExitStatus::from_raw(9)), 137);
    }
}
