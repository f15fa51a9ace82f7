//! Connection management: the messages by which two ends of RDMA agree on a connection, as any RoCE NIC's host exchanges them.
//!
//! ```text
//! | BTH: UD SEND Only to queue pair 1 | DETH: queue key 0x80010000 | MAD header 24 | message 232 | ICRC |
//!
//!   active end                      passive end
//!       REQ  ──────────────────────▶            who I am, which service, my queue pair
//!            ◀──────────────────────  MRA       wait longer: my program is thinking
//!            ◀──────────────────────  REP       my queue pair          (or REJ: why not)
//!       RTU  ──────────────────────▶            ready to use
//!       DREQ ◀─────────────────────▶            the end, by either
//!       DREP ◀─────────────────────▶
//!
//!   SIDR_REQ ──────────────────────▶            which datagram queue pair serves this?
//!            ◀──────────────────────  SIDR_REP
//! ```
//!
//! IBTA chapter 12. A message is a value here, without a view: nobody changes one in place, and after the MAD header its form
//! depends on the attribute. Private data is what the programs say to each other; its length is not on the wire, so a receiver
//! always gets all the room there is. Where programs connect by IP addresses, it begins with [`ip_header`].

use core::fmt;

use crate::Truncated;
use crate::field;
use crate::mad::{self, DATA_BYTES, DATAGRAM_BYTES, HEADER_BYTES, Mad};

use private_data::Data;

pub mod ip_header;
pub mod private_data;
pub mod reply;
pub mod request;
pub mod service;
pub mod short;

pub use private_data::PrivateData;
pub use reply::Reply;
pub use request::{PathFields, Request};
pub use service::{ServiceReply, ServiceRequest};
pub use short::{Disconnect, DisconnectReply, Ready, Received, Reject};

/// The management class of connection management.
pub const CLASS: u8 = 7;
/// The version of its messages.
pub const CLASS_VERSION: u8 = 2;
/// The only method: there are no responses, each message is one of its own.
pub const METHOD_SEND: u8 = 3;

/// The kinds of messages, by their attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// REQ.
    Request = 0x10,
    /// MRA.
    Received = 0x11,
    /// REJ.
    Reject = 0x12,
    /// REP.
    Reply = 0x13,
    /// RTU.
    Ready = 0x14,
    /// DREQ.
    Disconnect = 0x15,
    /// DREP.
    DisconnectReply = 0x16,
    /// SIDR_REQ.
    ServiceRequest = 0x17,
    /// SIDR_REP.
    ServiceReply = 0x18,
}

impl Kind {
    /// All of them, with the names that the specification has for them.
    pub const ALL: [(Kind, &'static str); 9] = [
        (Kind::Request, "REQ"),
        (Kind::Received, "MRA"),
        (Kind::Reject, "REJ"),
        (Kind::Reply, "REP"),
        (Kind::Ready, "RTU"),
        (Kind::Disconnect, "DREQ"),
        (Kind::DisconnectReply, "DREP"),
        (Kind::ServiceRequest, "SIDR_REQ"),
        (Kind::ServiceReply, "SIDR_REP"),
    ];

    fn from_attribute(attribute: u16) -> Option<Kind> {
        Kind::ALL.into_iter().map(|(kind, _)| kind).find(|kind| *kind as u16 == attribute)
    }
}

/// Any message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// REQ: a connection is asked for.
    Request(Request),
    /// MRA: a message has arrived, and its answer takes longer.
    Received(Received),
    /// REJ: no connection.
    Reject(Reject),
    /// REP: the passive end agrees.
    Reply(Reply),
    /// RTU: the active end has the reply, and is ready.
    Ready(Ready),
    /// DREQ: an end wants no more.
    Disconnect(Disconnect),
    /// DREP: and the other has heard of it.
    DisconnectReply(DisconnectReply),
    /// SIDR_REQ: which datagram queue pair a service has.
    ServiceRequest(ServiceRequest),
    /// SIDR_REP: that one.
    ServiceReply(ServiceReply),
}

impl Message {
    /// Its kind.
    pub const fn kind(&self) -> Kind {
        match self {
            Message::Request(_) => Kind::Request,
            Message::Received(_) => Kind::Received,
            Message::Reject(_) => Kind::Reject,
            Message::Reply(_) => Kind::Reply,
            Message::Ready(_) => Kind::Ready,
            Message::Disconnect(_) => Kind::Disconnect,
            Message::DisconnectReply(_) => Kind::DisconnectReply,
            Message::ServiceRequest(_) => Kind::ServiceRequest,
            Message::ServiceReply(_) => Kind::ServiceReply,
        }
    }

    /// Reads a management datagram: the message and its transaction.
    pub fn parse(bytes: &[u8]) -> Result<(Message, u64), MessageError> {
        field::check_length(bytes, "management datagram", DATAGRAM_BYTES)?;
        let header = mad::Header::parse(&Mad::new_checked(bytes)?);
        let found = (header.base_version, header.class, header.class_version, header.method);
        if found != (mad::BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND) {
            return Err(MessageError::OtherClass {
                class: header.class,
                class_version: header.class_version,
                method: header.method,
            });
        }
        let Some(kind) = Kind::from_attribute(header.attribute) else {
            return Err(MessageError::UnknownKind { attribute: header.attribute });
        };
        let mut data = [0; DATA_BYTES];
        data.copy_from_slice(&bytes[HEADER_BYTES..DATAGRAM_BYTES]);
        let message = match kind {
            Kind::Request => Message::Request(Request::parse(&data)),
            Kind::Received => Message::Received(Received::parse(&data)),
            Kind::Reject => Message::Reject(Reject::parse(&data)),
            Kind::Reply => Message::Reply(Reply::parse(&data)),
            Kind::Ready => Message::Ready(Ready::parse(&data)),
            Kind::Disconnect => Message::Disconnect(Disconnect::parse(&data)),
            Kind::DisconnectReply => Message::DisconnectReply(DisconnectReply::parse(&data)),
            Kind::ServiceRequest => Message::ServiceRequest(ServiceRequest::parse(&data)),
            Kind::ServiceReply => Message::ServiceReply(ServiceReply::parse(&data)),
        };
        Ok((message, header.transaction))
    }

    /// The management datagram. Fields of fewer bits than their type has lose the higher ones.
    pub fn emit(&self, transaction: u64) -> [u8; DATAGRAM_BYTES] {
        let mut data: Data = [0; DATA_BYTES];
        match self {
            Message::Request(message) => message.emit(&mut data),
            Message::Received(message) => message.emit(&mut data),
            Message::Reject(message) => message.emit(&mut data),
            Message::Reply(message) => message.emit(&mut data),
            Message::Ready(message) => message.emit(&mut data),
            Message::Disconnect(message) => message.emit(&mut data),
            Message::DisconnectReply(message) => message.emit(&mut data),
            Message::ServiceRequest(message) => message.emit(&mut data),
            Message::ServiceReply(message) => message.emit(&mut data),
        }
        let header = mad::Header {
            base_version: mad::BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            transaction,
            attribute: self.kind() as u16,
            reserved: 0,
            modifier: 0,
        };
        let mut bytes = [0; DATAGRAM_BYTES];
        if let Ok(mut view) = Mad::new_checked(&mut bytes[..]) {
            header.emit(&mut view);
        }
        bytes[HEADER_BYTES..].copy_from_slice(&data);
        // Fields of a few bits make mistakes easy: what was written must read back.
        debug_assert_eq!(Message::parse(&bytes), Ok((*self, transaction)), "a field has more bits than its place");
        bytes
    }
}

/// Why bytes are no message of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MessageError {
    /// There are fewer than 256 bytes.
    Truncated(Truncated),
    /// It is for another service, or of a version that we do not speak.
    OtherClass {
        /// The management class.
        class: u8,
        /// Its version.
        class_version: u8,
        /// The method.
        method: u8,
    },
    /// A kind of message that we do not know: alternate paths (LAP, APR), and what comes later.
    UnknownKind {
        /// Its attribute.
        attribute: u16,
    },
}

impl From<Truncated> for MessageError {
    fn from(error: Truncated) -> MessageError {
        MessageError::Truncated(error)
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::Truncated(error) => error.fmt(formatter),
            MessageError::OtherClass { class, class_version, method } => write!(
                formatter,
                "expected connection management (class 7, version 2, method 3), and found class {class}, version \
                 {class_version}, method {method}"
            ),
            MessageError::UnknownKind { attribute } => {
                write!(formatter, "expected a message of kind 0x10 to 0x18, and found {attribute:#04x}")
            }
        }
    }
}

impl core::error::Error for MessageError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document;

    #[test]
    fn the_document_has_every_kind() {
        let expected = Kind::ALL.map(|(kind, name)| (kind as u16, name));
        let mut rows = document::table::<2>("Connection management", 0);
        for (attribute, name) in expected {
            let [number, found] = rows.next().unwrap();
            assert_eq!((u16::from_str_radix(number.trim_start_matches("0x"), 16), found), (Ok(attribute), name));
        }
        assert_eq!(rows.next(), None);
    }

    #[test]
    fn other_services_and_versions_are_refused() {
        let bytes = Message::Ready(Ready::default()).emit(5);
        assert_eq!(Message::parse(&bytes), Ok((Message::Ready(Ready::default()), 5)));
        for (at, value) in [(0, 2), (1, 4), (2, 1), (3, 0x83)] {
            let mut changed = bytes;
            changed[at] = value;
            assert!(matches!(Message::parse(&changed), Err(MessageError::OtherClass { .. })), "byte {at}");
        }
        let mut changed = bytes;
        changed[17] = 0x19;
        assert_eq!(Message::parse(&changed), Err(MessageError::UnknownKind { attribute: 0x19 }));
        assert!(matches!(Message::parse(&bytes[..255]), Err(MessageError::Truncated(_))));
    }
}
