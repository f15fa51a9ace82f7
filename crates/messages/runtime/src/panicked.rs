//! A panic in code that a user gave us, such as a scheme: caught where it would leave others waiting, and reported as
//! an error.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;

/// Somebody's code panicked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a panic in the scheme or in the code that runs it: {0}")]
pub struct Panicked(String);

impl Panicked {
    fn new(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Panicked(text.unwrap_or_else(|| "without a message".to_owned()))
    }
}

/// Run something that may panic. What it works on must not be used afterwards, except to be dropped.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Panicked::new(&*payload))
}
