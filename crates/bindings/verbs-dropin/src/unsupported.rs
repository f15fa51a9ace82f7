//! Calls that are not here yet. They answer "operation not supported", and change nothing: a program may go another way, and
//! nobody believes in something that was not done. Without them the host's libibverbs would get objects that are not its own.

use std::ffi::{c_int, c_void};

use nix::errno::Errno;

use crate::errors::{minus_one, null, number};

/// For calls that return a pointer.
pub(crate) extern "C" fn pointer() -> *mut c_void {
    null(Errno::EOPNOTSUPP)
}

/// For calls that return an error number.
pub(crate) extern "C" fn error() -> c_int {
    number(Errno::EOPNOTSUPP)
}

/// For calls that return -1 and set `errno`.
pub(crate) extern "C" fn failed() -> c_int {
    minus_one(Errno::EOPNOTSUPP)
}

/// For calls that return nothing.
pub(crate) extern "C" fn nothing() {}

/// Registered memory needs no protection from fork here: copies go through the tables of pages of the process that has the
/// device, and no page is pinned. So this call has nothing to do, and that is success.
pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

/// `IBV_FORK_UNNEEDED`, for the same reason.
pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    2
}

/// No promise about the order in which bytes of a message reach memory.
pub(crate) extern "C" fn query_qp_data_in_order() -> c_int {
    0
}
