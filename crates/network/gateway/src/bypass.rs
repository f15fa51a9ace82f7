//! Fail-open: what joins the two interfaces when the process is not there.
//!
//! Both interfaces are ports of a bridge of the kernel's. While the gateway runs, two tables of nf_tables drop what arrives at them
//! before the bridge sees it (packet sockets have seen it by then). The tables have an owner, the netlink socket of this process:
//! when that closes, the kernel removes them, and the bridge forwards. Nothing else must happen for that, so it does not matter
//! how the process ends. There is one table for each interface, with its name: so two gateways never have an interface in common.
//!
//! ```text
//!   frame ─▶ packet socket (the gateway) ─▶ ingress hook: dropped while the process lives ─▶ bridge
//! ```

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use thiserror::Error;

use crate::ip::{IpError, ip, master_of};

/// Why the kernel cannot take over.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BypassError {
    /// The bridge cannot be made.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// Somebody else has it.
    #[error("another gateway runs at {interface}: end it first (`longhaul gateway status` shows those of this user)")]
    Taken {
        /// The interface.
        interface: String,
    },
    /// No table.
    #[error(
        "the bridge cannot be held back while the gateway runs: that needs CAP_NET_ADMIN and nf_tables with owned tables (Linux 5.12, \
         CONFIG_NF_TABLES_NETDEV); bridge = \"\" does without, and then nothing passes when the process ends"
    )]
    Hold(#[source] io::Error),
}

/// Two interfaces that are held back, and the bridge that is to join them. Dropped, the bridge forwards.
#[derive(Debug)]
pub struct Bypass {
    bridge: String,
    has_bridge: bool,
    /// The interfaces that are not its ports yet.
    missing: Vec<String>,
    // The kernel removes the tables when this closes.
    _owner: OwnedFd,
}

impl Bypass {
    /// Holds the interfaces back: only packet sockets see what arrives. Names must be primary; the interfaces are ports of the
    /// bridge, or of none.
    pub fn hold(bridge: &str, site: &str, wide: &str) -> Result<Bypass, BypassError> {
        let mut missing = Vec::new();
        for interface in [site, wide] {
            if master_of(interface)?.is_none() {
                missing.push(interface.to_owned());
            }
        }
        let has_bridge = if_nametoindex(bridge).is_ok();
        let owner = own_tables([site, wide])?;
        Ok(Bypass { bridge: bridge.to_owned(), has_bridge, missing, _owner: owner })
    }

    /// Joins the interfaces with the bridge, which is made if it is not there. An error leaves them as they were.
    pub fn join(&self) -> Result<(), BypassError> {
        let joined = self.try_join();
        if joined.is_err() {
            for port in &self.missing {
                let _ = ip(&format!("link set {port} nomaster"));
            }
            if !self.has_bridge {
                let _ = ip(&format!("link delete {}", self.bridge));
            }
        }
        joined
    }

    fn try_join(&self) -> Result<(), BypassError> {
        let bridge = &self.bridge;
        if !self.has_bridge {
            // Everything passes a bump in the wire: groups that nobody has joined, and frames that bridges keep to themselves, as
            // far as the kernel allows it.
            ip(&format!(
                "link add {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0 group_fwd_mask 65528"
            ))?;
            // It has nothing to say itself.
            let _ = ip(&format!("link set {bridge} addrgenmode none"));
        }
        ip(&format!("link set {bridge} up"))?;
        self.missing.iter().try_for_each(|port| ip(&format!("link set {port} master {bridge}")).map(drop))?;
        Ok(())
    }
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

const EEXIST: i32 = Errno::EEXIST as i32;
const EPERM: i32 = Errno::EPERM as i32;

/// Seconds that the kernel has to answer.
const PATIENCE_SECONDS: i64 = 5;

/// Tables that drop all that arrives at these interfaces, for as long as the socket is open: one for each, so that no other gateway
/// has either of them.
fn own_tables(interfaces: [&str; 2]) -> Result<OwnedFd, BypassError> {
    let held = |error: io::Error| BypassError::Hold(error);
    let (owner, answers) = open_owner().map_err(held).and_then(|owner| {
        send(owner.as_raw_fd(), &batch(&interfaces), MsgFlags::empty()).map_err(|error| held(error.into()))?;
        // One for each table and each chain.
        let answers = 2 * interfaces.len();
        Ok((owner, answers))
    })?;
    let (mut good, mut buffer) = (0, vec![0; 8192]);
    while good < answers {
        let bytes = recv(owner.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(|error| held(error.into()))?;
        good += check_answers(&buffer[..bytes]).map_err(|Refused { message, error }| {
            match interfaces.get((message as usize).wrapping_sub(1)) {
                // That it has another owner is "not permitted".
                Some(interface) if matches!(error.raw_os_error(), Some(EEXIST | EPERM)) => {
                    BypassError::Taken { interface: (*interface).to_owned() }
                }
                _ => held(error),
            }
        })?;
    }
    Ok(owner)
}

fn open_owner() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let owner = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    bind(owner.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
    setsockopt(&owner, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))?;
    Ok(owner)
}

/// All or nothing of it is done. The message for the table of an interface has its number, from 1; others have 0.
fn batch(interfaces: &[&str]) -> Vec<u8> {
    let mut batch = Vec::new();
    let create = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
    put_message(&mut batch, NFNL_MSG_BATCH_BEGIN, NLM_F_REQUEST, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
    for (number, interface) in (1..).zip(interfaces) {
        let table = format!("longhaul-gateway-{interface}");
        let (mut hook, mut devices) = (Vec::new(), Vec::new());
        put_text(&mut devices, NFTA_DEVICE_NAME, interface);
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
        put_message(&mut batch, NFT_MSG_NEWTABLE, create | NLM_F_EXCL, number, NFPROTO_NETDEV, 0, &new_table);
        put_message(&mut batch, NFT_MSG_NEWCHAIN, create, 0, NFPROTO_NETDEV, 0, &new_chain);
    }
    put_message(&mut batch, NFNL_MSG_BATCH_END, NLM_F_REQUEST, 0, NFPROTO_UNSPEC, NFNL_SUBSYS_NFTABLES, &[]);
    batch
}

/// A message that the kernel has refused.
#[derive(Debug)]
struct Refused {
    message: u32,
    error: io::Error,
}

/// How many answers say that all is well.
fn check_answers(mut bytes: &[u8]) -> Result<usize, Refused> {
    let mut good = 0;
    let number = |bytes: &[u8], at: usize| bytes.get(at..at + 4).map(|word| [word[0], word[1], word[2], word[3]]);
    while bytes.len() >= 16 {
        let length = number(bytes, 0).map_or(0, u32::from_ne_bytes) as usize;
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        if let (NLMSG_ERROR, Some(error)) = (kind, number(bytes, 16)) {
            match i32::from_ne_bytes(error) {
                0 => good += 1,
                error => {
                    let message = number(bytes, 8).map_or(0, u32::from_ne_bytes);
                    return Err(Refused { message, error: io::Error::from_raw_os_error(error.saturating_neg()) });
                }
            }
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(good)
}

fn put_message(to: &mut Vec<u8>, kind: u16, flags: u16, number: u32, family: u8, resource: u16, attributes: &[u8]) {
    let length = (20 + attributes.len()) as u32;
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(number.to_ne_bytes());
    // The kernel knows the sender.
    to.extend([0; 4]);
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
