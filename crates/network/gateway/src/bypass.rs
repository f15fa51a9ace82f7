//! Fail-open: what joins the two interfaces when the process is not there.
//!
//! Both interfaces are ports of a bridge of the kernel's. While the gateway runs, a table of nf_tables drops what arrives at them
//! before the bridge sees it (packet sockets have seen it by then). The table has an owner, the netlink socket of this process:
//! when that closes, the kernel removes the table, and the bridge forwards. Nothing else must happen for that, so it does not matter
//! how the process ends.
//!
//! ```text
//!   frame ─▶ packet socket (the gateway) ─▶ ingress hook: dropped while the process lives ─▶ bridge
//! ```

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::Command;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use thiserror::Error;

/// Why the kernel cannot take over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BypassError {
    /// `ip` is not there.
    #[error("the command ip cannot be run; is the package iproute2 installed?")]
    NoProgram(#[source] io::Error),
    /// The bridge cannot be made.
    #[error(
        "`ip {command}` has failed: {said}; is the kernel built with bridges (CONFIG_BRIDGE)? bridge = \"\" does without"
    )]
    Bridge {
        /// What was asked.
        command: String,
        /// What it said.
        said: String,
    },
    /// It joins others.
    #[error("the bridge {bridge} has the port {port}, which is not this gateway's: set bridge to another name")]
    OtherPort {
        /// The bridge.
        bridge: String,
        /// Its port.
        port: String,
    },
    /// Somebody else has it.
    #[error("another gateway runs at {site}: end it first (`longhaul gateway status` shows those of this user)")]
    Taken {
        /// The interface.
        site: String,
    },
    /// No table.
    #[error(
        "the bridge cannot be held back while the gateway runs: that needs CAP_NET_ADMIN and nf_tables with owned tables (Linux 5.12, \
         CONFIG_NF_TABLES_NETDEV); bridge = \"\" does without, and then nothing passes when the process ends"
    )]
    Hold(#[source] io::Error),
}

/// A bridge that is held back. Dropped, it forwards.
#[derive(Debug)]
pub struct Bypass {
    // The kernel removes the table when this closes.
    _owner: OwnedFd,
}

impl Bypass {
    /// Joins the interfaces with a bridge, which is made if it is not there, and holds it back.
    pub fn hold(bridge: &str, site: &str, wide: &str) -> Result<Bypass, BypassError> {
        if ip(&format!("link show dev {bridge} type bridge")).map_or(true, |shown| shown.is_empty()) {
            // Everything passes a bump in the wire: groups that nobody has joined, and frames that bridges keep to themselves, as
            // far as the kernel allows it.
            ip(&format!(
                "link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0 group_fwd_mask 65528"
            ))?;
            // It has nothing to say itself.
            let _ = ip(&format!("link set {bridge} addrgenmode none"));
        }
        // Frames of this gateway would leave there too.
        let ports = ip(&format!("-o link show master {bridge}"))?;
        if let Some(port) = ports.lines().filter_map(name_of).find(|port| ![site, wide].contains(port)) {
            return Err(BypassError::OtherPort { bridge: bridge.to_owned(), port: port.to_owned() });
        }
        ip(&format!("link set {bridge} up"))?;
        for port in [site, wide] {
            ip(&format!("link set {port} master {bridge}"))?;
        }
        let owner = own_table(site, &[site, wide]).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BypassError::Taken { site: site.to_owned() },
            _ => BypassError::Hold(error),
        })?;
        Ok(Bypass { _owner: owner })
    }
}

/// The name in a line of `ip -o link`: "5: eth1@if4: <…".
fn name_of(line: &str) -> Option<&str> {
    line.split(": ").nth(1)?.split('@').next()
}

fn ip(arguments: &str) -> Result<String, BypassError> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(BypassError::NoProgram)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BypassError::Bridge { command: arguments.to_owned(), said })
}

// --- nf_tables over netlink: linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h ------------------

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLA_F_NESTED: u16 = 1 << 15;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8;
const NFT_MSG_NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 3;
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_NETDEV: u8 = 5;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_OWNER: u32 = 0x2;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_NAME: u16 = 1;
const NF_NETDEV_INGRESS: u32 = 0;
const NF_DROP: u32 = 0;

/// Seconds that the kernel has to answer.
const PATIENCE_SECONDS: i64 = 5;

/// A table that drops all that arrives at these interfaces, for as long as the socket is open.
fn own_table(name: &str, interfaces: &[&str]) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let owner = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(owner.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&owner, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
    let table = format!("longhaul-gateway-{name}");
    let (mut hook, mut devices) = (Vec::new(), Vec::new());
    interfaces.iter().for_each(|interface| put_text(&mut devices, NFTA_DEVICE_NAME, interface));
    put_number(&mut hook, NFTA_HOOK_HOOKNUM, NF_NETDEV_INGRESS);
    put_number(&mut hook, NFTA_HOOK_PRIORITY, 0);
    put(&mut hook, NFTA_HOOK_DEVS | NLA_F_NESTED, &devices);
    let (mut new_table, mut new_chain) = (Vec::new(), Vec::new());
    put_text(&mut new_table, NFTA_TABLE_NAME, &table);
    put_number(&mut new_table, NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
    put_text(&mut new_chain, NFTA_CHAIN_TABLE, &table);
    put_text(&mut new_chain, NFTA_CHAIN_NAME, "held-back");
    put(&mut new_chain, NFTA_CHAIN_HOOK | NLA_F_NESTED, &hook);
    put_number(&mut new_chain, NFTA_CHAIN_POLICY, NF_DROP);
    put_text(&mut new_chain, NFTA_CHAIN_TYPE, "filter");
    let mut batch = Vec::new();
    let create = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
    put_message(&mut batch, NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
    put_message(&mut batch, NFT_MSG_NEWTABLE, create | NLM_F_EXCL, NFPROTO_NETDEV, 0, &new_table);
    put_message(&mut batch, NFT_MSG_NEWCHAIN, create, NFPROTO_NETDEV, 0, &new_chain);
    put_message(&mut batch, NFNL_MSG_BATCH_END, NLM_F_REQUEST, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
    send(owner.as_raw_fd(), &batch, MsgFlags::empty())?;
    let (mut answers, mut buffer) = (0, vec![0; 8192]);
    // One answer for each of the two.
    while answers < 2 {
        let bytes = recv(owner.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
        answers += check_answers(&buffer[..bytes])?;
    }
    Ok(owner)
}

/// How many answers say that all is well.
fn check_answers(mut bytes: &[u8]) -> io::Result<usize> {
    let mut good = 0;
    while let Some((header, _)) = bytes.split_first_chunk::<16>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        if let (NLMSG_ERROR, Some(&[a, b, c, d])) = (kind, bytes.get(16..20)) {
            match i32::from_ne_bytes([a, b, c, d]) {
                0 => good += 1,
                error => return Err(io::Error::from_raw_os_error(error.saturating_neg())),
            }
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(good)
}

fn put_message(to: &mut Vec<u8>, kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) {
    let length = (20 + attributes.len()) as u32;
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    // Number and sender: the answers need none.
    to.extend([0; 8]);
    to.extend([family, 0]);
    to.extend(resource.to_be_bytes());
    to.extend(attributes);
}

fn put(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend((4 + value.len() as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn put_number(to: &mut Vec<u8>, kind: u16, value: u32) {
    put(to, kind, &value.to_be_bytes());
}

fn put_text(to: &mut Vec<u8>, kind: u16, text: &str) {
    put(to, kind, &[text.as_bytes(), &[0]].concat());
}
