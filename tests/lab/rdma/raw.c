/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A client of RPC-over-RDMA that says what it is told to, right or wrong.
 *
 *   rdma_raw ADDRESS PORT [KIB]
 *
 * Says that it takes messages of KIB KiB (RFC 8797), or nothing of that. Prints "connected RKEY
 * ADDRESS KIB", a buffer that the peer may read and write, in hexadecimal, and what the peer says
 * that it takes, 0 for nothing; then obeys lines:
 *
 *   send HEX        a message; nothing is printed
 *   fill HEX        the beginning of the buffer
 *   dump COUNT      prints "buffer HEX"
 *   receive         waits for a message: prints "message HEX", or "closed" when the peer has ended
 *                   the connection, or "silence" after a minute
 *
 * Ends with its input. "refused" and exit 1 where the peer says no.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE 4096
#define RECEIVES 128
#define BUFFER (2 << 20)
#define LINE (2 * MESSAGE + 64)
#define WAIT_MS 60000

static struct rdma_cm_id *id;
static bool has_ended; /* the connection, by the peer */
static struct ibv_mr *messages, *buffer;
static uint8_t received[RECEIVES][MESSAGE], sent[MESSAGE], shared[BUFFER];

static void fail(const char *what)
{
	fprintf(stderr, "rdma_raw: %s: %s\n", what, strerror(errno));
	exit(2);
}

static void print_bytes(const char *what, const uint8_t *data, size_t length)
{
	printf("%s ", what);
	for (size_t i = 0; i < length; i++)
		printf("%02x", data[i]);
	printf("\n");
	fflush(stdout);
}

static size_t parse_bytes(const char *text, uint8_t *data, size_t most)
{
	size_t length = 0;
	unsigned byte;

	while (length < most && sscanf(text + 2 * length, "%2x", &byte) == 1)
		data[length++] = byte;
	return length;
}

static void post_receive(unsigned i)
{
	if (rdma_post_recv(id, (void *)(uintptr_t)i, received[i], MESSAGE, messages))
		fail("receive");
}

/* RFC 8797 */
struct announcement {
	uint32_t magic;
	uint8_t version, flags, send, receive;
};
#define MAGIC 0xf6ab0e18

/* KiB that the peer takes in a message; 0: it has not said so. */
static unsigned announced(const struct rdma_conn_param *param)
{
	struct announcement told;

	if (!param->private_data || param->private_data_len < sizeof(told))
		return 0;
	memcpy(&told, param->private_data, sizeof(told));
	return ntohl(told.magic) == MAGIC && told.version == 1 ? told.receive + 1u : 0;
}

/* KIB: what to say that is taken; 0 to say nothing. */
static void connect_to(const char *address, const char *port, unsigned kib)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = RECEIVES,
						.max_recv_wr = RECEIVES,
						.max_send_sge = 1,
						.max_recv_sge = 1},
		.sq_sig_all = 1};
	struct announcement told = {htonl(MAGIC), 1, 0, kib - 1, kib - 1};
	struct rdma_conn_param param = {.initiator_depth = 16,
		.responder_resources = 16,
		.retry_count = 7,
		.private_data = kib ? &told : NULL,
		.private_data_len = kib ? sizeof(told) : 0};

	if (rdma_getaddrinfo(address, port, &hints, &found))
		fail(address);
	if (rdma_create_ep(&id, found, NULL, &attr))
		fail(address);
	messages = rdma_reg_msgs(id, received, sizeof(received));
	buffer = ibv_reg_mr(id->pd, shared, sizeof(shared),
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
	if (!messages || !buffer)
		fail("memory");
	for (unsigned i = 0; i < RECEIVES; i++)
		post_receive(i);
	if (rdma_connect(id, &param)) {
		if (errno != ECONNREFUSED)
			fail("connect");
		printf("refused\n");
		exit(1);
	}
	printf("connected %x %llx %u\n", buffer->rkey, (unsigned long long)(uintptr_t)shared,
		announced(&id->event->param.conn));
	fflush(stdout);
}

static void send_message(const char *text, struct ibv_mr *mr)
{
	size_t length = parse_bytes(text, sent, sizeof(sent));
	struct ibv_wc wc;

	if (rdma_post_send(id, NULL, sent, length, mr, 0) || rdma_get_send_comp(id, &wc) < 0)
		fail("send");
}

/* Waits 10 ms for the peer to end the connection. */
static void look_for_end(void)
{
	struct pollfd events = {.fd = id->channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	if (poll(&events, 1, 10) != 1)
		return;
	if (rdma_get_cm_event(id->channel, &event))
		fail("event");
	has_ended |= event->event == RDMA_CM_EVENT_DISCONNECTED;
	rdma_ack_cm_event(event);
}

/* What came before the end of the connection comes first. */
static const char *wait_for_message(struct ibv_wc *wc)
{
	for (int waited = 0; waited < WAIT_MS; waited += 10) {
		int count = ibv_poll_cq(id->recv_cq, 1, wc);

		if (count < 0)
			fail("receive");
		if (count && wc->status == IBV_WC_SUCCESS)
			return "message";
		if (count || has_ended)
			return "closed";
		look_for_end();
	}
	return "silence";
}

static void receive(void)
{
	struct ibv_wc wc;
	const char *what = wait_for_message(&wc);

	if (!strcmp(what, "message")) {
		print_bytes(what, received[wc.wr_id], wc.byte_len);
		post_receive(wc.wr_id);
	} else {
		printf("%s\n", what);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	static char line[LINE];
	struct ibv_mr *mr;

	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: rdma_raw ADDRESS PORT [KIB]\n");
		return 2;
	}
	connect_to(argv[1], argv[2], argc == 4 ? strtoul(argv[3], NULL, 10) : 0);
	mr = rdma_reg_msgs(id, sent, sizeof(sent));
	if (!mr)
		fail("memory");
	while (fgets(line, sizeof(line), stdin)) {
		if (!strncmp(line, "send ", 5))
			send_message(line + 5, mr);
		else if (!strncmp(line, "fill ", 5))
			parse_bytes(line + 5, shared, sizeof(shared));
		else if (!strncmp(line, "dump ", 5))
			print_bytes("buffer", shared, strtoul(line + 5, NULL, 10));
		else if (!strncmp(line, "receive", 7))
			receive();
	}
	rdma_disconnect(id);
	return 0;
}
