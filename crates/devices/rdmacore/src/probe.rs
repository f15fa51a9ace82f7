//! What a device can do, found out by trying. libibverbs reports some of it in flags, but not all, and drivers that
//! lack a call have a function in its place that answers "not supported". So once for each open device, when its
//! capabilities are first asked for, one small object of every kind is made and given back. A flag is believed only if
//! trying it does not show otherwise.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr::{NonNull, null_mut};

use longhaul_verbs::Capabilities;

use crate::answer::{check, check_pointer};
use crate::context::Context;
use longhaul_verbs_abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ATOMIC_NONE, IBV_DEVICE_MEM_MGT_EXTENSIONS,
    IBV_DEVICE_MEM_WINDOW, IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_MW_TYPE_1, IBV_MW_TYPE_2,
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_REREG_MR_CHANGE_ACCESS, ibv_cq, ibv_device_attr_ex, ibv_mr, ibv_pd,
    ibv_qp_cap, ibv_qp_init_attr, ibv_srq_attr, ibv_srq_init_attr,
};

/// Nobody has more: such a request would be longer than any device's longest.
const INLINE_BYTES_TRIED: u32 = 4096;

/// What was found out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub(crate) capabilities: Capabilities,
    /// Inline bytes that a queue pair with one entry a request can have.
    pub(crate) inline_bytes_max: u32,
}

/// Everything that the device can do.
pub(crate) fn abilities(context: &Context, attributes: &ibv_device_attr_ex) -> io::Result<Abilities> {
    use Capabilities as C;
    let sizes = &attributes.orig_attr;
    let flag = |flag: c_uint| sizes.device_cap_flags & flag != 0;
    let library = context.library();

    // SAFETY: the device is open.
    let pd = check_pointer(unsafe { (library.ibv_alloc_pd)(context.as_ptr()) })?.as_ptr();
    // SAFETY: as above.
    let cq = unsafe { (library.ibv_create_cq)(context.as_ptr(), 1, null_mut(), null_mut(), 0) };
    let attempt = Attempt { context, pd, cq };
    let [has_rc, has_uc, has_ud] =
        [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD].map(|transport| attempt.queue_pair(transport, 0));
    let mut found = C::COMPLETION_CHANNEL | C::EVENT_DESCRIPTORS;
    let mut set = |capability: Capabilities, has: bool| found.set(capability, has);
    set(C::RELIABLE_CONNECTION, has_rc);
    set(C::UNRELIABLE_CONNECTION, has_uc);
    set(C::UNRELIABLE_DATAGRAM, has_ud);
    set(C::READ, has_rc && sizes.max_qp_rd_atom > 0);
    set(C::ATOMICS, has_rc && sizes.atomic_cap != IBV_ATOMIC_NONE);
    set(C::INVALIDATE, has_rc && flag(IBV_DEVICE_MEM_MGT_EXTENSIONS));
    set(C::SHARED_RECEIVE_QUEUE, sizes.max_srq > 0 && attempt.shared_receive_queue());
    set(C::WINDOW_TYPE_1, flag(IBV_DEVICE_MEM_WINDOW) && attempt.window(IBV_MW_TYPE_1));
    let has_type_2 = attempt.window(IBV_MW_TYPE_2);
    set(C::WINDOW_TYPE_2A, has_type_2 && flag(IBV_DEVICE_MEM_WINDOW_TYPE_2A));
    set(C::WINDOW_TYPE_2B, has_type_2 && flag(IBV_DEVICE_MEM_WINDOW_TYPE_2B));
    set(C::NULL_REGION, attempt.null_region());
    set(C::MULTICAST, has_ud && sizes.max_mcast_grp > 0 && sizes.max_mcast_qp_attach > 0);
    set(C::COMPLETION_MODERATION, attributes.cq_mod_caps.max_cq_count > 0);
    // ZERO_BASED never: the kernel wants the addresses of a region to agree with its memory's within a page, so that
    // only memory that begins on a page can count from zero.
    set(C::DMA_BUF, attempt.dma_buf_region());
    set(C::REREGISTER, attempt.reregistration());
    let paced = [IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD].map(|transport| 1 << transport).iter().sum::<u32>();
    set(C::RATE_LIMIT, attributes.packet_pacing_caps.supported_qpts & paced != 0);
    // Of the states of a queue pair every device that has reliable connections has all; nothing reports otherwise.
    set(C::SEND_QUEUE_DRAIN, has_rc);
    let inline_bytes_max = if has_rc { attempt.inline_bytes_max() } else { 0 };
    // Last: it changes the queue that the others use.
    set(C::RESIZE_COMPLETION_QUEUE, attempt.resizing());
    Ok(Abilities { capabilities: found, inline_bytes_max })
}

/// What the attempts are made with; given back on drop.
struct Attempt<'a> {
    context: &'a Context,
    pd: *mut ibv_pd,
    /// May be null, if the device gives none.
    cq: *mut ibv_cq,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let library = self.context.library();
        if !self.cq.is_null() {
            // SAFETY: made in `abilities`; what used it is gone.
            given_back("completion queue", check(unsafe { (library.ibv_destroy_cq)(self.cq) }));
        }
        // SAFETY: as above.
        given_back("protection domain", check(unsafe { (library.ibv_dealloc_pd)(self.pd) }));
    }
}

fn given_back(what: &str, answer: io::Result<()>) {
    if let Err(error) = answer {
        tracing::warn!(%error, "a {what} that was made to see whether it can be could not be given back");
    }
}

impl Attempt<'_> {
    fn queue_pair(&self, transport: c_uint, inline_bytes: u32) -> bool {
        let library = self.context.library();
        let mut init = ibv_qp_init_attr {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline_bytes,
            },
            qp_type: transport,
            ..ibv_qp_init_attr::zeroed()
        };
        if self.cq.is_null() {
            return false;
        }
        // SAFETY: domain and queue are this device's.
        let Ok(qp) = check_pointer(unsafe { (library.ibv_create_qp)(self.pd, &mut init) }) else { return false };
        // SAFETY: just made.
        given_back("queue pair", check(unsafe { (library.ibv_destroy_qp)(qp.as_ptr()) }));
        true
    }

    /// No field reports it: the largest number that a queue pair is made with, found by halving.
    fn inline_bytes_max(&self) -> u32 {
        let (mut possible, mut refused) = (0, INLINE_BYTES_TRIED + 1);
        while possible + 1 < refused {
            let middle = u32::midpoint(possible, refused);
            match self.queue_pair(IBV_QPT_RC, middle) {
                true => possible = middle,
                false => refused = middle,
            }
        }
        possible
    }

    fn shared_receive_queue(&self) -> bool {
        let library = self.context.library();
        let mut init = ibv_srq_init_attr {
            attr: ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 },
            ..ibv_srq_init_attr::zeroed()
        };
        // SAFETY: the domain is this device's.
        let Ok(srq) = check_pointer(unsafe { (library.ibv_create_srq)(self.pd, &mut init) }) else { return false };
        // SAFETY: just made.
        given_back("shared receive queue", check(unsafe { (library.ibv_destroy_srq)(srq.as_ptr()) }));
        true
    }

    fn window(&self, window_type: c_uint) -> bool {
        // SAFETY: the domain is this device's.
        let Ok(window) = (unsafe { self.context.alloc_mw(self.pd, window_type) }) else { return false };
        // SAFETY: just made.
        given_back("memory window", unsafe { self.context.dealloc_mw(window.as_ptr()) });
        true
    }

    fn null_region(&self) -> bool {
        // SAFETY: the domain is this device's.
        self.is_region(unsafe { self.context.alloc_null_mr(self.pd) })
    }

    fn dma_buf_region(&self) -> bool {
        let Some(register) = self.context.library().ibv_reg_dmabuf_mr else { return false };
        // A device that can do it looks at the descriptor, and finds that it is none.
        // SAFETY: the domain is this device's.
        let answer = check_pointer(unsafe { register(self.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE as c_int) });
        answer.is_err_and(|error| error.raw_os_error() == Some(nix::libc::EBADF))
    }

    fn reregistration(&self) -> bool {
        let library = self.context.library();
        let mut memory = vec![0_u8; 64];
        let (address, length) = (memory.as_mut_ptr().cast(), memory.len());
        let access = IBV_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: the memory is ours until after the deregistration below.
        let Ok(region) = check_pointer(unsafe { (library.ibv_reg_mr)(self.pd, address, length, access) }) else {
            return false;
        };
        let access = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ) as c_int;
        let change = IBV_REREG_MR_CHANGE_ACCESS;
        // SAFETY: just registered.
        let changed =
            unsafe { (library.ibv_rereg_mr)(region.as_ptr(), change, null_mut(), null_mut(), 0, access) } == 0;
        self.is_region(Ok(region)) && changed
    }

    /// Whether there is one, and no longer.
    fn is_region(&self, region: io::Result<NonNull<ibv_mr>>) -> bool {
        let Ok(region) = region else { return false };
        // SAFETY: just registered.
        let answer = check(unsafe { (self.context.library().ibv_dereg_mr)(region.as_ptr()) });
        given_back("memory region", answer);
        true
    }

    fn resizing(&self) -> bool {
        // SAFETY: the queue is this device's; it was looked at first.
        !self.cq.is_null() && unsafe { (self.context.library().ibv_resize_cq)(self.cq, 64) } == 0
    }
}
