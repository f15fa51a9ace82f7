//! The messages with little more than the names of the connection.
//!
//! ```text
//!         RTU, DREP             MRA                        DREQ
//!    0    sender's id     4     sender's id          4     sender's id               4
//!    4    receiver's id   4     receiver's id        4     receiver's id             4
//!    8    private data  224     message 2 bits · …   1     receiver's queue pair     3
//!    9                          timeout 5 bits · …   1
//!   10                          private data       222
//!   11                                                     reserved                  1
//!   12                                                     private data            220
//!
//!         REJ
//!    0    sender's id                   4     10   reason                   2
//!    4    receiver's id                 4     12   additional information  72
//!    8    message 2 bits · reserved 6   1     84   private data           148
//!    9    length of information 7 bits  1
//! ```
//!
//! IBTA 12.6.6 (MRA), 12.6.7 (REJ), 12.6.9 (RTU), 12.6.10 (DREQ), 12.6.11 (DREP).

use super::private_data::{Data, PrivateData};
use crate::field::{read_u16, read_u24, read_u32, write_u16, write_u24, write_u32};

/// Numbers by which a rejection or an MRA names what it answers, 2 bits.
pub mod answered {
    /// REQ.
    pub const REQUEST: u8 = 0;
    /// REP.
    pub const REPLY: u8 = 1;
    /// Neither: a message that names no connection.
    pub const NONE: u8 = 2;
}

/// Reasons of rejections (IBTA table 109), those that we write or look at.
pub mod reason {
    /// There is no room for another connection.
    pub const NO_RESOURCES: u16 = 3;
    /// An end waited too long.
    pub const TIMEOUT: u16 = 4;
    /// The message names a connection that the receiver does not have.
    pub const INVALID_ID: u16 = 6;
    /// Nobody listens for the service.
    pub const INVALID_SERVICE: u16 = 8;
    /// The service has another transport.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The receiver still has a connection of that name or with that queue pair.
    pub const STALE_CONNECTION: u16 = 10;
    /// The program said no, and its private data may say why.
    pub const CONSUMER: u16 = 28;
}

/// A message whose contents are two names and private data.
macro_rules! names_only {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            /// The sender's name for the connection.
            pub local_id: u32,
            /// The receiver's.
            pub remote_id: u32,
            /// What the sender's program says.
            pub private_data: PrivateData<224>,
        }

        impl $name {
            pub(super) fn parse(data: &Data) -> $name {
                $name {
                    local_id: read_u32(data, 0..4),
                    remote_id: read_u32(data, 4..8),
                    private_data: PrivateData::read(data, 8),
                }
            }

            pub(super) fn emit(&self, data: &mut Data) {
                write_u32(data, 0..4, self.local_id);
                write_u32(data, 4..8, self.remote_id);
                self.private_data.write(data, 8);
            }
        }
    };
}

names_only! {
    /// RTU: the active end has the reply, and its queue pair is ready.
    Ready
}
names_only! {
    /// DREP: the connection has ended at this end too.
    DisconnectReply
}

/// MRA: a message has arrived, and its answer may take this much longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// Which message, one of [`answered`].
    pub answered: u8,
    /// How long its answer may take: 4.096 µs · 2^n, 5 bits.
    pub service_timeout: u8,
    /// What the sender's program says.
    pub private_data: PrivateData<222>,
}

impl Received {
    pub(super) fn parse(data: &Data) -> Received {
        Received {
            local_id: read_u32(data, 0..4),
            remote_id: read_u32(data, 4..8),
            answered: data[8] >> 6,
            service_timeout: data[9] >> 3,
            private_data: PrivateData::read(data, 10),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.local_id);
        write_u32(data, 4..8, self.remote_id);
        data[8] = self.answered << 6;
        data[9] = self.service_timeout << 3;
        self.private_data.write(data, 10);
    }
}

/// REJ: no connection, or none any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reject {
    /// The sender's name for the connection; 0 if it has none.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// Which message is rejected, one of [`answered`].
    pub answered: u8,
    /// Bytes of the additional information, 7 bits.
    pub information_bytes: u8,
    /// Why, one of [`reason`] or another of the specification's.
    pub reason: u16,
    /// More about some of the reasons.
    pub information: PrivateData<72>,
    /// What the sender's program says.
    pub private_data: PrivateData<148>,
}

impl Reject {
    pub(super) fn parse(data: &Data) -> Reject {
        Reject {
            local_id: read_u32(data, 0..4),
            remote_id: read_u32(data, 4..8),
            answered: data[8] >> 6,
            information_bytes: data[9] >> 1,
            reason: read_u16(data, 10..12),
            information: PrivateData::read(data, 12),
            private_data: PrivateData::read(data, 84),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.local_id);
        write_u32(data, 4..8, self.remote_id);
        data[8] = self.answered << 6;
        data[9] = self.information_bytes << 1;
        write_u16(data, 10..12, self.reason);
        self.information.write(data, 12);
        self.private_data.write(data, 84);
    }
}

/// DREQ: an end wants no more of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Disconnect {
    /// The sender's name for the connection.
    pub local_id: u32,
    /// The receiver's.
    pub remote_id: u32,
    /// The receiver's queue pair, 24 bits.
    pub remote_queue_pair: u32,
    /// What the sender's program says.
    pub private_data: PrivateData<220>,
}

impl Disconnect {
    pub(super) fn parse(data: &Data) -> Disconnect {
        Disconnect {
            local_id: read_u32(data, 0..4),
            remote_id: read_u32(data, 4..8),
            remote_queue_pair: read_u24(data, 8..11),
            private_data: PrivateData::read(data, 12),
        }
    }

    pub(super) fn emit(&self, data: &mut Data) {
        write_u32(data, 0..4, self.local_id);
        write_u32(data, 4..8, self.remote_id);
        write_u24(data, 8..11, self.remote_queue_pair);
        self.private_data.write(data, 12);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two names, as they begin every one of these messages.
    const NAMES: [u8; 8] = [0x5b, 0x46, 0x52, 0x6c, 0xb8, 0xf1, 0xb0, 0xfb];
    const LOCAL: u32 = 0x5b46_526c;
    const REMOTE: u32 = 0xb8f1_b0fb;

    fn check(data: &Data, after_names: &[u8], private_at: usize, private_bytes: usize) {
        assert_eq!(data[..8], NAMES);
        assert_eq!(data[8..8 + after_names.len()], *after_names);
        assert_eq!(private_at + private_bytes, data.len(), "private data go to the end");
        assert_eq!(data[private_at..private_at + 3], [7, 8, 9]);
    }

    #[test]
    fn ready_and_disconnect_reply() {
        let mut data = [0; 232];
        let ready = Ready { local_id: LOCAL, remote_id: REMOTE, private_data: PrivateData::new(&[7, 8, 9]).unwrap() };
        ready.emit(&mut data);
        check(&data, &[7], 8, 224);
        assert_eq!(Ready::parse(&data), ready);
        let reply = DisconnectReply::parse(&data);
        let mut again = [0; 232];
        reply.emit(&mut again);
        assert_eq!((data, reply.local_id, reply.remote_id), (again, LOCAL, REMOTE));
    }

    #[test]
    fn received() {
        let mut data = [0; 232];
        let received = Received {
            local_id: LOCAL,
            remote_id: REMOTE,
            answered: answered::REPLY,
            service_timeout: 24,
            private_data: PrivateData::new(&[7, 8, 9]).unwrap(),
        };
        received.emit(&mut data);
        check(&data, &[0x40, 0xc0], 10, 222);
        assert_eq!(Received::parse(&data), received);
    }

    #[test]
    fn reject() {
        let mut data = [0; 232];
        let reject = Reject {
            local_id: LOCAL,
            remote_id: REMOTE,
            answered: answered::NONE,
            information_bytes: 72,
            reason: reason::CONSUMER,
            information: PrivateData::new(&[1; 72]).unwrap(),
            private_data: PrivateData::new(&[7, 8, 9]).unwrap(),
        };
        reject.emit(&mut data);
        check(&data, &[0x80, 0x90, 0, 28, 1], 84, 148);
        assert_eq!(data[83], 1);
        assert_eq!(Reject::parse(&data), reject);
    }

    #[test]
    fn disconnect() {
        let mut data = [0; 232];
        let disconnect = Disconnect {
            local_id: LOCAL,
            remote_id: REMOTE,
            remote_queue_pair: 0x12_3456,
            private_data: PrivateData::new(&[7, 8, 9]).unwrap(),
        };
        disconnect.emit(&mut data);
        check(&data, &[0x12, 0x34, 0x56, 0], 12, 220);
        assert_eq!(Disconnect::parse(&data), disconnect);
    }
}
