//! Queue pair attributes, to libibverbs' form and back.

use std::ffi::{c_int, c_uint};

use longhaul_verbs::{
    Access, AttributeMask, Mtu, PathMigrationState, QueuePairAttributes, QueuePairLimits, QueuePairNumber,
    QueuePairState, Transport,
};

use crate::path::{path_from_c, path_to_c};
use longhaul_verbs_abi::{
    IBV_MIG_ARMED, IBV_MIG_MIGRATED, IBV_MIG_REARM, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_qp_attr, ibv_qp_cap,
};

/// Everything that `ibv_query_qp` can be asked for.
pub(crate) const QUERY_ALL: c_int = AttributeMask::all().difference(AttributeMask::RATE_LIMIT).bits() as c_int;

/// `ibv_qp_type` of a transport; `None` for one that this version does not know.
pub(crate) fn transport_to_c(transport: Transport) -> Option<c_uint> {
    Some(match transport {
        Transport::ReliableConnection => IBV_QPT_RC,
        Transport::UnreliableConnection => IBV_QPT_UC,
        Transport::UnreliableDatagram => IBV_QPT_UD,
        _ => return None,
    })
}

pub(crate) fn limits_to_c(limits: &QueuePairLimits) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: limits.send_requests,
        max_recv_wr: limits.receive_requests,
        max_send_sge: limits.send_entries,
        max_recv_sge: limits.receive_entries,
        max_inline_data: limits.inline_bytes,
    }
}

pub(crate) fn limits_from_c(cap: &ibv_qp_cap) -> QueuePairLimits {
    QueuePairLimits {
        send_requests: cap.max_send_wr,
        receive_requests: cap.max_recv_wr,
        send_entries: cap.max_send_sge,
        receive_entries: cap.max_recv_sge,
        inline_bytes: cap.max_inline_data,
    }
}

/// `None` for a number that no state has.
pub(crate) fn state_from_c(state: c_uint) -> Option<QueuePairState> {
    QueuePairState::ALL.into_iter().find(|known| *known as c_uint == state)
}

fn mtu_from_c(mtu: c_uint) -> Option<Mtu> {
    Mtu::ALL.into_iter().find(|known| *known as c_uint == mtu)
}

fn migration_to_c(state: PathMigrationState) -> c_uint {
    match state {
        PathMigrationState::Rearm => IBV_MIG_REARM,
        PathMigrationState::Armed => IBV_MIG_ARMED,
        _ => IBV_MIG_MIGRATED,
    }
}

fn migration_from_c(state: c_uint) -> Option<PathMigrationState> {
    Some(match state {
        IBV_MIG_MIGRATED => PathMigrationState::Migrated,
        IBV_MIG_REARM => PathMigrationState::Rearm,
        IBV_MIG_ARMED => PathMigrationState::Armed,
        _ => return None,
    })
}

/// `ibv_qp_attr` and its mask. What has its own call, or is not the device's business, is left out: the rate limit, and
/// the state that the caller believes in.
pub(crate) fn attributes_to_c(attributes: &QueuePairAttributes) -> (ibv_qp_attr, c_int) {
    let mut c = ibv_qp_attr::zeroed();
    macro_rules! put {
        ($($field:ident => $c:ident),* $(,)?) => { $(if let Some(value) = attributes.$field { c.$c = value.into(); })* };
    }
    put!(
        send_queue_drained_event => en_sqd_async_notify,
        partition_key_index => pkey_index,
        port => port_num,
        queue_key => qkey,
        timeout => timeout,
        retry_count => retry_cnt,
        receiver_not_ready_retry => rnr_retry,
        receive_psn => rq_psn,
        send_psn => sq_psn,
        max_read_atomic => max_rd_atomic,
        max_destination_read_atomic => max_dest_rd_atomic,
        min_receiver_not_ready_timer => min_rnr_timer,
    );
    if let Some(state) = attributes.state {
        c.qp_state = state as c_uint;
    }
    if let Some(access) = attributes.access {
        c.qp_access_flags = access.bits();
    }
    if let Some(mtu) = attributes.path_mtu {
        c.path_mtu = mtu as c_uint;
    }
    if let Some(path) = &attributes.path {
        c.ah_attr = path_to_c(path);
    }
    if let Some(path) = &attributes.alternate_path {
        c.alt_ah_attr = path_to_c(path);
        c.alt_port_num = path.port;
        // The same as the primary path's, as far as it is set now.
        c.alt_pkey_index = attributes.partition_key_index.unwrap_or(0);
        c.alt_timeout = attributes.timeout.unwrap_or(0);
    }
    if let Some(state) = attributes.path_migration_state {
        c.path_mig_state = migration_to_c(state);
    }
    if let Some(limits) = &attributes.limits {
        c.cap = limits_to_c(limits);
    }
    if let Some(number) = attributes.destination_queue_pair {
        c.dest_qp_num = number.value();
    }
    let mask = attributes.mask() - AttributeMask::CURRENT_STATE - AttributeMask::RATE_LIMIT;
    (c, mask.bits() as c_int)
}

/// What the device answered, as far as it was set before (`given`): the rest of `ibv_qp_attr` is zeros that mean
/// nothing.
pub(crate) fn attributes_from_c(c: &ibv_qp_attr, given: AttributeMask) -> QueuePairAttributes {
    use AttributeMask as M;
    let given = |mask| given.contains(mask);
    let state = state_from_c(c.qp_state);
    QueuePairAttributes {
        state,
        current_state: state,
        send_queue_drained_event: None,
        access: given(M::ACCESS).then_some(Access::from_bits_truncate(c.qp_access_flags)),
        partition_key_index: given(M::PARTITION_KEY_INDEX).then_some(c.pkey_index),
        port: given(M::PORT).then_some(c.port_num),
        queue_key: given(M::QUEUE_KEY).then_some(c.qkey),
        path: given(M::PATH).then(|| path_from_c(&c.ah_attr)),
        path_mtu: if given(M::PATH_MTU) { mtu_from_c(c.path_mtu) } else { None },
        timeout: given(M::TIMEOUT).then_some(c.timeout),
        retry_count: given(M::RETRY_COUNT).then_some(c.retry_cnt),
        receiver_not_ready_retry: given(M::RECEIVER_NOT_READY_RETRY).then_some(c.rnr_retry),
        receive_psn: given(M::RECEIVE_PSN).then_some(c.rq_psn),
        send_psn: given(M::SEND_PSN).then_some(c.sq_psn),
        max_read_atomic: given(M::MAX_READ_ATOMIC).then_some(c.max_rd_atomic),
        max_destination_read_atomic: given(M::MAX_DESTINATION_READ_ATOMIC).then_some(c.max_dest_rd_atomic),
        alternate_path: given(M::ALTERNATE_PATH).then(|| path_from_c(&c.alt_ah_attr)),
        min_receiver_not_ready_timer: given(M::MIN_RECEIVER_NOT_READY_TIMER).then_some(c.min_rnr_timer),
        path_migration_state: if given(M::PATH_MIGRATION_STATE) { migration_from_c(c.path_mig_state) } else { None },
        limits: Some(limits_from_c(&c.cap)),
        destination_queue_pair: given(M::DESTINATION_QUEUE_PAIR).then_some(QueuePairNumber::new(c.dest_qp_num)),
        rate_limit_kilobits_per_second: given(M::RATE_LIMIT).then_some(c.rate_limit),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::{Gid, PathAttributes};

    use super::*;
    use longhaul_verbs_abi as abi;

    /// Everything set, every value another one.
    fn everything() -> QueuePairAttributes {
        let path = PathAttributes { source_gid_index: 3, port: 1, ..PathAttributes::to(Gid([9; 16])) };
        QueuePairAttributes {
            state: Some(QueuePairState::ReadyToSend),
            current_state: Some(QueuePairState::ReadyToSend),
            send_queue_drained_event: Some(true),
            access: Some(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC),
            partition_key_index: Some(101),
            port: Some(2),
            queue_key: Some(0x1111_1111),
            path: Some(path),
            path_mtu: Some(Mtu::Bytes2048),
            timeout: Some(14),
            retry_count: Some(6),
            receiver_not_ready_retry: Some(5),
            receive_psn: Some(0x123456),
            send_psn: Some(0x654321),
            max_read_atomic: Some(8),
            max_destination_read_atomic: Some(9),
            alternate_path: Some(PathAttributes { port: 2, ..path }),
            min_receiver_not_ready_timer: Some(12),
            path_migration_state: Some(PathMigrationState::Armed),
            limits: Some(QueuePairLimits {
                send_requests: 1,
                receive_requests: 2,
                send_entries: 3,
                receive_entries: 4,
                inline_bytes: 5,
            }),
            destination_queue_pair: Some(QueuePairNumber::new(0xabcdef)),
            rate_limit_kilobits_per_second: Some(77),
        }
    }

    #[test]
    fn what_is_told_is_what_is_answered() {
        let set = everything();
        let (c, _) = attributes_to_c(&set);
        let answered = attributes_from_c(&c, AttributeMask::all());
        // Not passed to `ibv_modify_qp`, or not answered by `ibv_query_qp`.
        let expected =
            QueuePairAttributes { send_queue_drained_event: None, rate_limit_kilobits_per_second: Some(0), ..set };
        assert_eq!(answered, expected);
        assert_eq!(c.en_sqd_async_notify, 1);
        assert_eq!((c.alt_port_num, c.alt_pkey_index, c.alt_timeout), (2, 101, 14));
    }

    #[test]
    fn the_mask_has_a_bit_for_each_field_but_two() {
        let (_, mask) = attributes_to_c(&everything());
        assert_eq!(mask & (abi::IBV_QP_CUR_STATE | abi::IBV_QP_RATE_LIMIT), 0);
        let all = AttributeMask::all() - AttributeMask::CURRENT_STATE - AttributeMask::RATE_LIMIT;
        assert_eq!(mask, all.bits() as c_int);
        assert_eq!(attributes_to_c(&QueuePairAttributes::default()).1, 0);
        let (c, mask) = attributes_to_c(&QueuePairAttributes::to_state(QueuePairState::Error));
        assert_eq!((c.qp_state, mask), (abi::IBV_QPS_ERR, abi::IBV_QP_STATE));
    }

    #[test]
    fn what_was_never_told_is_not_answered() {
        let (c, _) = attributes_to_c(&everything());
        let answered = attributes_from_c(&c, AttributeMask::PORT);
        let expected = QueuePairAttributes {
            state: Some(QueuePairState::ReadyToSend),
            current_state: Some(QueuePairState::ReadyToSend),
            port: Some(2),
            limits: everything().limits,
            ..Default::default()
        };
        assert_eq!(answered, expected);
    }

    #[test]
    fn states_and_transports_have_the_headers_numbers() {
        for state in QueuePairState::ALL {
            assert_eq!(state_from_c(state as c_uint), Some(state));
        }
        assert_eq!(state_from_c(7), None);
        for mtu in Mtu::ALL {
            assert_eq!(mtu_from_c(mtu as c_uint), Some(mtu));
        }
        assert_eq!(mtu_from_c(0), None);
        assert_eq!(Transport::ALL.map(transport_to_c), [2, 3, 4].map(Some));
    }
}
