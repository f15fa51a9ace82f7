//! Our errors as `errno`, and how C calls report them.

use std::io;

use longhaul_verbs::{
    CreateError, DestroyError, EventError, ModifyError, PollError, PostErrorKind, QueryError, RegisterError,
};
use nix::errno::Errno;

/// Set `errno` and answer with nothing, as calls do that return a pointer.
pub(crate) fn null<T>(error: impl Into<Number>) -> *mut T {
    set(error);
    std::ptr::null_mut()
}

/// Set `errno` and answer -1.
pub(crate) fn minus_one(error: impl Into<Number>) -> i32 {
    set(error);
    -1
}

/// Set `errno` and answer with it, as most calls do that return a number.
pub(crate) fn number(error: impl Into<Number>) -> i32 {
    let Number(errno) = error.into();
    errno.set();
    errno as i32
}

fn set(error: impl Into<Number>) {
    let Number(errno) = error.into();
    errno.set();
}

/// 0, or what went wrong.
pub(crate) fn answer<E: Into<Number>>(result: Result<(), E>) -> i32 {
    result.map_or_else(number, |()| 0)
}

/// A number of errno.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) Errno);

impl From<Errno> for Number {
    fn from(errno: Errno) -> Number {
        Number(errno)
    }
}

impl From<io::Error> for Number {
    fn from(error: io::Error) -> Number {
        Number(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))
    }
}

impl From<CreateError> for Number {
    fn from(error: CreateError) -> Number {
        match error {
            CreateError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            CreateError::System(error) => error.into(),
            // As the kernel answers to numbers beyond the device's.
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<RegisterError> for Number {
    fn from(error: RegisterError) -> Number {
        match error {
            RegisterError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            RegisterError::TooMany { .. } | RegisterError::TooLarge { .. } => Number(Errno::ENOMEM),
            RegisterError::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<DestroyError> for Number {
    fn from(error: DestroyError) -> Number {
        match error {
            DestroyError::InUse { .. } => Number(Errno::EBUSY),
            DestroyError::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<QueryError> for Number {
    fn from(error: QueryError) -> Number {
        match error {
            QueryError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            QueryError::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<ModifyError> for Number {
    fn from(error: ModifyError) -> Number {
        match error {
            ModifyError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            ModifyError::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<PostErrorKind> for Number {
    fn from(error: PostErrorKind) -> Number {
        match error {
            PostErrorKind::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            PostErrorKind::QueueFull { .. } => Number(Errno::ENOMEM),
            PostErrorKind::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<PollError> for Number {
    fn from(error: PollError) -> Number {
        match error {
            PollError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            PollError::Overrun => Number(Errno::EOVERFLOW),
            PollError::System(error) => error.into(),
            _ => Number(Errno::EINVAL),
        }
    }
}

impl From<EventError> for Number {
    fn from(error: EventError) -> Number {
        match error {
            EventError::NotSupported(_) => Number(Errno::EOPNOTSUPP),
            EventError::System(error) => error.into(),
            _ => Number(Errno::EIO),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::{Capabilities, NotSupported, QueuePairState};

    use super::*;

    #[test]
    fn errors_have_the_numbers_that_programs_know() {
        let unsupported = NotSupported { capability: Capabilities::DMA_BUF };
        assert_eq!(number(RegisterError::from(unsupported)), Errno::EOPNOTSUPP as i32);
        assert_eq!(Errno::last(), Errno::EOPNOTSUPP);
        assert_eq!(number(PostErrorKind::QueueFull { depth: 1 }), Errno::ENOMEM as i32);
        assert_eq!(number(PostErrorKind::InvalidState { state: QueuePairState::Reset }), Errno::EINVAL as i32);
        assert_eq!(minus_one(DestroyError::InUse { users: 1 }), -1);
        assert_eq!(Errno::last(), Errno::EBUSY);
        assert_eq!(number(io::Error::from_raw_os_error(Errno::EADDRINUSE as i32)), Errno::EADDRINUSE as i32);
        assert_eq!(answer(Ok::<(), QueryError>(())), 0);
    }
}
