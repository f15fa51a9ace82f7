//! What an end has to know of the other before they can be connected, as bytes that any carrier takes there.
//!
//! The bytes are [`longhaul_wire::info`]'s; here they are values with the types of the verbs boundary that outlive the bytes.

use longhaul_verbs::{Gid, Mtu, QueuePairNumber};
use longhaul_wire::fields::{FieldError, FieldProblem};
use longhaul_wire::immediate_layout::ImmediateLayout;
use longhaul_wire::info;

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
    /// It answers announcements of senders with `credit`; an end that does not say so does not.
    pub grants_credit: bool,
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
        let pair =
            |&(number, first_psn): &(QueuePairNumber, u32)| info::QueuePair { number: number.value(), first_psn };
        let data: Vec<_> = self.data.iter().map(|data| pair(data).to_bytes()).collect();
        let source_ports: Vec<_> = self.source_ports.iter().map(|port| port.to_be_bytes()).collect();
        let info = info::QueuePairInfo {
            receiver: self.receiver,
            gid: self.gid.0,
            udp_port: self.udp_port,
            layout: self.layout,
            mtu: self.mtu.byte_count(),
            window: self.window,
            control: pair(&self.control),
            generations: self.generations,
            data: &data,
            message_bytes_max: self.message_bytes_max,
            first_number: self.first_number,
            control_version: self.control_version,
            source_ports: &source_ports,
            grants_credit: self.grants_credit,
        };
        let mut bytes = vec![0; info.byte_count()];
        info.emit(&mut bytes).expect("it has the size of the info");
        bytes
    }

    /// Read them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FieldError> {
        let info = info::QueuePairInfo::parse(bytes)?;
        let pair = |pair: info::QueuePair| (QueuePairNumber::new(pair.number), pair.first_psn);
        let no_such_mtu = FieldError::Value { field: "MTU", problem: FieldProblem::Mtu(info.mtu) };
        Ok(QueuePairInfo {
            receiver: info.receiver,
            gid: Gid(info.gid),
            udp_port: info.udp_port,
            layout: info.layout,
            mtu: Mtu::from_byte_count(info.mtu).ok_or(no_such_mtu)?,
            window: info.window,
            control: pair(info.control),
            generations: info.generations,
            data: info.data.iter().map(|bytes| pair(info::QueuePair::parse(bytes))).collect(),
            message_bytes_max: info.message_bytes_max,
            first_number: info.first_number,
            control_version: info.control_version,
            source_ports: info.source_ports.iter().map(|port| u16::from_be_bytes(*port)).collect(),
            grants_credit: info.grants_credit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive() {
        let info = QueuePairInfo {
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
            first_number: 11,
            control_version: 2,
            source_ports: vec![0xc001, 0, 0xc003],
            grants_credit: true,
        };
        assert_eq!(info.channels(), 1);
        let mut bytes = info.to_bytes();
        assert_eq!(QueuePairInfo::from_bytes(&bytes), Ok(info));
        // The field of the MTU, and in it its last byte but one: 4096 becomes 4352.
        let at = bytes.windows(8).position(|field| field == [0, 4, 0, 4, 0, 0, 0x10, 0]).expect("the MTU");
        bytes[at + 6] = 0x11;
        let refused = QueuePairInfo::from_bytes(&bytes).expect_err("there is no such MTU").to_string();
        assert_eq!(refused, "field MTU of the connection info: there is no path MTU of 4352");
    }
}
