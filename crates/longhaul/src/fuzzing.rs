//! What must hold for any bytes at all: the bodies of fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use crate::handle::ListenHandle;
use crate::handshake_bytes::{Hello, Info, Reply};

/// Reads the bytes as each message of the handshake, and as a listener's handle. What can be read is written again and read as the same.
pub fn handshake(bytes: &[u8]) {
    if let Ok(hello) = Hello::from_bytes(bytes) {
        assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
    }
    if let Ok(reply) = Reply::from_bytes(bytes) {
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
    }
    if let Ok(info) = Info::from_bytes(bytes) {
        assert_eq!(Info::from_bytes(&info.to_bytes()), Ok(info));
    }
    if let Ok(handle) = ListenHandle::from_bytes(bytes) {
        assert_eq!(ListenHandle::from_bytes(&handle.to_bytes()), Ok(handle));
    }
}
