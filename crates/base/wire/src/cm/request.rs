//! REQ: the active end asks for a connection.
//!
//! ```text
//!    0  active end's id          4     47  response timeout of the active end 5 bits · retry count 3 bits
//!    4  reserved                 4     48  partition key        2
//!    8  service                  8     50  path MTU 4 bits · RDC exists 1 · RNR retry count 3
//!   16  channel adapter's GUID   8     51  CM retries 4 bits · has SRQ 1 · extended transport 3
//!   24  reserved                 4     52  primary path        44
//!   28  queue key                4     96  alternate path      44
//!   32  queue pair               3    140  private data        92
//!   35  responder resources      1
//!   36  EE context               3   path:
//!   39  initiator depth          1      0  local, remote LID    2 + 2
//!   40  remote EE context        3      4  local, remote GID   16 + 16
//!   43  response timeout of the passive end 5 bits · transport 2 · flow control 1
//!   44  first sequence number    3     36  flow label 20 bits · reserved 6 · rate 6
//!                                      40  traffic class        1
//!                                      41  hop limit            1
//!                                      42  service level 4 bits · same subnet 1 · reserved 3
//!                                      43  acknowledgement timeout 5 bits · reserved 3
//! ```
//!
//! IBTA 12.6.5. EE contexts and RDC are of reliable datagrams, which nobody has; they are zero.

use super::private_data::{Data, PrivateData};
use crate::field::{read_u16, read_u24, read_u32, read_u64, write_u16, write_u24, write_u32, write_u64};

/// What a program can say in a request.
pub const PRIVATE_DATA_BYTES: usize = 92;
/// The transport's number for reliable connections.
pub const TRANSPORT_RC: u8 = 0;
/// The transport's number for unreliable connections.
pub const TRANSPORT_UC: u8 = 1;

const PRIMARY: usize = 52;
const ALTERNATE: usize = 96;
const PRIVATE_DATA: usize = 140;

/// The request as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// The active end's name for the connection.
    pub local_id: u32,
    /// What it wants to connect to.
    pub service: u64,
    /// The GUID of its channel adapter.
    pub adapter_guid: u64,
    /// Its queue key; 0 for connections.
    pub queue_key: u32,
    /// Its queue pair, 24 bits.
    pub queue_pair: u32,
    /// READs and atomics that it can answer at once.
    pub responder_resources: u8,
    /// READs and atomics that it will ask at once.
    pub initiator_depth: u8,
    /// How long it waits for an answer before it repeats: 4.096 µs · 2^n, 5 bits.
    pub remote_response_timeout: u8,
    /// The transport, 2 bits.
    pub transport: u8,
    /// Whether its queue pair controls the flow end to end.
    pub flow_control: bool,
    /// The sequence number of its first packet, 24 bits.
    pub first_psn: u32,
    /// How long it may take itself to answer, 5 bits.
    pub local_response_timeout: u8,
    /// How often its peer should repeat a packet, 3 bits.
    pub retry_count: u8,
    /// The partition of the connection.
    pub partition_key: u16,
    /// Payload of a packet: 1 is 256 bytes, 5 is 4,096; 4 bits.
    pub path_mtu: u8,
    /// How often its peer should repeat after a receiver that was not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// How often either end repeats a message of connection management, 4 bits.
    pub cm_retries_max: u8,
    /// Whether its queue pair has a shared receive queue.
    pub has_shared_receive_queue: bool,
    /// The path that is used first.
    pub primary: PathFields,
    /// The one to migrate to; zero if there is none.
    pub alternate: PathFields,
    /// What its program says.
    pub private_data: PrivateData<PRIVATE_DATA_BYTES>,
}

/// A path, as the active end sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathFields {
    /// The active end's LID; RoCE has none.
    pub local_lid: u16,
    /// The passive end's LID.
    pub remote_lid: u16,
    /// The active end's GID.
    pub local_gid: [u8; 16],
    /// The passive end's GID.
    pub remote_gid: [u8; 16],
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The packet rate, 6 bits, as verbs number them.
    pub rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, 4 bits.
    pub service_level: u8,
    /// Whether both ends are of one subnet.
    pub is_subnet_local: bool,
    /// The acknowledgement timeout that the peer should take, 5 bits.
    pub acknowledgement_timeout: u8,
}

impl Request {
    pub(super) fn parse(data: &Data) -> Request {
        Request {
            local_id: read_u32(data, 0..4),
            service: read_u64(data, 8..16),
            adapter_guid: read_u64(data, 16..24),
            queue_key: read_u32(data, 28..32),
            queue_pair: read_u24(data, 32..35),
            responder_resources: data[35],
            initiator_depth: data[39],
            remote_response_timeout: data[43] >> 3,
            transport: data[43] >> 1 & 3,
            flow_control: data[43] & 1 != 0,
            first_psn: read_u24(data, 44..47),
            local_response_timeout: data[47] >> 3,
            retry_count: data[47] & 7,
            partition_key: read_u16(data, 48..50),
            path_mtu: data[50] >> 4,
            rnr_retry_count: data[50] & 7,
            cm_retries_max: data[51] >> 4,
            has_shared_receive_queue: data[51] & 8 != 0,
            primary: PathFields::parse(&data[PRIMARY..ALTERNATE]),
            alternate: PathFields::parse(&data[ALTERNATE..PRIVATE_DATA]),
            private_data: PrivateData::read(data, PRIVATE_DATA),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.local_id);
        write_u64(data, 8..16, self.service);
        write_u64(data, 16..24, self.adapter_guid);
        write_u32(data, 28..32, self.queue_key);
        write_u24(data, 32..35, self.queue_pair);
        data[35] = self.responder_resources;
        data[39] = self.initiator_depth;
        data[43] = self.remote_response_timeout << 3 | (self.transport & 3) << 1 | u8::from(self.flow_control);
        write_u24(data, 44..47, self.first_psn);
        data[47] = self.local_response_timeout << 3 | self.retry_count & 7;
        write_u16(data, 48..50, self.partition_key);
        data[50] = self.path_mtu << 4 | self.rnr_retry_count & 7;
        data[51] = self.cm_retries_max << 4 | u8::from(self.has_shared_receive_queue) << 3;
        self.primary.emit(&mut data[PRIMARY..ALTERNATE]);
        self.alternate.emit(&mut data[ALTERNATE..PRIVATE_DATA]);
        self.private_data.write(data, PRIVATE_DATA);
    }
}

impl PathFields {
    fn parse(data: &[u8]) -> PathFields {
        let gid = |from: usize| core::array::from_fn(|index| data[from + index]);
        PathFields {
            local_lid: read_u16(data, 0..2),
            remote_lid: read_u16(data, 2..4),
            local_gid: gid(4),
            remote_gid: gid(20),
            flow_label: read_u32(data, 36..40) >> 12,
            rate: data[39] & 0x3f,
            traffic_class: data[40],
            hop_limit: data[41],
            service_level: data[42] >> 4,
            is_subnet_local: data[42] & 8 != 0,
            acknowledgement_timeout: data[43] >> 3,
        }
    }

    fn emit(&self, data: &mut [u8]) {
        write_u16(data, 0..2, self.local_lid);
        write_u16(data, 2..4, self.remote_lid);
        data[4..20].copy_from_slice(&self.local_gid);
        data[20..36].copy_from_slice(&self.remote_gid);
        write_u32(data, 36..40, self.flow_label << 12 | u32::from(self.rate & 0x3f));
        data[40] = self.traffic_class;
        data[41] = self.hop_limit;
        data[42] = self.service_level << 4 | u8::from(self.is_subnet_local) << 3;
        data[43] = self.acknowledgement_timeout << 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::ip_header;

    /// Of the capture `rdma-cm-v4`, packet 1, up to the alternate path: what Linux wrote.
    const BYTES: [u8; 96] = [
        0x5b, 0x46, 0x52, 0x6c, 0, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x06, 0x1c, 0x06, 0x50, 0x54, 0, 0xff, 0xfe, 0x4c, 0,
        0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x32, 0x01, 0, 0, 0, 0x01, 0, 0, 0, 0xa0, 0xae, 0xaa, 0x3f, 0xa7, 0xff,
        0xff, 0x37, 0xf0, // its path:
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0x0a, 0x2f, 0x5b, 0x02, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0xff, 0xff, 0x0a, 0x2f, 0x5b, 0x01, 0x1f, 0x00, 0xc0, 0x00, 0, 0x40, 0, 0x98,
    ];
    /// And its private data: addresses.
    const PRIVATE_BYTES: [u8; 36] = [
        0, 0x40, 0x93, 0x3a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x2f, 0x5b, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0x0a, 0x2f, 0x5b, 0x01,
    ];

    fn mapped(last: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 47, 91, last]
    }

    fn request() -> Request {
        let header = ip_header::Header {
            source: "10.47.91.2".parse().unwrap(),
            destination: "10.47.91.1".parse().unwrap(),
            source_port: 0x933a,
        };
        Request {
            local_id: 0x5b46_526c,
            service: 0x0106_1c06,
            adapter_guid: 0x5054_00ff_fe4c_0002,
            queue_pair: 0x32,
            responder_resources: 1,
            initiator_depth: 1,
            remote_response_timeout: 20,
            first_psn: 0xae_aa3f,
            local_response_timeout: 20,
            retry_count: 7,
            partition_key: 0xffff,
            path_mtu: 3,
            rnr_retry_count: 7,
            cm_retries_max: 15,
            primary: PathFields {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: mapped(2),
                remote_gid: mapped(1),
                flow_label: 0x1f00c,
                rate: 0,
                hop_limit: 64,
                acknowledgement_timeout: 19,
                ..PathFields::default()
            },
            private_data: PrivateData::new(&header.emit()).unwrap(),
            ..Request::default()
        }
    }

    fn data() -> Data {
        let mut data = [0; 232];
        data[..96].copy_from_slice(&BYTES);
        data[PRIVATE_DATA..PRIVATE_DATA + 36].copy_from_slice(&PRIVATE_BYTES);
        data
    }

    #[test]
    fn parse_what_linux_wrote() {
        assert_eq!(Request::parse(&data()), request());
    }

    #[test]
    fn emit_what_linux_wrote() {
        let mut emitted = [0; 232];
        request().emit(&mut emitted);
        assert_eq!(emitted, data());
    }

    #[test]
    fn every_bit_field_has_its_place() {
        let data = |change: fn(&mut Request)| {
            let mut request = Request::default();
            change(&mut request);
            let mut data = [0; 232];
            request.emit(&mut data);
            assert_eq!(Request::parse(&data), request);
            let at = data.iter().position(|byte| *byte != 0).unwrap();
            assert!(data[at + 1..].iter().all(|byte| *byte == 0), "one byte");
            (at, data[at])
        };
        assert_eq!(data(|request| request.remote_response_timeout = 31), (43, 0xf8));
        assert_eq!(data(|request| request.transport = 3), (43, 0x06));
        assert_eq!(data(|request| request.flow_control = true), (43, 0x01));
        assert_eq!(data(|request| request.local_response_timeout = 31), (47, 0xf8));
        assert_eq!(data(|request| request.retry_count = 7), (47, 0x07));
        assert_eq!(data(|request| request.path_mtu = 5), (50, 0x50));
        assert_eq!(data(|request| request.rnr_retry_count = 7), (50, 0x07));
        assert_eq!(data(|request| request.cm_retries_max = 15), (51, 0xf0));
        assert_eq!(data(|request| request.has_shared_receive_queue = true), (51, 0x08));
        assert_eq!(data(|request| request.primary.rate = 0x3f), (91, 0x3f));
        assert_eq!(data(|request| request.primary.service_level = 15), (94, 0xf0));
        assert_eq!(data(|request| request.primary.is_subnet_local = true), (94, 0x08));
        assert_eq!(data(|request| request.primary.acknowledgement_timeout = 31), (95, 0xf8));
        assert_eq!(data(|request| request.alternate.traffic_class = 9), (136, 9));
    }
}
