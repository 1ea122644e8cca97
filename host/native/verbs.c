/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "verbs.h"
#include "fold_payload.h"
#include "fold_state.h"
#include "quantise.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#define OUTSTANDING 2   /* messages that wait for their result, or for their acknowledgement */
#define QUEUE 32        /* messages between una and what is made: a few, even after a rewind over short ones */
#define SOME_PACKETS 32 /* made at a time, before completions are looked for again */
#define SPIN_NS 20000   /* how long completions are polled for before the thread sleeps */
#define BATCH 16

typedef struct {
    nf_channel *channel;
    nf_verbs_ends ends;
    struct ibv_mr *sends, *results; /* the history's payloads; the ring of results */
    uint8_t *ring;
    uint32_t room;           /* packets of the ring, a power of two: more than three messages */
    nf_message queue[QUEUE]; /* by count, modulo; `first` is a sequence number */
    uint64_t made, posted, acknowledged, arrived, taken;
} stream;

struct nf_verbs {
    nf_fold *fold;
    nf_verbs_device device;
    uint32_t n; /* streams */
    stream *streams;
    uint32_t generation; /* of queue pairs: completions of older ones may be in the queue yet */
    bool armed;          /* the completion channel will report the next completion */
    int interrupt;
    nf_span *spans;
    uint64_t n_spans, spans_room, spans_lost;
};

uint32_t nf_verbs_abi_size(uint32_t which) {
    static const uint32_t sizes[] = {sizeof(nf_verbs_neighbour), sizeof(nf_verbs_numbers)};
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
static bool register_stream(nf_verbs *v, stream *s) {
    nf_history *h = &s->channel->history;
    s->room = h->size;
    uint32_t longest = nf_message_of(v->fold, s->channel);
    if (s->room < 8 * longest) {
        nf_verbs_say(&v->device, 0, "a history of %u packets: expected one of eight messages of %u", s->room, longest);
        return false;
    }
    if (!(s->ring = calloc(s->room, v->fold->path_mtu))) {
        nf_verbs_say(&v->device, ENOMEM, "no memory for %u results", s->room);
        return false;
    }
    nf_history_bare(h);
    s->sends = nf_verbs_register(&v->device, h->packets, h->size * h->stride, false);
    s->results = s->sends ? nf_verbs_register(&v->device, s->ring, (size_t)s->room * v->fold->path_mtu, true) : NULL;
    return s->results != NULL;
}

nf_verbs *nf_verbs_open(nf_fold *f, const char *device, uint32_t port, int32_t own_gid, int32_t fold_gid) {
    nf_verbs *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    v->fold = f;
    v->interrupt = -1;
    v->n = 2 * f->n_trees;
    if (!(v->streams = calloc(v->n, sizeof *v->streams))) {
        free(v);
        return NULL;
    }
    for (uint32_t i = 0; i < v->n; i++)
        v->streams[i].channel = &f->trees[i / 2].channels[i % 2 ? NF_AGREEMENT_STREAM : NF_DATA_STREAM];
    uint64_t longest = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        uint32_t packets = nf_message_of(f, v->streams[i].channel);
        longest = packets > longest ? packets : longest;
    }
    if (nf_verbs_device_open(&v->device, device, (uint8_t)port, own_gid, fold_gid, f->path_mtu, v->n,
                             longest * f->path_mtu))
        for (uint32_t i = 0; i < v->n && register_stream(v, &v->streams[i]); i++) {
        }
    return v;
}

void nf_verbs_unmake(nf_verbs *v) {
    for (uint32_t i = 0; i < v->n; i++) nf_verbs_ends_destroy(&v->streams[i].ends);
    v->generation++;
}

void nf_verbs_close(nf_verbs *v) {
    if (!v) return;
    nf_verbs_unmake(v);
    for (uint32_t i = 0; i < v->n; i++) {
        stream *s = &v->streams[i];
        if (s->sends) ibv_dereg_mr(s->sends);
        if (s->results) ibv_dereg_mr(s->results);
        free(s->ring);
    }
    nf_verbs_device_close(&v->device);
    free(v->streams);
    free(v);
}

const char *nf_verbs_why(const nf_verbs *v) { return v->device.why; }
void nf_verbs_interrupt_by(nf_verbs *v, int fd) { v->interrupt = fd; }
void nf_verbs_descriptors(const nf_verbs *v, int32_t numbers[3]) {
    numbers[0] = v->device.context->cmd_fd;
    numbers[1] = v->device.context->async_fd;
    numbers[2] = v->device.events->fd;
}

/* ---- queue pairs made, and made anew ----------------------------------------------------------------------------- */
bool nf_verbs_make(nf_verbs *v, nf_verbs_numbers *numbers) {
    nf_verbs_unmake(v);
    v->device.why[0] = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        nf_verbs_ends *ends = &v->streams[i].ends;
        if (!nf_verbs_ends_make(&v->device, ends)) return false;
        numbers[i] = (nf_verbs_numbers){ends->out->qp_num, ends->in->qp_num};
    }
    return true;
}

/* Finds in the history the messages from where the stream begins on, all to be posted anew. */
static bool recall(nf_verbs *v, stream *s) {
    nf_channel *c = s->channel;
    s->made = s->posted = s->acknowledged = s->arrived = s->taken = 0;
    uint64_t first = c->stream.una;
    for (uint64_t seq = first; seq < c->history.next; seq++) {
        uint8_t opcode = nf_history_at(&c->history, seq)->header.opcode;
        if ((seq == first) != nf_begins_message(opcode)) {
            nf_verbs_say(&v->device, 0,
                         "PSN %u is not where a message begins: an RC queue pair cannot go on in the middle of one",
                         nf_stream_psn(&c->stream, seq));
            return false;
        }
        if (!nf_ends_message(opcode)) continue;
        if (s->made == QUEUE) {
            nf_verbs_say(&v->device, 0, "more than %d messages are to be sent again", QUEUE);
            return false;
        }
        s->queue[s->made++] = (nf_message){first, (uint32_t)(seq + 1 - first)};
        first = seq + 1;
    }
    return true;
}

bool nf_verbs_connect(nf_verbs *v, const nf_verbs_neighbour *to) {
    for (uint32_t i = 0; i < v->n; i++) {
        stream *s = &v->streams[i];
        nf_verbs_neighbour here = to[i];
        here.psn = nf_stream_psn(&s->channel->stream, s->channel->stream.una);
        if (!recall(v, s) || !nf_verbs_ends_connect(&v->device, &s->ends, &here)) return false;
    }
    return true;
}

/* ---- the timeline ------------------------------------------------------------------------------------------------ */
void nf_verbs_trace(nf_verbs *v, nf_span *spans, uint64_t room) {
    v->spans = spans;
    v->spans_room = room;
    v->n_spans = v->spans_lost = 0;
}

uint64_t nf_verbs_traced(nf_verbs *v, uint64_t *lost) {
    uint64_t n = v->n_spans;
    *lost = v->spans_lost;
    v->n_spans = v->spans_lost = 0;
    return n;
}

static int64_t begin_span(const nf_verbs *v) { return v->spans ? nf_now() : 0; }

static void end_span(nf_verbs *v, nf_span_kind kind, int64_t begin, uint32_t packets) {
    if (!v->spans) return;
    if (v->n_spans == v->spans_room)
        v->spans_lost++;
    else
        v->spans[v->n_spans++] = (nf_span){begin, nf_now(), kind, packets};
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
/* How many packets of the operation are known: data waits for the scales of its blocks. */
static uint64_t known(const nf_fold *f, const nf_channel *c) {
    if (c->kind == NF_AGREEMENT_STREAM || !f->scaled) return c->packets;
    const nf_tree *tr = &f->trees[c->tree];
    const nf_channel *agreement = &tr->channels[NF_AGREEMENT_STREAM];
    uint64_t each = (uint64_t)f->entries * NF_BLOCK / f->piece; /* packets that one packet of scales serves */
    uint64_t scales = agreement->history.una - agreement->base;
    scales = scales > tr->signature ? (scales - tr->signature) * each : 0;
    return scales < c->packets ? scales : c->packets;
}

/* Makes some packets of the message that is next.  Returns how many. */
static uint32_t make_some(nf_verbs *v, stream *s) {
    nf_fold *f = v->fold;
    nf_channel *c = s->channel;
    uint32_t n = 0;
    int64_t begin = begin_span(v);
    for (uint64_t limit = known(f, c); n < SOME_PACKETS; n++) {
        uint64_t i = c->history.next - c->base;
        if (i >= limit) break;
        nf_message m = nf_payload_message(f, c, i);
        if (i == m.first && s->made > s->posted) break;
        nf_header h = nf_payload_header(f, c, i);
        nf_payload_write(f, c, i, nf_history_add(&c->history, &h));
        if (i + 1 == m.first + m.packets) s->queue[s->made++ % QUEUE] = (nf_message){c->base + m.first, m.packets};
    }
    if (n) end_span(v, NF_QUANTISE, begin, n);
    return n;
}

/* The pieces of a ring that hold a message. */
static int pieces_of(struct ibv_sge *pieces, struct ibv_mr *memory, uint32_t room, uint32_t mtu, const nf_message *m) {
    uint32_t at = (uint32_t)(m->first & (room - 1)), here = room - at < m->packets ? room - at : m->packets;
    pieces[0] = (struct ibv_sge){(uintptr_t)memory->addr + (uint64_t)at * mtu, here * mtu, memory->lkey};
    pieces[1] = (struct ibv_sge){(uintptr_t)memory->addr, (m->packets - here) * mtu, memory->lkey};
    return here < m->packets ? 2 : 1;
}

static uint64_t name_of(const nf_verbs *v, const stream *s, bool in) {
    return (uint64_t)v->generation << 32 | (uint64_t)(s - v->streams) << 1 | in;
}

/* Posts the next message where the credits allow it.  Returns whether it did; *error: an errno. */
static bool post_next(nf_verbs *v, stream *s, int *error) {
    if (s->posted == s->made || s->posted - s->arrived >= OUTSTANDING || s->posted - s->acknowledged >= OUTSTANDING ||
        s->posted - s->taken >= OUTSTANDING + 1)
        return false;
    const nf_message *m = &s->queue[s->posted % QUEUE];
    uint32_t mtu = v->fold->path_mtu;
    struct ibv_sge pieces[NF_VERBS_PIECES];
    int64_t begin = begin_span(v);
    struct ibv_recv_wr *bad_receive, receive = {.wr_id = name_of(v, s, true), .sg_list = pieces};
    receive.num_sge = pieces_of(pieces, s->results, s->room, mtu, m);
    if ((*error = ibv_post_recv(s->ends.in, &receive, &bad_receive))) return false;
    struct ibv_send_wr *bad_send,
        send = {
            .wr_id = name_of(v, s, false), .sg_list = pieces, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    send.num_sge = pieces_of(pieces, s->sends, s->channel->history.size, mtu, m);
    if ((*error = ibv_post_send(s->ends.out, &send, &bad_send))) return false;
    if (s->posted++ == s->taken) s->channel->stream.waits_since = nf_now();
    s->channel->stream.counters.sent += m->packets;
    end_span(v, NF_SEND, begin, m->packets);
    return true;
}

/* Takes the result of the lowest message that has arrived into the output. */
static void take_next(nf_verbs *v, stream *s) {
    nf_fold *f = v->fold;
    nf_channel *c = s->channel;
    const nf_message *m = &s->queue[s->taken % QUEUE];
    int64_t begin = begin_span(v);
    for (uint64_t seq = m->first; seq < m->first + m->packets; seq++) {
        const uint8_t *payload = s->ring + (seq & (s->room - 1)) * f->path_mtu;
        if (nf_history_at(&c->history, seq)->answered) { /* over the queue pairs before these: the bits are the same */
            c->stream.counters.duplicates++;
            continue;
        }
        bool signature = c->kind == NF_AGREEMENT_STREAM && seq - c->base < f->trees[c->tree].signature;
        if (signature && !nf_payload_signatures(f, payload)) {
            f->failure.error = NF_SIGNATURES_DIFFER;
            f->failure.tree = c->tree;
            f->failure.kind = c->kind;
            return;
        }
        nf_payload_read(f, c, seq - c->base, payload);
        nf_history_result(&c->history, seq);
    }
    nf_payload_all_read(f);
    c->stream.counters.received += m->packets;
    c->stream.una = c->stream.next = m->first + m->packets;
    s->taken++;
    f->progress = c->stream.waits_since = nf_now();
    end_span(v, NF_DEQUANTISE, begin, m->packets);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */
static bool completed(nf_verbs *v, const struct ibv_wc *wc) {
    if (wc->wr_id >> 32 != v->generation) return true;
    uint32_t place = (uint32_t)wc->wr_id >> 1;
    bool in = wc->wr_id & 1;
    stream *s = &v->streams[place];
    const char *what = s->channel->kind == NF_DATA_STREAM ? "data" : "agreement";
    if (wc->status != IBV_WC_SUCCESS) {
        nf_verbs_say(&v->device, 0, "queue pair %u (tree %u, %s, %s) is in error: %s (status %d, vendor's %#x)",
                     wc->qp_num, s->channel->tree, what, in ? "results" : "contributions",
                     ibv_wc_status_str(wc->status), (int)wc->status, wc->vendor_err);
        return false;
    }
    if (!in) {
        s->acknowledged++;
        return true;
    }
    uint64_t expected = (uint64_t)s->queue[s->arrived % QUEUE].packets * v->fold->path_mtu;
    if (wc->byte_len != expected) {
        nf_verbs_say(&v->device, 0, "queue pair %u (tree %u, %s): a result of %u bytes, expected %llu", wc->qp_num,
                     s->channel->tree, what, wc->byte_len, (unsigned long long)expected);
        return false;
    }
    s->arrived++;
    return true;
}

/* Takes completions.  Returns how many, or -1 where a queue pair is in error. */
static int complete(nf_verbs *v) {
    struct ibv_wc got[BATCH];
    int n = ibv_poll_cq(v->device.completions, BATCH, got);
    if (n < 0) nf_verbs_say(&v->device, -n, "the completion queue cannot be polled");
    for (int i = 0; i < n; i++)
        if (!completed(v, &got[i])) return -1;
    return n;
}

/* Does one piece of work.  Returns whether there was any; *error: an errno. */
static bool work(nf_verbs *v, int *error) {
    for (uint32_t i = v->n; i-- > 0;) /* agreement is the second stream of each tree, and what data waits for */
        if (post_next(v, &v->streams[i], error) || *error) return true;
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t i = 1 - kind; i < v->n; i += 2)
            if (v->streams[i].taken < v->streams[i].arrived) {
                take_next(v, &v->streams[i]);
                return true;
            }
    for (uint32_t kind = 0; kind < 2; kind++)
        for (uint32_t i = 1 - kind; i < v->n; i += 2)
            if (make_some(v, &v->streams[i])) return true;
    return false;
}

/* Sleeps until there may be completions.  Returns false where something else woke it: `until`, the interrupt, a
 * signal, or an event of the device (then *broken). */
static bool sleep_until(nf_verbs *v, int64_t until, bool *broken) {
    if (!v->armed) {
        int error = ibv_req_notify_cq(v->device.completions, 0);
        if (error) {
            nf_verbs_say(&v->device, error, "the completion queue gives no events");
            *broken = true;
            return false;
        }
        v->armed = true; /* what came before that is polled for once more */
        return true;
    }
    int64_t begin = begin_span(v), wait = until - nf_now();
    if (wait <= 0) return false;
    struct timespec timeout = {wait / 1000000000, wait % 1000000000};
    struct pollfd polled[3] = {{.fd = v->device.events->fd, .events = POLLIN},
                               {.fd = v->interrupt, .events = POLLIN},
                               {.fd = v->device.context->async_fd, .events = POLLIN}};
    int ready = ppoll(polled, 3, &timeout, NULL);
    end_span(v, NF_WAIT, begin, 0);
    if (ready <= 0 || polled[1].revents) return false;
    if (polled[2].revents && !nf_verbs_device_events(&v->device)) {
        *broken = true;
        return false;
    }
    struct ibv_cq *queue;
    void *context;
    if (polled[0].revents && ibv_get_cq_event(v->device.events, &queue, &context) == 0) {
        ibv_ack_cq_events(queue, 1);
        v->armed = false;
    }
    return true;
}

static nf_verbs_status run_loop(nf_verbs *v, int64_t until) {
    int64_t idle = 0; /* since when there has been nothing to do */
    for (;;) {
        int n = complete(v), error = 0;
        if (n < 0) return NF_VERBS_BROKEN;
        bool worked = work(v, &error);
        if (error) {
            nf_verbs_say(&v->device, error, "the device took no work request");
            return NF_VERBS_BROKEN;
        }
        if (nf_fold_failure(v->fold)->error != NF_OK) return NF_VERBS_FAILED;
        if (nf_fold_finished(v->fold)) return NF_VERBS_DONE;
        int64_t now = nf_now();
        if (now >= until) return NF_VERBS_AGAIN;
        if (n || worked) {
            idle = 0;
            continue;
        }
        idle = idle ? idle : now;
        bool broken = false;
        if (now - idle >= SPIN_NS && !sleep_until(v, until, &broken)) return broken ? NF_VERBS_BROKEN : NF_VERBS_AGAIN;
    }
}

nf_verbs_status nf_verbs_run(nf_verbs *v, int64_t until) {
    uint32_t mode = nf_floats_exact();
    nf_verbs_status status = run_loop(v, until);
    nf_fold_totals(v->fold);
    nf_floats_restore(mode);
    return status;
}
