//! What is repeated is what was lost, and hardly anything else.

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::ConnectionCounters;
use longhaul_scheme_testing::end_to_end::{Case, Ground, GroundOptions, VirtualGround, run_case, scheme_by_name};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;

const MESSAGES: usize = 12;
const MESSAGE_BYTES: usize = 2 << 20;

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_millis(1)).with_rate_bits_per_second(10_000_000_000)
}

/// What both ends counted, and the packets of data and parity that were lost.
fn run(scheme: &str, link: Profile, chunk_bytes: u32) -> (ConnectionCounters, ConnectionCounters, u64) {
    let options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes,
        receive_depth: 8192,
        ..GroundOptions::new(link, 4 * MESSAGE_BYTES)
    };
    let mut ground = VirtualGround::with_scheme(&options, scheme_by_name(scheme).expect("a scheme"));
    let case = Case { in_flight: 4, ..Case::new(MESSAGES, MESSAGE_BYTES) };
    run_case(&mut ground, &case).unwrap_or_else(|error| panic!("{scheme}: {error}"));
    // What is in flight arrives.
    let end = ground.now() + Duration::from_millis(20);
    ground.run_until(end).expect("the ends work");
    let (sender, _) = ground.sender();
    let (sent, (writes, ..)) = (sender.counters(), sender.queue_pair().counters());
    let (receiver, _) = ground.receiver();
    let (received, (_, arrived, _)) = (receiver.counters(), receiver.queue_pair().counters());
    (sent, received, writes.writes - arrived.arrived)
}

#[test]
fn packets_are_repeated_not_chunks() {
    let lossy = link().with_loss(Loss::Independent { probability: 0.01 });
    for (scheme, chunk_bytes) in [("sr:nack", 1024), ("sr:nack", 64 << 10), ("sr:rto", 1024), ("sr:rto", 64 << 10)] {
        let (sent, received, lost) = run(scheme, lossy.clone(), chunk_bytes);
        let repeated = sent.data_packets_repeated;
        println!("{scheme}, chunks of {chunk_bytes}: {lost} lost, {repeated} repeated, {received:?}");
        assert!(lost > 100, "{scheme}: {lost} packets lost");
        assert!(2 * repeated <= 3 * lost, "{scheme}, chunks of {chunk_bytes}: {lost} lost, {repeated} repeated");
    }
}

#[test]
fn hardly_anything_comes_twice_on_a_clean_path() {
    let jittery = link().with_jitter(Duration::from_micros(200), true);
    let links = [("clean", link()), ("jittery", jittery)];
    for (scheme, chunk_bytes) in [("sr:nack", 1024), ("sr:nack", 64 << 10), ("sr:rto", 1024), ("ec:mds:32,8", 1024)] {
        for (name, link) in &links {
            let (sent, received, lost) = run(scheme, link.clone(), chunk_bytes);
            println!("{scheme}, {name}, chunks of {chunk_bytes}: {lost} lost, {sent:?}, {received:?}");
            assert_eq!(lost, 0, "{scheme}, {name}");
            let most = sent.data_packets_sent / 1000;
            assert!(sent.data_packets_repeated <= most, "{scheme}, {name}, chunks of {chunk_bytes}: {sent:?}");
            assert!(received.duplicate_packets <= most, "{scheme}, {name}, chunks of {chunk_bytes}: {received:?}");
        }
    }
}
