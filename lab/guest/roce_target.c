/*
 * roce_target: the guest's end of the scenario udp-identification of the lab.
 *
 * A Soft-RoCE device meets a process on the host that has nothing but an ordinary UDP socket on port 4791.
 * This program makes one UC and one UD queue pair whose peer is that process, sends the process all that it
 * must know through a file of key=value lines, and then checks both directions:
 *
 *   1. in:  waits for one UC WRITE (uc_length bytes at uc_address) and one UD SEND (ud_length bytes);
 *           nothing may ever change the guarded bytes (guard_address, guard_length): a process that wants a
 *           negative control aims a packet with a wrong ICRC there first, and another at the UD queue pair;
 *   2. out: sends out_uc_writes UC WRITEs of out_uc_length bytes, the last one with an immediate,
 *           and then one UD SEND of out_ud_length bytes.
 *
 * Byte i of a message with seed s is (s + 31 * i + (i >> 8)) & 255.
 *
 *   roce_target --local ADDRESS --remote ADDRESS --file FILE [--seconds N] [--device NAME]
 *
 * ADDRESS is IPv4 or IPv6; the local one must be configured on the device's NIC (it selects the GID).
 * Prints PASS or FAIL lines; exit status 0 when all passed, 1 when not.
 *
 *   gcc -O2 -Wall -Wextra -o roce_target roce_target.c -libverbs
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NEED(condition) \
	do { if (!(condition)) { printf("FAIL setup: %s (line %d, %s)\n", #condition, __LINE__, strerror(errno)); exit(1); } } while (0)

enum {
	MTU = 1024,
	UC_LENGTH = 8195, /* nine packets, the last one with three bytes and one of padding */
	UD_LENGTH = 301,
	GUARD_LENGTH = 1024,
	GUARD_BYTE = 0xa5,
	GRH = 40,
	UD_RECEIVES = 8,

	UC_SEED = 0x11, UD_SEED = 0x22, OUT_UC_SEED = 0x33, OUT_UD_SEED = 0x44,

	/* What the host's end is to be called: chosen here, the host process takes them from the file. */
	HOST_UC_QPN = 0x00a1c5, HOST_UD_QPN = 0x00b2d6, HOST_UC_PSN = 0xfffffa, /* the host's PSNs pass through zero */
	HOST_QKEY = 0x0badcafe, HOST_RKEY = 0x1234ab,
	OUT_UC_WRITES = 4, OUT_UC_LENGTH = 8195, OUT_UD_LENGTH = 302, OUT_IMMEDIATE = 0x5eed1234,

	UC_PSN = 0xfffff0, UD_PSN = 0x000777, UD_QKEY = 0x00c0ffee,
};
static const uint64_t HOST_ADDRESS = 0x00007f00deadb000;

static int failures;

static void report(int good, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf(good ? "PASS " : "FAIL ");
	vprintf(format, list);
	printf("\n");
	fflush(stdout);
	va_end(list);
	failures += !good;
}

static uint8_t pattern(int seed, uint32_t i)
{
	return seed + 31 * i + (i >> 8);
}

static void fill(uint8_t *to, int seed, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		to[i] = pattern(seed, i);
}

/* How many leading bytes follow the pattern. */
static uint32_t matches(const volatile uint8_t *at, int seed, uint32_t length)
{
	uint32_t i = 0;
	while (i < length && at[i] == pattern(seed, i))
		i++;
	return i;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	if (inet_pton(AF_INET, address, gid.raw + 12) != 1)
		NEED(inet_pton(AF_INET6, address, gid.raw) == 1);
	return gid;
}

static int gid_index(struct ibv_context *context, union ibv_gid wanted)
{
	for (int attempt = 0; attempt < 50; attempt++, usleep(100000)) {
		union ibv_gid gid;
		for (int i = 0; i < 32 && ibv_query_gid(context, 1, i, &gid) == 0; i++)
			if (memcmp(&gid, &wanted, sizeof gid) == 0)
				return i;
	}
	errno = ENOENT;
	return -1;
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .send_cq = cq, .recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = UD_RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = UD_QKEY,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	NEED(qp);
	NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			   (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
	return qp;
}

static void write_file(const char *name, struct ibv_qp *uc, struct ibv_qp *ud, struct ibv_mr *mr,
		       const uint8_t *uc_at, const uint8_t *guard, const char *local)
{
	char temporary[4096];
	snprintf(temporary, sizeof temporary, "%s.new", name);
	FILE *f = fopen(temporary, "w");
	NEED(f);
	fprintf(f, "address=%s\nmtu=%d\npkey=0xffff\n", local, MTU);
	/* host to guest */
	fprintf(f, "uc_qpn=%#x\nuc_psn=%#x\nuc_rkey=%#x\nuc_address=%#llx\nuc_length=%d\nuc_seed=%#x\n", uc->qp_num,
		HOST_UC_PSN, mr->rkey, (unsigned long long)(uintptr_t)uc_at, UC_LENGTH, UC_SEED);
	fprintf(f, "guard_address=%#llx\nguard_length=%d\n", (unsigned long long)(uintptr_t)guard, GUARD_LENGTH);
	fprintf(f, "ud_qpn=%#x\nud_qkey=%#x\nud_length=%d\nud_seed=%#x\n", ud->qp_num, UD_QKEY, UD_LENGTH, UD_SEED);
	/* guest to host */
	fprintf(f, "host_uc_qpn=%#x\nhost_ud_qpn=%#x\nhost_rkey=%#x\nhost_address=%#llx\nhost_qkey=%#x\n", HOST_UC_QPN,
		HOST_UD_QPN, HOST_RKEY, (unsigned long long)HOST_ADDRESS, HOST_QKEY);
	fprintf(f, "out_uc_psn=%#x\nout_uc_writes=%d\nout_uc_length=%d\nout_uc_seed=%#x\nout_immediate=%#x\n", UC_PSN,
		OUT_UC_WRITES, OUT_UC_LENGTH, OUT_UC_SEED, OUT_IMMEDIATE);
	fprintf(f, "out_ud_psn=%#x\nout_ud_length=%d\nout_ud_seed=%#x\n", UD_PSN, OUT_UD_LENGTH, OUT_UD_SEED);
	NEED(fclose(f) == 0);
	NEED(rename(temporary, name) == 0);
}

int main(int argc, char **argv)
{
	const char *local = NULL, *remote = NULL, *file = NULL, *device = NULL;
	double deadline = now() + 30;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--local")) local = argv[i + 1];
		else if (!strcmp(argv[i], "--remote")) remote = argv[i + 1];
		else if (!strcmp(argv[i], "--file")) file = argv[i + 1];
		else if (!strcmp(argv[i], "--device")) device = argv[i + 1];
		else if (!strcmp(argv[i], "--seconds")) deadline = now() + atof(argv[i + 1]);
		else argc = 0;
	}
	if (argc % 2 == 0 || !local || !remote || !file) {
		fprintf(stderr, "usage: roce_target --local ADDRESS --remote ADDRESS --file FILE [--seconds N] [--device NAME]\n");
		return 2;
	}

	/* The device and its objects. */
	int n, found = -1;
	struct ibv_device **devices = ibv_get_device_list(&n);
	for (int i = 0; devices && i < n && found < 0; i++)
		if (!device || !strcmp(ibv_get_device_name(devices[i]), device))
			found = i;
	NEED(found >= 0);
	struct ibv_context *context = ibv_open_device(devices[found]);
	NEED(context);
	union ibv_gid remote_gid = gid_of(remote);
	int index = gid_index(context, gid_of(local));
	NEED(index >= 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(pd && cq);

	/* One buffer: what the host writes, then a guard, what UD receives, what we send. Page-sized parts. */
	enum { UC_AT = 0, GUARD_AT = 12288, UD_AT = 16384, OUT_UC_AT = UD_AT + UD_RECEIVES * 2048, OUT_UD_AT = OUT_UC_AT + 12288,
	       SIZE = OUT_UD_AT + 4096 };
	uint8_t *buffer = aligned_alloc(4096, SIZE);
	NEED(buffer);
	memset(buffer, 0, SIZE);
	memset(buffer + GUARD_AT, GUARD_BYTE, GUARD_LENGTH);
	fill(buffer + OUT_UC_AT, OUT_UC_SEED, OUT_UC_LENGTH);
	fill(buffer + OUT_UD_AT, OUT_UD_SEED, OUT_UD_LENGTH);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(mr);

	/* The queue pairs, connected to names that the host's process will answer to. */
	struct ibv_ah_attr path = { .port_num = 1, .is_global = 1,
		.grh = { .dgid = remote_gid, .sgid_index = index, .hop_limit = 64 } };
	struct ibv_qp *uc = make_qp(pd, cq, IBV_QPT_UC), *ud = make_qp(pd, cq, IBV_QPT_UD);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = HOST_UC_QPN,
				 .rq_psn = HOST_UC_PSN, .ah_attr = path };
	/* This asks for the remote's link address and fails after a second without one: a link just come up may need more. */
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, error, attempts = 0;
	while ((error = ibv_modify_qp(uc, &a, mask)) != 0 && ++attempts < 10)
		usleep(100000);
	NEED(error == 0);
	NEED(ibv_modify_qp(ud, &a, IBV_QP_STATE) == 0);
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = UC_PSN };
	NEED(ibv_modify_qp(uc, &a, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	a.sq_psn = UD_PSN;
	NEED(ibv_modify_qp(ud, &a, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	NEED(ah);
	for (uint64_t i = 0; i < UD_RECEIVES; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)buffer + UD_AT + i * 2048, .length = 2048, .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		NEED(ibv_post_recv(ud, &wr, &bad) == 0);
	}
	write_file(file, uc, ud, mr, buffer + UC_AT, buffer + GUARD_AT, local);
	printf("roce_target: ready, UC QP %#x, UD QP %#x, GID index %d, %d attempts to resolve failed\n", uc->qp_num,
	       ud->qp_num, index, attempts);
	fflush(stdout);

	/* In. After both have come, a moment more, for what should not come. */
	int received = 0, right = 0;
	double until = deadline;
	while (now() < until) {
		struct ibv_wc wc;
		int got = ibv_poll_cq(cq, 1, &wc);
		NEED(got >= 0);
		if (got == 1) {
			const uint8_t *at = buffer + UD_AT + wc.wr_id * 2048 + GRH;
			int good = wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.qp_num == ud->qp_num &&
				   wc.byte_len == GRH + UD_LENGTH && wc.src_qp == HOST_UD_QPN && (wc.wc_flags & IBV_WC_GRH) &&
				   matches(at, UD_SEED, UD_LENGTH) == UD_LENGTH;
			if (!good)
				printf("UD completion: %s, %u bytes, from QP %#x, flags %#x, %u bytes as expected\n",
				       ibv_wc_status_str(wc.status), wc.byte_len, wc.src_qp, wc.wc_flags,
				       matches(at, UD_SEED, UD_LENGTH));
			received++;
			right += good;
		}
		if (until == deadline && received && matches(buffer + UC_AT, UC_SEED, UC_LENGTH) == UC_LENGTH)
			until = now() + 0.3 < deadline ? now() + 0.3 : deadline;
		usleep(1000);
	}
	uint32_t written = matches(buffer + UC_AT, UC_SEED, UC_LENGTH), guarded = 0;
	report(written == UC_LENGTH, "UC WRITE from the host: %u of %u bytes in place", written, UC_LENGTH);
	report(received == 1 && right == 1, "UD SEND from the host: %d completions, %d right, expected one", received, right);
	while (guarded < GUARD_LENGTH && buffer[GUARD_AT + guarded] == GUARD_BYTE)
		guarded++;
	report(guarded == GUARD_LENGTH, "guarded bytes untouched: %u of %u", guarded, GUARD_LENGTH);

	/* Out. */
	for (int i = 0; i < OUT_UC_WRITES + 1; i++) {
		int datagram = i == OUT_UC_WRITES;
		struct ibv_sge sge = { .addr = (uintptr_t)buffer + (datagram ? OUT_UD_AT : OUT_UC_AT),
				       .length = datagram ? OUT_UD_LENGTH : OUT_UC_LENGTH, .lkey = mr->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
		if (datagram) {
			wr.opcode = IBV_WR_SEND;
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = HOST_UD_QPN;
			wr.wr.ud.remote_qkey = HOST_QKEY;
		} else {
			wr.opcode = i == OUT_UC_WRITES - 1 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
			wr.imm_data = htonl(OUT_IMMEDIATE);
			wr.wr.rdma.remote_addr = HOST_ADDRESS + (uint64_t)i * OUT_UC_LENGTH;
			wr.wr.rdma.rkey = HOST_RKEY;
		}
		NEED(ibv_post_send(datagram ? ud : uc, &wr, &bad) == 0);
		struct ibv_wc wc = { 0 };
		int got = 0;
		for (double end = now() + 5; got == 0 && now() < end; usleep(500))
			got = ibv_poll_cq(cq, 1, &wc);
		report(got == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i, "%s to the host sent: %s",
		       datagram ? "UD SEND" : "UC WRITE", got == 1 ? ibv_wc_status_str(wc.status) : "no completion");
	}
	printf("%s roce_target\n", failures ? "FAIL" : "PASS");
	return failures != 0;
}
