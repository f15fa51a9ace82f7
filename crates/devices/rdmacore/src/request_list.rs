//! Work requests as the linked lists that libibverbs takes; and receives, which are posted in such lists only
//! (`ibv_post_recv`, `ibv_post_srq_recv`).
#![allow(unsafe_code, reason = "builds linked lists for libibverbs")]

use std::ffi::c_int;
use std::io;

use longhaul_verbs::{PostError, ReceiveRequest, ScatterGatherEntry};

use crate::answer::refusal;
use crate::request_check::check_entries;
use longhaul_verbs_abi::{ibv_recv_wr, ibv_sge};

/// Longer batches are posted in lists of this many, so that the memory for a list is bounded.
pub(crate) const LIST_MOST: usize = 256;

// A slice of our entries is handed over as a list of C's.
const _: () = assert!(size_of::<ScatterGatherEntry>() == size_of::<ibv_sge>());
const _: () = assert!(align_of::<ScatterGatherEntry>() == align_of::<ibv_sge>());

/// Receives that are about to be posted, in memory that is used again.
#[derive(Default)]
pub(crate) struct ReceiveList {
    list: Vec<ibv_recv_wr>,
}

// SAFETY: the list's pointers mean something during a call only.
unsafe impl Send for ReceiveList {}

impl ReceiveList {
    /// Post receives of at most `entries` entries each into a queue of `depth`, in order. `post` is given linked lists.
    pub(crate) fn post(
        &mut self,
        requests: &[ReceiveRequest<'_>],
        entries: u32,
        depth: u32,
        mut post: impl FnMut(*mut ibv_recv_wr, &mut *mut ibv_recv_wr) -> io::Result<()>,
    ) -> Result<(), PostError> {
        let too_many = requests.iter().position(|request| request.local.len() > entries as usize);
        let good = &requests[..too_many.unwrap_or(requests.len())];
        for (batch, requests) in good.chunks(LIST_MOST).enumerate() {
            self.list.clear();
            self.list.extend(requests.iter().map(|request| {
                let (sg_list, num_sge) = entries_to_c(request.local);
                ibv_recv_wr { wr_id: request.id, next: std::ptr::null_mut(), sg_list, num_sge }
            }));
            let count = self.list.len();
            let first = self.list.as_mut_ptr();
            for index in 1..count {
                // SAFETY: both indices are in the list.
                unsafe { (*first.add(index - 1)).next = first.add(index) };
            }
            let mut bad = std::ptr::null_mut();
            post(first, &mut bad)
                .map_err(|error| refusal(error, depth).at(batch * LIST_MOST + index_of(bad, first, count)))?;
        }
        match too_many {
            None => Ok(()),
            Some(index) => check_entries(requests[index].local.len(), entries).map_err(|kind| kind.at(index)),
        }
    }
}

/// Which of the list's requests the driver points to. When it points to none, all are in the queue, but the device
/// could not report them.
pub(crate) fn index_of<T>(bad: *const T, first: *const T, count: usize) -> usize {
    let bytes = (bad as usize).wrapping_sub(first as usize);
    (bytes / size_of::<T>()).min(count)
}

/// The entries as C's list, and how many there are. libibverbs takes a pointer to what it does not change.
pub(crate) fn entries_to_c(entries: &[ScatterGatherEntry]) -> (*mut ibv_sge, c_int) {
    // The number was held against the queue pair's limit, which is a small one.
    (entries.as_ptr().cast_mut().cast(), entries.len() as c_int)
}

#[cfg(test)]
mod tests {
    use longhaul_verbs::PostErrorKind;
    use nix::libc::ENOMEM;

    use super::*;

    #[test]
    fn the_driver_points_to_the_first_that_was_not_posted() {
        let list = [0u64; 4];
        let first = list.as_ptr();
        assert_eq!(index_of(&list[0], first, 4), 0);
        assert_eq!(index_of(&list[3], first, 4), 3);
        assert_eq!(index_of(std::ptr::null(), first, 4), 4, "all are in the queue");
    }

    #[test]
    fn receives_go_in_lists_and_the_answer_counts_from_the_first() {
        let entry = [ScatterGatherEntry { address: 1, length: 2, local_key: 3 }];
        let requests: Vec<_> = (0..300).map(|id| ReceiveRequest { id, local: &entry }).collect();
        let mut seen = Vec::new();
        let mut list = ReceiveList::default();
        let mut post = |first: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr| {
            let mut at = first;
            while !at.is_null() {
                // SAFETY: the list is alive during the call.
                let request = unsafe { *at };
                if request.wr_id == 290 {
                    *bad = at;
                    return Err(io::Error::from_raw_os_error(ENOMEM));
                }
                seen.push(request.wr_id);
                at = request.next;
            }
            Ok(())
        };
        let error = list.post(&requests, 1, 290, &mut post).unwrap_err();
        assert_eq!(error.index, 290);
        assert!(matches!(error.kind, PostErrorKind::QueueFull { depth: 290 }), "{error}");
        assert_eq!(seen, (0..290).collect::<Vec<_>>());
    }

    #[test]
    fn what_stands_before_a_bad_receive_is_posted() {
        let entry = [ScatterGatherEntry::default(); 2];
        let requests = [
            ReceiveRequest { id: 0, local: &entry[..1] },
            ReceiveRequest { id: 1, local: &entry },
            ReceiveRequest { id: 2, local: &entry[..1] },
        ];
        let mut posted = 0;
        let error = ReceiveList::default()
            .post(&requests, 1, 8, |first, _| {
                // SAFETY: the list is alive during the call.
                assert!(unsafe { (*first).next.is_null() });
                posted += 1;
                Ok(())
            })
            .unwrap_err();
        assert_eq!((posted, error.index), (1, 1));
        assert!(matches!(error.kind, PostErrorKind::TooManyEntries { entries: 2, most: 1 }), "{error}");
    }
}
