//! What must hold for any bytes at all: the bodies of fuzz targets, and of the ordinary tests over their corpus.
//!
//! Hidden from the documentation; not part of the API.

use longhaul_wire::handshake::Message;

use crate::carrier::to_bytes;
use crate::handle::ListenHandle;

/// Reads the bytes as a message of the handshake, and as a listener's handle. What can be read is written again and
/// read as the same.
pub fn handshake(bytes: &[u8]) {
    if let Ok(message) = Message::parse(bytes) {
        assert_eq!(Message::parse(&to_bytes(&message)), Ok(message));
    }
    if let Ok(handle) = ListenHandle::from_bytes(bytes) {
        assert_eq!(ListenHandle::from_bytes(&handle.to_bytes()), Ok(handle));
    }
}
