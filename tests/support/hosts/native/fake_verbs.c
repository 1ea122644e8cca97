/* SPDX-License-Identifier: Apache-2.0
 *
 * As much of libibverbs as host/native/verbs*.c calls, for machines without an RDMA device: one device, "fake0", whose
 * queue pairs are all in this process, behind switches that fold whole messages.
 *
 * Streams are told of by `fake_stream`, as a controller tells switches.  Once each rank of a stream has posted its next
 * message and a receive for it, the fold of their big-endian lanes goes to every rank.  There is no loss: go-back-N is
 * the NIC's own business.  What an RC end point of a fold must not do is counted in `fake_violations`.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define QUEUE 64
#define PAIRS 16384
#define RANKS 8
#define STREAMS 256

typedef struct {
    struct ibv_cq cq;
    struct ibv_wc entries[4 * QUEUE];
    unsigned head, tail;
    int armed;
} queue;

typedef struct {
    uint64_t wr_id;
    struct ibv_sge pieces[2];
    int n;
    uint64_t bytes;
} request;

typedef struct {
    struct ibv_qp qp;
    struct ibv_qp_attr attributes;
    request work[QUEUE]; /* posted and not completed: sends of an `out`, receives of an `in` */
    unsigned head, tail;
    unsigned folded; /* sends whose fold has been made, and that wait to be acknowledged */
    int error;
} pair;

enum { MAXIMUM = 1 };

typedef struct {
    int n, operation; /* MAXIMUM, or bits of the lanes that are added */
    uint32_t out[RANKS], in[RANKS];
} stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_device device = {.name = "fake0", .dev_name = "uverbs0"};
static pair *pairs[PAIRS];
static uint32_t next_pair = 17;
static stream streams[STREAMS];
static int n_streams, holding, holding_acknowledgements, active_mtu = IBV_MTU_4096;
static int events_error;                        /* of ibv_req_notify_cq; 0: it works */
static int event_type, event_fds[RANKS];        /* what the device reports, and to whom: 0 to nobody */
static uint64_t violations, messages, break_at; /* break_at: 0 where none is to break */
static uint32_t break_pair;
static int break_sends;
static char violation[256];

static void violate(const char *what, uint32_t qp) {
    violations++;
    snprintf(violation, sizeof violation, "%s (queue pair %u)", what, qp);
}

/* ---- completions ------------------------------------------------------------------------------------------------- */
static void complete(struct ibv_cq *to, struct ibv_wc wc) {
    queue *q = (queue *)to;
    if (q->tail - q->head == 4 * QUEUE || (int)(q->tail - q->head) >= to->cqe) {
        violate("the completion queue is full", wc.qp_num);
        return;
    }
    q->entries[q->tail++ % (4 * QUEUE)] = wc;
    uint64_t one = 1;
    if (q->armed && write(to->channel->fd, &one, sizeof one) == sizeof one) q->armed = 0;
}

static void flush(pair *p, enum ibv_wc_status first, int sends) {
    for (enum ibv_wc_status status = first; p->head != p->tail; status = IBV_WC_WR_FLUSH_ERR)
        complete(sends ? p->qp.send_cq : p->qp.recv_cq, (struct ibv_wc){.wr_id = p->work[p->head++ % QUEUE].wr_id,
                                                                        .status = status,
                                                                        .vendor_err = 0x81,
                                                                        .qp_num = p->qp.qp_num});
}

/* ---- folding ----------------------------------------------------------------------------------------------------- */
static uint8_t *byte_of(const request *r, uint64_t at) {
    int i = at >= r->pieces[0].length;
    return (uint8_t *)(uintptr_t)r->pieces[i].addr + (i ? at - r->pieces[0].length : at);
}

static uint32_t word_of(const request *r, uint64_t at) {
    uint32_t word;
    memcpy(&word, byte_of(r, at), 4);
    return __builtin_bswap32(word);
}

/* Lanes of a word added without a carry from one to the next, or the greater of two words. */
static uint32_t folded(uint32_t a, uint32_t b, int operation) {
    if (operation == MAXIMUM) return (int32_t)a > (int32_t)b ? a : b;
    uint32_t high = operation == 32 ? 0x80000000u : operation == 16 ? 0x80008000u : 0x80808080u;
    return ((a & ~high) + (b & ~high)) ^ ((a ^ b) & high);
}

/* Are the queue pairs of this stream connected as the addresses say, and at the same PSN? */
static int connected(const stream *s) {
    for (int i = 0; i < s->n; i++) {
        const pair *out = pairs[s->out[i]], *in = pairs[s->in[i]];
        if (!out || !in || out->error || in->error || out->attributes.qp_state != IBV_QPS_RTS ||
            in->attributes.qp_state < IBV_QPS_RTR)
            return 0;
        if (out->attributes.dest_qp_num != s->in[(i + 1) % s->n] ||
            in->attributes.dest_qp_num != s->out[(i + s->n - 1) % s->n] ||
            out->attributes.sq_psn != pairs[s->out[0]]->attributes.sq_psn ||
            in->attributes.rq_psn != out->attributes.sq_psn ||
            out->attributes.ah_attr.grh.sgid_index == in->attributes.ah_attr.grh.sgid_index)
            return violate("connected to a queue pair, PSN or GID that is not its neighbour's", s->out[i]), 0;
    }
    return 1;
}

static int fold_one(const stream *s) {
    request *sent[RANKS], *taken[RANKS];
    for (int i = 0; i < s->n; i++) {
        pair *out = pairs[s->out[i]], *in = pairs[s->in[i]];
        if (out->head + out->folded == out->tail) return 0;
        sent[i] = &out->work[(out->head + out->folded) % QUEUE];
        if (in->head == in->tail) return violate("sends, and has posted no receive for the result", s->in[i]), 0;
        taken[i] = &in->work[in->head % QUEUE];
        if (sent[i]->bytes != sent[0]->bytes) return 0; /* the switches drop what differs */
        if (taken[i]->bytes < sent[i]->bytes) return violate("a receive too short for the result", s->in[i]), 0;
    }
    for (uint64_t at = 0; at < sent[0]->bytes; at += 4) {
        uint32_t word = word_of(sent[0], at);
        for (int i = 1; i < s->n; i++) word = folded(word, word_of(sent[i], at), s->operation);
        uint32_t wire = __builtin_bswap32(word);
        for (int i = 0; i < s->n; i++) memcpy(byte_of(taken[i], at), &wire, 4);
    }
    messages++;
    for (int i = 0; i < s->n; i++) {
        pair *in = pairs[s->in[i]];
        in->head++;
        pairs[s->out[i]]->folded++;
        complete(in->qp.recv_cq, (struct ibv_wc){.wr_id = taken[i]->wr_id,
                                                 .opcode = IBV_WC_RECV,
                                                 .byte_len = (uint32_t)sent[i]->bytes,
                                                 .qp_num = in->qp.qp_num});
    }
    return 1;
}

static void break_now(uint32_t number, int sends) {
    pair *p = pairs[number];
    if (!p) return;
    p->error = 1;
    p->folded = 0;
    flush(p, sends ? IBV_WC_RETRY_EXC_ERR : IBV_WC_LOC_PROT_ERR, sends);
}

static void fold_all(void) {
    for (int k = 0; k < n_streams && !holding; k++)
        if (connected(&streams[k]))
            while (fold_one(&streams[k]))
                if (break_at && messages >= break_at) {
                    break_at = 0;
                    break_now(break_pair, break_sends);
                    break;
                }
    for (uint32_t k = 0; k < next_pair && !holding_acknowledgements; k++)
        for (pair *p = pairs[k]; p && p->folded; p->folded--)
            complete(p->qp.send_cq, (struct ibv_wc){.wr_id = p->work[p->head++ % QUEUE].wr_id,
                                                    .opcode = IBV_WC_SEND,
                                                    .qp_num = p->qp.qp_num});
}

/* ---- what tests call --------------------------------------------------------------------------------------------- */
void fake_stream(int n, const uint32_t *out, const uint32_t *in, int operation) {
    pthread_mutex_lock(&lock);
    stream *s = &streams[n_streams++ % STREAMS];
    *s = (stream){.n = n, .operation = operation};
    memcpy(s->out, out, sizeof *out * (size_t)n);
    memcpy(s->in, in, sizeof *in * (size_t)n);
    pthread_mutex_unlock(&lock);
}

void fake_forget(void) { /* all streams, as when trees are planned anew */
    pthread_mutex_lock(&lock);
    n_streams = 0;
    pthread_mutex_unlock(&lock);
}

void fake_reset(int mtu) {
    pthread_mutex_lock(&lock);
    n_streams = holding = holding_acknowledgements = 0;
    violations = messages = break_at = 0;
    events_error = 0;
    violation[0] = 0;
    active_mtu = mtu;
    pthread_mutex_unlock(&lock);
}

/* Holds folds back, or the acknowledgements of sends. */
void fake_hold(int folds, int acknowledgements) {
    pthread_mutex_lock(&lock);
    holding = folds;
    holding_acknowledgements = acknowledgements;
    fold_all();
    pthread_mutex_unlock(&lock);
}

void fake_refuse_events(int error) { /* completion queues tell of nothing any more */
    pthread_mutex_lock(&lock);
    events_error = error;
    pthread_mutex_unlock(&lock);
}

void fake_report(int type) { /* something happens to the device, of which all who have opened it are told */
    pthread_mutex_lock(&lock);
    event_type = type;
    for (int i = 0; i < RANKS; i++)
        if (event_fds[i]) eventfd_write(event_fds[i], 1);
    pthread_mutex_unlock(&lock);
}

/* Breaks a queue pair, as a NIC does whose patience has ended, once so many messages have been folded; 0: now. */
void fake_break(uint32_t number, int sends, uint32_t after) {
    pthread_mutex_lock(&lock);
    break_at = after;
    break_pair = number;
    break_sends = sends;
    if (!after) break_now(number, sends);
    pthread_mutex_unlock(&lock);
}

uint32_t fake_posted(uint32_t number) { /* work requests of a queue pair that are not completed */
    pthread_mutex_lock(&lock);
    uint32_t n = pairs[number] ? pairs[number]->tail - pairs[number]->head : 0;
    pthread_mutex_unlock(&lock);
    return n;
}

uint32_t fake_pairs(void) { /* queue pairs that are there */
    pthread_mutex_lock(&lock);
    uint32_t n = 0;
    for (uint32_t k = 0; k < next_pair; k++) n += pairs[k] != NULL;
    pthread_mutex_unlock(&lock);
    return n;
}

uint64_t fake_messages(void) { return messages; }
uint64_t fake_violations(char *last, size_t room) {
    pthread_mutex_lock(&lock);
    snprintf(last, room, "%s", violation);
    uint64_t n = violations;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- libibverbs -------------------------------------------------------------------------------------------------- */
static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *into) {
    queue *q = (queue *)cq;
    int got = 0;
    pthread_mutex_lock(&lock);
    while (got < n && q->head != q->tail) into[got++] = q->entries[q->head++ % (4 * QUEUE)];
    pthread_mutex_unlock(&lock);
    return got;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) { /* returns its error, and leaves errno as it is */
    (void)solicited;
    pthread_mutex_lock(&lock);
    int error = events_error;
    ((queue *)cq)->armed = !error;
    pthread_mutex_unlock(&lock);
    return error;
}

static request request_of(uint64_t wr_id, const struct ibv_sge *pieces, int n) {
    request r = {.wr_id = wr_id, .n = n};
    for (int i = 0; i < n; i++) {
        r.pieces[i] = pieces[i];
        r.bytes += pieces[i].length;
    }
    return r;
}

static int post(struct ibv_qp *qp, request r, int sends) {
    pair *p = (pair *)qp;
    pthread_mutex_lock(&lock);
    if (p->tail - p->head >= 2) violate("more than two messages outstanding", qp->qp_num);
    p->work[p->tail++ % QUEUE] = r;
    if (p->error)
        flush(p, IBV_WC_WR_FLUSH_ERR, sends);
    else if (sends)
        fold_all();
    pthread_mutex_unlock(&lock);
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
    *bad = wr;
    if (((pair *)qp)->attributes.qp_state != IBV_QPS_RTS || wr->opcode != IBV_WR_SEND || wr->num_sge > 2) return EINVAL;
    return post(qp, request_of(wr->wr_id, wr->sg_list, wr->num_sge), 1);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
    *bad = wr;
    if (wr->num_sge > 2) return EINVAL;
    return post(qp, request_of(wr->wr_id, wr->sg_list, wr->num_sge), 0);
}

struct ibv_device **ibv_get_device_list(int *n) {
    struct ibv_device **list = calloc(2, sizeof *list);
    list[0] = &device;
    *n = 1;
    return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }

/* Puts one descriptor in the place of another, of which 0 is none. */
static void tell_of_events(int fd, int before) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < RANKS && event_fds[i] != before) i++;
    if (i < RANKS) event_fds[i] = fd;
    pthread_mutex_unlock(&lock);
}

struct ibv_context *ibv_open_device(struct ibv_device *d) {
    struct ibv_context *context = calloc(1, sizeof *context);
    context->device = d;
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    tell_of_events(context->async_fd, 0);
    context->ops.poll_cq = poll_cq;
    context->ops.req_notify_cq = req_notify_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_recv;
    return context;
}
int ibv_close_device(struct ibv_context *context) {
    tell_of_events(0, context->async_fd);
    close(context->async_fd);
    free(context);
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *into) {
    struct ibv_port_attr *attributes = (struct ibv_port_attr *)into;
    (void)context;
    if (port != 1) return EINVAL;
    attributes->state = IBV_PORT_ACTIVE;
    attributes->active_mtu = (enum ibv_mtu)active_mtu;
    attributes->max_msg_sz = 1u << 30;
    return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}
int ibv_dealloc_pd(struct ibv_pd *pd) {
    free(pd);
    return 0;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access) {
    struct ibv_mr *region = calloc(1, sizeof *region);
    (void)access;
    region->context = pd->context;
    region->addr = address;
    region->length = length;
    return region;
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access) {
    (void)iova;
    return ibv_reg_mr(pd, address, length, (int)access);
}
int ibv_dereg_mr(struct ibv_mr *region) {
    free(region);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *private, struct ibv_comp_channel *channel,
                             int vector) {
    queue *q = calloc(1, sizeof *q);
    (void)vector;
    q->cq = (struct ibv_cq){.context = context, .channel = channel, .cq_context = private, .cqe = cqe};
    return &q->cq;
}
int ibv_destroy_cq(struct ibv_cq *cq) {
    free(cq);
    return 0;
}
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **private) {
    uint64_t count;
    *cq = NULL;
    *private = NULL;
    return read(channel->fd, &count, sizeof count) == sizeof count ? 0 : -1;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n) {
    (void)cq;
    (void)n;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *wanted) {
    pthread_mutex_lock(&lock);
    pair *p = next_pair < PAIRS ? calloc(1, sizeof *p) : NULL;
    if (p) {
        p->qp = (struct ibv_qp){.context = pd->context,
                                .pd = pd,
                                .send_cq = wanted->send_cq,
                                .recv_cq = wanted->recv_cq,
                                .qp_num = next_pair};
        pairs[next_pair++] = p;
    } else {
        errno = ENOMEM;
    }
    pthread_mutex_unlock(&lock);
    return p ? &p->qp : NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attributes, int mask) {
    struct ibv_qp_attr *mine = &((pair *)qp)->attributes;
    pthread_mutex_lock(&lock);
    if (mask & IBV_QP_DEST_QPN) mine->dest_qp_num = attributes->dest_qp_num;
    if (mask & IBV_QP_RQ_PSN) mine->rq_psn = attributes->rq_psn;
    if (mask & IBV_QP_SQ_PSN) mine->sq_psn = attributes->sq_psn;
    if (mask & IBV_QP_AV) mine->ah_attr = attributes->ah_attr;
    mine->qp_state = attributes->qp_state;
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp) {
    pthread_mutex_lock(&lock);
    pairs[qp->qp_num] = NULL;
    free(qp);
    pthread_mutex_unlock(&lock);
    return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event) {
    eventfd_t count;
    event->event_type = (enum ibv_event_type)event_type;
    return eventfd_read(context->async_fd, &count);
}
void ibv_ack_async_event(struct ibv_async_event *event) { (void)event; }
const char *ibv_wc_status_str(enum ibv_wc_status status) {
    return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "an error";
}
const char *ibv_event_type_str(enum ibv_event_type type) {
    (void)type;
    return "an event";
}
const char *ibv_port_state_str(enum ibv_port_state state) {
    (void)state;
    return "a state";
}
