//! What happened to one message, as each end saw it.

use longhaul_time::Duration;

/// What happened to one message. Each end counts what it can see; what only the other end sees is 0 here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageReport {
    /// Bytes of the message.
    pub message_bytes: u64,
    /// From the beginning (sender: the send was asked for; receiver: the message was first heard of) to the end.
    pub duration: Duration,
    /// The round-trip time when it ended, if it has been measured.
    pub round_trip: Option<Duration>,
    /// Sender: packets of data queued, repeated ones included.
    pub data_packets_sent: u64,
    /// Sender: packets of data among them that were not the first of their place.
    pub data_packets_repeated: u64,
    /// Sender: packets of parity queued.
    pub parity_packets_sent: u64,
    /// Receiver: packets that came more than once.
    pub duplicate_packets: u64,
    /// Receiver: parity chunks that lost chunks were computed from.
    pub parity_chunks_used: u64,
    /// Receiver: parity chunks that came and were not needed.
    pub parity_chunks_wasted: u64,
    /// Receiver: data chunks that were computed.
    pub chunks_recovered: u64,
    /// Either end: times that the scheme had to ask for what it could not compute, or had waited for in vain.
    pub fallbacks: u64,
    /// Sender: feedback that came; receiver: feedback that was sent.
    pub feedback_records: u64,
    /// Sender: times that the message was offered.
    pub offers: u64,
    /// Bytes that did not arrive and could not be computed: what the receiver found, and what the sender heard of that.
    pub missing_bytes: u64,
    /// Receiver: how long after its deadline a bounded message ended; zero if it ended by then. What arrives after the end changes nothing.
    pub late: Duration,
    /// Bytes whose checksum was sent (sender) or verified (receiver): all of the message, or none of it when the sender has
    /// checksums off ([`crate::Attributes::checksum`]).
    pub checksummed_bytes: u64,
}

/// What happened on a connection so far, in messages that have ended and in those that have not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounters {
    /// Packets of data that were queued, repeated ones included.
    pub data_packets_sent: u64,
    /// Packets of data among them that were not the first of their place.
    pub data_packets_repeated: u64,
    /// Packets of parity that were queued.
    pub parity_packets_sent: u64,
    /// Packets that came for a place that had been received before. (Those of messages that had ended are late, and counted by `sdr`.)
    pub duplicate_packets: u64,
}

impl ConnectionCounters {
    pub(crate) fn add(&mut self, report: &MessageReport) {
        self.data_packets_sent += report.data_packets_sent;
        self.data_packets_repeated += report.data_packets_repeated;
        self.parity_packets_sent += report.parity_packets_sent;
        self.duplicate_packets += report.duplicate_packets;
    }
}

impl MessageReport {
    /// Add what happened to a part of the message; how long the whole took is not a sum.
    pub(crate) fn add_part(&mut self, part: &MessageReport) {
        self.message_bytes += part.message_bytes;
        self.round_trip = part.round_trip.or(self.round_trip);
        self.data_packets_sent += part.data_packets_sent;
        self.data_packets_repeated += part.data_packets_repeated;
        self.parity_packets_sent += part.parity_packets_sent;
        self.duplicate_packets += part.duplicate_packets;
        self.parity_chunks_used += part.parity_chunks_used;
        self.parity_chunks_wasted += part.parity_chunks_wasted;
        self.chunks_recovered += part.chunks_recovered;
        self.fallbacks += part.fallbacks;
        self.feedback_records += part.feedback_records;
        self.offers += part.offers;
        self.missing_bytes += part.missing_bytes;
        self.late = self.late.max(part.late);
        self.checksummed_bytes += part.checksummed_bytes;
    }
}
