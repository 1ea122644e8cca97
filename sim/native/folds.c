/* SPDX-License-Identifier: Apache-2.0 */
/* Each operation has streams and slots of its own, so PSNs count from 0 and no slot is another operation's.
 *
 * Left out on purpose: the agreement on scales that precedes a sum of floats (one packet in 257, and a round trip), and
 * super-packets (a network card sends packet by packet). */
#include "folds.h"

#include "children.h"
#include "stream.h"
#include "trees.h"
#include "verdict.h"

#define ASKED_AT_ONCE 64u /* PSNs of one NAK that a switch answers; of a longer one the first is (sizes.p4) */
#define LOSS_FLOOR 65536u /* payload bytes that losses leave of a window: NF_LOSS_FLOOR of fold_state.h */
#define PS 1000u          /* picoseconds in a nanosecond, in which streams count */

struct slot {
    struct children bitmap;
    uint32_t psn;
    uint16_t count; /* of the bitmap */
    uint8_t used, done, marked;
};

struct flow { /* of one end of an edge: what came from there, and the PSN that left there last */
    nf_order order;
    uint32_t last;
    uint8_t sent;
};

struct channel {
    nf_stream stream;
    uint64_t timer; /* when its timer runs out, NEVER: none is set */
    uint8_t active;
};

struct fold_state {
    struct slot *slots; /* [node][slot] */
    struct flow *flows; /* [edge][0: from below, 1: from above] */
    struct channel *channels;
};

static int folds_open(struct sim *s) {
    const struct folds *f = s->folds;
    struct fold_state *state = s->fold = calloc(1, sizeof *state);
    if (!state) return 0;
    state->slots = calloc((size_t)f->nodes * s->c->fold_slots + 1, sizeof *state->slots);
    state->flows = calloc(2 * (size_t)f->edges + 1, sizeof *state->flows);
    state->channels = calloc((size_t)f->channels + 1, sizeof *state->channels);
    if (!state->slots || !state->flows || !state->channels) return 0;
    for (uint32_t i = 0; i < f->channels; i++) state->channels[i].timer = NEVER;
    return 1;
}

static void folds_close(struct sim *s) {
    struct fold_state *state = s->fold;
    if (!state) return;
    for (uint32_t i = 0; state->channels && i < s->folds->channels; i++) nf_stream_close(&state->channels[i].stream);
    free(state->slots);
    free(state->flows);
    free(state->channels);
    free(state);
}

/* ---- packets on their edges ---- */

static void emit(struct sim *s, enum fold_kind kind, uint32_t edge, uint32_t psn, uint32_t end, uint16_t bytes,
                 int marked) {
    struct packet p = {.piece = edge, .seq = psn, .destination = end, .fold = (uint8_t)kind, .bytes = bytes};
    if (kind == ASK_UP || kind == ASK_DOWN) p.bytes = (uint16_t)(s->c->fold_header + 4); /* an AETH */
    p.marked = (uint8_t)marked;
    if (kind == UP || kind == DOWN) {
        struct flow *flow = &s->fold->flows[2 * edge + (kind == DOWN)];
        p.destination = flow->sent ? nf_previous_of(psn, nf_order_of(psn, flow->last)) : (psn - 1) & NF_PSN_MASK;
        flow->last = psn;
        flow->sent = 1;
    }
    forward(s, &p);
}

/* ---- hosts ---- */

static uint64_t limit_of(struct sim *s, uint32_t number) {
    nf_stream *t = &s->fold->channels[number].stream;
    uint64_t packets = s->folds->channel[number].packets;
    if (!s->c->fold_credits) return packets;
    uint64_t credit = (nf_stream_first_unknown(t) / s->c->fold_message + s->c->fold_credits) * s->c->fold_message;
    return credit < packets ? credit : packets;
}

static void enlist(struct sim *s, uint32_t number) {
    struct channel *c = &s->fold->channels[number];
    if (c->active && (c->stream.n_ask || nf_stream_sendable(&c->stream, limit_of(s, number)))) take_turn(s, number);
}

static void arm(struct sim *s, uint32_t number) {
    struct channel *c = &s->fold->channels[number];
    int64_t due = nf_stream_deadline(&c->stream);
    if (due == NF_NEVER || (uint64_t)due * PS >= c->timer) return;
    c->timer = (uint64_t)due * PS > s->events.now ? (uint64_t)due * PS : s->events.now;
    set_timer(&s->events, c->timer, FOLD_TIMER, number);
}

static void fold_start(struct sim *s, uint32_t number) {
    struct channel *c = &s->fold->channels[number];
    c->active = 1;
    if (!nf_stream_open(&c->stream, 0, s->c->fold_window, LOSS_FLOOR / s->c->fold_mtu)) {
        s->events.no_memory = 1;
        return;
    }
    nf_stream_end_at(&c->stream, s->folds->channel[number].packets);
    enlist(s, number);
}

static int channel_send(struct sim *s, uint32_t number) {
    struct channel *c = &s->fold->channels[number];
    uint32_t edge = s->folds->channel[number].edge;
    int64_t now = (int64_t)(s->events.now / PS);
    uint64_t seq;
    if (!c->active) return 0;
    if (nf_stream_ask(&c->stream, &seq, now)) {
        s->r.fold_asks++;
        emit(s, ASK_UP, edge, (uint32_t)seq, (uint32_t)seq + 1, 0, 0);
    } else if (nf_stream_sendable(&c->stream, limit_of(s, number))) {
        seq = nf_stream_peek(&c->stream);
        s->r.fold_resent += c->stream.n_lost > 0;
        s->r.fold_sent++;
        nf_stream_send(&c->stream, now);
        emit(s, UP, edge, (uint32_t)seq, 0, wire_bytes(s, edge, (uint32_t)seq), 0);
    } else {
        return 0;
    }
    arm(s, number);
    enlist(s, number);
    return 1;
}

static void fold_timer(struct sim *s, uint32_t number) {
    struct channel *c = &s->fold->channels[number];
    if (!c->active || s->events.now < c->timer) return;
    c->timer = NEVER;
    uint64_t before = c->stream.counters.timeouts;
    nf_stream_tick(&c->stream, (int64_t)(s->events.now / PS));
    s->r.fold_timeouts += c->stream.counters.timeouts - before;
    arm(s, number);
    enlist(s, number);
}

static uint32_t at_host(struct sim *s, const struct packet *p) {
    uint32_t number = channel_of(s, p->piece);
    struct channel *c = &s->fold->channels[number];
    int64_t now = (int64_t)(s->events.now / PS);
    uint64_t seq;
    if (!c->active) {
        s->r.fold_duplicates += p->fold == DOWN;
        return NONE;
    }
    if (p->fold == DOWN) nf_stream_order(&c->stream, p->seq, p->destination);
    if (p->fold == ASK_DOWN) {
        nf_stream_nak(&c->stream, p->seq, p->destination, now);
    } else if (nf_stream_find(&c->stream, p->seq, &seq)) {
        nf_stream_result(&c->stream, seq, p->marked, now);
        s->r.fold_results++;
        s->r.marked += p->marked;
    } else {
        s->r.fold_duplicates++;
    }
    nf_stream_end_batch(&c->stream, now);
    if (c->stream.una == s->folds->channel[number].packets) {
        c->active = 0;
        nf_stream_close(&c->stream);
        return channel_done(s, number);
    }
    arm(s, number);
    enlist(s, number);
    return NONE;
}

/* ---- switches ---- */

static void count(struct sim *s, const struct verdict *v) {
    uint64_t *counters[] = {&s->r.fold_first, &s->r.fold_answered, &s->r.fold_asked, &s->r.fold_waited,
                            &s->r.fold_late,  &s->r.fold_repeated, &s->r.fold_lacked};
    ++*counters[v->outcome];
}

/* Whether a switch has, or had, what one end of an edge is to send of a PSN. */
static int has(const struct sim *s, const struct packet *p, int above, uint32_t psn) {
    const struct fold_edge *e = &s->folds->edge[p->piece];
    uint32_t node = above ? e->node : e->parent;
    const struct slot *slot = &s->fold->slots[(size_t)node * s->c->fold_slots + (psn & (s->c->fold_slots - 1))];
    if (!slot->used || slot->psn < psn) return 0;
    return slot->psn > psn || slot->done || (!above && children_has(&slot->bitmap, e->place));
}

/* Notes that data came from one end of an edge, and tells that end what was lost before it (p4src/flow.p4). */
static void tell_gap(struct sim *s, const struct packet *p, int above) {
    struct flow *flow = &s->fold->flows[2 * p->piece + (uint32_t)above];
    uint32_t first, end;
    if (!nf_order_gap(&flow->order, p->seq, p->destination, &first, &end)) return;
    if (end - first == 1 && has(s, p, above, first)) return;
    s->r.fold_naks++;
    emit(s, above ? ASK_UP : ASK_DOWN, p->piece, first, end, 0, 0);
}

static void take(struct sim *s, uint32_t node, const struct packet *p, uint32_t psn) {
    const struct fold_node *n = &s->folds->node[node];
    const struct fold_edge *from = &s->folds->edge[p->piece];
    struct slot *slot = &s->fold->slots[(size_t)node * s->c->fold_slots + (psn & (s->c->fold_slots - 1))];
    enum slot_age age = !slot->used || slot->psn < psn ? NEWER : slot->psn > psn ? OLDER : SAME;
    int below = p->fold == UP || p->fold == ASK_UP, root = n->up == FOLD_HOST;
    struct slot held = age == SAME ? *slot : (struct slot){.used = 1};
    int seen = below && children_has(&held.bitmap, from->place), adds = below && !seen;
    struct verdict v = verdict((enum fold_kind)p->fold, age, held.done, seen, held.count == n->count,
                               held.count + adds == n->count, root);
    int marked = p->marked || held.marked;
    count(s, &v);
    if (v.outcome == FIRST) {
        s->r.fold_completed += root && v.done;
        if (adds) children_add(&held.bitmap, from->place);
        *slot = (struct slot){held.bitmap, psn, (uint16_t)(held.count + adds), 1, v.done, (uint8_t)marked};
    }
    if (v.to == NOBODY) return;
    if (v.turns == NAK) {
        s->r.fold_naks++;
        emit(s, v.to == PARENT ? ASK_UP : ASK_DOWN, v.to == PARENT ? n->up : p->piece, psn, psn + 1, 0, 0);
        return;
    }
    uint16_t bytes = wire_bytes(s, n->first, psn);
    if (v.to == ALL)
        for (uint32_t i = 0; i < n->count; i++) emit(s, DOWN, n->first + i, psn, 0, bytes, marked);
    else if (v.to == PARENT)
        emit(s, UP, n->up, psn, 0, bytes, marked);
    else
        emit(s, below ? DOWN : UP, p->piece, psn, 0, bytes, marked);
}

static uint32_t at_edges_end(struct sim *s, const struct packet *p) {
    const struct fold_edge *e = &s->folds->edge[p->piece];
    int up = p->fold == UP || p->fold == ASK_UP;
    if (!up && e->node == FOLD_HOST) return at_host(s, p);
    uint32_t node = up ? e->parent : e->node;
    if (p->fold == UP || p->fold == DOWN) {
        tell_gap(s, p, !up);
        take(s, node, p, p->seq);
        return NONE;
    }
    uint32_t several = p->destination - p->seq;
    if (several > ASKED_AT_ONCE) several = 1;
    for (uint32_t i = 0; i < several; i++) take(s, node, p, p->seq + i);
    return NONE;
}

const struct fold_rules netfold_rules = {folds_open, folds_close, fold_start, channel_send, at_edges_end, fold_timer};
