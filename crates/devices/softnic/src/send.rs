//! The sending halves of the transports: packets from requests, and what comes back of them.

pub(crate) mod packet;
pub(crate) mod rc;
pub(crate) mod rc_completer;
pub(crate) mod uc;
pub(crate) mod ud;
