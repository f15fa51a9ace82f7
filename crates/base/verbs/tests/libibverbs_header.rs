//! Where this crate says that its numbers are libibverbs', the C compiler holds them against the installed header.

use std::io::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use longhaul_verbs::{
    Access, AttributeMask, CompletionFlags, CompletionOperation, CompletionStatus, Mtu, QueuePairState,
    ScatterGatherEntry, SendFlags,
};

#[rustfmt::skip]
fn expectations() -> Vec<(&'static str, u64)> {
    use {AttributeMask as A, CompletionOperation as O, CompletionStatus as S, QueuePairState as Q};
    let status = |name, value: S| (name, value as u64);
    let operation = |name, value: O| (name, value as u64);
    let state = |name, value: Q| (name, value as u64);
    let mask = |name, value: A| (name, u64::from(value.bits()));
    let access = |name, value: Access| (name, u64::from(value.bits()));
    let flag = |name, value: SendFlags| (name, u64::from(value.bits()));
    let mtu = |name, value: Mtu| (name, value as u64);
    vec![
        status("IBV_WC_SUCCESS", S::Success),
        status("IBV_WC_LOC_LEN_ERR", S::LocalLengthError),
        status("IBV_WC_LOC_QP_OP_ERR", S::LocalQueuePairError),
        status("IBV_WC_LOC_PROT_ERR", S::LocalProtectionError),
        status("IBV_WC_WR_FLUSH_ERR", S::FlushedError),
        status("IBV_WC_MW_BIND_ERR", S::WindowBindError),
        status("IBV_WC_BAD_RESP_ERR", S::BadResponseError),
        status("IBV_WC_LOC_ACCESS_ERR", S::LocalAccessError),
        status("IBV_WC_REM_INV_REQ_ERR", S::RemoteInvalidRequestError),
        status("IBV_WC_REM_ACCESS_ERR", S::RemoteAccessError),
        status("IBV_WC_REM_OP_ERR", S::RemoteOperationError),
        status("IBV_WC_RETRY_EXC_ERR", S::RetryExceededError),
        status("IBV_WC_RNR_RETRY_EXC_ERR", S::ReceiverNotReadyRetryExceededError),
        status("IBV_WC_REM_ABORT_ERR", S::RemoteAbortedError),
        status("IBV_WC_FATAL_ERR", S::FatalError),
        status("IBV_WC_RESP_TIMEOUT_ERR", S::ResponseTimeoutError),
        status("IBV_WC_GENERAL_ERR", S::GeneralError),
        operation("IBV_WC_SEND", O::Send),
        operation("IBV_WC_RDMA_WRITE", O::Write),
        operation("IBV_WC_RDMA_READ", O::Read),
        operation("IBV_WC_COMP_SWAP", O::CompareAndSwap),
        operation("IBV_WC_FETCH_ADD", O::FetchAndAdd),
        operation("IBV_WC_BIND_MW", O::BindWindow),
        operation("IBV_WC_LOCAL_INV", O::LocalInvalidate),
        operation("IBV_WC_RECV", O::Receive),
        operation("IBV_WC_RECV_RDMA_WITH_IMM", O::ReceiveWriteWithImmediate),
        ("IBV_WC_GRH", u64::from(CompletionFlags::GLOBAL_ROUTE_HEADER.bits())),
        ("IBV_WC_WITH_IMM", u64::from(CompletionFlags::IMMEDIATE.bits())),
        ("IBV_WC_WITH_INV", u64::from(CompletionFlags::INVALIDATED.bits())),
        flag("IBV_SEND_FENCE", SendFlags::FENCE),
        flag("IBV_SEND_SIGNALED", SendFlags::SIGNALED),
        flag("IBV_SEND_SOLICITED", SendFlags::SOLICITED),
        flag("IBV_SEND_INLINE", SendFlags::INLINE),
        access("IBV_ACCESS_LOCAL_WRITE", Access::LOCAL_WRITE),
        access("IBV_ACCESS_REMOTE_WRITE", Access::REMOTE_WRITE),
        access("IBV_ACCESS_REMOTE_READ", Access::REMOTE_READ),
        access("IBV_ACCESS_REMOTE_ATOMIC", Access::REMOTE_ATOMIC),
        access("IBV_ACCESS_MW_BIND", Access::WINDOW_BIND),
        access("IBV_ACCESS_ZERO_BASED", Access::ZERO_BASED),
        access("IBV_ACCESS_ON_DEMAND", Access::ON_DEMAND),
        access("IBV_ACCESS_HUGETLB", Access::HUGE_PAGES),
        access("IBV_ACCESS_RELAXED_ORDERING", Access::RELAXED_ORDERING),
        mask("IBV_QP_STATE", A::STATE),
        mask("IBV_QP_CUR_STATE", A::CURRENT_STATE),
        mask("IBV_QP_EN_SQD_ASYNC_NOTIFY", A::SEND_QUEUE_DRAINED_EVENT),
        mask("IBV_QP_ACCESS_FLAGS", A::ACCESS),
        mask("IBV_QP_PKEY_INDEX", A::PARTITION_KEY_INDEX),
        mask("IBV_QP_PORT", A::PORT),
        mask("IBV_QP_QKEY", A::QUEUE_KEY),
        mask("IBV_QP_AV", A::PATH),
        mask("IBV_QP_PATH_MTU", A::PATH_MTU),
        mask("IBV_QP_TIMEOUT", A::TIMEOUT),
        mask("IBV_QP_RETRY_CNT", A::RETRY_COUNT),
        mask("IBV_QP_RNR_RETRY", A::RECEIVER_NOT_READY_RETRY),
        mask("IBV_QP_RQ_PSN", A::RECEIVE_PSN),
        mask("IBV_QP_MAX_QP_RD_ATOMIC", A::MAX_READ_ATOMIC),
        mask("IBV_QP_ALT_PATH", A::ALTERNATE_PATH),
        mask("IBV_QP_MIN_RNR_TIMER", A::MIN_RECEIVER_NOT_READY_TIMER),
        mask("IBV_QP_SQ_PSN", A::SEND_PSN),
        mask("IBV_QP_MAX_DEST_RD_ATOMIC", A::MAX_DESTINATION_READ_ATOMIC),
        mask("IBV_QP_PATH_MIG_STATE", A::PATH_MIGRATION_STATE),
        mask("IBV_QP_CAP", A::LIMITS),
        mask("IBV_QP_DEST_QPN", A::DESTINATION_QUEUE_PAIR),
        mask("IBV_QP_RATE_LIMIT", A::RATE_LIMIT),
        state("IBV_QPS_RESET", Q::Reset),
        state("IBV_QPS_INIT", Q::Initialized),
        state("IBV_QPS_RTR", Q::ReadyToReceive),
        state("IBV_QPS_RTS", Q::ReadyToSend),
        state("IBV_QPS_SQD", Q::SendQueueDrained),
        state("IBV_QPS_SQE", Q::SendQueueError),
        state("IBV_QPS_ERR", Q::Error),
        mtu("IBV_MTU_256", Mtu::Bytes256),
        mtu("IBV_MTU_512", Mtu::Bytes512),
        mtu("IBV_MTU_1024", Mtu::Bytes1024),
        mtu("IBV_MTU_2048", Mtu::Bytes2048),
        mtu("IBV_MTU_4096", Mtu::Bytes4096),
        ("sizeof(struct ibv_sge)", size_of::<ScatterGatherEntry>() as u64),
        ("offsetof(struct ibv_sge, addr)", offset_of!(ScatterGatherEntry, address) as u64),
        ("offsetof(struct ibv_sge, length)", offset_of!(ScatterGatherEntry, length) as u64),
        ("offsetof(struct ibv_sge, lkey)", offset_of!(ScatterGatherEntry, local_key) as u64),
    ]
}

/// What the compiler says to a program that asserts each expectation; empty when it agrees.
fn compiler_says(expectations: &[(&str, u64)]) -> String {
    let mut program = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    for (expression, value) in expectations {
        program += &format!("_Static_assert(({expression}) == {value}, \"{expression} is {value} here\");\n");
    }
    let mut compiler = Command::new("cc")
        .args(["-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cc, which linked this test, can be run");
    compiler.stdin.take().expect("piped").write_all(program.as_bytes()).expect("the compiler reads");
    let output = compiler.wait_with_output().expect("the compiler ends");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { String::new() } else { text }
}

#[test]
fn our_numbers_are_the_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI needs the package libibverbs-dev");
        eprintln!("SKIPPED: no <infiniband/verbs.h>; install libibverbs-dev to compare numbers with it");
        return;
    }
    let expectations = expectations();
    println!("{} values", expectations.len());
    assert_eq!(compiler_says(&expectations), "");
    // The judge can say no.
    assert!(compiler_says(&[("IBV_QPS_RTS", 4)]).contains("IBV_QPS_RTS is 4 here"));
}
