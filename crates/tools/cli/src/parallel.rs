//! The same work for many items, on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// On all cores; results are in the order of the items.
pub(crate) fn in_parallel<Item: Sync, Output: Send>(
    items: &[Item],
    work: impl Fn(&Item) -> Output + Sync,
) -> Vec<Output> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    on_threads(cores, items, work)
}

/// On this many threads, or fewer if there are fewer items; in the same order.
pub(crate) fn on_threads<Item: Sync, Output: Send>(
    threads: usize,
    items: &[Item],
    work: impl Fn(&Item) -> Output + Sync,
) -> Vec<Output> {
    let threads = threads.min(items.len().max(1));
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            match items.get(index) {
                Some(item) => done.push((index, work(item))),
                None => return done,
            }
        }
    };
    let mut all: Vec<(usize, Output)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(take)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker does not panic")).collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, output)| output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_comes_back_in_order() {
        let items: Vec<u64> = (0..1000).collect();
        assert_eq!(in_parallel(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert!(in_parallel(&[] as &[u64], |item| *item).is_empty());
    }
}
