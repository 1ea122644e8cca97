/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a folded Clos fabric: output queues with ECN, switches with shared buffers, what is down.
 *
 * One event a packet and hop.  A link is a FIFO with a fixed rate and delay, so a packet's arrival at the far end is
 * known when it is queued: start = max(now, free), free = start + size x rate, arrival = free + delay; the backlog of
 * its queue is (free - now) / rate.  Packets of a link arrive in order.
 *
 * Simplifications, on purpose: a packet leaves its switch's shared buffer when it reaches the next node (one link delay
 * late); there is no PFC: a full buffer drops. */
#include "sim.h"

/* ---- the numbering (sim/topology.py): kinds 0 up and 1 down at hosts, 2 and 3 at leaves, 4 and 5 at cores ---- */

static uint32_t leaf_up(const struct sim *s, uint32_t leaf, uint32_t agg)
{
    return s->block[2] + leaf * s->c->aggs + agg;
}

static uint32_t leaf_down(const struct sim *s, uint32_t leaf, uint32_t agg)
{
    return s->block[3] + leaf * s->c->aggs + agg;
}

static uint32_t core_up(const struct sim *s, uint32_t pod, uint32_t agg, uint32_t core)
{
    return s->block[4] + (pod * s->c->aggs + agg) * s->c->cores + core;
}

static uint32_t core_down(const struct sim *s, uint32_t pod, uint32_t agg, uint32_t core)
{
    return core_up(s, pod, agg, core) + s->block[5] - s->block[4];
}

static uint32_t next_link(const struct sim *s, const struct link *l, const struct packet *p)
{
    uint32_t leaf = leaf_of(s, p->destination), down = s->block[1] + p->destination;
    switch (l->kind) {
    case 0: return l->place == leaf ? down : leaf_up(s, l->place, p->agg);
    case 2:
        if (l->place == pod_of(s, leaf))
            return leaf_down(s, leaf, p->agg);
        return core_up(s, l->place, p->agg, p->core);
    case 3: return down;
    case 4: return core_down(s, pod_of(s, leaf), p->agg, p->core);
    default: return leaf_down(s, leaf, l->agg);
    }
}

int fabric_open(struct sim *s)
{
    const struct config *c = s->c;
    uint32_t leaves = c->pods * c->leaves, aggs = c->pods * c->aggs, cores = c->aggs * c->cores;
    uint32_t sizes[6] = {s->size, s->size, leaves * c->aggs, leaves * c->aggs, aggs * c->cores, aggs * c->cores};
    for (int i = 0; i < 6; i++)
        s->block[i + 1] = s->block[i] + sizes[i];
    s->link_count = s->block[6];
    s->links = calloc(s->link_count, sizeof *s->links);
    s->buffer = calloc(leaves + aggs + cores, sizeof *s->buffer);
    if (!s->links || !s->buffer)
        return 0;
    double rates[6] = {c->host_rate, c->host_rate, c->leaf_rate, c->leaf_rate, c->core_rate, c->core_rate};
    for (uint32_t kind = 0; kind < 6; kind++)
        for (uint32_t n = s->block[kind]; n < s->block[kind + 1]; n++) {
            struct link *l = &s->links[n];
            uint32_t i = n - s->block[kind];
            l->kind = (uint8_t)kind;
            l->rate = rates[kind];
            l->ecn = (uint64_t)((double)c->ecn_bytes * l->rate);
            switch (kind) {
            case 0: l->from = NONE; l->place = i / c->hosts; break;
            case 1: l->from = i / c->hosts; break;
            case 2: l->from = i / c->aggs; l->place = i / c->aggs / c->leaves; break;
            case 3: l->from = leaves + i / c->aggs / c->leaves * c->aggs + i % c->aggs; break;
            case 4: l->from = leaves + i / c->cores; break;
            case 5:
                l->agg = (uint16_t)(i / c->cores % c->aggs);
                l->from = leaves + aggs + l->agg * c->cores + i % c->cores;
                break;
            }
        }
    return 1;
}

void fabric_close(struct sim *s)
{
    for (uint32_t i = 0; s->links && i < s->link_count; i++) {
        s->r.in_flight += s->links[i].queue.count;
        free(s->links[i].queue.items);
    }
    free(s->links);
    free(s->buffer);
}

/* ---- packets ---- */

void transmit(struct sim *s, uint32_t number, const struct packet *p)
{
    struct link *l = &s->links[number];
    uint64_t now = s->events.now, backlog = l->free > now ? l->free - now : 0;
    if (l->down || (l->from != NONE && s->buffer[l->from] + p->bytes > s->c->buffer_bytes)) {
        l->count.dropped++;
        s->r.dropped++;
        return;
    }
    struct packet *q = push(&s->events, &l->queue, sizeof *q);
    if (!q)
        return;
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
    if (backlog > l->deepest)
        l->deepest = backlog;
    if (l->queue.count == 1)
        schedule(&s->events, number, q->time);
}

void link_event(struct sim *s, uint32_t number)
{
    struct link *l = &s->links[number];
    struct packet p = *(struct packet *)front(&l->queue, sizeof p);
    pop(&l->queue);
    if (l->queue.count) {
        const struct packet *after = front(&l->queue, sizeof p);
        retime_first(&s->events, after->time);
        if (l->kind == 1)
            fetch(s, after->piece);
    } else
        remove_first(&s->events);
    if (l->from != NONE)
        s->buffer[l->from] -= p.bytes;
    if (l->down) { /* queued or on the wire when it broke */
        l->count.dropped++;
        s->r.dropped++;
        return;
    }
    l->count.packets++;
    l->count.bytes += p.bytes;
    s->r.hops++;
    if (l->kind != 1) {
        transmit(s, next_link(s, l, &p), &p);
    } else if (p.answer) {
        s->r.answered++;
        acknowledge(s, &(struct ack){0, p.piece, p.seq, p.agg, p.core, p.echo, p.nack});
    } else {
        arrive(s, &p);
    }
}

/* ---- failures ---- */

int blocked(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core, int known)
{
    const struct link *l = s->links;
    uint32_t way[4], n = 0;
    if (a == b)
        return 0;
    way[n++] = leaf_up(s, a, agg);
    if (pod_of(s, a) != pod_of(s, b)) {
        way[n++] = core_up(s, pod_of(s, a), agg, core);
        way[n++] = core_down(s, pod_of(s, b), agg, core);
    }
    way[n++] = leaf_down(s, b, agg);
    for (uint32_t i = 0; i < n; i++)
        if (known ? l[way[i]].known : l[way[i]].down)
            return 1;
    return 0;
}

void fault(struct sim *s, const struct fault *f)
{
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->broken += (uint32_t)!f->up - l->down;
        l->down = !f->up;
    }
}

void announce(struct sim *s, const struct fault *f)
{
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->known_faults += (uint32_t)!f->up - l->known;
        l->known = !f->up;
    }
}
