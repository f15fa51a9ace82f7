//! The receiving halves of the transports: packets into memory, and answers to them.

pub(crate) mod message;
pub(crate) mod rc;
pub(crate) mod rc_responses;
pub(crate) mod uc;
pub(crate) mod ud;
