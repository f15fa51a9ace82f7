//! What is refused before the device sees it, and what queries answer.

use longhaul_verbs::{
    AttributeMask, Capabilities, CreateError, ModifyError, Mtu, NotSupported, PathAttributes, PostErrorKind,
    QueuePairAttributes, QueuePairLimits, QueuePairOptions, QueuePairState, SendOperation, SendRequest,
    TransitionError, Transport,
};

use super::{ALL_ACCESS, Bench, Way, bench};
use longhaul_verbs::Access;

const RC: Transport = Transport::ReliableConnection;

#[test]
fn objects_of_another_opening_of_the_device_are_foreign() {
    let Some(bench) = bench("objects_of_another_opening_of_the_device_are_foreign") else { return };
    let other = Bench::open(bench.device.name());
    let options = QueuePairOptions::default();
    let created = bench.domain.create_queue_pair(RC, &other.queue, &bench.queue, &options);
    assert!(matches!(created.err(), Some(CreateError::ForeignObject { what: "send completion queue" })));
    let created = bench.domain.create_queue_pair(RC, &bench.queue, &other.queue, &options);
    assert!(matches!(created.err(), Some(CreateError::ForeignObject { what: "receive completion queue" })));
}

#[test]
fn more_than_the_device_has_is_refused() {
    let Some(bench) = bench("more_than_the_device_has_is_refused") else { return };
    let good = QueuePairLimits::default();
    let bad = [
        QueuePairLimits { send_requests: u32::MAX, ..good },
        QueuePairLimits { receive_requests: u32::MAX, ..good },
        QueuePairLimits { send_entries: u32::MAX, ..good },
        QueuePairLimits { receive_entries: u32::MAX, ..good },
    ];
    for limits in bad {
        let options = QueuePairOptions { limits, ..Default::default() };
        let created = bench.domain.create_queue_pair(RC, &bench.queue, &bench.queue, &options);
        assert!(matches!(created.err(), Some(CreateError::TooMany { .. })), "{limits:?}");
    }
    let limits = QueuePairLimits { inline_bytes: 1 << 30, ..good };
    let options = QueuePairOptions { limits, ..Default::default() };
    assert!(bench.domain.create_queue_pair(RC, &bench.queue, &bench.queue, &options).is_err());
}

#[test]
fn states_are_the_diagrams() {
    let Some(bench) = bench("states_are_the_diagrams") else { return };
    for way in super::BOTH_WAYS {
        let end = bench.end(RC, way);
        let queue_pair = end.raw();
        assert_eq!(queue_pair.state(), QueuePairState::Reset);
        let entry = [end.region.entry(0..8)];
        let request = SendRequest::new(1, SendOperation::Send, &entry);
        let error = end.try_post(&[request]).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::InvalidState { state: QueuePairState::Reset }), "{error}");
        let init = QueuePairAttributes::init_connected(ALL_ACCESS - Access::WINDOW_BIND);
        let missing = QueuePairAttributes { port: None, ..init.clone() };
        let error = queue_pair.modify(&missing).unwrap_err();
        let expected = AttributeMask::PORT;
        assert!(
            matches!(error, ModifyError::Transition(TransitionError::Attributes { missing, .. }) if missing == expected),
            "{error}"
        );
        queue_pair.modify(&init).unwrap();
        assert_eq!(queue_pair.state(), QueuePairState::Initialized);
        let error = end.try_post(&[request]).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::InvalidState { state: QueuePairState::Initialized }), "{error}");
        let wrong = QueuePairAttributes { current_state: Some(QueuePairState::ReadyToSend), ..init.clone() };
        let error = queue_pair.modify(&QueuePairAttributes { state: None, ..wrong }).unwrap_err();
        assert!(matches!(error, ModifyError::CurrentState { .. }), "{error}");
    }
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let Some(bench) = bench("values_that_cannot_be_are_refused_by_name") else { return };
    let peer = bench.end(RC, Way::Lists);
    let end = bench.end(RC, Way::Lists);
    end.raw().modify(&QueuePairAttributes::init_connected(Access::empty())).unwrap();
    let good = QueuePairAttributes::ready_to_receive(bench.path, Mtu::Bytes1024, peer.raw().number(), 0)
        .reliable_receive(1, 12);
    let group = longhaul_verbs::Gid::from_ip("239.0.0.1".parse().unwrap());
    let path = |path| QueuePairAttributes { path: Some(path), ..good.clone() };
    let bad = [
        (path(PathAttributes { port: 7, ..bench.path }), AttributeMask::PATH),
        (path(PathAttributes { source_gid_index: 201, ..bench.path }), AttributeMask::PATH),
        (path(PathAttributes { destination: group, ..bench.path }), AttributeMask::PATH),
        (QueuePairAttributes { receive_psn: Some(1 << 24), ..good.clone() }, AttributeMask::RECEIVE_PSN),
        (
            QueuePairAttributes { max_destination_read_atomic: Some(255), ..good.clone() },
            AttributeMask::MAX_DESTINATION_READ_ATOMIC,
        ),
    ];
    for (attributes, named) in bad {
        match end.raw().modify(&attributes) {
            Err(ModifyError::InvalidValue { attribute, .. }) => assert_eq!(attribute, named),
            other => panic!("{named:?}: {other:?}"),
        }
    }
    let elsewhere = path(PathAttributes { udp_port: 9999, ..bench.path });
    let refused = end.raw().modify(&elsewhere);
    let expected = NotSupported { capability: Capabilities::FREE_UDP_PORT };
    assert!(matches!(refused, Err(ModifyError::NotSupported(said)) if said == expected), "{refused:?}");
    end.raw().modify(&good).unwrap();
}

#[test]
fn what_was_told_is_answered() {
    let Some(bench) = bench("what_was_told_is_answered") else { return };
    let [from, to] = bench.pair(RC, Way::Calls);
    let answer = from.raw().query().unwrap();
    assert_eq!(answer.state, Some(QueuePairState::ReadyToSend));
    assert_eq!(answer.destination_queue_pair, Some(to.raw().number()));
    assert_eq!(answer.path_mtu, Some(Mtu::Bytes1024));
    let path = answer.path.expect("the path");
    assert_eq!(path.destination, bench.path.destination);
    assert_eq!(path.source_gid_index, bench.path.source_gid_index);
    assert_eq!((answer.retry_count, answer.receiver_not_ready_retry, answer.timeout), (Some(7), Some(7), Some(14)));
    assert_eq!((answer.max_read_atomic, answer.max_destination_read_atomic), (Some(4), Some(4)));
    let limits = answer.limits.unwrap();
    let asked = QueuePairLimits::default();
    assert!(limits.send_requests >= asked.send_requests && limits.inline_bytes >= asked.inline_bytes, "{limits:?}");
    assert!(limits.send_entries >= asked.send_entries && limits.receive_entries >= asked.receive_entries);
    assert_eq!(answer.queue_key, None);
    let fresh = bench.end(RC, Way::Calls).raw().query().unwrap();
    assert_eq!((fresh.path, fresh.port, fresh.state), (None, None, Some(QueuePairState::Reset)));
}
