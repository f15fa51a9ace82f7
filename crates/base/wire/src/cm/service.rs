//! SIDR_REQ and SIDR_REP: which datagram queue pair serves a service.
//!
//! ```text
//!         SIDR_REQ                     SIDR_REP
//!    0    request's id       4         request's id            4
//!    4    partition key      2         status                  1
//!    5                                 length of information   1
//!    6    reserved           2         reserved                2
//!    8    service            8         queue pair, reserved    4
//!   12                                 service                 8
//!   16    private data     216
//!   20                                 queue key               4
//!   24                                 additional information 72
//!   96                                 private data          136
//! ```
//!
//! IBTA 12.11. A request has no connection behind it: only its answer, or none.

use super::private_data::{Data, PrivateData};
use crate::field::{read_u16, read_u24, read_u32, read_u64, write_u16, write_u24, write_u32, write_u64};

/// What a program can say in a request.
pub const REQUEST_PRIVATE_DATA_BYTES: usize = 216;
/// What a program can say in a reply.
pub const REPLY_PRIVATE_DATA_BYTES: usize = 136;

/// Statuses of replies (IBTA 12.11.2).
pub mod status {
    /// The reply has a queue pair.
    pub const SUCCESS: u8 = 0;
    /// Nobody listens for the service.
    pub const UNSUPPORTED: u8 = 1;
    /// The program said no.
    pub const REJECTED: u8 = 2;
    /// There is no queue pair left for it.
    pub const NO_QUEUE_PAIR: u8 = 3;
}

/// The request as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceRequest {
    /// The asking end's name for the request.
    pub request_id: u32,
    /// The partition.
    pub partition_key: u16,
    /// What is asked for.
    pub service: u64,
    /// What the asking program says.
    pub private_data: PrivateData<REQUEST_PRIVATE_DATA_BYTES>,
}

impl ServiceRequest {
    pub(super) fn parse(data: &Data) -> ServiceRequest {
        ServiceRequest {
            request_id: read_u32(data, 0..4),
            partition_key: read_u16(data, 4..6),
            service: read_u64(data, 8..16),
            private_data: PrivateData::read(data, 16),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.request_id);
        write_u16(data, 4..6, self.partition_key);
        write_u64(data, 8..16, self.service);
        self.private_data.write(data, 16);
    }
}

/// The reply as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServiceReply {
    /// The asking end's name for the request.
    pub request_id: u32,
    /// How it went, one of [`status`] or another of the specification's.
    pub status: u8,
    /// Bytes of the additional information.
    pub information_bytes: u8,
    /// The queue pair, 24 bits.
    pub queue_pair: u32,
    /// The service.
    pub service: u64,
    /// The queue key of datagrams to it.
    pub queue_key: u32,
    /// More about some of the statuses.
    pub information: PrivateData<72>,
    /// What the answering program says.
    pub private_data: PrivateData<REPLY_PRIVATE_DATA_BYTES>,
}

impl ServiceReply {
    pub(super) fn parse(data: &Data) -> ServiceReply {
        ServiceReply {
            request_id: read_u32(data, 0..4),
            status: data[4],
            information_bytes: data[5],
            queue_pair: read_u24(data, 8..11),
            service: read_u64(data, 12..20),
            queue_key: read_u32(data, 20..24),
            information: PrivateData::read(data, 24),
            private_data: PrivateData::read(data, 96),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.request_id);
        data[4] = self.status;
        data[5] = self.information_bytes;
        write_u24(data, 8..11, self.queue_pair);
        write_u64(data, 12..20, self.service);
        write_u32(data, 20..24, self.queue_key);
        self.information.write(data, 24);
        self.private_data.write(data, 96);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request() {
        let request = ServiceRequest {
            request_id: 0x0102_0304,
            partition_key: 0xffff,
            service: 0x0111_1c06,
            private_data: PrivateData::new(&[7; 216]).unwrap(),
        };
        let mut data = [0; 232];
        request.emit(&mut data);
        assert_eq!(data[..17], [1, 2, 3, 4, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0x01, 0x11, 0x1c, 0x06, 7]);
        assert_eq!(data[231], 7);
        assert_eq!(ServiceRequest::parse(&data), request);
    }

    #[test]
    fn reply() {
        let reply = ServiceReply {
            request_id: 0x0102_0304,
            status: status::REJECTED,
            information_bytes: 72,
            queue_pair: 0x12_3456,
            service: 0x0111_1c06,
            queue_key: 0x0123_4567,
            information: PrivateData::new(&[8; 72]).unwrap(),
            private_data: PrivateData::new(&[9; 136]).unwrap(),
        };
        let mut data = [0; 232];
        reply.emit(&mut data);
        let expected = [
            1, 2, 3, 4, 2, 72, 0, 0, 0x12, 0x34, 0x56, 0, 0, 0, 0, 0, 0x01, 0x11, 0x1c, 0x06, 0x01, 0x23, 0x45, 0x67, 8,
        ];
        assert_eq!(data[..25], expected);
        assert_eq!((data[95], data[96], data[231]), (8, 9, 9));
        assert_eq!(ServiceReply::parse(&data), reply);
    }
}
