//! Why a connection has ended.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error_text::with_sources;
use crate::panicked::Panicked;

/// Why a connection has ended.
#[derive(Clone, Debug)]
pub enum End {
    /// This end has closed it.
    Closed,
    /// The other end has, or its process or host has ended.
    PeerClosed,
    /// It has failed.
    Failed(Arc<dyn std::error::Error + Send + Sync>),
}

impl From<Panicked> for End {
    fn from(panicked: Panicked) -> Self {
        End::Failed(Arc::new(panicked))
    }
}

/// Trace it.
pub(crate) fn log_end(peer: SocketAddr, end: &End) {
    match end {
        End::Closed => tracing::info!(%peer, "connection closed"),
        End::PeerClosed => tracing::info!(%peer, "connection closed by the peer"),
        End::Failed(error) => tracing::info!(%peer, "connection failed: {}", with_sources(&**error)),
    }
}
