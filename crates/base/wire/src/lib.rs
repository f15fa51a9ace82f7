//! RoCEv2 on the wire, and what Longhaul puts inside it.
//!
//! A RoCEv2 packet is an InfiniBand transport packet carried in a UDP datagram:
//!
//! ```text
//! | Ethernet | IPv4 or IPv6 | UDP (4791) | BTH | extended headers | payload | pad | ICRC |
//! ```
//!
//! This crate turns those bytes into values and values into bytes, and nothing else: it allocates nothing,
//! does no I/O, keeps no connection state and panics on no input. The module list is in the order of a
//! reader's questions:
//!
//! - What are the numbers? [`psn`] (24-bit serial numbers) and [`opcode`] (what a packet is, and therefore which
//!   headers follow the first).
//! - What are the headers? [`bth`] (in every packet), and the extended ones: [`deth`] (datagrams), [`reth`] (WRITE and
//!   READ requests), [`atomic_eth`], [`aeth`] (acknowledgements), [`atomic_ack`], [`immediate`], [`invalidate`];
//!   [`cnp`] is the payload of a congestion notification packet.
//! - How do they come together? [`packet`]: BTH to ICRC, which is what a UDP socket sends and receives.
//! - What protects them? [`icrc`]: the checksum over everything that routers do not change, and what can be done about the
//!   one covered field that a socket does not show.
//! - What does Longhaul put next to them? [`repair`]: packets from which lost ones are restored.
//! - What does Longhaul put inside? [`immediate_layout`] (of its data packets), [`control`] (frames that the ends exchange),
//!   [`record`] (inside those, of the reliability layer) and [`acknowledgement`] (inside those). Before the first packet:
//!   [`handshake`], [`info`] and [`handle`], which are all made of [`fields`]. docs/WIRE.md has every field of these.
//! - How do programs of verbs connect? [`mad`] is the header of management datagrams, [`cm`] the messages of connection
//!   management in them, as every RoCE host exchanges them.
//! - What is around them? [`ip`], [`ipv4`], [`ipv6`], [`udp`], [`ethernet`] and [`frame`], for captures, raw sockets,
//!   gateways and switches.
//!
//! # Two layers
//!
//! Each header file has the same order: a bit picture, a *view* over bytes, a plain *value*, tests on literal bytes.
//!
//! - A view, for example [`bth::Bth`], wraps any buffer (`T: AsRef<[u8]>`) and reads or writes one field at a time in place.
//!   It comes from `new_checked`, which is the only place where the length is looked at. After it, getters and setters cannot
//!   fail, provided that the buffer does not shrink behind the view's back, as no slice, array or vector does.
//! - A value, for example [`bth::Header`], is a plain `Copy` struct: `parse` takes all fields out of a view, `emit` puts all
//!   of them in. Bits that the specification reserves are kept where it says "ignored on receipt", so that a packet that is
//!   parsed and emitted again has the same bytes, and with them the same ICRC.
//!
//! Formats of variable length (records, acknowledgements, and what is made of fields) have no setters: their value borrows texts, bitmaps and lists from
//! the bytes that it was parsed from, has iterators over what repeats, and is emitted into a caller's buffer.
//!
//! References of the form "IBTA 9.2.1" are to the InfiniBand Architecture Specification, volume 1; "A17" is its annex on RoCEv2.
#![no_std]
#![forbid(unsafe_code)]

mod field;
mod parse_error;

pub mod opcode;
pub mod psn;

pub mod aeth;
pub mod atomic_ack;
pub mod atomic_eth;
pub mod bth;
pub mod cnp;
pub mod deth;
pub mod immediate;
pub mod invalidate;
pub mod reth;

pub mod packet;

pub mod cm;
pub mod mad;

pub mod icrc;

pub mod repair;

pub mod immediate_layout;

pub mod acknowledgement;
pub mod control;
pub mod record;

pub mod fields;
pub mod handle;
pub mod handshake;
pub mod info;

pub mod ethernet;
pub mod frame;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod udp;

#[cfg(test)]
mod document;
#[doc(hidden)]
pub mod fuzzing;

pub use aeth::{NakCode, Syndrome};
pub use frame::{Frame, OrdinaryHeaders};
pub use icrc::IcrcScope;
pub use ip::{Ecn, IpHeader};
pub use opcode::{Opcode, Operation, Position, Trailer, Transport};
pub use packet::{EmitError, Headers, Packet};
pub use parse_error::{ParseError, Truncated};
pub use psn::Psn;
pub use udp::UDP_PORT_ROCE;
