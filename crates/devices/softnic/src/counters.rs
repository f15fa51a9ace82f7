//! What the device counts, from the first packet. Names are those under which rxe and mlx5 show the same numbers in
//! sysfs, so that dashboards find them; numbers that neither has are named alike.

use longhaul_verbs::Counter;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a device has counted.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// All of them with their names.
            pub fn to_list(self) -> Vec<Counter> {
                vec![$(Counter { name: stringify!($name).into(), value: self.$name }),*]
            }
        }
    };
}

counters! {
    /// Packets sent (rxe).
    sent_pkts,
    /// Packets received and well formed (rxe).
    rcvd_pkts,
    /// Payload bytes sent, repetitions included.
    sent_bytes,
    /// Payload bytes received.
    rcvd_bytes,
    /// Packets of a kind that the device does not know or that are malformed.
    rx_malformed,
    /// Packets whose ICRC was wrong, as told by the port (mlx5).
    rx_icrc_encapsulated,
    /// Packets for no queue pair that could take them.
    rx_no_queue_pair,
    /// Packets to a connected queue pair from somebody else than its peer.
    rx_wrong_peer,
    /// Packets to a connected queue pair from its peer's address, but not from the UDP port that the peer has announced.
    rx_wrong_source_port,
    /// Datagrams whose queue key was wrong.
    rx_wrong_queue_key,
    /// Requests that came a second time (rxe).
    duplicate_request,
    /// Requests that came too early: something before them is missing (rxe).
    out_of_seq_request,
    /// Receiver-not-ready answers received (rxe).
    rcvd_rnr_err,
    /// Receiver-not-ready answers sent (rxe).
    send_rnr_err,
    /// Sequence error answers received (rxe).
    rcvd_seq_err,
    /// Sequence error answers sent.
    send_seq_err,
    /// Answers of READs and atomics that were missing when something later came (mlx5).
    implied_nak_seq_err,
    /// READs that were accepted (mlx5).
    rx_read_requests,
    /// Atomics that were carried out (mlx5).
    rx_atomic_requests,
    /// Packets sent again.
    retransmitted_pkts,
    /// Times that no acknowledgement came in time (mlx5).
    local_ack_timeout_err,
    /// Requests given up because no acknowledgement came (rxe).
    retry_exceeded_err,
    /// Requests given up because the peer was never ready (rxe).
    retry_rnr_exceeded_err,
    /// Acknowledgements sent, positive ones.
    sent_acks,
    /// Unreliable messages dropped because no receive was posted (mlx5).
    out_of_buffer,
    /// Unreliable messages dropped because a packet before or within them was lost.
    dropped_messages,
    /// Requests of peers refused for key, range or rights (mlx5).
    resp_remote_access_errors,
    /// Completions in error, but for flushed ones (mlx5, both sides together).
    cqe_error,
    /// Requests flushed (mlx5, both sides together).
    cqe_flush_error,
    /// Completions lost because their queue was full.
    cq_overrun,
    /// Asynchronous events lost because nobody read them.
    events_lost,
    /// Packets that arrived with congestion marked (mlx5).
    np_ecn_marked_roce_packets,
    /// Congestion notifications sent (mlx5).
    np_cnp_sent,
    /// Congestion notifications received (mlx5).
    rp_cnp_handled,
}

/// What a queue pair has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounters {
    /// Packets sent, repetitions included.
    pub sent_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Packets sent again.
    pub retransmitted_packets: u64,
}
