//! What an end has to know of the other before they can be connected, as bytes that any carrier takes there.
//!
//! `"SDR" · version 1`, then fields: `tag 2 · length 2 · value`, numbers big-endian. A field that is not known is skipped, so that later versions
//! can say more; one that is missing is an error that names it.

use longhaul_verbs::{Gid, Mtu, QueuePairNumber};
use thiserror::Error;

use crate::immediate::{ImmediateLayout, LayoutError};

/// The version that this code writes and reads.
pub const VERSION: u8 = 1;
const MAGIC: &[u8; 3] = b"SDR";

mod tag {
    pub(super) const RECEIVER: u16 = 1;
    pub(super) const ADDRESS: u16 = 2;
    pub(super) const LAYOUT: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const WINDOW: u16 = 5;
    pub(super) const CONTROL: u16 = 6;
    pub(super) const DATA: u16 = 7;
    pub(super) const MESSAGE_BYTES_MAX: u16 = 8;
    pub(super) const FIRST_NUMBER: u16 = 9;
    pub(super) const CONTROL_VERSION: u16 = 10;
    pub(super) const SOURCE_PORTS: u16 = 11;
}

/// How to reach a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairInfo {
    /// What control messages to it carry.
    pub receiver: u32,
    /// Its address.
    pub gid: Gid,
    /// Its UDP port; 4791 on everything but software RNICs that share a host.
    pub udp_port: u16,
    /// How it divides the immediate.
    pub layout: ImmediateLayout,
    /// Payload of a packet that its way carries.
    pub mtu: Mtu,
    /// Data packets that it has receives for.
    pub window: u32,
    /// The queue pair for control messages, and the first packet sequence number that it sends.
    pub control: (QueuePairNumber, u32),
    /// Generations of internal queue pairs.
    pub generations: u8,
    /// The internal queue pairs: those of generation 0, one for each channel, then those of generation 1, …
    pub data: Vec<(QueuePairNumber, u32)>,
    /// The longest message that it takes.
    pub message_bytes_max: u64,
    /// The number of the first message in both directions. 0 is not written, and is what a missing field means.
    pub first_number: u64,
    /// The version of control messages that it speaks; 1 where the info does not say, as before there was a second.
    pub control_version: u8,
    /// The UDP ports that packets of its queue pairs come from: the control one's, then the data ones'. What comes from others is not
    /// its. 0, or nothing at all, where the device does not show them; then they are not checked.
    pub source_ports: Vec<u16>,
}

/// Bytes that are not the info of a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InfoError {
    /// Something else.
    #[error("expected the info of an SDR queue pair, which begins with \"SDR\"; came {0:02x?}")]
    Magic(Vec<u8>),
    /// A version that this code does not speak.
    #[error("this end speaks version {VERSION} of the connection info, the peer version {0}")]
    Version(u8),
    /// A field is cut off.
    #[error("the connection info ends in the middle of field {tag}")]
    CutOff {
        /// Which.
        tag: u16,
    },
    /// A field has the wrong size or a value that means nothing.
    #[error("field {tag} of the connection info: {message}")]
    Field {
        /// Which.
        tag: u16,
        /// What is wrong.
        message: String,
    },
    /// A field is missing.
    #[error("the connection info has no {0}")]
    Missing(&'static str),
}

impl QueuePairInfo {
    /// The port that packets of its control queue pair (0) or of a data one (1, …) come from; 0 when that is not known.
    pub(crate) fn source_port(&self, index: usize) -> u16 {
        self.source_ports.get(index).copied().unwrap_or(0)
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.data.len() / usize::from(self.generations).max(1)
    }

    /// The bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(VERSION);
        let mut field = |tag: u16, value: &[u8]| {
            bytes.extend(tag.to_be_bytes());
            // The longest are 65,535 / 8 internal queue pairs; `create` allows fewer.
            bytes.extend((value.len() as u16).to_be_bytes());
            bytes.extend(value);
        };
        field(tag::RECEIVER, &self.receiver.to_be_bytes());
        field(tag::ADDRESS, &[&self.gid.0[..], &self.udp_port.to_be_bytes()].concat());
        let (message, packet, user) = self.layout.bits();
        field(tag::LAYOUT, &[message, packet, user]);
        field(tag::MTU, &self.mtu.byte_count().to_be_bytes());
        field(tag::WINDOW, &self.window.to_be_bytes());
        field(tag::CONTROL, &queue_pair_bytes(&self.control));
        let mut data = vec![self.generations];
        data.extend(self.data.iter().flat_map(queue_pair_bytes));
        field(tag::DATA, &data);
        field(tag::MESSAGE_BYTES_MAX, &self.message_bytes_max.to_be_bytes());
        field(tag::CONTROL_VERSION, &[self.control_version]);
        if self.first_number != 0 {
            field(tag::FIRST_NUMBER, &self.first_number.to_be_bytes());
        }
        if !self.source_ports.is_empty() {
            let ports: Vec<u8> = self.source_ports.iter().flat_map(|port| port.to_be_bytes()).collect();
            field(tag::SOURCE_PORTS, &ports);
        }
        bytes
    }

    /// Read them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InfoError> {
        let Some(([magic @ .., version], mut rest)) = bytes.split_first_chunk::<4>() else {
            return Err(InfoError::Magic(bytes.to_vec()));
        };
        if magic != MAGIC {
            return Err(InfoError::Magic(magic.to_vec()));
        }
        if *version != VERSION {
            return Err(InfoError::Version(*version));
        }
        let (mut receiver, mut address, mut layout, mut mtu, mut window) = (None, None, None, None, None);
        let (mut control, mut data, mut message_bytes_max) = (None, None, None);
        let (mut first_number, mut control_version) = (0, 1);
        let mut source_ports = None;
        while let Some((header, after)) = rest.split_first_chunk::<4>() {
            let field = Field { tag: u16::from_be_bytes([header[0], header[1]]), value: after };
            let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let Some((value, after)) = after.split_at_checked(length) else {
                return Err(InfoError::CutOff { tag: field.tag });
            };
            rest = after;
            let field = Field { value, ..field };
            match field.tag {
                tag::RECEIVER => receiver = Some(field.number()?),
                tag::ADDRESS => {
                    let value = field.array::<18>()?;
                    let gid = Gid(value[..16].try_into().expect("16 bytes"));
                    address = Some((gid, u16::from_be_bytes([value[16], value[17]])));
                }
                tag::LAYOUT => {
                    let [message, packet, user] = field.array()?;
                    let made = ImmediateLayout::new(message, packet, user);
                    layout = Some(made.map_err(|error: LayoutError| field.wrong(error.to_string()))?);
                }
                tag::MTU => {
                    let bytes = field.number()?;
                    let known = Mtu::ALL.into_iter().find(|mtu| mtu.byte_count() == bytes);
                    mtu = Some(known.ok_or_else(|| field.wrong(format!("there is no path MTU of {bytes}")))?);
                }
                tag::WINDOW => window = Some(field.number()?),
                tag::CONTROL => control = Some(queue_pair(&field.array()?)),
                tag::DATA => data = Some(field.data()?),
                tag::MESSAGE_BYTES_MAX => message_bytes_max = Some(u64::from_be_bytes(field.array()?)),
                tag::FIRST_NUMBER => first_number = u64::from_be_bytes(field.array()?),
                tag::CONTROL_VERSION => [control_version] = field.array()?,
                tag::SOURCE_PORTS => source_ports = Some(field),
                _ => {}
            }
        }
        if !rest.is_empty() {
            return Err(InfoError::CutOff { tag: 0 });
        }
        let (gid, udp_port) = address.ok_or(InfoError::Missing("address"))?;
        let (generations, data) = data.ok_or(InfoError::Missing("data queue pairs"))?;
        let source_ports = source_ports.map_or(Ok(Vec::new()), |field| field.ports(1 + data.len()))?;
        Ok(QueuePairInfo {
            receiver: receiver.ok_or(InfoError::Missing("receiver id"))?,
            gid,
            udp_port,
            layout: layout.ok_or(InfoError::Missing("division of the immediate"))?,
            mtu: mtu.ok_or(InfoError::Missing("MTU"))?,
            window: window.ok_or(InfoError::Missing("window"))?,
            control: control.ok_or(InfoError::Missing("control queue pair"))?,
            generations,
            data,
            message_bytes_max: message_bytes_max.ok_or(InfoError::Missing("longest message"))?,
            first_number,
            control_version,
            source_ports,
        })
    }
}

struct Field<'a> {
    tag: u16,
    value: &'a [u8],
}

impl Field<'_> {
    fn wrong(&self, message: String) -> InfoError {
        InfoError::Field { tag: self.tag, message }
    }

    fn array<const LENGTH: usize>(&self) -> Result<[u8; LENGTH], InfoError> {
        let array = self.value.try_into();
        array.map_err(|_| self.wrong(format!("expected {LENGTH} bytes, came {}", self.value.len())))
    }

    fn number(&self) -> Result<u32, InfoError> {
        self.array().map(u32::from_be_bytes)
    }

    fn ports(&self, count: usize) -> Result<Vec<u16>, InfoError> {
        let (ports, rest) = self.value.as_chunks::<2>();
        if ports.len() != count || !rest.is_empty() {
            return Err(self.wrong(format!("expected {count} ports, got {} bytes", self.value.len())));
        }
        Ok(ports.iter().map(|port| u16::from_be_bytes(*port)).collect())
    }

    fn data(&self) -> Result<(u8, Vec<(QueuePairNumber, u32)>), InfoError> {
        let (Some((&generations, rest)), Some(length)) = (self.value.split_first(), self.value.len().checked_sub(1))
        else {
            return Err(self.wrong("expected queue pairs, came nothing".to_owned()));
        };
        let count = length / 8;
        if length % 8 != 0 || generations == 0 || count == 0 || count % usize::from(generations) != 0 {
            return Err(self
                .wrong(format!("{length} bytes are not the same number of queue pairs in {generations} generations")));
        }
        let (pairs, _) = rest.as_chunks::<8>();
        Ok((generations, pairs.iter().map(queue_pair).collect()))
    }
}

fn queue_pair_bytes((number, psn): &(QueuePairNumber, u32)) -> [u8; 8] {
    (u64::from(number.value()) << 32 | u64::from(*psn)).to_be_bytes()
}

fn queue_pair(bytes: &[u8; 8]) -> (QueuePairNumber, u32) {
    let both = u64::from_be_bytes(*bytes);
    (QueuePairNumber::new((both >> 32) as u32), both as u32 & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> QueuePairInfo {
        QueuePairInfo {
            receiver: 0x0102_0304,
            gid: Gid::from_ip("192.0.2.1".parse().expect("an address")),
            udp_port: 4791,
            layout: ImmediateLayout::default(),
            mtu: Mtu::Bytes4096,
            window: 1000,
            control: (QueuePairNumber::new(5), 6),
            generations: 2,
            data: vec![(QueuePairNumber::new(7), 8), (QueuePairNumber::new(9), 10)],
            message_bytes_max: 0x0400_0000,
            first_number: 0,
            control_version: 2,
            source_ports: vec![0xc001, 0, 0xc003],
        }
    }

    #[test]
    fn the_document_is_true() {
        let tags = [
            (tag::RECEIVER, "receiver"),
            (tag::ADDRESS, "address"),
            (tag::LAYOUT, "layout"),
            (tag::MTU, "mtu"),
            (tag::WINDOW, "window"),
            (tag::CONTROL, "control"),
            (tag::DATA, "data"),
            (tag::MESSAGE_BYTES_MAX, "message_bytes_max"),
            (tag::FIRST_NUMBER, "first_number"),
            (tag::CONTROL_VERSION, "control_version"),
            (tag::SOURCE_PORTS, "source_ports"),
        ];
        longhaul_wire::document::check_numbers("Connection info", 0, &tags);
    }

    #[test]
    fn golden_bytes() {
        let mut expected = b"SDR\x01".to_vec();
        expected.extend([0, 1, 0, 4, 1, 2, 3, 4]);
        expected.extend([0, 2, 0, 18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1, 0x12, 0xb7]);
        expected.extend([0, 3, 0, 3, 10, 18, 4]);
        expected.extend([0, 4, 0, 4, 0, 0, 0x10, 0]);
        expected.extend([0, 5, 0, 4, 0, 0, 3, 0xe8]);
        expected.extend([0, 6, 0, 8, 0, 0, 0, 5, 0, 0, 0, 6]);
        expected.extend([0, 7, 0, 17, 2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10]);
        expected.extend([0, 8, 0, 8, 0, 0, 0, 0, 4, 0, 0, 0]);
        // What an end does not say: the version of control messages, as long as there was one, and source ports that it does not know.
        let silent = QueuePairInfo { control_version: 1, source_ports: vec![], ..info() };
        assert_eq!(QueuePairInfo::from_bytes(&expected), Ok(silent));
        expected.extend([0, 10, 0, 1, 2]);
        let portless = QueuePairInfo { source_ports: vec![], ..info() };
        assert_eq!(portless.to_bytes(), expected);
        expected.extend([0, 11, 0, 6, 0xc0, 1, 0, 0, 0xc0, 3]);
        assert_eq!(info().to_bytes(), expected);
        assert_eq!(QueuePairInfo::from_bytes(&expected), Ok(info()));
        assert_eq!(info().channels(), 1);
        let late = QueuePairInfo { first_number: 0x0102_0304_0506_0708, ..info() };
        let first_number = [0, 9, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        expected.splice(expected.len() - 10..expected.len() - 10, first_number);
        assert_eq!(late.to_bytes(), expected);
        assert_eq!(QueuePairInfo::from_bytes(&expected), Ok(late));
    }

    #[test]
    fn fields_of_later_versions_are_skipped() {
        let mut bytes = info().to_bytes();
        bytes.extend([0x12, 0x34, 0, 2, 1, 2]);
        assert_eq!(QueuePairInfo::from_bytes(&bytes), Ok(info()));
    }

    #[test]
    fn what_cannot_be_read() {
        let bytes = info().to_bytes();
        let refusal = |bytes: &[u8]| QueuePairInfo::from_bytes(bytes).expect_err("it is not right").to_string();
        assert!(refusal(b"HTTP/1.1").contains("begins with \"SDR\""));
        assert!(refusal(b"SD").contains("begins with \"SDR\""));
        assert_eq!(refusal(b"SDR\x02"), "this end speaks version 1 of the connection info, the peer version 2");
        assert_eq!(refusal(b"SDR\x01"), "the connection info has no address");
        assert_eq!(refusal(&bytes[..bytes.len() - 1]), "the connection info ends in the middle of field 11");
        let fewer = QueuePairInfo { source_ports: vec![1, 2], ..info() };
        assert_eq!(refusal(&fewer.to_bytes()), "field 11 of the connection info: expected 3 ports, got 4 bytes");
        let mut wrong = bytes.clone();
        wrong[16 + 22 + 4] = 11;
        // No byte of it can be cut off or changed into something that panics.
        for length in 0..bytes.len() {
            let _ = QueuePairInfo::from_bytes(&bytes[..length]);
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[length] = value;
                let _ = QueuePairInfo::from_bytes(&changed);
            }
        }
    }
}
