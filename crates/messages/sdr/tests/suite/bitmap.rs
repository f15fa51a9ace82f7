//! What a bitmap costs.

use longhaul_sdr::MessageBitmap;

/// A connection asks at each poll of a receive, so the answer must not take time in proportion to the message.
#[test]
fn how_many_have_arrived_is_known_without_looking_at_all_of_them() {
    // 1 GiB in packets of 4 KiB, chunks of 64 KiB.
    let bitmap = MessageBitmap::new(1 << 18, 16);
    bitmap.record_run(0, 1 << 17);
    bitmap.record_run(5, 40);
    let begun = std::time::Instant::now();
    for _ in 0..100_000 {
        assert_eq!(std::hint::black_box(&bitmap).arrived_packets(), 1 << 17);
    }
    let took = begun.elapsed();
    println!("{} ns a call", took.as_nanos() / 100_000);
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    assert_eq!(bitmap.duplicates(), 40);
}
