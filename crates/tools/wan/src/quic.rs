//! QUIC, as quinn implements it, between a [`Sender`] and a [`Receiver`]: bulk, and messages one at a time.
//!
//! Both ends block their callers, and each runs on one thread: call them from two threads or two processes. The receiver
//! makes a certificate in memory; the sender trusts that one and no other, so it must get [`Receiver::certificate`]
//! first.
//!
//! Every stream that the sender opens is answered when its last byte has arrived: whether the contents were right, how
//! many bytes there were, and when the last one arrived. See [`Delivery`] for which clock counts.
//!
//! Nothing waits for ever: [`Settings::silence`] bounds the time without a packet from the other end, [`Settings::limit`]
//! every call.

mod answer;
mod contents;
mod deadline;
mod error;
mod receiver;
mod sender;
mod settings;

pub use answer::Delivery;
pub use error::QuicError;
pub use receiver::{Received, Receiver};
pub use sender::{Amount, Sender, Statistics};
pub use settings::{Congestion, MTU_MAX, MTU_MIN, Settings};
