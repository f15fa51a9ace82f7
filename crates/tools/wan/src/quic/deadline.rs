//! The runtime of one end, which is never waited for longer than a limit.

use std::panic;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::error::QuicError;

/// On the thread of the caller; nothing runs between calls.
pub(super) fn runtime() -> Result<Runtime, QuicError> {
    Builder::new_current_thread().enable_all().build().map_err(QuicError::Runtime)
}

/// The result of the future, unless that takes too long.
pub(super) fn wait<T>(
    runtime: &Runtime,
    limit: Duration,
    doing: &'static str,
    future: impl Future<Output = Result<T, QuicError>>,
) -> Result<T, QuicError> {
    // A time-out can only be made where the runtime runs.
    let bounded = runtime.block_on(async { tokio::time::timeout(limit, future).await });
    bounded.map_err(|_| QuicError::OutOfTime { doing, limit })?
}

/// The results of all tasks, or the first error.
pub(super) async fn all<T: 'static>(mut tasks: JoinSet<Result<T, QuicError>>) -> Result<Vec<T>, QuicError> {
    let mut results = Vec::with_capacity(tasks.len());
    while let Some(result) = next(&mut tasks).await {
        results.push(result?);
    }
    Ok(results)
}

/// The result of the task that ends next. A panic in it is one here.
pub(super) async fn next<T: 'static>(tasks: &mut JoinSet<T>) -> Option<T> {
    let joined = tasks.join_next().await?;
    Some(joined.unwrap_or_else(|error| panic::resume_unwind(error.into_panic())))
}
