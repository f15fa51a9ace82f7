//! Runs the body of the fuzz target `handshake` without a fuzzer: over the corpus that is kept, and over the same bytes
//! cut off and changed.

use std::path::Path;

use longhaul::fuzzing::handshake;

#[test]
fn no_bytes_of_a_handshake_do_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/handshake");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files = 0;
    for entry in entries {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        handshake(&bytes);
        for place in 0..bytes.len() {
            handshake(&bytes[..place]);
            for value in [0, 1, 0x7f, 0xff, !bytes[place]] {
                let mut changed = bytes.clone();
                changed[place] = value;
                handshake(&changed);
            }
        }
        files += 1;
    }
    assert!(files >= 4, "{} has {files} files", folder.display());
}
