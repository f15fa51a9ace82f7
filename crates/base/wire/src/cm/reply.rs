//! REP: the passive end agrees to a connection.
//!
//! ```text
//!    0  passive end's id     4     24  responder resources     1
//!    4  active end's id      4     25  initiator depth         1
//!    8  queue key            4     26  acknowledgement delay 5 bits · failover 2 · flow control 1
//!   12  queue pair           3     27  RNR retry count 3 bits · has SRQ 1 · reserved 4
//!   15  reserved             1     28  channel adapter's GUID  8
//!   16  EE context, reserved 4     36  private data          196
//!   20  first PSN, reserved  4
//! ```
//!
//! IBTA 12.6.8. Resources and depth are the passive end's, so the active end's depth may be at most these resources.

use super::private_data::{Data, PrivateData};
use crate::field::{read_u24, read_u32, read_u64, write_u24, write_u32, write_u64};

/// What a program can say in a reply.
pub const PRIVATE_DATA_BYTES: usize = 196;
/// "There was no alternate path", the answer to a request without one.
pub const FAILOVER_NOT_SUPPORTED: u8 = 1;

/// The reply as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// The passive end's name for the connection.
    pub local_id: u32,
    /// The active end's.
    pub remote_id: u32,
    /// Its queue key; 0 for connections.
    pub queue_key: u32,
    /// Its queue pair, 24 bits.
    pub queue_pair: u32,
    /// The sequence number of its first packet, 24 bits.
    pub first_psn: u32,
    /// READs and atomics that it can answer at once.
    pub responder_resources: u8,
    /// READs and atomics that it will ask at once.
    pub initiator_depth: u8,
    /// How long it may take to acknowledge, 5 bits.
    pub acknowledgement_delay: u8,
    /// Whether it takes the alternate path, 2 bits.
    pub failover: u8,
    /// Whether its queue pair controls the flow end to end.
    pub flow_control: bool,
    /// How often its peer should repeat after a receiver that was not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether its queue pair has a shared receive queue.
    pub has_shared_receive_queue: bool,
    /// The GUID of its channel adapter.
    pub adapter_guid: u64,
    /// What its program says.
    pub private_data: PrivateData<PRIVATE_DATA_BYTES>,
}

impl Reply {
    pub(super) fn parse(data: &Data) -> Reply {
        Reply {
            local_id: read_u32(data, 0..4),
            remote_id: read_u32(data, 4..8),
            queue_key: read_u32(data, 8..12),
            queue_pair: read_u24(data, 12..15),
            first_psn: read_u24(data, 20..23),
            responder_resources: data[24],
            initiator_depth: data[25],
            acknowledgement_delay: data[26] >> 3,
            failover: data[26] >> 1 & 3,
            flow_control: data[26] & 1 != 0,
            rnr_retry_count: data[27] >> 5,
            has_shared_receive_queue: data[27] & 0x10 != 0,
            adapter_guid: read_u64(data, 28..36),
            private_data: PrivateData::read(data, 36),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.local_id);
        write_u32(data, 4..8, self.remote_id);
        write_u32(data, 8..12, self.queue_key);
        write_u24(data, 12..15, self.queue_pair);
        write_u24(data, 20..23, self.first_psn);
        data[24] = self.responder_resources;
        data[25] = self.initiator_depth;
        data[26] = self.acknowledgement_delay << 3 | (self.failover & 3) << 1 | u8::from(self.flow_control);
        data[27] = self.rnr_retry_count << 5 | u8::from(self.has_shared_receive_queue) << 4;
        write_u64(data, 28..36, self.adapter_guid);
        self.private_data.write(data, 36);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the capture `rdma-cm-v4`, packet 2: what Linux wrote.
    const BYTES: [u8; 36] = [
        0xb8, 0xf1, 0xb0, 0xfb, 0x5b, 0x46, 0x52, 0x6c, 0, 0, 0, 0, 0, 0, 0x32, 0, 0, 0, 0, 0, 0x3e, 0x55, 0x98, 0, 1,
        1, 0x78, 0xe0, 0x50, 0x54, 0, 0xff, 0xfe, 0x4c, 0, 0x01,
    ];

    #[test]
    fn literal_bytes() {
        let reply = Reply {
            local_id: 0xb8f1_b0fb,
            remote_id: 0x5b46_526c,
            queue_pair: 0x32,
            first_psn: 0x3e_5598,
            responder_resources: 1,
            initiator_depth: 1,
            acknowledgement_delay: 15,
            rnr_retry_count: 7,
            adapter_guid: 0x5054_00ff_fe4c_0001,
            ..Reply::default()
        };
        let mut data = [0; 232];
        reply.emit(&mut data);
        assert_eq!((&data[..36], &data[36..]), (&BYTES[..], &[0; 196][..]));
        assert_eq!(Reply::parse(&data), reply);
    }

    #[test]
    fn bit_fields_have_their_places() {
        let mut data = [0; 232];
        let reply = Reply { failover: 3, flow_control: true, has_shared_receive_queue: true, ..Reply::default() };
        reply.emit(&mut data);
        assert_eq!(data[26..28], [0x07, 0x10]);
        assert_eq!(Reply::parse(&data), reply);
    }
}
