//! What must hold for any bytes at all: the bodies of fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use longhaul_wire::acknowledgement::Acknowledgement;
use longhaul_wire::record::Record;

use crate::terms::record_bytes;

/// Reads the bytes as a record, and those of a feedback as an acknowledgement. A record that can be read is written again and read as the same.
pub fn record(bytes: &[u8]) {
    acknowledgement(bytes);
    if let Some((message, record)) = Record::parse(bytes) {
        let again = record_bytes(message, &record);
        assert!(again.len() <= bytes.len());
        assert_eq!(Record::parse(&again), Some((message, record)));
        if let Record::Feedback(feedback) = record {
            acknowledgement(feedback);
        }
    }
}

fn acknowledgement(bytes: &[u8]) {
    if let Some(acknowledgement) = Acknowledgement::parse(bytes) {
        let covered = acknowledgement.covered();
        // What a sender does with it takes time and memory by its size, never by the numbers in it.
        assert!(covered.is_empty() || (covered.end - covered.start) as usize <= bytes.len() * 8);
        assert!(acknowledgement.words().count() <= bytes.len() / 8);
    }
}
