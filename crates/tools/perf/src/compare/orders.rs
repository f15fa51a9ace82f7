//! What the coordinator and the two ends say to each other: one line of JSON each, over the pipes of the end's standard
//! input and output.
//!
//! ```text
//!   end → coordinator    Started                      in its namespace, waiting for orders
//!   coordinator → end    Network          → Done      the link between the two ends
//!                        Prepare          → Contact   sockets and buffers of one measurement
//!                        Connect          → Done      to the other end's contact
//!                        Run (receiver)   → Running   now the sender is ordered to run
//!                        Run (sender)     → Outcome   after the round's time
//!                        Stop (receiver)  → Outcome
//! ```

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// UDP with segmentation and receive offload and nothing else: the limit of everything that is carried by it.
    BareUdp,
    /// The kernel's TCP.
    Tcp,
    /// UC WRITEs of 1 MiB, counted by the receiver.
    UcWrite,
    /// RC WRITEs of 1 MiB, counted when they complete.
    RcWrite,
    /// RC WRITEs of 64 KiB on many queue pairs at once.
    RcWriteMany,
    /// RC READs of 1 MiB: the sender is the one who asks.
    RcRead,
    /// Messages of 16 MiB with selective repeat over SDR, through the library.
    SdrSelectiveRepeat,
    /// The same with erasure coding.
    SdrErasure,
    /// The same, coded on the threads that drive the connection.
    SdrErasureInline,
    /// A datagram back and forth.
    BareUdpPingPong,
    /// RC SENDs of 2 bytes back and forth.
    RcSendPingPong,
    /// The same, with ends that sleep until an event comes.
    RcSendEvents,
    /// Messages of 64 bytes back and forth through the library.
    FacadePingPong,
    /// The same, with threads that sleep until they are woken.
    FacadeSleeping,
}

impl Subject {
    /// Measurements of bandwidth, in the order of reports.
    pub const BANDWIDTH: [Subject; 9] = [
        Subject::BareUdp,
        Subject::Tcp,
        Subject::UcWrite,
        Subject::RcWrite,
        Subject::RcWriteMany,
        Subject::RcRead,
        Subject::SdrSelectiveRepeat,
        Subject::SdrErasure,
        Subject::SdrErasureInline,
    ];
    /// Measurements of latency.
    pub const LATENCY: [Subject; 5] = [
        Subject::BareUdpPingPong,
        Subject::RcSendPingPong,
        Subject::RcSendEvents,
        Subject::FacadePingPong,
        Subject::FacadeSleeping,
    ];

    /// The reliability scheme that it measures, by its name.
    pub const fn scheme(self) -> Option<&'static str> {
        match self {
            Subject::SdrSelectiveRepeat => Some("sr:nack"),
            Subject::SdrErasure | Subject::SdrErasureInline => Some("ec:mds:32,8"),
            _ => None,
        }
    }

    /// As it stands in the report.
    pub const fn name(self) -> &'static str {
        match self {
            Subject::BareUdp => "bare-udp",
            Subject::Tcp => "tcp",
            Subject::UcWrite => "uc-write",
            Subject::RcWrite => "rc-write",
            Subject::RcWriteMany => "rc-write-many",
            Subject::RcRead => "rc-read",
            Subject::SdrSelectiveRepeat => "sdr-sr",
            Subject::SdrErasure => "sdr-ec",
            Subject::SdrErasureInline => "sdr-ec-inline",
            Subject::BareUdpPingPong => "bare_udp",
            Subject::RcSendPingPong => "rc_send",
            Subject::RcSendEvents => "rc_send_events",
            Subject::FacadePingPong => "facade",
            Subject::FacadeSleeping => "facade_sleeping",
        }
    }
}

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Sends, or begins the ping-pong.
    Sender,
    /// Receives, or answers.
    Receiver,
}

/// What does not change from measurement to measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) role: Role,
    /// This end's address.
    pub(super) address: IpAddr,
    /// The other end's.
    pub(super) peer: IpAddr,
    /// Payload of a full packet.
    pub(super) payload_bytes: u32,
    /// Of the measurement with many of them.
    pub(super) queue_pairs: u32,
    /// Each end cycles through buffers of this many bytes altogether.
    pub(super) buffer_bytes: usize,
    /// Asked of the kernel for each UDP socket that receives.
    pub(super) receive_buffer_bytes: usize,
    /// Asked of the kernel for each UDP socket that sends.
    pub(super) send_buffer_bytes: usize,
}

/// From the coordinator to an end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Make the link: with a peer, create both sides of it; in any case configure this side.
    Network(Link),
    Prepare(Subject, Settings),
    Connect(Subject, Contact),
    Run {
        subject: Subject,
        milliseconds: u64,
    },
    Stop,
}

/// One side of the link between the ends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Link {
    /// The process in whose namespace the other side goes; `None` when it has been made already.
    pub(super) create_towards: Option<u32>,
    pub(super) address: IpAddr,
    pub(super) mtu: u32,
}

/// How the other end reaches a measurement's counterpart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Contact {
    /// Of a socket.
    pub(super) socket: Option<SocketAddr>,
    /// Of queue pairs.
    pub(super) verbs: Option<crate::connection::Contact>,
}

/// What one end saw of one round.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Payload that was sent (by a sender) or has arrived (at a receiver) while the clock ran.
    pub payload_bytes: u64,
    /// Payload that started a receiver's clock, and so does not count.
    pub early_bytes: u64,
    /// Packets of it, where this end can know.
    pub packets: u64,
    /// From the first to the last of it.
    pub nanoseconds: u64,
    /// Processor time spent on it.
    pub processor_nanoseconds: u64,
    /// Packets of it that were sent more than once, where this end can know.
    pub repeated_packets: u64,
    /// Threads that encode and decode at this end, apart from those that send and receive, where the measurement has
    /// such.
    pub coding_threads: Option<usize>,
    /// Round trip times.
    pub round_trips_nanoseconds: Vec<u32>,
}

/// From an end to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Started { process: u32, namespace: super::namespace::Kind },
    Done,
    Contact(Contact),
    Running,
    Outcome(Outcome),
}
