//! Attributes of queue pairs, from C's form and back.

use std::ffi::{c_int, c_uint};

use longhaul_verbs::{
    Access, AttributeMask, Gid, Mtu, PathAttributes, PathMigrationState, QueuePairAttributes, QueuePairLimits,
    QueuePairNumber, QueuePairState, Transport,
};
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

/// The transports whose queue pairs can be made here; `None` for all others.
pub(crate) fn transport(number: c_uint) -> Option<Transport> {
    match number {
        abi::IBV_QPT_RC => Some(Transport::ReliableConnection),
        abi::IBV_QPT_UC => Some(Transport::UnreliableConnection),
        abi::IBV_QPT_UD => Some(Transport::UnreliableDatagram),
        _ => None,
    }
}

pub(crate) fn limits(cap: &ibv_qp_cap) -> QueuePairLimits {
    QueuePairLimits {
        send_requests: cap.max_send_wr,
        receive_requests: cap.max_recv_wr,
        send_entries: cap.max_send_sge,
        receive_entries: cap.max_recv_sge,
        inline_bytes: cap.max_inline_data,
    }
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

pub(crate) fn state(number: c_uint) -> Option<QueuePairState> {
    QueuePairState::ALL.into_iter().find(|known| *known as c_uint == number)
}

fn mtu(number: c_uint) -> Option<Mtu> {
    Mtu::ALL.into_iter().find(|known| *known as c_uint == number)
}

fn migration(number: c_uint) -> Option<PathMigrationState> {
    match number {
        abi::IBV_MIG_MIGRATED => Some(PathMigrationState::Migrated),
        abi::IBV_MIG_REARM => Some(PathMigrationState::Rearm),
        abi::IBV_MIG_ARMED => Some(PathMigrationState::Armed),
        _ => None,
    }
}

/// `None` without a global route: RoCE has no other.
pub(crate) fn path(attributes: &ibv_ah_attr, port: u8) -> Option<PathAttributes> {
    let route = &attributes.grh;
    (attributes.is_global != 0).then(|| PathAttributes {
        source_gid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        port,
        service_level: attributes.sl,
        static_rate: attributes.static_rate,
        destination_lid: attributes.dlid,
        source_path_bits: attributes.src_path_bits,
        ..PathAttributes::to(Gid(route.dgid.raw))
    })
}

fn path_to_c(path: &PathAttributes) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: path.destination.0 },
            flow_label: path.flow_label,
            sgid_index: path.source_gid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.destination_lid,
        sl: path.service_level,
        src_path_bits: path.source_path_bits,
        static_rate: path.static_rate,
        is_global: 1,
        port_num: path.port,
    }
}

/// What the program sets. `None` if a value that the mask names is none that there is, or the mask has unknown bits.
pub(crate) fn given(c: &ibv_qp_attr, mask: c_int) -> Option<QueuePairAttributes> {
    use AttributeMask as M;
    let mask = AttributeMask::from_bits(u32::try_from(mask).ok()?)?;
    let has = |bit| mask.contains(bit);
    /// The value if the mask has the bit; the whole answer is `None` if there is no such value.
    macro_rules! checked {
        ($bit:expr, $value:expr) => {
            if has($bit) { Some($value?) } else { None }
        };
    }
    Some(QueuePairAttributes {
        state: checked!(M::STATE, state(c.qp_state)),
        current_state: checked!(M::CURRENT_STATE, state(c.cur_qp_state)),
        send_queue_drained_event: has(M::SEND_QUEUE_DRAINED_EVENT).then_some(c.en_sqd_async_notify != 0),
        access: checked!(M::ACCESS, Access::from_bits(c.qp_access_flags)),
        partition_key_index: has(M::PARTITION_KEY_INDEX).then_some(c.pkey_index),
        port: has(M::PORT).then_some(c.port_num),
        queue_key: has(M::QUEUE_KEY).then_some(c.qkey),
        path: checked!(M::PATH, path(&c.ah_attr, c.ah_attr.port_num)),
        path_mtu: checked!(M::PATH_MTU, mtu(c.path_mtu)),
        timeout: has(M::TIMEOUT).then_some(c.timeout),
        retry_count: has(M::RETRY_COUNT).then_some(c.retry_cnt),
        receiver_not_ready_retry: has(M::RECEIVER_NOT_READY_RETRY).then_some(c.rnr_retry),
        receive_psn: has(M::RECEIVE_PSN).then_some(c.rq_psn & 0xff_ffff),
        send_psn: has(M::SEND_PSN).then_some(c.sq_psn & 0xff_ffff),
        max_read_atomic: has(M::MAX_READ_ATOMIC).then_some(c.max_rd_atomic),
        max_destination_read_atomic: has(M::MAX_DESTINATION_READ_ATOMIC).then_some(c.max_dest_rd_atomic),
        alternate_path: checked!(M::ALTERNATE_PATH, path(&c.alt_ah_attr, c.alt_port_num)),
        min_receiver_not_ready_timer: has(M::MIN_RECEIVER_NOT_READY_TIMER).then_some(c.min_rnr_timer),
        path_migration_state: checked!(M::PATH_MIGRATION_STATE, migration(c.path_mig_state)),
        limits: has(M::LIMITS).then(|| limits(&c.cap)),
        destination_queue_pair: has(M::DESTINATION_QUEUE_PAIR).then_some(QueuePairNumber::new(c.dest_qp_num)),
        rate_limit_kilobits_per_second: has(M::RATE_LIMIT).then_some(c.rate_limit),
    })
}

/// What the device answers, in C's form.
pub(crate) fn answered(ours: &QueuePairAttributes) -> ibv_qp_attr {
    let mut c = ibv_qp_attr::zeroed();
    let state = ours.state.unwrap_or_default() as c_uint;
    (c.qp_state, c.cur_qp_state) = (state, state);
    c.path_mtu = ours.path_mtu.map_or(0, |mtu| mtu as c_uint);
    c.path_mig_state = match ours.path_migration_state {
        Some(PathMigrationState::Rearm) => abi::IBV_MIG_REARM,
        Some(PathMigrationState::Armed) => abi::IBV_MIG_ARMED,
        _ => abi::IBV_MIG_MIGRATED,
    };
    c.qkey = ours.queue_key.unwrap_or(0);
    c.rq_psn = ours.receive_psn.unwrap_or(0);
    c.sq_psn = ours.send_psn.unwrap_or(0);
    c.dest_qp_num = ours.destination_queue_pair.unwrap_or_default().value();
    c.qp_access_flags = ours.access.unwrap_or_default().bits();
    c.cap = ours.limits.as_ref().map_or(ibv_qp_cap::zeroed(), limits_to_c);
    if let Some(path) = &ours.path {
        c.ah_attr = path_to_c(path);
    }
    if let Some(path) = &ours.alternate_path {
        (c.alt_ah_attr, c.alt_port_num) = (path_to_c(path), path.port);
    }
    c.pkey_index = ours.partition_key_index.unwrap_or(0);
    c.en_sqd_async_notify = ours.send_queue_drained_event.unwrap_or(false).into();
    c.max_rd_atomic = ours.max_read_atomic.unwrap_or(0);
    c.max_dest_rd_atomic = ours.max_destination_read_atomic.unwrap_or(0);
    c.min_rnr_timer = ours.min_receiver_not_ready_timer.unwrap_or(0);
    c.port_num = ours.port.unwrap_or(0);
    c.timeout = ours.timeout.unwrap_or(0);
    c.retry_cnt = ours.retry_count.unwrap_or(0);
    c.rnr_retry = ours.receiver_not_ready_retry.unwrap_or(0);
    c.rate_limit = ours.rate_limit_kilobits_per_second.unwrap_or(0);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> QueuePairAttributes {
        let path = PathAttributes { source_gid_index: 3, traffic_class: 4, ..PathAttributes::to(Gid([9; 16])) };
        QueuePairAttributes::ready_to_receive(path, Mtu::Bytes2048, QueuePairNumber::new(0xabcdef), 0x123456)
            .reliable_receive(9, 12)
    }

    #[test]
    fn what_is_set_is_what_is_answered() {
        let set = everything();
        let mask = set.mask().bits() as c_int;
        assert_eq!(given(&answered(&set), mask), Some(set));
        assert_eq!(given(&ibv_qp_attr::zeroed(), 0), Some(QueuePairAttributes::default()));
    }

    #[test]
    fn values_and_masks_that_there_are_not_are_refused() {
        let c = answered(&everything());
        assert_eq!(given(&c, 1 << 30), None);
        assert_eq!(given(&c, -1), None);
        assert_eq!(given(&ibv_qp_attr { path_mtu: 9, ..c }, abi::IBV_QP_PATH_MTU), None);
        assert_eq!(given(&ibv_qp_attr { qp_state: 9, ..c }, abi::IBV_QP_STATE), None);
        let local = ibv_qp_attr { ah_attr: ibv_ah_attr { is_global: 0, ..c.ah_attr }, ..c };
        assert_eq!(given(&local, abi::IBV_QP_AV), None);
        assert_eq!([2, 3, 4, 8].map(transport).map(|found| found.is_some()), [true, true, true, false]);
    }
}
