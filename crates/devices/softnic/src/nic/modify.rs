//! `modify` and `query` of queue pairs: the state diagram, and what each attribute may be.

use longhaul_verbs::{
    AttributeMask, ModifyError, QueryError, QueuePairAttributes, QueuePairNumber, QueuePairState, Transport,
    check_transition,
};
use longhaul_wire::Psn;

use crate::config::Config;
use crate::nic::Nic;
use crate::queue_pair::QueuePairKey;

/// Timers are five-bit codes, retry counts three-bit ones (IBTA 9.7.6.1.3, 9.9.2.4.1).
const TIMER_MAX: u8 = 31;
const RETRY_MAX: u8 = 7;

impl Nic {
    /// Change a queue pair, whole or not at all.
    pub(crate) fn modify_queue_pair(
        &mut self,
        key: QueuePairKey,
        attributes: &QueuePairAttributes,
    ) -> Result<(), ModifyError> {
        let config = &self.shared.config;
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return Err(ModifyError::Gone);
        };
        let (from, transport) = (queue_pair.state(), queue_pair.identity().transport);
        if let Some(believed) = attributes.current_state
            && believed != from
        {
            return Err(ModifyError::CurrentState { believed, actual: from });
        }
        let to = attributes.state.unwrap_or(from);
        check_transition(transport, from, to, attributes.mask())?;
        check_values(attributes, config, transport)?;

        if to == QueuePairState::Reset {
            self.leave_peer(key);
            if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
                queue_pair.return_receive(&mut self.shared);
                queue_pair.reset();
            }
            // Others may have waited for what it had in flight to a common peer.
            self.has_news = true;
            return Ok(());
        }
        let has_new_path = attributes.path.is_some_and(|path| queue_pair.settings().path().is_some_and(|p| *p != path));
        queue_pair.configure(attributes, to);
        if let Some(first) = attributes.receive_psn {
            queue_pair.start_receiving(Psn::new(first));
        }
        if let Some(first) = attributes.send_psn {
            queue_pair.start_sending(Psn::new(first));
        }
        // RC answers READs as soon as it is ready to receive.
        let is_starting = from != to
            && matches!(to, QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend)
            && from != QueuePairState::SendQueueDrained;
        if has_new_path {
            queue_pair.renew_pacing_for_path(config);
        }
        // A controller that was given by hand before the start stays.
        if attributes.rate_limit_kilobits_per_second.is_some() || is_starting && !queue_pair.is_paced() {
            queue_pair.want_pacing();
        }
        match to {
            QueuePairState::Error => queue_pair.enter_error(&mut self.shared),
            _ => queue_pair.set_state(to),
        }
        queue_pair.report_drained(&mut self.shared);
        if attributes.path.is_some() && transport == Transport::ReliableConnection {
            self.join_peer(key);
        }
        self.settle_with_peer(key);
        self.resume(key);
        Ok(())
    }

    /// Everything that can be told of a queue pair. Sequence numbers are those of now, as with rxe and mlx5.
    pub(crate) fn query_queue_pair(&self, key: QueuePairKey) -> Result<QueuePairAttributes, QueryError> {
        let queue_pair = self.queue_pairs.get(key).ok_or(QueryError::Gone)?;
        let settings = queue_pair.settings();
        let given = |mask| settings.given.contains(mask);
        use AttributeMask as M;
        Ok(QueuePairAttributes {
            state: Some(queue_pair.state()),
            current_state: Some(queue_pair.state()),
            send_queue_drained_event: None,
            access: given(M::ACCESS).then_some(settings.access),
            partition_key_index: given(M::PARTITION_KEY_INDEX).then_some(0),
            port: given(M::PORT).then_some(1),
            queue_key: given(M::QUEUE_KEY).then_some(settings.queue_key),
            path: settings.path().copied(),
            path_mtu: given(M::PATH_MTU).then_some(settings.mtu),
            timeout: given(M::TIMEOUT).then_some(settings.timeout),
            retry_count: given(M::RETRY_COUNT).then_some(settings.retry_count),
            receiver_not_ready_retry: given(M::RECEIVER_NOT_READY_RETRY).then_some(settings.receiver_not_ready_retry),
            receive_psn: given(M::RECEIVE_PSN).then_some(queue_pair.responder().expected_psn().value()),
            send_psn: given(M::SEND_PSN).then_some(queue_pair.next_psn().value()),
            max_read_atomic: given(M::MAX_READ_ATOMIC).then_some(settings.max_read_atomic),
            max_destination_read_atomic: given(M::MAX_DESTINATION_READ_ATOMIC)
                .then_some(settings.max_destination_read_atomic),
            alternate_path: None,
            min_receiver_not_ready_timer: given(M::MIN_RECEIVER_NOT_READY_TIMER)
                .then_some(settings.min_receiver_not_ready_timer),
            path_migration_state: None,
            limits: Some(queue_pair.identity().limits.to_verbs()),
            destination_queue_pair: given(M::DESTINATION_QUEUE_PAIR)
                .then_some(QueuePairNumber::new(settings.destination_queue_pair)),
            rate_limit_kilobits_per_second: given(M::RATE_LIMIT).then_some(settings.rate_limit_kilobits_per_second),
        })
    }
}

fn check_values(attributes: &QueuePairAttributes, config: &Config, transport: Transport) -> Result<(), ModifyError> {
    use AttributeMask as M;
    let refuse = |attribute, expected| Err(ModifyError::InvalidValue { attribute, expected });
    if attributes.port.is_some_and(|port| port != 1) {
        return refuse(M::PORT, "1, the only port");
    }
    if attributes.partition_key_index.is_some_and(|index| index != 0) {
        return refuse(M::PARTITION_KEY_INDEX, "0, the only partition");
    }
    if attributes.path_mtu.is_some_and(|mtu| mtu > config.mtu) {
        return refuse(M::PATH_MTU, "at most the port's active MTU");
    }
    if attributes.alternate_path.is_some() || attributes.path_migration_state.is_some() {
        return refuse(M::ALTERNATE_PATH | M::PATH_MIGRATION_STATE, "no alternate path: not supported by this device");
    }
    if let Some(path) = attributes.path {
        if path.port != 1 {
            return refuse(M::PATH, "port 1, the only port");
        }
        let source = config.addresses.get(usize::from(path.source_gid_index));
        let destination = path.destination.to_ip();
        if source.is_none_or(|source| source.is_ipv4() != destination.is_ipv4()) {
            return refuse(M::PATH, "a source GID index whose address is of the destination's family");
        }
        if transport != Transport::UnreliableDatagram && path.destination.is_multicast() {
            return refuse(M::PATH, "a single peer, not a multicast group");
        }
    }
    let timers = [
        (M::TIMEOUT, attributes.timeout, TIMER_MAX),
        (M::MIN_RECEIVER_NOT_READY_TIMER, attributes.min_receiver_not_ready_timer, TIMER_MAX),
        (M::RETRY_COUNT, attributes.retry_count, RETRY_MAX),
        (M::RECEIVER_NOT_READY_RETRY, attributes.receiver_not_ready_retry, RETRY_MAX),
    ];
    for (attribute, value, most) in timers {
        if value.is_some_and(|value| value > most) {
            return refuse(attribute, if most == TIMER_MAX { "0 to 31" } else { "0 to 7" });
        }
    }
    let resources = [
        (M::MAX_READ_ATOMIC, attributes.max_read_atomic),
        (M::MAX_DESTINATION_READ_ATOMIC, attributes.max_destination_read_atomic),
    ];
    for (attribute, value) in resources {
        if value.is_some_and(|value| value > config.read_atomic_max) {
            return refuse(attribute, "at most what the device's attributes say");
        }
    }
    for (attribute, value) in [(M::RECEIVE_PSN, attributes.receive_psn), (M::SEND_PSN, attributes.send_psn)] {
        if value.is_some_and(|value| value >= Psn::COUNT) {
            return refuse(attribute, "24 bits");
        }
    }
    Ok(())
}
