//! What must hold for any bytes at all: the bodies of fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use longhaul_wire::control::{ControlFrame, FrameWriter, HEADER_BYTES, Header, Record};

use crate::info::QueuePairInfo;

/// Reads the bytes as a control message. What can be read is written again and read as the same.
pub fn control_frame(bytes: &[u8]) {
    let Ok(frame) = ControlFrame::new_checked(bytes) else { return };
    let records: Vec<Record<'_>> = frame.records().filter_map(Result::ok).collect();
    let mut buffer = vec![0xa5; bytes.len().max(HEADER_BYTES)];
    let header = Header::parse(&frame);
    let mut writer = FrameWriter::new(&mut buffer, &header).expect("there is room for a header");
    assert!(records.iter().all(|record| writer.push(record)), "what was read fits where it came from");
    let length = writer.finish();
    let again = ControlFrame::new_checked(&buffer[..length]).expect("what we write can be read");
    assert_eq!(Header::parse(&again), header);
    assert!(again.records().eq(records.into_iter().map(Ok)));
}

/// Reads the bytes as the info of a queue pair. What can be read is written again and read as the same.
pub fn queue_pair_info(bytes: &[u8]) {
    if let Ok(info) = QueuePairInfo::from_bytes(bytes) {
        assert!(info.channels() <= info.data.len());
        assert_eq!(QueuePairInfo::from_bytes(&info.to_bytes()), Ok(info));
    }
}
