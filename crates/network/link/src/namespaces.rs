//! Two network namespaces with a link between them, held by one process:
//!
//! ```text
//!   namespace "left"            namespace of the link            namespace "right"
//!   eth0 198.18.0.1 ═ veth ═ left ──── Link ──── right ═ veth ═ eth0 198.18.0.2
//! ```
//!
//! Nothing but descriptors of this process (and processes that run in them) keeps the namespaces alive: when it ends, in
//! whatever way, interfaces and namespaces are gone.
//!
//! Frames are only those of programs: no IPv6, so no router is looked for; addresses of the other end are known, so nobody
//! asks for them. With one seed, the same traffic meets the same link.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::Command;

use longhaul_forward::offloads::{self, Offload};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getegid, geteuid};
use thiserror::Error;

/// A side of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first.
    Left,
    /// The second.
    Right,
}

impl Side {
    /// Both.
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    /// Its name, which is also that of the link's interface on that side.
    pub fn name(self) -> &'static str {
        match self {
            Side::Left => "left",
            Side::Right => "right",
        }
    }

    /// The address of its end.
    pub fn address(self) -> std::net::Ipv4Addr {
        match self {
            Side::Left => [198, 18, 0, 1].into(),
            Side::Right => [198, 18, 0, 2].into(),
        }
    }

    /// The hardware address of its end.
    fn hardware_address(self) -> &'static str {
        match self {
            Side::Left => "02:00:00:12:00:01",
            Side::Right => "02:00:00:12:00:02",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// The interface of the ends, in their namespaces.
pub const END_INTERFACE: &str = "eth0";

/// Why namespaces cannot be made or entered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// Not as this user.
    #[error(
        "this host does not let user {user} make a user namespace: run this as root, or allow it \
         (sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces)"
    )]
    UserNamespace {
        /// Who asks.
        user: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// No namespace.
    #[error("a network namespace cannot be made")]
    Make(#[source] io::Error),
    /// Something is missing.
    #[error("the command {program} cannot be run; is the package {package} installed?")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A command has failed.
    #[error("`{command}` has failed: {said}")]
    Failed {
        /// The command.
        command: String,
        /// What it said.
        said: String,
    },
    /// An interface cannot be told to finish frames itself.
    #[error("checksums and segments of {0} cannot be computed by the host (ethtool -K {0} tx off)")]
    Offload(&'static str, #[source] io::Error),
    /// It is there, but cannot be entered.
    #[error("the namespace cannot be entered")]
    Enter(#[source] io::Error),
}

/// Namespaces that this process holds. Its thread is in the one of the link.
pub struct Namespaces {
    own: OwnedFd,
    sides: [OwnedFd; 2],
}

impl Namespaces {
    /// Makes them. The process must have one thread only; from here on it is another user's (root of its own user namespace)
    /// unless it is root's.
    pub fn make(mtu: usize) -> Result<Self, NamespaceError> {
        become_root_of_own()?;
        let new = || -> Result<OwnedFd, NamespaceError> {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|error| NamespaceError::Make(error.into()))?;
            // Of this thread: a process may have started others.
            Ok(File::open("/proc/thread-self/ns/net").map_err(NamespaceError::Make)?.into())
        };
        let namespaces = Namespaces { sides: [new()?, new()?], own: new()? };
        without_ipv6();
        for side in Side::BOTH {
            namespaces.connect(side, mtu)?;
        }
        Ok(namespaces)
    }

    /// The descriptor of a side's namespace, in this process.
    pub fn descriptor(&self, side: Side) -> i32 {
        self.of(side).as_raw_fd()
    }

    fn of(&self, side: Side) -> &OwnedFd {
        &self.sides[side as usize]
    }

    /// Does something in a side's namespace: sockets that are opened there stay there.
    pub fn within<T>(&self, side: Side, work: impl FnOnce() -> T) -> Result<T, NamespaceError> {
        let enter = |namespace: &OwnedFd| {
            setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|error| NamespaceError::Enter(error.into()))
        };
        enter(self.of(side))?;
        let result = work();
        enter(&self.own)?;
        Ok(result)
    }

    /// Takes the interfaces away, so that others can be made in place of them. (Namespaces go with their descriptors.)
    pub fn remove(self) -> Result<(), NamespaceError> {
        Side::BOTH.into_iter().try_for_each(|side| ip(&format!("link delete {}", side.name())))
    }

    /// A pair of interfaces, one of them in the side's namespace, ready for use.
    fn connect(&self, side: Side, mtu: usize) -> Result<(), NamespaceError> {
        let name = side.name();
        // Under another name at first: the host's own may be eth0.
        let end = format!("{name}-end");
        ip(&format!("link add {name} mtu {mtu} type veth peer name {end} mtu {mtu}"))?;
        ip(&format!("link set {end} netns /proc/{}/fd/{}", std::process::id(), self.descriptor(side)))?;
        // Where IPv6 cannot be switched off, interfaces at least get no address, so that nobody looks for routers.
        let _ = ip(&format!("link set {name} addrgenmode none"));
        ip(&format!("link set {name} up"))?;
        self.within(side, || {
            without_ipv6();
            let (address, other) = (side.address(), side.other());
            ip("link set lo up")?;
            ip(&format!("link set {end} name {END_INTERFACE} address {}", side.hardware_address()))?;
            ip(&format!("address add {address}/24 dev {END_INTERFACE}"))?;
            let _ = ip(&format!("link set {END_INTERFACE} addrgenmode none"));
            offloads::set(END_INTERFACE, Offload::TransmitChecksum, false)
                .map_err(|error| NamespaceError::Offload(END_INTERFACE, error))?;
            ip(&format!("link set {END_INTERFACE} up"))?;
            let (to, hardware) = (other.address(), other.hardware_address());
            ip(&format!("neighbor replace {to} lladdr {hardware} dev {END_INTERFACE} nud permanent"))
        })?
    }
}

/// Enters the namespace of a side, which another process holds, with the user namespace that it belongs to. The process must
/// have one thread only.
pub fn enter(process: u32, descriptor: i32) -> Result<(), NamespaceError> {
    let open = |path: String| File::open(path).map_err(NamespaceError::Enter);
    let failed = |error: nix::Error| NamespaceError::Enter(error.into());
    let network = open(format!("/proc/{process}/fd/{descriptor}"))?;
    if !geteuid().is_root() {
        let user = open(format!("/proc/{process}/ns/user"))?;
        setns(user, CloneFlags::CLONE_NEWUSER).map_err(failed)?;
    }
    setns(network, CloneFlags::CLONE_NEWNET).map_err(failed)
}

/// In a user namespace of its own an ordinary user may make network namespaces.
fn become_root_of_own() -> Result<(), NamespaceError> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    let failed = |source| NamespaceError::UserNamespace { user: user.as_raw(), source };
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|error| failed(error.into()))?;
    std::fs::write("/proc/self/setgroups", "deny").map_err(failed)?;
    std::fs::write("/proc/self/uid_map", format!("0 {user} 1")).map_err(failed)?;
    std::fs::write("/proc/self/gid_map", format!("0 {group} 1")).map_err(failed)
}

/// No IPv6 on interfaces of this namespace: its host looks for routers and groups by itself. Where the kernel has no IPv6,
/// there is nothing to switch off.
fn without_ipv6() {
    for which in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
    }
}

fn ip(arguments: &str) -> Result<(), NamespaceError> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|source| NamespaceError::NoProgram { program: "ip", package: "iproute2", source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(NamespaceError::Failed { command: format!("ip {arguments}"), said })
}
