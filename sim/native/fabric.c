/* SPDX-License-Identifier: Apache-2.0 */
/* One event a packet and hop.  A link is a FIFO with a fixed rate and delay, so a packet's arrival at the far end is
 * known when it is queued: start = max(now, free), free = start + size x rate, arrival = free + delay; the backlog of
 * its queue is (free - now) / rate.  Packets of a link arrive in order.
 *
 * Simplifications, on purpose: a packet leaves its switch's shared buffer when it reaches the next node (one link delay
 * late); there is no PFC: a full buffer drops. */
#include "fabric.h"

/* ---- the numbering (sim/engines/topology.py): a block of link numbers for each kind ---- */

enum link_kind { HOST_UP, HOST_DOWN, LEAF_UP, LEAF_DOWN, CORE_UP, CORE_DOWN, LINK_KINDS };

static uint32_t leaf_up(const struct sim *s, uint32_t leaf, uint32_t agg) {
    return s->block[LEAF_UP] + leaf * s->c->aggs + agg;
}

static uint32_t leaf_down(const struct sim *s, uint32_t leaf, uint32_t agg) {
    return s->block[LEAF_DOWN] + leaf * s->c->aggs + agg;
}

static uint32_t core_up(const struct sim *s, uint32_t pod, uint32_t agg, uint32_t core) {
    return s->block[CORE_UP] + (pod * s->c->aggs + agg) * s->c->cores + core;
}

static uint32_t core_down(const struct sim *s, uint32_t pod, uint32_t agg, uint32_t core) {
    return core_up(s, pod, agg, core) + s->block[CORE_DOWN] - s->block[CORE_UP];
}

static uint32_t next_link(const struct sim *s, const struct link *l, const struct packet *p) {
    uint32_t leaf = leaf_of(s, p->destination), down = s->block[HOST_DOWN] + p->destination;
    switch ((enum link_kind)l->kind) {
    case HOST_UP: return l->place == leaf ? down : leaf_up(s, l->place, p->agg);
    case LEAF_UP:
        if (l->place == pod_of(s, leaf)) return leaf_down(s, leaf, p->agg);
        return core_up(s, l->place, p->agg, p->core);
    case LEAF_DOWN: return down;
    case CORE_UP: return core_down(s, pod_of(s, leaf), p->agg, p->core);
    default: return leaf_down(s, leaf, l->agg);
    }
}

int fabric_open(struct sim *s) {
    const struct config *c = s->c;
    uint32_t leaves = c->pods * c->leaves, aggs = c->pods * c->aggs, cores = c->aggs * c->cores;
    uint32_t sizes[LINK_KINDS] = {s->size,          s->size,         leaves * c->aggs,
                                  leaves * c->aggs, aggs * c->cores, aggs * c->cores};
    for (int i = 0; i < LINK_KINDS; i++) s->block[i + 1] = s->block[i] + sizes[i];
    s->link_count = s->block[LINK_KINDS];
    s->links = calloc(s->link_count, sizeof *s->links);
    s->buffer = calloc(leaves + aggs + cores, sizeof *s->buffer);
    if (c->mode == SPRAY_TURN) {
        s->turn = calloc((size_t)(leaves + aggs) * (leaves + 1), sizeof *s->turn);
        if (!s->turn) return 0;
    }
    if (!s->links || !s->buffer) return 0;
    for (uint32_t kind = 0; kind < LINK_KINDS; kind++)
        for (uint32_t n = s->block[kind]; n < s->block[kind + 1]; n++) {
            struct link *l = &s->links[n];
            uint32_t i = n - s->block[kind];
            l->kind = (uint8_t)kind;
            l->rate = s->rates[n];
            l->ecn = (uint64_t)((double)c->ecn_bytes * l->rate);
            switch (kind) {
            case HOST_UP:
                l->from = NONE;
                l->place = i / c->hosts;
                break;
            case HOST_DOWN: l->from = i / c->hosts; break;
            case LEAF_UP:
                l->from = i / c->aggs;
                l->place = i / c->aggs / c->leaves;
                break;
            case LEAF_DOWN: l->from = leaves + i / c->aggs / c->leaves * c->aggs + i % c->aggs; break;
            case CORE_UP: l->from = leaves + i / c->cores; break;
            case CORE_DOWN:
                l->agg = (uint16_t)(i / c->cores % c->aggs);
                l->from = leaves + aggs + l->agg * c->cores + i % c->cores;
                break;
            }
        }
    return 1;
}

void fabric_close(struct sim *s) {
    for (uint32_t i = 0; s->links && i < s->link_count; i++) {
        s->r.in_flight += s->links[i].queue.count;
        free(s->links[i].queue.items);
    }
    free(s->links);
    free(s->buffer);
    free(s->turn);
}

/* ---- packets ---- */

void transmit(struct sim *s, uint32_t number, const struct packet *p) {
    struct link *l = &s->links[number];
    uint64_t now = s->events.now, backlog = l->free > now ? l->free - now : 0;
    if (l->down || (l->from != NONE && s->buffer[l->from] + p->bytes > s->c->buffer_bytes)) {
        l->count.dropped++;
        s->r.dropped++;
        return;
    }
    struct packet *q = push(&s->events, &l->queue, sizeof *q);
    if (!q) return;
    *q = *p;
    l->free = now + backlog + (uint64_t)(p->bytes * l->rate + 0.5);
    q->time = l->free + s->c->delay;
    if (l->from != NONE) {
        s->buffer[l->from] += p->bytes;
        if (backlog > l->ecn) {
            q->marked = 1;
            l->count.marked++;
        }
    }
    if (backlog > l->deepest) l->deepest = backlog;
    if (l->queue.count == 1) schedule(&s->events, number, q->time);
}

/* Is this packet one that the caller wants to be lost? */
static int dropped(const struct sim *s, uint32_t link, const struct packet *p) {
    for (struct drop *d = s->folds->drop; d != s->folds->drop + s->folds->drops; d++)
        if (d->left && d->link == link && d->kind == p->fold && d->psn == p->seq) {
            d->left--;
            return 1;
        }
    return 0;
}

/* Can a packet of leaf a still reach leaf b by this agg, and by this core where one is chosen, as far as routing
 * knows? */
static int open_way(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core) {
    uint32_t last = core == NONE ? s->c->cores : core + 1;
    if (pod_of(s, a) == pod_of(s, b)) return !blocked(s, a, b, agg, 0, 1);
    for (uint32_t i = core == NONE ? 0 : core; i < last; i++)
        if (!blocked(s, a, b, agg, i, 1)) return 1;
    return 0;
}

/* Where packets climb: a leaf or an agg, from which leaf to which, and its uplinks. */
struct climb {
    uint32_t leaf, to, agg, first, count;
    int at_leaf;
};

/* May a switch take this uplink?  It goes by what routing knows, and where it looks at its queues it sees a dead port
 * of its own too. */
static int usable(const struct sim *s, const struct climb *c, uint32_t choice) {
    if (s->c->mode == SPRAY_LEAST && s->links[c->first + choice].down) return 0;
    return !s->known_faults || open_way(s, c->leaf, c->to, c->at_leaf ? choice : c->agg, c->at_leaf ? NONE : choice);
}

/* The uplink that is free soonest; of several, any with the same chance: the first after a random one would be taken
 * more often where it stands behind one that is often busy or dead. */
static uint32_t least_loaded(struct sim *s, const struct climb *c) {
    uint64_t least = UINT64_MAX, now = s->events.now;
    uint32_t best = 0, ties = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct link *up = &s->links[c->first + i];
        uint64_t wait = up->free > now ? up->free - now : 0;
        if (wait > least || ((s->broken || s->known_faults) && !usable(s, c, i))) continue;
        ties = wait < least ? 1 : ties + 1;
        if (ties == 1 || !below(s, ties)) best = i;
        least = wait;
    }
    return best;
}

/* The next uplink in turn.  A switch takes turns in each set of uplinks that leads to some leaves: in all, or in what
 * is left towards one leaf. */
static uint32_t next_in_turn(struct sim *s, const struct climb *c, uint32_t node) {
    uint32_t leaves = s->c->pods * s->c->leaves, left = c->count;
    if (s->known_faults)
        for (uint32_t i = left = 0; i < c->count; i++) left += (uint32_t)usable(s, c, i);
    if (!left) return 0;
    uint32_t *turn = &s->turn[(size_t)node * (leaves + 1) + (left < c->count ? 1 + c->to : 0)];
    uint32_t skip = (*turn)++ % left, choice = 0;
    if (left == c->count) return skip;
    while (!usable(s, c, choice) || skip--) choice++;
    return choice;
}

/* Give a packet the uplink that its switch chooses. */
static void steer(struct sim *s, const struct link *l, struct packet *p) {
    struct climb c = {.to = leaf_of(s, p->destination), .agg = p->agg, .at_leaf = l->kind == HOST_UP};
    if (c.at_leaf ? l->place == c.to : l->kind != LEAF_UP || l->place == pod_of(s, c.to)) return;
    c.leaf = c.at_leaf ? l->place : l->from;
    c.count = c.at_leaf ? s->c->aggs : s->c->cores;
    c.first = c.at_leaf ? leaf_up(s, c.leaf, 0) : core_up(s, l->place, p->agg, 0);
    uint32_t node = c.at_leaf ? c.leaf : s->c->pods * s->c->leaves + l->place * s->c->aggs + p->agg;
    uint32_t best = s->c->mode == SPRAY_LEAST ? least_loaded(s, &c) : next_in_turn(s, &c, node);
    if (c.at_leaf)
        p->agg = (uint16_t)best;
    else
        p->core = (uint16_t)best;
}

int link_event(struct sim *s, uint32_t number, struct packet *p) {
    struct link *l = &s->links[number];
    *p = *(struct packet *)front(&l->queue, sizeof *p);
    pop(&l->queue);
    if (l->queue.count) {
        const struct packet *after = front(&l->queue, sizeof *p);
        retime_first(&s->events, after->time);
        if (l->kind == HOST_DOWN && !after->fold) fetch(s, after->piece);
    } else
        remove_first(&s->events);
    if (l->from != NONE) s->buffer[l->from] -= p->bytes;
    if (l->down) { /* queued or on the wire when it broke */
        l->count.dropped++;
        s->r.dropped++;
        return 0;
    }
    if ((s->c->loss && (uint32_t)(draw(s) >> 32) < s->c->loss) || (s->folds->drops && dropped(s, number, p))) {
        l->count.dropped++;
        s->r.dropped++;
        return 0;
    }
    l->count.packets++;
    l->count.bytes += p->bytes;
    s->r.hops++;
    if ((s->c->repeat | s->c->reorder) && !p->late) {
        int later = (uint32_t)(draw(s) >> 32) < s->c->reorder;
        p->late = 1;
        if (later || (uint32_t)(draw(s) >> 32) < s->c->repeat) transmit(s, number, p);
        if (later) return 0;
    }
    p->late = 0;
    if (l->kind == HOST_DOWN || p->fold) return 1;
    if (s->c->mode == SPRAY_TURN || s->c->mode == SPRAY_LEAST) steer(s, l, p);
    transmit(s, next_link(s, l, p), p);
    return 0;
}

/* ---- failures ---- */

int blocked(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core, int known) {
    const struct link *l = s->links;
    uint32_t route[4], n = 0;
    if (a == b) return 0;
    route[n++] = leaf_up(s, a, agg);
    if (pod_of(s, a) != pod_of(s, b)) {
        route[n++] = core_up(s, pod_of(s, a), agg, core);
        route[n++] = core_down(s, pod_of(s, b), agg, core);
    }
    route[n++] = leaf_down(s, b, agg);
    for (uint32_t i = 0; i < n; i++)
        if (known ? l[route[i]].known : l[route[i]].down) return 1;
    return 0;
}

void fault(struct sim *s, const struct fault *f) {
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->broken += (uint32_t)!f->up - l->down;
        l->down = !f->up;
    }
}

void announce(struct sim *s, const struct fault *f) {
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->known_faults += (uint32_t)!f->up - l->known;
        l->known = !f->up;
    }
}
