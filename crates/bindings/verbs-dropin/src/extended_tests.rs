//! The extended calls as C programs make them: two queue pairs of one device that are each other's peer.
#![allow(unsafe_code, reason = "calls as C does")]

use std::ffi::{c_int, c_uint};
use std::time::{Duration, Instant};

use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{
    ibv_ah_attr, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_device_attr_ex, ibv_gid, ibv_grh, ibv_mr,
    ibv_mw_bind, ibv_mw_bind_info, ibv_parent_domain_init_attr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr_ex, ibv_recv_wr, ibv_sge, ibv_td_init_attr, ibv_wc,
};
use nix::errno::Errno;

use crate::{
    address_handle, completion, configuration, extended_polling, listing, memory, opening, parent_domains, post, query,
    queue_pair, queue_pair_creation, windows,
};

const QUEUE_KEY: u32 = 0x1111_1111;
const FULL: c_int = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 4;

/// A device with memory and a completion queue of the extended kind.
struct Bench {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    queue: *mut ibv_cq_ex,
    buffer: Vec<u8>,
    region: *mut ibv_mr,
    gid: ibv_gid,
}

impl Bench {
    /// Every test has an address of its own.
    fn new(address: &str) -> Bench {
        let mut buffer = vec![0; 8192];
        // SAFETY: calls as C programs make them. Every test is a process of its own with nextest; without, all set the same.
        unsafe {
            std::env::set_var(configuration::DEVICES, ADDRESSES);
            let list = listing::get_device_list(std::ptr::null_mut());
            let index = ADDRESSES.split(',').position(|known| known == address).expect("one of the list");
            let context = opening::open_device(list.add(index).read());
            listing::free_device_list(list);
            assert!(!context.is_null());
            let domain = memory::alloc_pd(context);
            let mut asked = ibv_cq_init_attr_ex { cqe: 64, ..ibv_cq_init_attr_ex::zeroed() };
            asked.wc_flags = abi::IBV_WC_STANDARD_FLAGS;
            let queue = extended_polling::create_cq_ex(context, &raw mut asked);
            let region = memory::reg_mr(domain, buffer.as_mut_ptr().cast(), buffer.len(), FULL);
            assert!(!queue.is_null() && !region.is_null());
            let mut gid = ibv_gid::default();
            assert_eq!(query::query_gid(context, 1, 0, &raw mut gid), 0);
            Bench { context, domain, queue, buffer, region, gid }
        }
    }

    fn init(&self, transport: c_uint, operations: u64) -> ibv_qp_init_attr_ex {
        let queue: *mut ibv_cq = self.queue.cast();
        let mut init = ibv_qp_init_attr_ex { pd: self.domain, ..ibv_qp_init_attr_ex::zeroed() };
        (init.send_cq, init.recv_cq, init.qp_type) = (queue, queue, transport);
        (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_inline_data) = (4, 4, 64);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 2);
        init.comp_mask = abi::IBV_QP_INIT_ATTR_PD | abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = operations;
        init
    }

    fn pair(&self, transport: c_uint, operations: u64) -> *mut ibv_qp_ex {
        let mut init = self.init(transport, operations);
        // SAFETY: as above.
        unsafe {
            let pair = queue_pair_creation::create_qp_ex(self.context, &raw mut init);
            assert!(!pair.is_null(), "{}", Errno::last());
            let extended = queue_pair::qp_to_qp_ex(pair);
            assert!(!extended.is_null());
            extended
        }
    }

    /// Two that are each other's peer.
    fn connected(&self, operations: u64) -> [*mut ibv_qp_ex; 2] {
        let pairs = [self.pair(abi::IBV_QPT_RC, operations), self.pair(abi::IBV_QPT_RC, operations)];
        for (own, peer) in [(0, 1), (1, 0)] {
            // SAFETY: queue pairs that are there.
            let peer = unsafe { (*pairs[peer]).qp_base.qp_num };
            self.to_ready(pairs[own].cast(), peer);
        }
        pairs
    }

    fn to_ready(&self, pair: *mut ibv_qp, peer: u32) {
        let mut attributes = ibv_qp_attr { port_num: 1, dest_qp_num: peer, ..ibv_qp_attr::zeroed() };
        attributes.ah_attr = self.back_to_self();
        (attributes.qp_access_flags, attributes.path_mtu) = (FULL as u32 & 0xf, abi::IBV_MTU_1024);
        (attributes.timeout, attributes.retry_cnt, attributes.rnr_retry) = (14, 7, 7);
        (attributes.max_rd_atomic, attributes.max_dest_rd_atomic, attributes.min_rnr_timer) = (1, 1, 12);
        attributes.qkey = QUEUE_KEY;
        // SAFETY: a queue pair that is there.
        let is_datagram = unsafe { (*pair).qp_type } == abi::IBV_QPT_UD;
        let state = abi::IBV_QP_STATE;
        let init = state | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
        let receive = abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        let send = abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_TIMEOUT
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_MAX_QP_RD_ATOMIC;
        let steps = match is_datagram {
            true => [init | abi::IBV_QP_QKEY, state, state | abi::IBV_QP_SQ_PSN],
            false => [init | abi::IBV_QP_ACCESS_FLAGS, state | receive, state | send],
        };
        for (step, to) in steps.into_iter().zip([abi::IBV_QPS_INIT, abi::IBV_QPS_RTR, abi::IBV_QPS_RTS]) {
            attributes.qp_state = to;
            // SAFETY: as above.
            assert_eq!(unsafe { queue_pair::modify_qp(pair, &raw mut attributes, step) }, 0, "to state {to}");
        }
    }

    fn back_to_self(&self) -> ibv_ah_attr {
        let mut path = ibv_ah_attr { is_global: 1, port_num: 1, ..ibv_ah_attr::zeroed() };
        (path.grh.dgid, path.grh.hop_limit) = (self.gid, 64);
        path
    }

    fn address(&self, offset: usize) -> u64 {
        self.buffer.as_ptr().addr() as u64 + offset as u64
    }

    fn key(&self) -> u32 {
        // SAFETY: a region that is there.
        unsafe { (*self.region).lkey }
    }

    fn receive(&self, pair: *mut ibv_qp_ex, id: u64, offset: usize, length: u32) {
        let mut entry = ibv_sge { addr: self.address(offset), length, lkey: self.key() };
        let mut request = ibv_recv_wr::zeroed();
        (request.wr_id, request.sg_list, request.num_sge) = (id, &raw mut entry, 1);
        let mut bad = std::ptr::null_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { post::post_recv(pair.cast(), &raw mut request, &raw mut bad) }, 0);
    }

    /// The next `count` completions, taken the extended way, as the plain structure.
    fn completions(&self, count: usize) -> Vec<ibv_wc> {
        let (queue, start) = (self.queue, Instant::now());
        let mut found = Vec::new();
        // SAFETY: the functions of a queue that is there, between start and end.
        unsafe {
            while found.len() < count {
                assert!(start.elapsed() < Duration::from_secs(10), "only {} of {count} completions", found.len());
                let mut polled = (*queue).start_poll.unwrap()(queue, std::ptr::null_mut());
                if polled == Errno::ENOENT as c_int {
                    continue;
                }
                while polled == 0 {
                    let mut wc = ibv_wc::zeroed();
                    (wc.wr_id, wc.status) = ((*queue).wr_id, (*queue).status);
                    wc.opcode = (*queue).read_opcode.unwrap()(queue);
                    wc.byte_len = (*queue).read_byte_len.unwrap()(queue);
                    wc.imm_data = (*queue).read_imm_data.unwrap()(queue);
                    wc.wc_flags = (*queue).read_wc_flags.unwrap()(queue);
                    wc.src_qp = (*queue).read_src_qp.unwrap()(queue);
                    wc.qp_num = (*queue).read_qp_num.unwrap()(queue);
                    found.push(wc);
                    polled = (*queue).next_poll.unwrap()(queue);
                }
                assert_eq!(polled, Errno::ENOENT as c_int);
                (*queue).end_poll.unwrap()(queue);
            }
        }
        found.sort_by_key(|wc| wc.wr_id);
        found
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: everything that was made from them is gone.
        unsafe {
            assert_eq!(memory::dereg_mr(self.region), 0);
            assert_eq!(memory::dealloc_pd(self.domain), 0);
            assert_eq!(completion::destroy_cq(self.queue.cast()), 0);
            assert_eq!(opening::close_device(self.context), 0);
        }
    }
}

const ADDRESSES: &str = "127.0.13.81,127.0.13.82,127.0.13.83,127.0.13.84,127.0.13.85,127.0.13.86";

#[test]
fn requests_that_are_made_call_by_call_arrive_in_order() {
    let bench = Bench::new("127.0.13.81");
    let operations = abi::IBV_QP_EX_WITH_SEND_WITH_IMM | abi::IBV_QP_EX_WITH_RDMA_WRITE | abi::IBV_QP_EX_WITH_RDMA_READ;
    let [one, two] = bench.connected(operations);
    bench.receive(two, 50, 4096, 64);
    // SAFETY: the functions of a queue pair that is there.
    unsafe {
        let pair = &mut *one;
        assert!(pair.wr_send.is_none(), "it was not made for these");
        pair.wr_start.unwrap()(one);
        (pair.wr_id, pair.wr_flags) = (1, abi::IBV_SEND_SIGNALED);
        pair.wr_rdma_write.unwrap()(one, bench.key(), bench.address(1024));
        let mut inline = *b"inline data";
        pair.wr_set_inline_data.unwrap()(one, inline.as_mut_ptr().cast(), inline.len());
        // It was copied.
        inline.fill(b'?');
        (pair.wr_id, pair.wr_flags) = (2, abi::IBV_SEND_SIGNALED);
        pair.wr_rdma_read.unwrap()(one, bench.key(), bench.address(1024));
        let entries = [(2048, 6), (3072, 5)].map(|(offset, length)| ibv_sge {
            addr: bench.address(offset),
            length,
            lkey: bench.key(),
        });
        pair.wr_set_sge_list.unwrap()(one, 2, entries.as_ptr());
        (pair.wr_id, pair.wr_flags) = (3, abi::IBV_SEND_SIGNALED | abi::IBV_SEND_FENCE);
        pair.wr_send_imm.unwrap()(one, 0x1122_3344_u32.to_be());
        pair.wr_set_sge.unwrap()(one, bench.key(), bench.address(2048), 6);
        assert_eq!(pair.wr_complete.unwrap()(one), 0);
        let done = bench.completions(4);
        assert_eq!(done.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(1, 0), (2, 0), (3, 0), (50, 0)]);
        assert_eq!(done[1].opcode, abi::IBV_WC_RDMA_READ);
        let (own, peer) = (pair.qp_base.qp_num, (*two).qp_base.qp_num);
        assert_eq!((done[0].qp_num, done[3].qp_num), (own, peer));
        assert_eq!((done[3].opcode, done[3].byte_len), (abi::IBV_WC_RECV, 6));
        assert_eq!(done[3].imm_data.to_ne_bytes(), [0x11, 0x22, 0x33, 0x44]);
        assert_eq!((&bench.buffer[2048..2054], &bench.buffer[3072..3077]), (&b"inline"[..], &b" data"[..]));
        assert_eq!(&bench.buffer[4096..4102], b"inline");
        for pair in [one, two] {
            assert_eq!(queue_pair::destroy_qp(pair.cast()), 0);
        }
    }
}

#[test]
fn a_list_that_cannot_be_posted_is_not_posted_in_part() {
    let bench = Bench::new("127.0.13.82");
    let [one, two] = bench.connected(abi::IBV_QP_EX_WITH_RDMA_WRITE);
    // SAFETY: as above.
    unsafe {
        let pair = &mut *one;
        let write = |id| {
            ((*one).wr_id, (*one).wr_flags) = (id, abi::IBV_SEND_SIGNALED);
            (*one).wr_rdma_write.unwrap()(one, bench.key(), bench.address(0));
        };
        let started = || (*one).wr_start.unwrap()(one);
        // More than the queue takes.
        started();
        (0..5).for_each(write);
        assert_eq!(pair.wr_complete.unwrap()(one), Errno::ENOMEM as c_int);
        // More inline data than was agreed.
        started();
        write(5);
        pair.wr_set_inline_data.unwrap()(one, bench.buffer.as_ptr().cast_mut().cast(), 65);
        assert_eq!(pair.wr_complete.unwrap()(one), Errno::EINVAL as c_int);
        // Data without a request, and an unknown flag.
        started();
        pair.wr_set_sge.unwrap()(one, bench.key(), bench.address(0), 1);
        assert_eq!(pair.wr_complete.unwrap()(one), Errno::EINVAL as c_int);
        started();
        pair.wr_flags = 1 << 9;
        pair.wr_rdma_write.unwrap()(one, bench.key(), bench.address(0));
        assert_eq!(pair.wr_complete.unwrap()(one), Errno::EINVAL as c_int);
        started();
        write(6);
        pair.wr_abort.unwrap()(one);
        // None of them has left anything behind.
        started();
        write(7);
        pair.wr_set_sge.unwrap()(one, bench.key(), bench.address(0), 1);
        assert_eq!(pair.wr_complete.unwrap()(one), 0);
        assert_eq!(bench.completions(1)[0].wr_id, 7);
        assert_eq!((*bench.queue).start_poll.unwrap()(bench.queue, std::ptr::null_mut()), Errno::ENOENT as c_int);
        for pair in [one, two] {
            assert_eq!(queue_pair::destroy_qp(pair.cast()), 0);
        }
    }
}

#[test]
fn what_the_device_does_not_have_is_not_supported() {
    let bench = Bench::new("127.0.13.83");
    let made = |mut init: ibv_qp_init_attr_ex| {
        // SAFETY: as above.
        unsafe { queue_pair_creation::create_qp_ex(bench.context, &raw mut init) }
    };
    let refused = |init| made(init).is_null().then(Errno::last);
    let unsupported = Some(Errno::EOPNOTSUPP);
    assert_eq!(refused(bench.init(abi::IBV_QPT_UD, abi::IBV_QP_EX_WITH_RDMA_WRITE)), unsupported);
    assert_eq!(refused(bench.init(abi::IBV_QPT_RC, 1 << 10)), unsupported, "segmentation offload");
    let mut init = bench.init(abi::IBV_QPT_RC, 0);
    init.comp_mask |= 1 << 1;
    assert_eq!(refused(init), unsupported, "XRC");
    init.comp_mask = abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    assert_eq!(refused(init), Some(Errno::EINVAL), "no protection domain");
    init.comp_mask = abi::IBV_QP_INIT_ATTR_PD | abi::IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let plain = made(init);
    // SAFETY: as above.
    unsafe {
        assert!(queue_pair::qp_to_qp_ex(plain).is_null());
        assert_eq!(queue_pair::destroy_qp(plain), 0);
        let refused = |change: fn(&mut ibv_cq_init_attr_ex)| {
            let mut asked = ibv_cq_init_attr_ex { cqe: 8, ..ibv_cq_init_attr_ex::zeroed() };
            change(&mut asked);
            let queue = extended_polling::create_cq_ex(bench.context, &raw mut asked);
            queue.is_null().then(Errno::last)
        };
        assert_eq!(refused(|asked| asked.wc_flags = 1 << 7), unsupported, "time stamps");
        assert_eq!(refused(|asked| (asked.comp_mask, asked.flags) = (1, 2)), unsupported);
        assert_eq!(refused(|asked| asked.comp_mask = 1 << 5), unsupported);
        assert_eq!(refused(|asked| asked.cqe = u32::MAX), Some(Errno::EINVAL));
        assert_eq!(refused(|asked| asked.comp_vector = c_int::MAX as u32), Some(Errno::EINVAL));
        let mut all = ibv_device_attr_ex::zeroed();
        let size = size_of::<ibv_device_attr_ex>();
        assert_eq!(query::query_device_ex(bench.context, std::ptr::null(), &raw mut all, size), 0);
        assert_eq!((all.cq_mod_caps.max_cq_count, all.phys_port_cnt_ex), (u16::MAX, 1));
        assert_ne!(all.orig_attr.device_cap_flags & abi::IBV_DEVICE_MEM_WINDOW, 0);
        assert_eq!(all.device_cap_flags_ex, u64::from(all.orig_attr.device_cap_flags));
    }
}

#[test]
fn the_way_back_is_found_from_a_datagrams_completion() {
    let bench = Bench::new("127.0.13.84");
    let pair = bench.pair(abi::IBV_QPT_UD, abi::IBV_QP_EX_WITH_SEND);
    bench.to_ready(pair.cast(), 0);
    bench.receive(pair, 1, 0, 1024);
    // SAFETY: as above.
    unsafe {
        let number = (*pair).qp_base.qp_num;
        let mut path = bench.back_to_self();
        (path.grh.traffic_class, path.grh.hop_limit) = (8, 33);
        let handle = address_handle::create_ah(bench.domain, &raw mut path);
        let send = |handle| {
            (*pair).wr_start.unwrap()(pair);
            ((*pair).wr_id, (*pair).wr_flags) = (2, abi::IBV_SEND_SIGNALED);
            (*pair).wr_send.unwrap()(pair);
            (*pair).wr_set_ud_addr.unwrap()(pair, handle, number, QUEUE_KEY);
            (*pair).wr_set_sge.unwrap()(pair, bench.key(), bench.address(2048), 100);
            (*pair).wr_complete.unwrap()(pair)
        };
        assert_eq!(send(std::ptr::null_mut()), Errno::EINVAL as c_int);
        assert_eq!(send(handle), 0);
        let mut done = bench.completions(2);
        assert_eq!((done[0].byte_len, done[0].src_qp, done[0].wc_flags), (140, number, abi::IBV_WC_GRH));
        let header: *mut ibv_grh = bench.buffer.as_ptr().cast_mut().cast();
        let mut found = ibv_ah_attr::zeroed();
        let init = |wc: *mut ibv_wc, found: *mut ibv_ah_attr| {
            address_handle::init_ah_from_wc(bench.context, 1, wc, header, found)
        };
        assert_eq!(init(&raw mut done[0], &raw mut found), 0);
        assert_eq!((found.is_global, found.grh.sgid_index, found.port_num), (1, 0, 1));
        // The sender has marked it as capable of ECN.
        assert_eq!((found.grh.dgid, found.grh.traffic_class & !3), (bench.gid, 8));
        let back = address_handle::create_ah_from_wc(bench.domain, &raw mut done[0], header, 1);
        bench.receive(pair, 3, 1024, 1024);
        assert_eq!(send(back), 0);
        assert_eq!(bench.completions(2)[1].byte_len, 140);
        // A header that nobody can read is refused.
        header.cast::<u8>().add(20).write(0x65);
        assert_eq!(init(&raw mut done[0], &raw mut found), -1);
        for handle in [handle, back] {
            assert_eq!(address_handle::destroy_ah(handle), 0);
        }
        assert_eq!(queue_pair::destroy_qp(pair.cast()), 0);
    }
}

#[test]
fn windows_open_a_part_of_a_region_and_close_it_again() {
    let bench = Bench::new("127.0.13.85");
    let operations = abi::IBV_QP_EX_WITH_RDMA_WRITE | abi::IBV_QP_EX_WITH_BIND_MW | abi::IBV_QP_EX_WITH_LOCAL_INV;
    let [one, two] = bench.connected(operations);
    // SAFETY: as above.
    unsafe {
        let write = |key, offset| {
            ((*one).wr_id, (*one).wr_flags) = (9, abi::IBV_SEND_SIGNALED);
            (*one).wr_start.unwrap()(one);
            (*one).wr_rdma_write.unwrap()(one, key, bench.address(offset));
            (*one).wr_set_sge.unwrap()(one, bench.key(), bench.address(0), 64);
            assert_eq!((*one).wr_complete.unwrap()(one), 0);
            bench.completions(1)[0].status
        };
        let bound = |length| ibv_mw_bind_info {
            mr: if length > 0 { bench.region } else { std::ptr::null_mut() },
            addr: if length > 0 { bench.address(4096) } else { 0 },
            length,
            mw_access_flags: abi::IBV_ACCESS_REMOTE_WRITE,
        };
        let window = windows::alloc_mw(bench.domain, abi::IBV_MW_TYPE_1);
        let before = (*window).rkey;
        let mut bind = ibv_mw_bind { wr_id: 4, send_flags: abi::IBV_SEND_SIGNALED, bind_info: bound(64) };
        assert_eq!(windows::bind_mw(two.cast(), window, &raw mut bind), 0);
        assert_eq!(bench.completions(1)[0].opcode, abi::IBV_WC_BIND_MW);
        assert_ne!((*window).rkey, before);
        assert_eq!(write((*window).rkey, 4096), abi::IBV_WC_SUCCESS);
        assert_eq!(memory::dereg_mr(bench.region), Errno::EBUSY as c_int, "a window is bound to it");
        bind.bind_info = bound(0);
        assert_eq!(windows::bind_mw(two.cast(), window, &raw mut bind), 0, "no region is named");
        bench.completions(1);
        assert_eq!(windows::dealloc_mw(window), 0);

        let window = windows::alloc_mw(bench.domain, abi::IBV_MW_TYPE_2);
        let key = (*window).rkey & !0xff | ((*window).rkey + 1) & 0xff;
        let info = bound(64);
        (*two).wr_start.unwrap()(two);
        ((*two).wr_id, (*two).wr_flags) = (5, abi::IBV_SEND_SIGNALED);
        (*two).wr_bind_mw.unwrap()(two, window, key, &raw const info);
        assert_eq!((*two).wr_complete.unwrap()(two), 0);
        assert_eq!(bench.completions(1)[0].status, abi::IBV_WC_SUCCESS);
        assert_eq!(write(key, 4096), abi::IBV_WC_SUCCESS);
        assert_eq!(write(key, 4097), abi::IBV_WC_REM_ACCESS_ERR, "behind the window");
        assert_eq!(windows::dealloc_mw(window), 0);
        for pair in [one, two] {
            assert_eq!(queue_pair::destroy_qp(pair.cast()), 0);
        }
    }
}

#[test]
fn parents_stay_as_long_as_what_was_made_from_them() {
    let bench = Bench::new("127.0.13.86");
    let mut buffer = vec![0_u8; 64];
    // SAFETY: as above.
    unsafe {
        let mut asked = ibv_td_init_attr { comp_mask: 0 };
        let thread = parent_domains::alloc_td(bench.context, &raw mut asked);
        let mut asked =
            ibv_parent_domain_init_attr { pd: bench.domain, td: thread, ..ibv_parent_domain_init_attr::zeroed() };
        let parent = parent_domains::alloc_parent_domain(bench.context, &raw mut asked);
        assert_eq!(memory::dealloc_pd(bench.domain), Errno::EBUSY as c_int);
        assert_eq!(parent_domains::dealloc_td(thread), Errno::EBUSY as c_int);
        let region = memory::reg_mr(parent, buffer.as_mut_ptr().cast(), buffer.len(), FULL);
        assert_eq!(memory::dealloc_pd(parent), Errno::EBUSY as c_int);
        assert_eq!(memory::dereg_mr(region), 0);
        assert_eq!(memory::dealloc_pd(parent), 0);
        assert_eq!(parent_domains::dealloc_td(thread), 0);
        let region = memory::alloc_null_mr(bench.domain);
        assert!(!region.is_null());
        assert_eq!(memory::dereg_mr(region), 0);
    }
}
