//! What a packet is, and therefore which headers it has.
//!
//! ```text
//!   7 6 5 4 3 2 1 0
//! +-----+---------+
//! |trans| operat. |   first byte of the BTH
//! +-----+---------+
//! ```
//!
//! The upper three bits name the transport service, the lower five the operation and the packet's place in its message
//! (IBTA 9.2.1, tables "OpCode field values"). A message of one packet is an *only*; a longer one is a *first*, any number of
//! *middles* and a *last*. Which extended headers follow depends on nothing but the opcode.
//!
//! Left out: reliable datagram and XRC (not in our verbs), RESYNC, FLUSH and ATOMIC WRITE.

use core::fmt;

use crate::{aeth, atomic_ack, atomic_eth, bth, deth, immediate, invalidate, reth};

/// Transport services that have opcodes here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Transport {
    /// RC: in order, acknowledged, between two queue pairs.
    ReliableConnection,
    /// UC: the same packets without acknowledgements.
    UnreliableConnection,
    /// UD: single packets between any queue pairs.
    UnreliableDatagram,
    /// Not a service: congestion notification packets (A17.9.3) have an opcode of their own.
    CongestionNotification,
}

/// What a packet does or answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// SEND: the receiver chooses where the bytes go.
    Send,
    /// RDMA WRITE: the sender chooses.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response: the bytes that were asked for.
    ReadResponse,
    /// Acknowledgement, positive or negative.
    Acknowledge,
    /// Acknowledgement that carries an atomic operation's result.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// "Slow down": a marked packet was seen.
    CongestionNotification,
}

/// A packet's place in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// The first of at least two.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of at least two.
    Last,
    /// The whole message; also everything that cannot be cut: requests, acknowledgements, atomics.
    Only,
}

impl Position {
    /// The place of a packet that begins its message, ends it, both, or neither.
    #[inline]
    pub const fn of(is_start: bool, is_end: bool) -> Position {
        match (is_start, is_end) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }

    /// Whether the packet begins its message.
    #[inline]
    pub const fn is_start(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether the packet ends its message.
    #[inline]
    pub const fn is_end(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// What the last packet of a message brings along for the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Trailer {
    /// Nothing.
    #[default]
    None,
    /// Four bytes for the completion.
    Immediate,
    /// A key that the receiver is to make invalid.
    Invalidate,
}

// The extended headers of an opcode as bits.
const DETH: u8 = 1 << 0;
const RETH: u8 = 1 << 1;
const ATOMIC_ETH: u8 = 1 << 2;
const AETH: u8 = 1 << 3;
const ATOMIC_ACK: u8 = 1 << 4;
const IMMEDIATE: u8 = 1 << 5;
const INVALIDATE: u8 = 1 << 6;

/// Writes the enum and what every opcode means from one list, so that no opcode can be in one and missing in the other.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $byte:literal: $transport:ident, $operation:ident, $position:ident, $headers:expr;)*) => {
        /// Every operation code we speak.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Opcode { $($(#[$doc])* $name = $byte,)* }

        impl Opcode {
            /// Every opcode, in the order of their bytes.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            /// The opcode with this byte, when it is one that we speak.
            #[inline]
            pub const fn from_byte(byte: u8) -> Option<Opcode> {
                match byte {
                    $($byte => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            /// The service the packet belongs to.
            #[inline]
            pub const fn transport(self) -> Transport {
                match self { $(Opcode::$name => Transport::$transport,)* }
            }

            /// What the packet does.
            #[inline]
            pub const fn operation(self) -> Operation {
                match self { $(Opcode::$name => Operation::$operation,)* }
            }

            /// Its place in the message.
            #[inline]
            pub const fn position(self) -> Position {
                match self { $(Opcode::$name => Position::$position,)* }
            }

            #[inline]
            const fn headers(self) -> u8 {
                match self { $(Opcode::$name => $headers,)* }
            }
        }
    };
}

opcodes! {
    /// RC SEND, first packet.
    RcSendFirst = 0x00: ReliableConnection, Send, First, 0;
    /// RC SEND, middle packet.
    RcSendMiddle = 0x01: ReliableConnection, Send, Middle, 0;
    /// RC SEND, last packet.
    RcSendLast = 0x02: ReliableConnection, Send, Last, 0;
    /// RC SEND, last packet, with immediate.
    RcSendLastWithImmediate = 0x03: ReliableConnection, Send, Last, IMMEDIATE;
    /// RC SEND, only packet.
    RcSendOnly = 0x04: ReliableConnection, Send, Only, 0;
    /// RC SEND, only packet, with immediate.
    RcSendOnlyWithImmediate = 0x05: ReliableConnection, Send, Only, IMMEDIATE;
    /// RC WRITE, first packet.
    RcWriteFirst = 0x06: ReliableConnection, Write, First, RETH;
    /// RC WRITE, middle packet.
    RcWriteMiddle = 0x07: ReliableConnection, Write, Middle, 0;
    /// RC WRITE, last packet.
    RcWriteLast = 0x08: ReliableConnection, Write, Last, 0;
    /// RC WRITE, last packet, with immediate.
    RcWriteLastWithImmediate = 0x09: ReliableConnection, Write, Last, IMMEDIATE;
    /// RC WRITE, only packet.
    RcWriteOnly = 0x0a: ReliableConnection, Write, Only, RETH;
    /// RC WRITE, only packet, with immediate.
    RcWriteOnlyWithImmediate = 0x0b: ReliableConnection, Write, Only, RETH | IMMEDIATE;
    /// RC READ request.
    RcReadRequest = 0x0c: ReliableConnection, ReadRequest, Only, RETH;
    /// RC READ response, first packet.
    RcReadResponseFirst = 0x0d: ReliableConnection, ReadResponse, First, AETH;
    /// RC READ response, middle packet.
    RcReadResponseMiddle = 0x0e: ReliableConnection, ReadResponse, Middle, 0;
    /// RC READ response, last packet.
    RcReadResponseLast = 0x0f: ReliableConnection, ReadResponse, Last, AETH;
    /// RC READ response, only packet.
    RcReadResponseOnly = 0x10: ReliableConnection, ReadResponse, Only, AETH;
    /// RC acknowledgement, positive or negative.
    RcAcknowledge = 0x11: ReliableConnection, Acknowledge, Only, AETH;
    /// RC acknowledgement of an atomic operation, with its result.
    RcAtomicAcknowledge = 0x12: ReliableConnection, AtomicAcknowledge, Only, AETH | ATOMIC_ACK;
    /// RC compare and swap.
    RcCompareSwap = 0x13: ReliableConnection, CompareSwap, Only, ATOMIC_ETH;
    /// RC fetch and add.
    RcFetchAdd = 0x14: ReliableConnection, FetchAdd, Only, ATOMIC_ETH;
    /// RC SEND, last packet, with a key to invalidate.
    RcSendLastWithInvalidate = 0x16: ReliableConnection, Send, Last, INVALIDATE;
    /// RC SEND, only packet, with a key to invalidate.
    RcSendOnlyWithInvalidate = 0x17: ReliableConnection, Send, Only, INVALIDATE;
    /// UC SEND, first packet.
    UcSendFirst = 0x20: UnreliableConnection, Send, First, 0;
    /// UC SEND, middle packet.
    UcSendMiddle = 0x21: UnreliableConnection, Send, Middle, 0;
    /// UC SEND, last packet.
    UcSendLast = 0x22: UnreliableConnection, Send, Last, 0;
    /// UC SEND, last packet, with immediate.
    UcSendLastWithImmediate = 0x23: UnreliableConnection, Send, Last, IMMEDIATE;
    /// UC SEND, only packet.
    UcSendOnly = 0x24: UnreliableConnection, Send, Only, 0;
    /// UC SEND, only packet, with immediate.
    UcSendOnlyWithImmediate = 0x25: UnreliableConnection, Send, Only, IMMEDIATE;
    /// UC WRITE, first packet.
    UcWriteFirst = 0x26: UnreliableConnection, Write, First, RETH;
    /// UC WRITE, middle packet.
    UcWriteMiddle = 0x27: UnreliableConnection, Write, Middle, 0;
    /// UC WRITE, last packet.
    UcWriteLast = 0x28: UnreliableConnection, Write, Last, 0;
    /// UC WRITE, last packet, with immediate.
    UcWriteLastWithImmediate = 0x29: UnreliableConnection, Write, Last, IMMEDIATE;
    /// UC WRITE, only packet.
    UcWriteOnly = 0x2a: UnreliableConnection, Write, Only, RETH;
    /// UC WRITE, only packet, with immediate.
    UcWriteOnlyWithImmediate = 0x2b: UnreliableConnection, Write, Only, RETH | IMMEDIATE;
    /// UD SEND.
    UdSendOnly = 0x64: UnreliableDatagram, Send, Only, DETH;
    /// UD SEND with immediate.
    UdSendOnlyWithImmediate = 0x65: UnreliableDatagram, Send, Only, DETH | IMMEDIATE;
    /// Congestion notification packet (A17.9.3).
    Cnp = 0x81: CongestionNotification, CongestionNotification, Only, 0;
}

/// For people: `RC WRITE last with immediate`.
impl fmt::Display for Opcode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.transport() {
            Transport::ReliableConnection => "RC ",
            Transport::UnreliableConnection => "UC ",
            Transport::UnreliableDatagram => "UD ",
            Transport::CongestionNotification => "",
        })?;
        let (operation, can_be_cut) = match self.operation() {
            Operation::Send => ("SEND", true),
            Operation::Write => ("WRITE", true),
            Operation::ReadRequest => ("READ request", false),
            Operation::ReadResponse => ("READ response", true),
            Operation::Acknowledge => ("acknowledge", false),
            Operation::AtomicAcknowledge => ("atomic acknowledge", false),
            Operation::CompareSwap => ("compare and swap", false),
            Operation::FetchAdd => ("fetch and add", false),
            Operation::CongestionNotification => ("CNP", false),
        };
        formatter.write_str(operation)?;
        if can_be_cut {
            formatter.write_str(match self.position() {
                Position::First => " first",
                Position::Middle => " middle",
                Position::Last => " last",
                Position::Only => " only",
            })?;
        }
        formatter.write_str(match (self.has_immediate(), self.has_invalidate()) {
            (true, _) => " with immediate",
            (_, true) => " with invalidate",
            _ => "",
        })
    }
}

impl Opcode {
    /// The opcode's byte in the BTH.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Whether four bytes for the completion follow.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        self.headers() & IMMEDIATE != 0
    }

    /// Whether a key to invalidate follows (IETH).
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.headers() & INVALIDATE != 0
    }

    /// Whether an RDMA header follows (RETH).
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.headers() & RETH != 0
    }

    /// Whether an acknowledgement header follows (AETH).
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.headers() & AETH != 0
    }

    /// Whether a datagram header follows (DETH).
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.headers() & DETH != 0
    }

    /// Whether an atomic request header follows (AtomicETH).
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.headers() & ATOMIC_ETH != 0
    }

    /// Whether an atomic result follows (AtomicAckETH).
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.headers() & ATOMIC_ACK != 0
    }

    /// Whether this is the responder's packet: it counts in the requester's PSNs and asks for nothing.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self.operation(), Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge)
    }

    /// Bytes of the BTH and all extended headers.
    #[inline]
    pub const fn header_bytes(self) -> usize {
        HEADER_BYTES[self as usize] as usize
    }

    /// The opcode of a request packet, when the transport has it.
    #[inline]
    pub const fn request(
        transport: Transport,
        operation: Operation,
        position: Position,
        trailer: Trailer,
    ) -> Option<Opcode> {
        use Operation::{CompareSwap, FetchAdd, ReadRequest, Send, Write};
        use Position::{First, Last, Middle, Only};
        // UC has RC's operations up to 0x0b at 0x20, in the same order (IBTA 9.2.1).
        let connected = match (operation, position, trailer) {
            (Send, First, Trailer::None) => Opcode::RcSendFirst,
            (Send, Middle, Trailer::None) => Opcode::RcSendMiddle,
            (Send, Last, Trailer::None) => Opcode::RcSendLast,
            (Send, Last, Trailer::Immediate) => Opcode::RcSendLastWithImmediate,
            (Send, Last, Trailer::Invalidate) => Opcode::RcSendLastWithInvalidate,
            (Send, Only, Trailer::None) => Opcode::RcSendOnly,
            (Send, Only, Trailer::Immediate) => Opcode::RcSendOnlyWithImmediate,
            (Send, Only, Trailer::Invalidate) => Opcode::RcSendOnlyWithInvalidate,
            (Write, First, Trailer::None) => Opcode::RcWriteFirst,
            (Write, Middle, Trailer::None) => Opcode::RcWriteMiddle,
            (Write, Last, Trailer::None) => Opcode::RcWriteLast,
            (Write, Last, Trailer::Immediate) => Opcode::RcWriteLastWithImmediate,
            (Write, Only, Trailer::None) => Opcode::RcWriteOnly,
            (Write, Only, Trailer::Immediate) => Opcode::RcWriteOnlyWithImmediate,
            (ReadRequest, Only, Trailer::None) => Opcode::RcReadRequest,
            (CompareSwap, Only, Trailer::None) => Opcode::RcCompareSwap,
            (FetchAdd, Only, Trailer::None) => Opcode::RcFetchAdd,
            _ => return None,
        };
        match (transport, connected) {
            (Transport::ReliableConnection, _) => Some(connected),
            (Transport::UnreliableConnection, _) if connected.byte() <= 0x0b => {
                Opcode::from_byte(0x20 | connected.byte())
            }
            (Transport::UnreliableDatagram, Opcode::RcSendOnly) => Some(Opcode::UdSendOnly),
            (Transport::UnreliableDatagram, Opcode::RcSendOnlyWithImmediate) => Some(Opcode::UdSendOnlyWithImmediate),
            _ => None,
        }
    }

    /// The opcode of a READ response packet.
    #[inline]
    pub const fn read_response(position: Position) -> Opcode {
        match position {
            Position::First => Opcode::RcReadResponseFirst,
            Position::Middle => Opcode::RcReadResponseMiddle,
            Position::Last => Opcode::RcReadResponseLast,
            Position::Only => Opcode::RcReadResponseOnly,
        }
    }
}

/// [`Opcode::header_bytes`] by the opcode's byte, computed once by the compiler.
static HEADER_BYTES: [u8; 256] = {
    const fn bytes_if(present: bool, bytes: usize) -> u8 {
        if present { bytes as u8 } else { 0 }
    }
    let mut table = [0; 256];
    let mut index = 0;
    while index < Opcode::ALL.len() {
        let opcode = Opcode::ALL[index];
        table[opcode as usize] = bth::HEADER_BYTES as u8
            + bytes_if(opcode.has_deth(), deth::HEADER_BYTES)
            + bytes_if(opcode.has_reth(), reth::HEADER_BYTES)
            + bytes_if(opcode.has_atomic_eth(), atomic_eth::HEADER_BYTES)
            + bytes_if(opcode.has_aeth(), aeth::HEADER_BYTES)
            + bytes_if(opcode.has_atomic_ack(), atomic_ack::HEADER_BYTES)
            + bytes_if(opcode.has_immediate(), immediate::HEADER_BYTES)
            + bytes_if(opcode.has_invalidate(), invalidate::HEADER_BYTES);
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::fmt::Write;
    use std::string::String;

    #[test]
    fn the_whole_table() {
        let mut table = String::new();
        for &opcode in Opcode::ALL {
            let headers: [(bool, &str); 7] = [
                (opcode.has_deth(), "DETH"),
                (opcode.has_reth(), "RETH"),
                (opcode.has_atomic_eth(), "AtomicETH"),
                (opcode.has_aeth(), "AETH"),
                (opcode.has_atomic_ack(), "AtomicAckETH"),
                (opcode.has_immediate(), "ImmDt"),
                (opcode.has_invalidate(), "IETH"),
            ];
            write!(
                table,
                "{:#04x} {:?}: {:?} {:?} {:?}, {} header bytes: BTH",
                opcode.byte(),
                opcode,
                opcode.transport(),
                opcode.operation(),
                opcode.position(),
                opcode.header_bytes()
            )
            .unwrap();
            for (_, name) in headers.iter().filter(|(present, _)| *present) {
                write!(table, " {name}").unwrap();
            }
            table.push('\n');
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn opcodes_are_printed_in_words() {
        let text = |opcode: Opcode| std::string::ToString::to_string(&opcode);
        assert_eq!(text(Opcode::RcSendOnlyWithInvalidate), "RC SEND only with invalidate");
        assert_eq!(text(Opcode::UcWriteLastWithImmediate), "UC WRITE last with immediate");
        assert_eq!(text(Opcode::RcReadRequest), "RC READ request");
        assert_eq!(text(Opcode::Cnp), "CNP");
        let texts: std::collections::BTreeSet<_> = Opcode::ALL.iter().map(|opcode| text(*opcode)).collect();
        assert_eq!(texts.len(), Opcode::ALL.len(), "no two are printed alike");
    }

    #[test]
    fn bytes_round_trip_and_unknown_bytes_are_none() {
        let known = (0..=u8::MAX).filter_map(Opcode::from_byte).collect::<std::vec::Vec<_>>();
        assert_eq!(known, Opcode::ALL);
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_byte(opcode.byte()), Some(opcode));
        }
    }

    #[test]
    fn every_request_is_found_by_what_it_means() {
        for &opcode in Opcode::ALL {
            let trailer = match (opcode.has_immediate(), opcode.has_invalidate()) {
                (true, _) => Trailer::Immediate,
                (_, true) => Trailer::Invalidate,
                _ => Trailer::None,
            };
            let found = Opcode::request(opcode.transport(), opcode.operation(), opcode.position(), trailer);
            let expected = (!opcode.is_response() && opcode != Opcode::Cnp).then_some(opcode);
            assert_eq!(found, expected, "{opcode:?}");
            if opcode.operation() == Operation::ReadResponse {
                assert_eq!(Opcode::read_response(opcode.position()), opcode);
            }
        }
    }

    #[test]
    fn what_a_transport_lacks_has_no_opcode() {
        use Position::{First, Only};
        let uc = Transport::UnreliableConnection;
        assert_eq!(Opcode::request(uc, Operation::ReadRequest, Only, Trailer::None), None);
        assert_eq!(Opcode::request(uc, Operation::Send, Only, Trailer::Invalidate), None);
        let ud = Transport::UnreliableDatagram;
        assert_eq!(Opcode::request(ud, Operation::Write, Only, Trailer::None), None);
        assert_eq!(Opcode::request(ud, Operation::Send, First, Trailer::None), None);
        let rc = Transport::ReliableConnection;
        assert_eq!(Opcode::request(rc, Operation::Write, Only, Trailer::Invalidate), None);
        assert_eq!(Opcode::request(rc, Operation::Send, First, Trailer::Immediate), None);
    }
}
