//! What the two ends say to each other, as lines of JSON over TCP. The first of either end names the version.
//!
//! ```text
//!   client → server    Hello             what the session is about, and the client's device
//!   server → client    Welcome           the server's device and memory
//!   client → server    Check             one check, and the client's queue pair       again for each check
//!   server → client    Prepared          the server's queue pair; receives are posted
//!   server → client    Arrived           UC and UD: this many operations have arrived so far; again and again
//!   client → server    Done              this many operations have completed
//!   server → client    Verdict           whether all has come
//!   client → server    UntilDeath        instead of checks
//!   server → client    Prepared
//!   client → server    Goodbye
//! ```

use std::net::IpAddr;

use longhaul_verbs::Capabilities;
use serde::{Deserialize, Serialize};

use crate::plan::{Check, Connection};

/// The version of this exchange. It changes when older programs could not take part.
pub(crate) const VERSION: u32 = 2;

/// What both ends have to know. The client decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionPlan {
    pub(crate) connection: Connection,
    /// Memory that the largest check needs at either end.
    pub(crate) memory_bytes: u64,
    /// How fast each end sends; `None` is as fast as it goes.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// RC: acknowledgement time-out, 4.096 µs · 2^n.
    pub(crate) timeout: u8,
}

/// What the other end has to know of a device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndInfo {
    /// In one line for people.
    pub(crate) description: String,
    pub(crate) address: IpAddr,
    pub(crate) udp_port: u16,
    /// The largest payload of a packet.
    pub(crate) mtu_bytes: u32,
    capability_bits: u64,
    pub(crate) max_read_atomic: u8,
    pub(crate) max_destination_read_atomic: u8,
    pub(crate) memory_address: u64,
    pub(crate) memory_key: u32,
    pub(crate) memory_bytes: u64,
}

/// A connection that both ends make alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ReliablePlan {
    pub(crate) scheme: String,
    pub(crate) mtu_bytes: u32,
    pub(crate) memory_bytes: u64,
}

/// Messages of one size in one direction.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct MessagesCheck {
    pub(crate) messages: u32,
    pub(crate) message_bytes: u32,
    pub(crate) from_server: bool,
}

/// How an end describes its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryInfo {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) bytes: u64,
}

impl EndInfo {
    pub(crate) fn new(
        end: &crate::End,
        attributes: &longhaul_verbs::DeviceAttributes,
        mtu: longhaul_verbs::Mtu,
        memory: MemoryInfo,
    ) -> EndInfo {
        EndInfo {
            description: end.description.clone(),
            address: end.address,
            udp_port: end.udp_port,
            mtu_bytes: mtu.byte_count(),
            capability_bits: attributes.capabilities.bits(),
            max_read_atomic: attributes.max_read_atomic,
            max_destination_read_atomic: attributes.max_destination_read_atomic,
            memory_address: memory.address,
            memory_key: memory.key,
            memory_bytes: memory.bytes,
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities::from_bits_truncate(self.capability_bits)
    }
}

/// What the other end has to know of a queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PairInfo {
    pub(crate) number: u32,
    /// The first packet sequence number that it sends.
    pub(crate) first_psn: u32,
    /// Payload of a packet, as the client has decided.
    pub(crate) mtu_bytes: u32,
}

/// From the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Hello {
        version: u32,
        plan: SessionPlan,
        end: EndInfo,
    },
    Check {
        check: Check,
        pair: PairInfo,
    },
    /// This many operations have completed, all of them unless something is wrong on the client's side.
    Done {
        completed: u64,
        failure: Option<String>,
    },
    UntilDeath {
        pair: PairInfo,
        /// The server writes as well.
        from_server: bool,
    },
    /// A connection with a reliability scheme, which the client makes when it knows where the server listens.
    Connect(ReliablePlan),
    /// Messages over the newest such connection.
    Messages(MessagesCheck),
    Goodbye,
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Welcome {
        version: u32,
        end: EndInfo,
    },
    Prepared(PairInfo),
    /// Where the server listens: the text of the library's handle.
    Listening {
        listener: String,
    },
    /// Credit for more: unreliable transports lose what the receiver is not ready for.
    Arrived(u64),
    Verdict {
        failure: Option<String>,
    },
    Refused {
        version: u32,
        reason: String,
    },
}
