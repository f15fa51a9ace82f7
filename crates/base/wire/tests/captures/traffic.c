/*
 * traffic: a small libibverbs program that makes the packets which perftest and the rdma-core examples do not
 * make: immediates, SEND with invalidate, empty messages, and the NAKs of a responder that refuses.
 *
 *   traffic MODE GID_INDEX MTU             the responder (run it first)
 *   traffic MODE GID_INDEX MTU ADDRESS     the requester; ADDRESS is the responder's, for the TCP exchange
 *
 * MODE: rc, uc, ud                 every operation of the transport, one packet and several packets long
 *       rnr                        RC SEND to a responder that posts its receive late
 *       badkey                     RC WRITE with a wrong rkey, answered by NAK remote access error
 *       toolong                    RC SEND longer than the receive, answered by NAK remote operational error
 *       mismatch                   RC WRITE of several packets, answered by NAK invalid request when the responder
 *                                  was given a smaller MTU than the requester
 * Exit status 0 when every operation ended as its mode expects.
 *
 *   gcc -O1 -Wall -Wextra -o traffic traffic.c -libverbs
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
	do { if (!(condition)) { fprintf(stderr, "traffic: line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)

enum { BUFFER = 8192, RECEIVES = 16, WINDOWS = 2, QKEY = 0x11223344, TCP_PORT = 18600 };

struct peer {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qpn, psn, rkey, window_rkey[WINDOWS];
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static struct peer mine, theirs;
static uint8_t *buffer;
static int channel, requester;

static void exchange(const void *out, void *in, size_t length)
{
	CHECK(write(channel, out, length) == (ssize_t)length);
	for (size_t got = 0; got < length;) {
		ssize_t n = read(channel, (char *)in + got, length - got);
		CHECK(n > 0);
		got += n;
	}
}

static void barrier(void)
{
	char out = 'b', in;
	exchange(&out, &in, 1);
}

static void open_channel(const char *address)
{
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(TCP_PORT) };
	int one = 1;

	if (!address) {
		int listener = socket(AF_INET6, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0 && listen(listener, 1) == 0);
		CHECK((channel = accept(listener, NULL, NULL)) >= 0);
		close(listener);
		return;
	}
	struct addrinfo *found, hint = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
	char port[8];
	snprintf(port, sizeof port, "%d", TCP_PORT);
	CHECK(getaddrinfo(address, port, &hint, &found) == 0);
	for (int attempt = 0;; attempt++) {
		channel = socket(found->ai_family, SOCK_STREAM, 0);
		if (connect(channel, found->ai_addr, found->ai_addrlen) == 0)
			break;
		close(channel);
		CHECK(attempt < 100);
		usleep(100000);
	}
	freeaddrinfo(found);
}

static enum ibv_wc_status completion(struct ibv_wc *wc)
{
	int n;
	while ((n = ibv_poll_cq(cq, 1, wc)) == 0)
		usleep(500);
	CHECK(n == 1);
	return wc->status;
}

static void post_receive(uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + BUFFER, .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* One operation of the requester, waited for. */
static void request(struct ibv_send_wr wr, uint32_t length, enum ibv_wc_status expected)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	wr.sg_list = &sge;
	wr.num_sge = length ? 1 : 0;
	wr.send_flags |= IBV_SEND_SIGNALED;
	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = theirs.qpn;
		wr.wr.ud.remote_qkey = QKEY;
	} else if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = theirs.address;
		wr.wr.atomic.rkey = theirs.rkey;
	} else {
		wr.wr.rdma.remote_addr = theirs.address;
		wr.wr.rdma.rkey = expected == IBV_WC_REM_ACCESS_ERR ? theirs.rkey ^ 0x5a : theirs.rkey;
	}
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	enum ibv_wc_status status = completion(&wc);
	printf("opcode %d length %u: %s\n", wr.opcode, length, ibv_wc_status_str(status));
	CHECK(status == expected);
}

#define OP(kind, ...) ((struct ibv_send_wr){ .opcode = IBV_WR_##kind, ##__VA_ARGS__ })

/* SEND with invalidate needs something to invalidate: a type 2 memory window, bound by its owner. */
static void bind_windows(void)
{
	for (int i = 0; i < WINDOWS; i++) {
		struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
		struct ibv_wc wc;
		CHECK(window);
		wr.bind_mw.mw = window;
		wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
			.mr = mr, .addr = (uintptr_t)buffer, .length = BUFFER, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		CHECK(completion(&wc) == IBV_WC_SUCCESS);
		mine.window_rkey[i] = wr.bind_mw.rkey;
	}
}

static void connect_qp(int gid_index, enum ibv_mtu mtu, int rnr_timer)
{
	enum ibv_qp_type type = qp->qp_type;
	struct ibv_ah_attr path = { .port_num = 1, .is_global = 1, .grh = { .dgid = theirs.gid, .hop_limit = 64 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = theirs.qpn,
				 .rq_psn = theirs.psn, .max_dest_rd_atomic = 4, .min_rnr_timer = rnr_timer };
	int mask = IBV_QP_STATE;

	path.grh.sgid_index = gid_index;
	a.ah_attr = path;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &a, mask) == 0);

	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = mine.psn, .timeout = 18, .retry_cnt = 7,
				  .rnr_retry = 7, .max_rd_atomic = 4 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &a, mask) == 0);
	if (type == IBV_QPT_UD)
		CHECK((ah = ibv_create_ah(pd, &path)));
}

static void create_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .qp_type = type,
		.cap = { .max_send_wr = 16, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, more = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((buffer = aligned_alloc(4096, 2 * BUFFER)));
	for (int i = 0; i < 2 * BUFFER; i++)
		buffer[i] = i * 7 + (i >> 8);
	CHECK((mr = ibv_reg_mr(pd, buffer, 2 * BUFFER, access | more | IBV_ACCESS_MW_BIND)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	a.qp_access_flags = type == IBV_QPT_RC ? access | more : access;
	CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
}

static void drain(int receives)
{
	struct ibv_wc wc;
	for (int i = 0; i < receives; i++) {
		CHECK(completion(&wc) == IBV_WC_SUCCESS);
		printf("received %u bytes, flags %#x, immediate or key %#x\n", wc.byte_len, wc.wc_flags,
		       wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : ntohl(wc.imm_data));
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 4 || argc == 5);
	const char *mode = argv[1];
	int gid_index = atoi(argv[2]), mtu_bytes = atoi(argv[3]), receives = 0, i, n;
	enum ibv_mtu mtu = mtu_bytes == 256 ? IBV_MTU_256 : mtu_bytes == 512 ? IBV_MTU_512 :
			   mtu_bytes == 1024 ? IBV_MTU_1024 : mtu_bytes == 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
	enum ibv_qp_type type = !strcmp(mode, "uc") ? IBV_QPT_UC : !strcmp(mode, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
	const uint32_t one = mtu_bytes - 3, two = 2 * mtu_bytes - 1, three = 2 * mtu_bytes + mtu_bytes / 2 + 2;
	struct ibv_device **devices;

	requester = argc == 5;
	CHECK((devices = ibv_get_device_list(&n)) && n > 0);
	CHECK((context = ibv_open_device(devices[0])));
	create_qp(type);
	CHECK(ibv_query_gid(context, 1, gid_index, &mine.gid) == 0);
	mine.qpn = qp->qp_num;
	mine.psn = requester ? 0xfffffd : 0x000100; /* the requester's numbers pass through zero */
	mine.rkey = mr->rkey;
	mine.address = (uintptr_t)buffer;
	open_channel(requester ? argv[4] : NULL);
	exchange(&mine, &theirs, sizeof mine);
	connect_qp(gid_index, mtu, 26); /* 26: 82 ms */
	if (!strcmp(mode, "rc")) {
		bind_windows();
		receives = 13;
	} else if (type != IBV_QPT_RC) {
		receives = type == IBV_QPT_UC ? 8 : 4;
	}
	if (!requester && !strcmp(mode, "toolong"))
		post_receive(64);
	if (!requester)
		for (i = 0; i < receives; i++)
			post_receive(BUFFER);
	exchange(&mine, &theirs, sizeof mine); /* now with the windows' keys; also: the receives are posted */

	if (!requester) {
		if (!strcmp(mode, "rnr")) {
			usleep(250000);
			post_receive(BUFFER);
			receives = 1;
		}
		drain(receives);
	} else if (!strcmp(mode, "rnr")) {
		request(OP(SEND), two, IBV_WC_SUCCESS);
	} else if (!strcmp(mode, "badkey")) {
		request(OP(RDMA_WRITE), one, IBV_WC_REM_ACCESS_ERR);
	} else if (!strcmp(mode, "toolong")) {
		request(OP(SEND), one, IBV_WC_REM_OP_ERR);
	} else if (!strcmp(mode, "mismatch")) {
		request(OP(RDMA_WRITE), three, IBV_WC_REM_INV_REQ_ERR);
	} else if (type == IBV_QPT_UD) {
		request(OP(SEND), one, IBV_WC_SUCCESS);
		request(OP(SEND), 0, IBV_WC_SUCCESS);
		request(OP(SEND_WITH_IMM, .imm_data = htonl(0xcafe0001)), one - 1, IBV_WC_SUCCESS);
		request(OP(SEND_WITH_IMM, .imm_data = htonl(0xcafe0002), .send_flags = IBV_SEND_SOLICITED), 1, IBV_WC_SUCCESS);
	} else {
		const uint32_t lengths[] = { one, two, three };
		for (i = 0; i < 3; i++) {
			request(OP(SEND), lengths[i], IBV_WC_SUCCESS);
			request(OP(RDMA_WRITE), lengths[i], IBV_WC_SUCCESS);
			if (i == 1) /* keeps the UC receives at eight */
				continue;
			request(OP(SEND_WITH_IMM, .imm_data = htonl(0xcafe0010 + i)), lengths[i], IBV_WC_SUCCESS);
			request(OP(RDMA_WRITE_WITH_IMM, .imm_data = htonl(0xcafe0020 + i)), lengths[i], IBV_WC_SUCCESS);
		}
		request(OP(RDMA_WRITE_WITH_IMM, .imm_data = htonl(0xcafe0030), .send_flags = IBV_SEND_SOLICITED), 0,
			IBV_WC_SUCCESS);
		request(OP(RDMA_WRITE), 0, IBV_WC_SUCCESS);
		if (type == IBV_QPT_RC) {
			request(OP(SEND), 0, IBV_WC_SUCCESS);
			request(OP(SEND, .send_flags = IBV_SEND_SOLICITED), 5, IBV_WC_SUCCESS);
			request(OP(SEND_WITH_INV, .invalidate_rkey = theirs.window_rkey[0]), one, IBV_WC_SUCCESS);
			request(OP(SEND_WITH_INV, .invalidate_rkey = theirs.window_rkey[1]), three, IBV_WC_SUCCESS);
			request(OP(SEND_WITH_IMM, .imm_data = htonl(0xcafe0040)), 0, IBV_WC_SUCCESS);
			for (i = 0; i < 3; i++)
				request(OP(RDMA_READ), lengths[i], IBV_WC_SUCCESS);
			request(OP(ATOMIC_CMP_AND_SWP, .wr.atomic = { .compare_add = 1, .swap = 0x1122334455667788 }), 8,
				IBV_WC_SUCCESS);
			request(OP(ATOMIC_FETCH_AND_ADD, .wr.atomic = { .compare_add = 0x0102030405060708 }), 8,
				IBV_WC_SUCCESS);
		}
	}
	barrier();
	printf("traffic: %s done\n", mode);
	return 0;
}
