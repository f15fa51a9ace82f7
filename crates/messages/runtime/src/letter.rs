//! How connections and their driver reach each other.

use std::io;
use std::sync::Arc;

use longhaul_time::Instant;

use crate::end::End;
use crate::shared::Shared;

/// What the driver is told.
pub enum Letter {
    /// Drive this connection.
    Add(Arc<Shared>),
    /// Something has happened on this one.
    Look(u64),
    /// Its lifeline may have ended.
    PeerSaid(u64),
    /// Nobody needs the driver any more.
    Stop,
}

impl Letter {
    /// Nobody reads it: a connection that nobody drives has ended.
    pub fn return_to_sender(self, end: &End) {
        if let Letter::Add(shared) = self {
            shared.let_go(end.clone());
        }
    }
}

/// How a connection reaches its driver, from any thread.
pub trait Letterbox: Send + Sync {
    /// The time that the driver goes by.
    fn now(&self) -> Instant;
    /// Tell the driver. It takes letters in the order in which they were put.
    fn put(&self, letter: Letter);
}

/// Something that ends when the peer's process or host does. It carries nothing.
pub trait Lifeline: Send + Sync {
    /// Have [`Letter::PeerSaid`] put for connection `id` when it may have ended.
    fn watch(&self, id: u64) -> io::Result<()>;
    /// No longer.
    fn watch_no_longer(&self);
    /// Whether it has ended.
    fn has_ended(&self) -> bool;
}
