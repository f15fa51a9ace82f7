//! Memory windows as verbs programs see them.

use longhaul_verbs::{Capabilities, NotSupported, PostErrorKind, WindowRequest};

use crate::memory::WindowBind;

/// The request to bind a type 2 window under a key, for the device with this serial number.
pub(crate) fn window_bind(
    _device_serial: u64,
    _request: &WindowRequest<'_>,
    _key: u32,
) -> Result<WindowBind, PostErrorKind> {
    Err(NotSupported { capability: Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B }.into())
}
