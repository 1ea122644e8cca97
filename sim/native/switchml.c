/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of slots at each switch, with two versions each.  Slot i sums packets i, i + slots, i + 2 slots, ..., by turns
 * in the two versions; the result of one is a worker's leave to send the next.  The version before is the copy that
 * answers who has missed its result.  Switches look at slot and version alone, as the paper's do: a packet that is
 * later than a round trip of its slot meets another packet's sum, which is counted (fold_aliased, fold_wrong).
 *
 * NSDI 2021, section 3.5, algorithms 3 (switch) and 4 (worker).  One switch: p4lang/p4app-switchML at commit b5c74a04,
 * /dev_root/p4/bitmap_checker.p4 and /dev_root/p4/workers_counter.p4.  Trees of switches, where one asks the next for a
 * result that it has not got: ChenYuHo/SwitchML-omnetpp at commit 65440a95, /Switch.cc.  The numbers are in
 * sim/netreduce/points.py, SWITCHML; this file has none. */
#include "switchml.h"

#include "children.h"
#include "trees.h"
#include "verdict.h"

struct version {
    struct children seen; /* children whose packets are in the sum, until each sends in the other version */
    uint32_t count, sum;
    uint32_t psn; /* what it sums, which switches do not know: to find sums of two packets in one slot */
    uint8_t done; /* the result is there: the root's own, or from above */
};

struct pool_slot {
    struct version version[2];
};

enum waits_for { NOTHING, CARD, RESULT };

struct worker_slot {
    uint64_t sent;
    uint32_t psn, before, after; /* neighbours in the worker's list for CARD or for RESULT */
    uint8_t waits_for, again;
};

struct worker {
    struct worker_slot *slots;
    uint32_t head[3], tail[3]; /* of slots by what they wait for, in the order of time */
    uint32_t left;             /* packets without a result */
    uint64_t timer;
};

struct switchml {
    struct pool_slot *pool; /* [node][slot] */
    struct worker *workers; /* of each channel */
};

static int switchml_open(struct sim *s) {
    struct switchml *m = s->switchml = calloc(1, sizeof *m);
    if (!m) return 0;
    m->pool = calloc((size_t)s->folds->nodes * s->c->fold_slots + 1, sizeof *m->pool);
    m->workers = calloc((size_t)s->folds->channels + 1, sizeof *m->workers);
    return m->pool && m->workers;
}

static void switchml_close(struct sim *s) {
    struct switchml *m = s->switchml;
    if (!m) return;
    for (uint32_t i = 0; m->workers && i < s->folds->channels; i++) free(m->workers[i].slots);
    free(m->pool);
    free(m->workers);
    free(m);
}

static void emit(struct sim *s, enum fold_kind kind, uint32_t edge, uint32_t psn, uint32_t sum) {
    struct packet p = {.piece = edge, .seq = psn, .fold = (uint8_t)kind};
    p.sum = sum;
    p.bytes = wire_bytes(s, edge, psn);
    forward(s, &p);
}

/* ---- workers ---- */

static void append(struct worker *w, uint32_t slot, enum waits_for list) {
    struct worker_slot *own = &w->slots[slot];
    own->waits_for = (uint8_t)list;
    own->before = w->tail[list];
    own->after = NONE;
    if (w->tail[list] == NONE)
        w->head[list] = slot;
    else
        w->slots[w->tail[list]].after = slot;
    w->tail[list] = slot;
}

static void take_out(struct worker *w, uint32_t slot) {
    struct worker_slot *own = &w->slots[slot];
    if (own->before == NONE)
        w->head[own->waits_for] = own->after;
    else
        w->slots[own->before].after = own->after;
    if (own->after == NONE)
        w->tail[own->waits_for] = own->before;
    else
        w->slots[own->after].before = own->before;
    own->waits_for = NOTHING;
}

static void switchml_start(struct sim *s, uint32_t number) {
    struct worker *w = &s->switchml->workers[number];
    uint64_t packets = s->folds->channel[number].packets;
    w->slots = calloc(s->c->fold_slots, sizeof *w->slots);
    if (!w->slots) {
        s->events.no_memory = 1;
        return;
    }
    for (int i = 0; i < 3; i++) w->head[i] = w->tail[i] = NONE;
    w->left = (uint32_t)packets;
    w->timer = NEVER;
    for (uint32_t i = 0; i < s->c->fold_slots && i < packets; i++) {
        w->slots[i].psn = i;
        append(w, i, CARD);
    }
    take_turn(s, number);
}

static void arm(struct sim *s, uint32_t number) {
    struct worker *w = &s->switchml->workers[number];
    if (w->head[RESULT] == NONE || w->timer != NEVER) return;
    w->timer = w->slots[w->head[RESULT]].sent + s->c->fold_rto;
    set_timer(&s->events, w->timer, FOLD_TIMER, number);
}

static int switchml_send(struct sim *s, uint32_t number) {
    struct worker *w = &s->switchml->workers[number];
    uint32_t slot = w->head[CARD];
    if (slot == NONE) return 0;
    struct worker_slot *own = &w->slots[slot];
    take_out(w, slot);
    own->sent = s->events.now;
    append(w, slot, RESULT);
    s->r.fold_sent++;
    s->r.fold_resent += own->again;
    emit(s, UP, s->folds->channel[number].edge, own->psn, contribution_of(s, number, own->psn));
    arm(s, number);
    if (w->head[CARD] != NONE) take_turn(s, number);
    return 1;
}

static void switchml_timer(struct sim *s, uint32_t number) {
    struct worker *w = &s->switchml->workers[number];
    w->timer = NEVER;
    for (uint32_t slot; (slot = w->head[RESULT]) != NONE && w->slots[slot].sent + s->c->fold_rto <= s->events.now;) {
        take_out(w, slot);
        w->slots[slot].again = 1;
        append(w, slot, CARD);
        s->r.fold_timeouts++;
        take_turn(s, number);
    }
    arm(s, number);
}

static uint32_t at_worker(struct sim *s, const struct packet *p) {
    uint32_t number = channel_of(s, p->piece), slot = p->seq % s->c->fold_slots;
    struct worker *w = &s->switchml->workers[number];
    struct worker_slot *own = &w->slots[slot];
    if (own->waits_for == NOTHING || own->psn != p->seq) {
        s->r.fold_duplicates++;
        return NONE;
    }
    s->r.fold_results++;
    s->r.fold_wrong += p->sum != total_of(s, number, p->seq);
    take_out(w, slot);
    own->again = 0;
    own->psn += s->c->fold_slots;
    if (own->psn < s->folds->channel[number].packets) {
        append(w, slot, CARD);
        take_turn(s, number);
    }
    return --w->left ? NONE : channel_done(s, number);
}

/* ---- switches ---- */

static void multicast(struct sim *s, uint32_t node, uint32_t psn, uint32_t sum) {
    const struct fold_node *n = &s->folds->node[node];
    for (uint32_t i = 0; i < n->count; i++) emit(s, DOWN, n->first + i, psn, sum);
}

static void from_below(struct sim *s, uint32_t node, const struct packet *p) {
    const struct fold_node *n = &s->folds->node[node];
    struct pool_slot *slot = &s->switchml->pool[(size_t)node * s->c->fold_slots + p->seq % s->c->fold_slots];
    uint32_t which = p->seq / s->c->fold_slots & 1;
    struct version *v = &slot->version[which];
    uint32_t place = s->folds->edge[p->piece].place;
    int root = n->up == FOLD_HOST, whole = 0;
    if (children_has(&v->seen, place)) {
        s->r.fold_aliased += v->psn != p->seq;
        if (v->count) { /* others are missing: the packet was not lost, only slow */
            s->r.fold_waited++;
        } else if (v->done) {
            s->r.fold_answered++;
            emit(s, DOWN, p->piece, p->seq, v->sum);
        } else {
            s->r.fold_asked++;
            emit(s, UP, n->up, p->seq, v->sum);
        }
        return;
    }
    children_add(&v->seen, place);
    children_remove(&slot->version[!which].seen, place);
    s->r.fold_first++;
    if (v->count == 0) {
        v->sum = p->sum;
        v->psn = p->seq;
        v->done = 0;
    } else {
        s->r.fold_aliased += v->psn != p->seq;
        v->sum += p->sum;
    }
    if (++v->count == n->count) {
        v->count = 0;
        whole = 1;
    }
    if (!whole) return;
    if (!root) {
        emit(s, UP, n->up, p->seq, v->sum);
        return;
    }
    v->done = 1;
    s->r.fold_completed++;
    multicast(s, node, p->seq, v->sum);
}

static void from_above(struct sim *s, uint32_t node, const struct packet *p) {
    struct version *v = &s->switchml->pool[(size_t)node * s->c->fold_slots + p->seq % s->c->fold_slots]
                             .version[p->seq / s->c->fold_slots & 1];
    if (children_none(&v->seen) || v->count || v->done) {
        s->r.fold_repeated++;
        return;
    }
    s->r.fold_aliased += v->psn != p->seq;
    v->done = 1;
    v->sum = p->sum;
    multicast(s, node, p->seq, v->sum);
}

static uint32_t switchml_packet(struct sim *s, const struct packet *p) {
    const struct fold_edge *e = &s->folds->edge[p->piece];
    if (p->fold == UP)
        from_below(s, e->parent, p);
    else if (e->node == FOLD_HOST)
        return at_worker(s, p);
    else
        from_above(s, e->node, p);
    return NONE;
}

const struct fold_rules switchml_rules = {switchml_open, switchml_close,  switchml_start,
                                          switchml_send, switchml_packet, switchml_timer};
