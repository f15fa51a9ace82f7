use longhaul_sdr::MessageBitmap;

use super::*;

#[test]
fn of_an_unheard_message_the_last_packet_and_all_behind_it_are_missing() {
    let bitmap = MessageBitmap::new(200, 64);
    let missing = || tidy_packets(missing_of_unheard(Arrivals::new(&bitmap, 200, 64)));
    assert_eq!(missing(), [(0, 200)]);
    bitmap.record(0);
    assert_eq!(missing(), [(0, 200)]);
    bitmap.record_run(1, 70);
    bitmap.record(130);
    assert_eq!(missing(), [(71, 200)]);
    bitmap.record(199);
    assert_eq!(missing(), [(71, 130), (131, 200)]);
    bitmap.record_run(0, 200);
    assert_eq!(missing(), [(199, 200)]);
    assert!(missing_of_unheard(Arrivals::new(&bitmap, 0, 64)).is_empty());
}

pub(super) fn tidy_packets(runs: Vec<Range<u32>>) -> Vec<(u64, u64)> {
    let runs = tidy(runs.into_iter().map(|run| run.start.into()..run.end.into()).collect());
    runs.into_iter().map(|run| (run.start, run.end)).collect()
}
