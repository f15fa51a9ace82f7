//! What C functions answer, as results.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use longhaul_verbs::PostErrorKind;
use nix::libc::{ENOMEM, ENOSPC};

/// A function that answers 0, or an error number, or -1 with the number in `errno`. The verbs use all of these.
/// Call it right after the function: `errno` does not last.
pub(crate) fn check(answer: c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        number @ 1.. => Err(io::Error::from_raw_os_error(number)),
        // Some drivers answer with the negative number and leave `errno` alone.
        number if number < -1 => Err(io::Error::from_raw_os_error(-number)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A function that answers with an object, or null and `errno`. Call it right after the function.
pub(crate) fn check_pointer<T>(answer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(answer).ok_or_else(io::Error::last_os_error)
}

/// Whether an error says that there is no such function or command, as opposed to "not like this".
pub(crate) fn is_not_supported(error: &io::Error) -> bool {
    use nix::libc::{ENOSYS, EOPNOTSUPP, EPROTONOSUPPORT};
    matches!(error.raw_os_error(), Some(ENOSYS | EOPNOTSUPP | EPROTONOSUPPORT))
}

/// What the driver said when it did not take a request of a queue with room for `depth`.
pub(crate) fn refusal(error: io::Error, depth: u32) -> PostErrorKind {
    if is_full(&error) { PostErrorKind::QueueFull { depth } } else { PostErrorKind::System(error) }
}

/// Drivers have two ways to say that a queue is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ENOMEM | ENOSPC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_come_in_three_forms() {
        assert!(check(0).is_ok());
        assert_eq!(check(22).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(check(-95).unwrap_err().raw_os_error(), Some(95));
        nix::errno::Errno::EBUSY.set();
        assert_eq!(check(-1).unwrap_err().raw_os_error(), Some(nix::libc::EBUSY));
        assert_eq!(check_pointer::<u8>(std::ptr::null_mut()).unwrap_err().raw_os_error(), Some(nix::libc::EBUSY));
    }

    #[test]
    fn what_is_not_there_is_told_from_what_is_refused() {
        assert!(is_not_supported(&io::Error::from_raw_os_error(nix::libc::EOPNOTSUPP)));
        assert!(!is_not_supported(&io::Error::from_raw_os_error(nix::libc::EINVAL)));
    }

    #[test]
    fn a_full_queue_is_told_from_other_refusals() {
        for number in [ENOMEM, ENOSPC] {
            let kind = refusal(io::Error::from_raw_os_error(number), 9);
            assert!(matches!(kind, PostErrorKind::QueueFull { depth: 9 }), "{kind}");
        }
        let kind = refusal(io::Error::from_raw_os_error(nix::libc::EINVAL), 9);
        assert!(matches!(kind, PostErrorKind::System(_)), "{kind}");
    }
}
