//! A completion of libibverbs as one of the boundary.

use longhaul_verbs::{CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, WorkCompletion};

use longhaul_verbs_abi as abi;

/// The same in our words. Of a failure only what verbs define is taken over; drivers leave anything in the rest. Of a
/// send, bytes and flags are left out: they are defined for receives and for returned data, and some drivers (rxe) set
/// them all the same.
pub(crate) fn translate(theirs: &abi::ibv_wc) -> WorkCompletion {
    let status = status(theirs.status);
    let named = WorkCompletion {
        id: theirs.wr_id,
        status,
        vendor_error: theirs.vendor_err,
        queue_pair: QueuePairNumber::new(theirs.qp_num),
        ..Default::default()
    };
    if status != CompletionStatus::Success {
        return named;
    }
    let operation = operation(theirs.opcode);
    match operation {
        CompletionOperation::Receive | CompletionOperation::ReceiveWriteWithImmediate => {
            let flags = CompletionFlags::from_bits_truncate(theirs.wc_flags) - CompletionFlags::CONGESTION_MARK;
            let immediate_or_key = if flags.contains(CompletionFlags::IMMEDIATE) {
                u32::from_be(theirs.imm_data)
            } else if flags.contains(CompletionFlags::INVALIDATED) {
                theirs.imm_data
            } else {
                0
            };
            WorkCompletion {
                operation,
                flags,
                byte_count: theirs.byte_len,
                immediate_or_key,
                source_queue_pair: QueuePairNumber::new(theirs.src_qp),
                source_lid: theirs.slid,
                service_level: theirs.sl,
                destination_path_bits: theirs.dlid_path_bits,
                ..named
            }
        }
        CompletionOperation::Read | CompletionOperation::CompareAndSwap | CompletionOperation::FetchAndAdd => {
            WorkCompletion { operation, byte_count: theirs.byte_len, ..named }
        }
        _ => WorkCompletion { operation, ..named },
    }
}

fn status(number: u32) -> CompletionStatus {
    use CompletionStatus as S;
    match number {
        abi::IBV_WC_SUCCESS => S::Success,
        abi::IBV_WC_LOC_LEN_ERR => S::LocalLengthError,
        abi::IBV_WC_LOC_QP_OP_ERR => S::LocalQueuePairError,
        abi::IBV_WC_LOC_PROT_ERR => S::LocalProtectionError,
        abi::IBV_WC_WR_FLUSH_ERR => S::FlushedError,
        abi::IBV_WC_MW_BIND_ERR => S::WindowBindError,
        abi::IBV_WC_BAD_RESP_ERR => S::BadResponseError,
        abi::IBV_WC_LOC_ACCESS_ERR => S::LocalAccessError,
        abi::IBV_WC_REM_INV_REQ_ERR => S::RemoteInvalidRequestError,
        abi::IBV_WC_REM_ACCESS_ERR => S::RemoteAccessError,
        abi::IBV_WC_REM_OP_ERR => S::RemoteOperationError,
        abi::IBV_WC_RETRY_EXC_ERR => S::RetryExceededError,
        abi::IBV_WC_RNR_RETRY_EXC_ERR => S::ReceiverNotReadyRetryExceededError,
        abi::IBV_WC_REM_ABORT_ERR => S::RemoteAbortedError,
        abi::IBV_WC_FATAL_ERR => S::FatalError,
        abi::IBV_WC_RESP_TIMEOUT_ERR => S::ResponseTimeoutError,
        // Also those of reliable datagrams and tag matching, which Longhaul does not use.
        _ => S::GeneralError,
    }
}

fn operation(number: u32) -> CompletionOperation {
    use CompletionOperation as O;
    match number {
        abi::IBV_WC_RDMA_WRITE => O::Write,
        abi::IBV_WC_RDMA_READ => O::Read,
        abi::IBV_WC_COMP_SWAP => O::CompareAndSwap,
        abi::IBV_WC_FETCH_ADD => O::FetchAndAdd,
        abi::IBV_WC_BIND_MW => O::BindWindow,
        abi::IBV_WC_LOCAL_INV => O::LocalInvalidate,
        abi::IBV_WC_RECV => O::Receive,
        abi::IBV_WC_RECV_RDMA_WITH_IMM => O::ReceiveWriteWithImmediate,
        // The rest cannot come of what the boundary posts.
        _ => O::Send,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(opcode: u32, flags: u32) -> abi::ibv_wc {
        abi::ibv_wc {
            wr_id: 7,
            opcode,
            byte_len: 100,
            imm_data: 0x1122_3344_u32.to_be(),
            qp_num: 0x11,
            src_qp: 0x22,
            wc_flags: flags,
            slid: 3,
            sl: 4,
            dlid_path_bits: 5,
            vendor_err: 0,
            ..abi::ibv_wc::zeroed()
        }
    }

    #[test]
    fn an_immediate_is_a_number_again() {
        let ours = translate(&received(abi::IBV_WC_RECV_RDMA_WITH_IMM, abi::IBV_WC_WITH_IMM));
        assert_eq!(ours.immediate(), Some(0x1122_3344));
        assert_eq!(ours.invalidated_key(), None);
        assert_eq!(ours.operation, CompletionOperation::ReceiveWriteWithImmediate);
        assert_eq!((ours.id, ours.byte_count, ours.queue_pair.value()), (7, 100, 0x11));
        assert_eq!((ours.source_lid, ours.service_level, ours.destination_path_bits), (3, 4, 5));
        assert_eq!(ours.source_queue_pair.value(), 0x22);
    }

    #[test]
    fn a_key_is_taken_as_it_is() {
        let theirs = abi::ibv_wc { imm_data: 0x0000_1234, ..received(abi::IBV_WC_RECV, abi::IBV_WC_WITH_INV) };
        assert_eq!(translate(&theirs).invalidated_key(), Some(0x1234));
        let plain = translate(&received(abi::IBV_WC_RECV, abi::IBV_WC_GRH));
        assert_eq!((plain.flags, plain.immediate_or_key), (CompletionFlags::GLOBAL_ROUTE_HEADER, 0));
    }

    #[test]
    fn sends_have_neither_bytes_nor_flags() {
        let ours = translate(&received(abi::IBV_WC_RDMA_WRITE, abi::IBV_WC_WITH_IMM));
        assert_eq!(ours.operation, CompletionOperation::Write);
        assert_eq!((ours.byte_count, ours.flags, ours.immediate_or_key), (0, CompletionFlags::empty(), 0));
        let read = translate(&received(abi::IBV_WC_RDMA_READ, 0));
        assert_eq!((read.operation, read.byte_count), (CompletionOperation::Read, 100));
    }

    #[test]
    fn failures_say_only_what_verbs_define() {
        let theirs = abi::ibv_wc {
            status: abi::IBV_WC_RETRY_EXC_ERR,
            vendor_err: 129,
            ..received(abi::IBV_WC_RDMA_READ, abi::IBV_WC_WITH_IMM)
        };
        let expected = WorkCompletion {
            id: 7,
            status: CompletionStatus::RetryExceededError,
            vendor_error: 129,
            queue_pair: QueuePairNumber::new(0x11),
            ..Default::default()
        };
        assert_eq!(translate(&theirs), expected);
    }

    /// Statuses and operations have libibverbs' numbers; each must come out as itself.
    #[test]
    fn every_number_finds_its_name() {
        for number in 0..=21 {
            let ours = status(number);
            let has_none = matches!(number, 3 | 14 | 15 | 17 | 18);
            assert_eq!(ours as u32, if has_none { 21 } else { number }, "{ours:?}");
        }
        assert_eq!(status(4711), CompletionStatus::GeneralError);
        for number in (0..=6).chain(128..=129) {
            assert_eq!(operation(number) as u32, number);
        }
    }
}
