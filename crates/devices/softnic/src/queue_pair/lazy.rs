//! State that a queue pair has only once it is used: an idle one keeps a pointer for it.

use std::ops::{Deref, DerefMut};

/// Something that can stand in for itself before it is used.
pub(crate) trait Unused: Default + 'static {
    /// As nobody has used it.
    fn unused() -> &'static Self;
}

/// A `T` that is allocated when it is first changed.
pub(crate) struct Lazy<T>(Option<Box<T>>);

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Lazy(None)
    }
}

impl<T: Unused> Deref for Lazy<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match &self.0 {
            Some(used) => used,
            None => T::unused(),
        }
    }
}

impl<T: Unused> DerefMut for Lazy<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T> Lazy<T> {
    /// The state, if there is any to change.
    pub(crate) fn used_mut(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}
