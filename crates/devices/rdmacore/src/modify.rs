//! What can be said against a change of a queue pair before a device sees it. The kernel says "invalid argument" to all
//! of it; devices of all kinds give the same answers here.

use longhaul_verbs::{
    AttributeMask, Capabilities, ModifyError, NotSupported, QueuePairAttributes, QueuePairState, Transport,
    check_transition,
};

use crate::attributes::positive;
use crate::domain::Domain;
use crate::path::{has_free_udp_port, source_fits};

/// Timers are five-bit codes, retry counts three-bit ones (IBTA 9.7.6.1.3, 9.9.2.4.1).
const TIMER_MAX: u8 = 31;
const RETRY_MAX: u8 = 7;
/// Sequence numbers have 24 bits.
const PSN_COUNT: u32 = 1 << 24;

/// Check the step of the state diagram from the state that the queue pair is in, and the values.
pub(crate) fn check_values(
    domain: &Domain,
    transport: Transport,
    from: QueuePairState,
    attributes: &QueuePairAttributes,
) -> Result<(), ModifyError> {
    if let Some(believed) = attributes.current_state
        && believed != from
    {
        return Err(ModifyError::CurrentState { believed, actual: from });
    }
    check_transition(transport, from, attributes.state.unwrap_or(from), attributes.mask())?;
    check_ranges(
        attributes,
        positive(domain.attributes().max_qp_init_rd_atom),
        positive(domain.attributes().max_qp_rd_atom),
    )?;
    let refuse = |attribute, expected| Err(ModifyError::InvalidValue { attribute, expected });
    use AttributeMask as M;
    let ports = 1..=domain.attributes().phys_port_cnt;
    if attributes.port.is_some_and(|port| !ports.contains(&port)) {
        return refuse(M::PORT, "a port of the device, from 1 on");
    }
    for (mask, path) in [(M::PATH, attributes.path), (M::ALTERNATE_PATH, attributes.alternate_path)] {
        let Some(path) = path else { continue };
        if has_free_udp_port(&path) {
            return Err(NotSupported { capability: Capabilities::FREE_UDP_PORT }.into());
        }
        if !ports.contains(&path.port) {
            return refuse(mask, "a port of the device, from 1 on");
        }
        if !source_fits(domain.context(), &path) {
            return refuse(mask, "a source GID index whose address is of the destination's family");
        }
        if path.destination.is_multicast() {
            return refuse(mask, "a single peer, not a multicast group");
        }
    }
    if let (Some(mtu), Some(path)) = (attributes.path_mtu, attributes.path) {
        // Soft-RoCE would send packets that do not fit the link.
        let active = domain.context().query_port(path.port).map(|port| port.active_mtu);
        if active.is_ok_and(|active| mtu as u32 > active) {
            return refuse(M::PATH_MTU, "at most the port's active MTU");
        }
    }
    Ok(())
}

fn check_ranges(attributes: &QueuePairAttributes, read_atomic: u32, destination: u32) -> Result<(), ModifyError> {
    use AttributeMask as M;
    let refuse = |attribute, expected| Err(ModifyError::InvalidValue { attribute, expected });
    let codes = [
        (M::TIMEOUT, attributes.timeout, TIMER_MAX),
        (M::MIN_RECEIVER_NOT_READY_TIMER, attributes.min_receiver_not_ready_timer, TIMER_MAX),
        (M::RETRY_COUNT, attributes.retry_count, RETRY_MAX),
        (M::RECEIVER_NOT_READY_RETRY, attributes.receiver_not_ready_retry, RETRY_MAX),
    ];
    for (attribute, value, most) in codes {
        if value.is_some_and(|value| value > most) {
            return refuse(attribute, if most == TIMER_MAX { "0 to 31" } else { "0 to 7" });
        }
    }
    let resources = [
        (M::MAX_READ_ATOMIC, attributes.max_read_atomic, read_atomic),
        (M::MAX_DESTINATION_READ_ATOMIC, attributes.max_destination_read_atomic, destination),
    ];
    for (attribute, value, most) in resources {
        if value.is_some_and(|value| u32::from(value) > most) {
            return refuse(attribute, "at most what the device's attributes say");
        }
    }
    for (attribute, value) in [(M::RECEIVE_PSN, attributes.receive_psn), (M::SEND_PSN, attributes.send_psn)] {
        if value.is_some_and(|value| value >= PSN_COUNT) {
            return refuse(attribute, "24 bits");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(attributes: &QueuePairAttributes) -> Option<AttributeMask> {
        match check_ranges(attributes, 8, 16) {
            Ok(()) => None,
            Err(ModifyError::InvalidValue { attribute, .. }) => Some(attribute),
            Err(other) => panic!("expected InvalidValue, got {other}"),
        }
    }

    #[test]
    fn codes_have_their_ranges() {
        let good = QueuePairAttributes {
            timeout: Some(31),
            min_receiver_not_ready_timer: Some(31),
            retry_count: Some(7),
            receiver_not_ready_retry: Some(7),
            max_read_atomic: Some(8),
            max_destination_read_atomic: Some(16),
            receive_psn: Some(0xff_ffff),
            send_psn: Some(0xff_ffff),
            ..Default::default()
        };
        use AttributeMask as M;
        assert_eq!(refused(&good), None);
        let of = |attributes: QueuePairAttributes| refused(&attributes);
        assert_eq!(of(QueuePairAttributes { timeout: Some(32), ..good.clone() }), Some(M::TIMEOUT));
        let bad = QueuePairAttributes { min_receiver_not_ready_timer: Some(32), ..good.clone() };
        assert_eq!(of(bad), Some(M::MIN_RECEIVER_NOT_READY_TIMER));
        assert_eq!(of(QueuePairAttributes { retry_count: Some(8), ..good.clone() }), Some(M::RETRY_COUNT));
        let bad = QueuePairAttributes { receiver_not_ready_retry: Some(8), ..good.clone() };
        assert_eq!(of(bad), Some(M::RECEIVER_NOT_READY_RETRY));
        assert_eq!(of(QueuePairAttributes { max_read_atomic: Some(9), ..good.clone() }), Some(M::MAX_READ_ATOMIC));
        let bad = QueuePairAttributes { max_destination_read_atomic: Some(17), ..good.clone() };
        assert_eq!(of(bad), Some(M::MAX_DESTINATION_READ_ATOMIC));
        assert_eq!(of(QueuePairAttributes { receive_psn: Some(1 << 24), ..good.clone() }), Some(M::RECEIVE_PSN));
        assert_eq!(of(QueuePairAttributes { send_psn: Some(1 << 24), ..good }), Some(M::SEND_PSN));
    }
}
