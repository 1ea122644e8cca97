/* SPDX-License-Identifier: Apache-2.0 */
/* Packet-level simulation of a folded Clos fabric: output queues with ECN, DCTCP windows, pinned or sprayed paths.
 *
 * One event a packet and hop.  A link is a FIFO with a fixed rate and delay, so a packet's arrival at the far end is
 * known when it is queued: start = max(now, free), free = start + size x rate, arrival = free + delay; the backlog of
 * its queue is (free - now) / rate.  Packets of a link arrive in order, so the event heap holds links, keyed by their
 * first arrival, not packets: about a thousand entries for the paper's 256 hosts.  Ties go to the lower number, which
 * makes runs repeat exactly.
 *
 *     heap elements:  [0, links)          a link's first packet arrives
 *                     [links, + hosts)    a host's network card is free for its next packet
 *                     [.., + 3)           an ACK arrives: one FIFO for each distance between hosts
 *     timers:         a second heap with what is rare: starts, time-outs, faults
 *
 * Simplifications, all on purpose: an ACK takes its reverse path's empty-network time and no bandwidth (64 bytes in
 * 9000), and is lost if that path is down; a packet leaves its switch's shared buffer when it reaches the next node
 * (one link delay late); there is no PFC: a full buffer drops. */
#include "packet.h"

#include <stdlib.h>
#include <string.h>

#define NEVER UINT64_MAX
#define NONE UINT32_MAX
#define ACK_BYTES 64
#define CACHE 8 /* REPS: entropies kept a connection */

struct packet {
    uint64_t time;              /* of arrival at the end of the link it is on */
    uint32_t piece, seq, destination;
    uint16_t agg, core;         /* the path */
    uint16_t bytes;
    uint8_t marked;
};

struct ack {
    uint64_t time;
    uint32_t piece, seq;        /* seq: what arrived (tolerant), or the next one expected (go-back-N) */
    uint16_t agg, core;
    uint8_t marked, nack;
};

struct fifo {                   /* of packets or ACKs */
    void *items;
    uint32_t head, count, room; /* room is a power of two */
};

struct link {
    uint64_t free;              /* when all that is queued has left */
    double rate;                /* ps a byte */
    uint64_t ecn;               /* backlog in ps above which to mark */
    uint64_t deepest;           /* backlog so far, in ps */
    struct fifo queue;          /* what is queued or on the wire */
    uint32_t from;              /* switch whose buffer it drains; NONE at hosts */
    uint8_t kind;               /* block of the numbering */
    uint8_t down, known;
    uint16_t agg;
    uint32_t place;             /* leaf or pod that it leads to or from */
    struct link_count count;
};

struct reps {
    uint16_t agg[CACHE], core[CACHE];
    uint8_t valid[CACHE];
    uint8_t head, held, cycle;  /* where the next goes; how many are held, all just before it; frozen: whose turn */
    uint32_t explore;
    uint64_t frozen_until;
};

struct sender {                 /* one piece, both its ends */
    uint32_t task, packets, last_bytes, source, destination;
    uint32_t source_leaf, destination_leaf;
    uint16_t agg, core;
    uint8_t distance;           /* 0 under one leaf, 1 inside a pod, 2 through the core */
    uint8_t listed, active, done, nacked;
    uint32_t after;             /* in the host's list of those that may send */
    uint32_t next, high, una, inflight, lost, scan; /* high: sent at least once below this */
    float cwnd, alpha, share;
    uint32_t acked, marked, window; /* of the current DCTCP window */
    uint64_t progress;
    uint32_t received;          /* receiver: next expected, or how many */
    uint8_t *flags;             /* tolerant: RECEIVED, ACKED, LOST for each packet */
    uint32_t *sent;             /* tolerant: when, in ticks */
    struct reps *reps;
};

enum { RECEIVED = 1, ACKED = 2, LOST = 4 };
enum { TICK_SHIFT = 12 };

struct host {
    uint64_t free;
    uint32_t head, tail;        /* senders that may send */
    uint8_t busy;
    struct { uint32_t leaf; uint16_t agg, core; uint64_t until; } *marks;
    uint32_t mark_count, mark_room;
};

enum timer_kind { START, TIMEOUT, FAULT, ANNOUNCE };

struct timer {
    uint64_t time, order;
    uint32_t what, kind;
};

struct sim {
    const struct config *c;
    const struct task *tasks;
    const uint32_t *next;
    const struct piece *pieces;
    const struct fault *faults;
    uint32_t task_count;
    uint64_t now, random;
    uint32_t size, link_count, block[7];
    struct link *links;
    struct host *hosts;
    struct fifo acks[3];
    uint64_t ack_delay[3];
    uint64_t *buffer;           /* bytes in each switch */
    struct reps **reps;         /* REPS: [source][destination] */
    struct sender *senders;
    uint32_t sender_count, sender_room;
    uint32_t *waits, *pieces_left;
    uint64_t *started, *finished;
    uint32_t left, known_faults, broken;
    struct { uint64_t time; uint32_t element; } *heap;
    uint32_t *place, heap_count;
    struct timer *timers;
    uint32_t timer_count, timer_room;
    uint64_t timer_order;
    int no_memory;
    struct result r;
};

/* ---- random numbers: splitmix64 ---- */

static uint64_t draw(struct sim *s)
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t below(struct sim *s, uint32_t n)
{
    return (uint32_t)(((draw(s) >> 32) * n) >> 32);
}

/* ---- queues ---- */

static void *push(struct sim *s, struct fifo *f, size_t item)
{
    if (f->count == f->room) {
        uint32_t room = f->room ? 2 * f->room : 16;
        char *items = malloc((size_t)room * item);
        if (!items) {
            s->no_memory = 1;
            return NULL;
        }
        uint32_t first = f->room - f->head < f->count ? f->room - f->head : f->count;
        if (f->count) {
            memcpy(items, (char *)f->items + f->head * item, first * item);
            memcpy(items + first * item, f->items, (f->count - first) * item);
        }
        free(f->items);
        *f = (struct fifo){items, 0, f->count, room};
    }
    return (char *)f->items + ((f->head + f->count++) & (f->room - 1)) * item;
}

static void *front(const struct fifo *f, size_t item) { return (char *)f->items + f->head * item; }

static void pop(struct fifo *f)
{
    f->head = (f->head + 1) & (f->room - 1);
    f->count--;
}

/* ---- the event heap: 4-ary, elements move with their place known ---- */

static int earlier(struct sim *s, uint32_t a, uint32_t b)
{
    return s->heap[a].time < s->heap[b].time ||
           (s->heap[a].time == s->heap[b].time && s->heap[a].element < s->heap[b].element);
}

static void swap(struct sim *s, uint32_t a, uint32_t b)
{
    __typeof__(s->heap[0]) t = s->heap[a];
    s->heap[a] = s->heap[b];
    s->heap[b] = t;
    s->place[s->heap[a].element] = a;
    s->place[s->heap[b].element] = b;
}

static void sink(struct sim *s, uint32_t i)
{
    for (;;) {
        uint32_t child = 4 * i + 1, best = i, end = child + 4 < s->heap_count ? child + 4 : s->heap_count;
        for (; child < end; child++)
            if (earlier(s, child, best))
                best = child;
        if (best == i)
            return;
        swap(s, i, best);
        i = best;
    }
}

static void schedule(struct sim *s, uint32_t element, uint64_t time) /* an element that is not in the heap */
{
    uint32_t i = s->heap_count++;
    s->heap[i].time = time;
    s->heap[i].element = element;
    s->place[element] = i;
    while (i && earlier(s, i, (i - 1) / 4)) {
        swap(s, i, (i - 1) / 4);
        i = (i - 1) / 4;
    }
}

static void retime_first(struct sim *s, uint64_t time)
{
    s->heap[0].time = time;
    sink(s, 0);
}

static void remove_first(struct sim *s)
{
    s->place[s->heap[0].element] = NONE;
    if (--s->heap_count) {
        s->heap[0] = s->heap[s->heap_count];
        s->place[s->heap[0].element] = 0;
        sink(s, 0);
    }
}

/* ---- timers: a binary heap by (time, order of setting) ---- */

static int sooner(const struct timer *a, const struct timer *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void set_timer(struct sim *s, uint64_t time, enum timer_kind kind, uint32_t what)
{
    if (s->timer_count == s->timer_room) {
        uint32_t room = s->timer_room ? 2 * s->timer_room : 1024;
        struct timer *timers = realloc(s->timers, room * sizeof *timers);
        if (!timers) {
            s->no_memory = 1;
            return;
        }
        s->timers = timers;
        s->timer_room = room;
    }
    struct timer t = {time, s->timer_order++, what, kind};
    uint32_t i = s->timer_count++;
    for (; i && sooner(&t, &s->timers[(i - 1) / 2]); i = (i - 1) / 2)
        s->timers[i] = s->timers[(i - 1) / 2];
    s->timers[i] = t;
}

static struct timer pop_timer(struct sim *s)
{
    struct timer first = s->timers[0], last = s->timers[--s->timer_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < s->timer_count; i = child) {
        if (child + 1 < s->timer_count && sooner(&s->timers[child + 1], &s->timers[child]))
            child++;
        if (!sooner(&s->timers[child], &last))
            break;
        s->timers[i] = s->timers[child];
    }
    if (s->timer_count)
        s->timers[i] = last;
    return first;
}

/* ---- the fabric ---- */

static uint32_t leaf_of(const struct sim *s, uint32_t host) { return host / s->c->hosts; }
static uint32_t pod_of(const struct sim *s, uint32_t leaf) { return leaf / s->c->leaves; }

static uint8_t distance(const struct sim *s, uint32_t a, uint32_t b)
{
    return a == b ? 0 : pod_of(s, a) == pod_of(s, b) ? 1 : 2;
}

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

/* Is a link on the way from leaf to leaf down (or, with known, announced to be down)? */
static int blocked(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core, int known)
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

static void transmit(struct sim *s, uint32_t number, const struct packet *p)
{
    struct link *l = &s->links[number];
    uint64_t backlog = l->free > s->now ? l->free - s->now : 0;
    if (l->down || (l->from != NONE && s->buffer[l->from] + p->bytes > s->c->buffer_bytes)) {
        l->count.dropped++;
        s->r.dropped++;
        return;
    }
    struct packet *q = push(s, &l->queue, sizeof *q);
    if (!q)
        return;
    *q = *p;
    l->free = s->now + backlog + (uint64_t)(p->bytes * l->rate + 0.5);
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
        schedule(s, number, q->time);
}

/* ---- paths ---- */

static uint32_t path_count(const struct sim *s, const struct sender *t)
{
    return t->distance == 0 ? 1 : t->distance == 1 ? s->c->aggs : s->c->aggs * s->c->cores;
}

static void take_path(const struct sim *s, const struct sender *t, uint32_t path, uint16_t *agg, uint16_t *core)
{
    *agg = (uint16_t)(t->distance == 2 ? path / s->c->cores : path);
    *core = (uint16_t)(t->distance == 2 ? path % s->c->cores : 0);
}

static int suspect(struct sim *s, const struct sender *t, uint32_t agg, uint32_t core)
{
    struct host *h = &s->hosts[t->source];
    for (uint32_t i = 0; i < h->mark_count; i++)
        if (h->marks[i].leaf == t->destination_leaf && h->marks[i].agg == agg && h->marks[i].core == core &&
            h->marks[i].until > s->now)
            return 1;
    return s->known_faults && blocked(s, t->source_leaf, t->destination_leaf, agg, core, 1);
}

/* A random path that nobody suspects; any, where all are suspect. */
static void random_path(struct sim *s, const struct sender *t, uint16_t *agg, uint16_t *core)
{
    uint32_t n = path_count(s, t), first = below(s, n);
    take_path(s, t, first, agg, core);
    if (!s->known_faults && !s->hosts[t->source].mark_count)
        return;
    for (int tries = 0; tries < 8; tries++) { /* unbiased while most paths are good */
        if (!suspect(s, t, *agg, *core))
            return;
        take_path(s, t, below(s, n), agg, core);
    }
    for (uint32_t i = 0; i < n; i++) {
        take_path(s, t, (first + i) % n, agg, core);
        if (!suspect(s, t, *agg, *core))
            return;
    }
    take_path(s, t, first, agg, core);
}

static void mark_path(struct sim *s, const struct sender *t)
{
    struct host *h = &s->hosts[t->source];
    uint32_t i = 0;
    for (; i < h->mark_count; i++)
        if (h->marks[i].until <= s->now || (h->marks[i].leaf == t->destination_leaf && h->marks[i].agg == t->agg &&
                                            h->marks[i].core == t->core))
            break;
    if (i == h->mark_room) {
        uint32_t room = h->mark_room ? 2 * h->mark_room : 8;
        void *marks = realloc(h->marks, room * sizeof *h->marks);
        if (!marks) {
            s->no_memory = 1;
            return;
        }
        h->marks = marks;
        h->mark_room = room;
    }
    if (i == h->mark_count)
        h->mark_count++;
    h->marks[i].leaf = t->destination_leaf;
    h->marks[i].agg = t->agg;
    h->marks[i].core = t->core;
    h->marks[i].until = s->now + s->c->mark_time;
}

static int any_mark(struct sim *s, const struct sender *t)
{
    struct host *h = &s->hosts[t->source];
    for (uint32_t i = 0; i < h->mark_count; i++)
        if (h->marks[i].leaf == t->destination_leaf && h->marks[i].until > s->now)
            return 1;
    if (s->known_faults)
        for (uint32_t p = 0, n = path_count(s, t); p < n; p++) {
            uint16_t agg, core;
            take_path(s, t, p, &agg, &core);
            if (blocked(s, t->source_leaf, t->destination_leaf, agg, core, 1))
                return 1;
        }
    return 0;
}

/* REPS (arXiv 2407.21625): explore; then reuse the oldest entropy whose ACK was not marked; frozen, cycle what is held.
 * Here the entropy is the path itself. */
static void reps_path(struct sim *s, struct sender *t, uint16_t *agg, uint16_t *core)
{
    struct reps *r = t->reps;
    int frozen = r->frozen_until > s->now;
    if (r->frozen_until && !frozen) {
        r->frozen_until = 0;
        memset(r->valid, 0, sizeof r->valid);
        r->held = 0;
        r->explore = (uint32_t)s->c->window;
    }
    if (!frozen && r->explore) {
        r->explore--;
        random_path(s, t, agg, core);
        return;
    }
    for (uint32_t i = 0; i < r->held; i++) { /* from the oldest on */
        uint32_t k = (r->head + CACHE - r->held + i) % CACHE;
        if (r->valid[k]) {
            r->valid[k] = 0;
            *agg = r->agg[k];
            *core = r->core[k];
            return;
        }
    }
    if (frozen && r->held) {
        uint32_t k = (r->head + CACHE - r->held + r->cycle++ % r->held) % CACHE;
        *agg = r->agg[k];
        *core = r->core[k];
        return;
    }
    random_path(s, t, agg, core);
}

static void reps_keep(struct sim *s, struct reps *r, const struct ack *a)
{
    if (a->marked || r->frozen_until > s->now)
        return;
    r->agg[r->head] = a->agg;
    r->core[r->head] = a->core;
    r->valid[r->head] = 1;
    r->head = (uint8_t)((r->head + 1) % CACHE);
    if (r->held < CACHE)
        r->held++;
}

/* ---- sending ---- */

static int may_send(const struct sender *t)
{
    return t->active && (t->lost || t->next < t->packets) && (float)t->inflight < t->cwnd;
}

static void enlist(struct sim *s, uint32_t number)
{
    struct sender *t = &s->senders[number];
    struct host *h = &s->hosts[t->source];
    if (t->listed || !may_send(t))
        return;
    t->listed = 1;
    t->after = NONE;
    if (h->tail == NONE)
        h->head = number;
    else
        s->senders[h->tail].after = number;
    h->tail = number;
    if (!h->busy) {
        h->busy = 1;
        schedule(s, s->link_count + t->source, h->free > s->now ? h->free : s->now);
    }
}

/* All-to-all has more senders than caches hold: fetch the one that this queue will need next, well ahead. */
static void fetch(const struct sim *s, uint32_t number)
{
    __builtin_prefetch(&s->senders[number], 1);
    __builtin_prefetch((const char *)&s->senders[number] + 64, 1);
}

static uint32_t take_first(struct sim *s, struct host *h)
{
    uint32_t number = h->head;
    h->head = s->senders[number].after;
    if (h->head == NONE)
        h->tail = NONE;
    else
        fetch(s, h->head);
    s->senders[number].listed = 0;
    return number;
}

/* The network card is free: the next piece in turn sends one packet. */
static void card_free(struct sim *s, uint32_t host)
{
    struct host *h = &s->hosts[host];
    while (h->head != NONE) {
        uint32_t number = take_first(s, h);
        struct sender *t = &s->senders[number];
        if (!may_send(t))
            continue;
        uint32_t seq;
        if (t->lost) {
            while (!(t->flags[t->scan] & LOST))
                t->scan++;
            seq = t->scan++;
            t->flags[seq] = (uint8_t)(t->flags[seq] & ~LOST);
            t->lost--;
        } else {
            seq = t->next++;
        }
        if (seq < t->high)
            s->r.resent++;
        else
            t->high = seq + 1;
        if (!t->inflight)
            t->progress = s->now;
        t->inflight++;
        if (t->sent)
            t->sent[seq] = (uint32_t)(s->now >> TICK_SHIFT);
        struct packet p = {.piece = number, .seq = seq, .destination = t->destination, .agg = t->agg, .core = t->core};
        p.bytes = (uint16_t)((seq + 1 == t->packets ? t->last_bytes : s->c->mtu) + s->c->header);
        if (s->c->mode == SPRAY)
            random_path(s, t, &p.agg, &p.core);
        else if (s->c->mode == REPS && t->distance)
            reps_path(s, t, &p.agg, &p.core);
        s->r.sent++;
        transmit(s, host, &p);
        h->free = s->links[host].free;
        retime_first(s, h->free); /* this host is the first of the heap, or just behind the packet it sent */
        enlist(s, number);
        return;
    }
    h->busy = 0;
    remove_first(s);
}

static void finish(struct sim *s, uint32_t task);

/* A piece's part of a window: rounded up and one more, since a window of one packet idles for a round trip. */
static float part(const struct sender *t, double window)
{
    return t->share < 1 ? (float)(uint32_t)(window * t->share) + 2 : (float)window;
}

static void start_piece(struct sim *s, uint32_t task, const struct piece *piece)
{
    if (s->sender_count == s->sender_room) {
        uint32_t room = s->sender_room ? 2 * s->sender_room : 1024;
        struct sender *senders = realloc(s->senders, room * sizeof *senders);
        if (!senders) {
            s->no_memory = 1;
            return;
        }
        s->senders = senders;
        s->sender_room = room;
    }
    uint32_t number = s->sender_count++;
    struct sender *t = &s->senders[number];
    const struct task *k = &s->tasks[task];
    memset(t, 0, sizeof *t);
    t->task = task;
    t->packets = (uint32_t)((piece->size + s->c->mtu - 1) / s->c->mtu);
    t->last_bytes = (uint32_t)(piece->size - (uint64_t)(t->packets - 1) * s->c->mtu);
    t->source = k->source;
    t->destination = k->destination;
    t->source_leaf = leaf_of(s, t->source);
    t->destination_leaf = leaf_of(s, t->destination);
    t->distance = distance(s, t->source_leaf, t->destination_leaf);
    take_path(s, t, piece->path, &t->agg, &t->core);
    if (s->c->mode == PINNED && t->distance && suspect(s, t, t->agg, t->core))
        random_path(s, t, &t->agg, &t->core);
    t->share = piece->share;
    t->cwnd = part(t, s->c->window);
    t->alpha = 1.0f;
    t->window = (uint32_t)t->cwnd;
    t->progress = s->now;
    t->active = 1;
    if (s->c->tolerant) {
        t->sent = calloc(t->packets, sizeof *t->sent + sizeof *t->flags); /* one block: often one cache line */
        t->flags = t->sent ? (uint8_t *)(t->sent + t->packets) : NULL;
        s->no_memory |= !t->sent;
    }
    if (s->c->mode == REPS) { /* a connection lives as long as the run: later flows find what earlier ones learnt */
        struct reps **kept = &s->reps[(size_t)t->source * s->size + t->destination];
        if (!*kept && (*kept = calloc(1, sizeof **kept)))
            (*kept)->explore = (uint32_t)s->c->window;
        t->reps = *kept;
        s->no_memory |= !t->reps;
    }
    if (s->no_memory)
        return;
    set_timer(s, s->now + s->c->rto, TIMEOUT, number);
    enlist(s, number);
}

static void start_task(struct sim *s, uint32_t task)
{
    const struct task *k = &s->tasks[task];
    s->started[task] = s->now;
    if (!k->size) {
        finish(s, task);
        return;
    }
    struct sender probe = {.source = k->source, .source_leaf = leaf_of(s, k->source),
                           .destination_leaf = leaf_of(s, k->destination)};
    probe.distance = distance(s, probe.source_leaf, probe.destination_leaf);
    int plan = s->c->move && probe.distance && any_mark(s, &probe);
    s->pieces_left[task] = k->pieces[plan];
    for (uint32_t i = 0; i < k->pieces[plan] && !s->no_memory; i++)
        start_piece(s, task, &s->pieces[k->first_piece[plan] + i]);
}

static void finish(struct sim *s, uint32_t task)
{
    const struct task *k = &s->tasks[task];
    s->finished[task] = s->now;
    s->left--;
    for (uint32_t i = 0; i < k->nexts; i++) {
        uint32_t n = s->next[k->first_next + i];
        if (--s->waits[n] == 0) {
            uint64_t late = s->c->jitter && s->tasks[n].size ? draw(s) % s->c->jitter : 0;
            set_timer(s, s->now + s->tasks[n].gap + late, START, n);
        }
    }
}

/* ---- receiving ---- */

static void arrive(struct sim *s, const struct packet *p)
{
    struct sender *t = &s->senders[p->piece];
    int fresh, nack = 0;
    uint32_t answer = p->seq;
    if (s->c->tolerant) {
        fresh = !t->flags || !(t->flags[p->seq] & RECEIVED);
        if (!t->flags) /* the sender knows already that all is there */
            fresh = 0;
        else
            t->flags[p->seq] |= RECEIVED;
    } else {
        fresh = p->seq == t->received;
        nack = p->seq > t->received && !t->nacked;
        answer = t->received + (uint32_t)fresh;
        if (p->seq > t->received && !nack) { /* one NAK a gap; the rest of the gap's followers are dropped silently */
            s->r.discarded++;
            return;
        }
        t->nacked = nack || (t->nacked && !fresh);
    }
    if (fresh) {
        t->received++;
        s->r.delivered++;
        if (t->received == t->packets && !--s->pieces_left[t->task])
            finish(s, t->task);
    } else {
        s->r.discarded++;
    }
    s->r.marked += p->marked;
    if (s->broken && blocked(s, t->destination_leaf, t->source_leaf, p->agg, p->core, 0)) {
        s->r.lost_acks++;
        return;
    }
    struct fifo *f = &s->acks[t->distance];
    struct ack *a = push(s, f, sizeof *a);
    if (!a)
        return;
    *a = (struct ack){s->now + s->ack_delay[t->distance], p->piece, answer, p->agg, p->core, p->marked, (uint8_t)nack};
    if (f->count == 1)
        schedule(s, s->link_count + s->size + t->distance, a->time);
}

static void dctcp(struct sim *s, struct sender *t, uint32_t acked, int marked)
{
    t->acked += acked;
    t->marked += marked ? acked : 0;
    if (t->acked < t->window)
        return;
    float share = (float)t->marked / (float)t->acked;
    t->alpha += (float)s->c->gain * (share - t->alpha);
    t->cwnd = t->marked ? t->cwnd * (1 - t->alpha / 2) : t->cwnd + t->share;
    if (t->cwnd > part(t, s->c->max_window))
        t->cwnd = part(t, s->c->max_window);
    if (t->cwnd < (float)s->c->min_window)
        t->cwnd = (float)s->c->min_window;
    t->acked = t->marked = 0;
    t->window = (uint32_t)t->cwnd;
}

static void retire(struct sender *t)
{
    t->active = 0;
    free(t->sent);
    t->flags = NULL;
    t->sent = NULL;
}

static void acknowledge(struct sim *s, const struct ack *a)
{
    struct sender *t = &s->senders[a->piece];
    if (!t->active)
        return;
    uint32_t acked = 0;
    if (s->c->tolerant) {
        uint8_t *flag = &t->flags[a->seq];
        if (!(*flag & ACKED)) {
            acked = 1;
            if (*flag & LOST) {
                *flag = (uint8_t)(*flag & ~LOST);
                t->lost--;
            } else {
                t->inflight--;
            }
            *flag |= ACKED;
            while (t->una < t->next && t->flags[t->una] & ACKED)
                t->una++;
        }
    } else if (a->seq > t->una) {
        acked = a->seq - t->una;
        t->una = a->seq;
        if (t->next < t->una)
            t->next = t->una;
        t->inflight = t->next - t->una;
    }
    if (acked) {
        t->progress = s->now;
        dctcp(s, t, acked, a->marked);
        if (t->reps)
            reps_keep(s, t->reps, a);
    }
    if (t->una == t->packets) {
        retire(t);
        return;
    }
    if (a->nack && a->seq == t->una && t->next > t->una) { /* go back */
        t->next = t->una;
        t->inflight = 0;
        t->cwnd = t->cwnd / 2 < (float)s->c->min_window ? (float)s->c->min_window : t->cwnd / 2;
    }
    enlist(s, a->piece);
}

static void timeout(struct sim *s, uint32_t number)
{
    struct sender *t = &s->senders[number];
    if (!t->active)
        return;
    uint64_t rto = s->c->rto, due;
    if (!t->inflight) /* waits for its turn at the card */
        due = s->now + rto;
    else if (s->c->tolerant) {
        uint32_t oldest = t->una;
        while (oldest < t->next && t->flags[oldest] & (ACKED | LOST))
            oldest++;
        uint32_t age = (uint32_t)(s->now >> TICK_SHIFT) - t->sent[oldest];
        due = s->now - ((uint64_t)age << TICK_SHIFT) + rto;
    } else
        due = t->progress + rto;
    if (due > s->now) {
        set_timer(s, due, TIMEOUT, number);
        return;
    }

    s->r.timeouts++;
    if (s->c->tolerant) {
        uint32_t ticks = (uint32_t)(rto >> TICK_SHIFT), present = (uint32_t)(s->now >> TICK_SHIFT);
        for (uint32_t i = t->una; i < t->next; i++)
            if (!(t->flags[i] & (ACKED | LOST)) && present - t->sent[i] >= ticks) {
                t->flags[i] |= LOST;
                t->lost++;
                t->inflight--;
            }
        t->scan = t->una;
    } else {
        t->next = t->una;
        t->inflight = 0;
    }
    t->cwnd = part(t, s->c->window); /* as the paper: back to line rate */
    t->window = (uint32_t)t->cwnd;
    t->acked = t->marked = 0;
    if (t->reps)
        t->reps->frozen_until = s->now + s->c->freeze_time;
    if (s->c->mode == PINNED && t->distance && (s->c->move || suspect(s, t, t->agg, t->core))) {
        if (s->c->move) /* else: the routing, not the host, takes it off a path that is known to be dead */
            mark_path(s, t);
        random_path(s, t, &t->agg, &t->core);
        s->r.moved++;
    }
    set_timer(s, s->now + rto, TIMEOUT, number);
    enlist(s, number);
}

static void fault(struct sim *s, const struct fault *f)
{
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->broken += (uint32_t)!f->up - l->down;
        l->down = !f->up;
    }
}

static void announce(struct sim *s, const struct fault *f)
{
    for (int i = 0; i < 2; i++) {
        struct link *l = &s->links[f->links[i]];
        s->known_faults += (uint32_t)!f->up - l->known;
        l->known = !f->up;
    }
}

/* ---- the loop ---- */

static void link_event(struct sim *s, uint32_t number)
{
    struct link *l = &s->links[number];
    struct packet p = *(struct packet *)front(&l->queue, sizeof p);
    pop(&l->queue);
    if (l->queue.count) {
        const struct packet *after = front(&l->queue, sizeof p);
        retime_first(s, after->time);
        if (l->kind == 1)
            fetch(s, after->piece);
    } else
        remove_first(s);
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
    if (l->kind == 1)
        arrive(s, &p);
    else
        transmit(s, next_link(s, l, &p), &p);
}

static enum outcome loop(struct sim *s)
{
    while (s->left) {
        uint64_t event = s->heap_count ? s->heap[0].time : NEVER;
        uint64_t timer = s->timer_count ? s->timers[0].time : NEVER;
        uint64_t time = timer <= event ? timer : event;
        if (s->no_memory)
            return NO_MEMORY;
        if (time > s->c->deadline)
            return DEADLINE;
        s->now = time;
        if (timer <= event) {
            struct timer t = pop_timer(s);
            switch ((enum timer_kind)t.kind) {
            case START: start_task(s, t.what); break;
            case TIMEOUT: timeout(s, t.what); break;
            case FAULT: fault(s, &s->faults[t.what]); break;
            case ANNOUNCE: announce(s, &s->faults[t.what]); break;
            }
            continue;
        }
        uint32_t element = s->heap[0].element;
        if (element < s->link_count)
            link_event(s, element);
        else if (element < s->link_count + s->size)
            card_free(s, element - s->link_count);
        else {
            struct fifo *f = &s->acks[element - s->link_count - s->size];
            struct ack a = *(struct ack *)front(f, sizeof a);
            pop(f);
            if (f->count) {
                const struct ack *after = front(f, sizeof a);
                retime_first(s, after->time);
                fetch(s, after->piece);
            } else
                remove_first(s);
            acknowledge(s, &a);
        }
    }
    return FINISHED;
}

static int lay_out(struct sim *s)
{
    const struct config *c = s->c;
    uint32_t leaves = c->pods * c->leaves, aggs = c->pods * c->aggs, cores = c->aggs * c->cores;
    uint32_t sizes[6] = {s->size, s->size, leaves * c->aggs, leaves * c->aggs, aggs * c->cores, aggs * c->cores};
    for (int i = 0; i < 6; i++)
        s->block[i + 1] = s->block[i] + sizes[i];
    s->link_count = s->block[6];
    uint32_t elements = s->link_count + s->size + 3;
    s->links = calloc(s->link_count, sizeof *s->links);
    s->hosts = calloc(s->size, sizeof *s->hosts);
    s->buffer = calloc(leaves + aggs + cores, sizeof *s->buffer);
    s->heap = malloc(elements * sizeof *s->heap);
    s->place = malloc(elements * sizeof *s->place);
    s->reps = c->mode == REPS ? calloc((size_t)s->size * s->size, sizeof *s->reps) : NULL;
    if (!s->links || !s->hosts || !s->buffer || !s->heap || !s->place || (c->mode == REPS && !s->reps))
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
    for (uint32_t i = 0; i < s->size; i++)
        s->hosts[i].head = s->hosts[i].tail = NONE;
    s->ack_delay[0] = 2 * (c->delay + (uint64_t)(ACK_BYTES * c->host_rate));
    s->ack_delay[1] = s->ack_delay[0] + 2 * (c->delay + (uint64_t)(ACK_BYTES * c->leaf_rate));
    s->ack_delay[2] = s->ack_delay[1] + 2 * (c->delay + (uint64_t)(ACK_BYTES * c->core_rate));
    return 1;
}

static void clean_up(struct sim *s)
{
    for (uint32_t i = 0; s->links && i < s->link_count; i++) {
        s->r.in_flight += s->links[i].queue.count;
        free(s->links[i].queue.items);
    }
    for (uint32_t i = 0; s->hosts && i < s->size; i++)
        free(s->hosts[i].marks);
    for (uint32_t i = 0; i < s->sender_count; i++)
        retire(&s->senders[i]);
    for (int i = 0; i < 3; i++)
        free(s->acks[i].items);
    for (size_t i = 0; s->reps && i < (size_t)s->size * s->size; i++)
        free(s->reps[i]);
    free(s->reps);
    free(s->links);
    free(s->hosts);
    free(s->buffer);
    free(s->heap);
    free(s->place);
    free(s->timers);
    free(s->senders);
    free(s->waits);
    free(s->pieces_left);
}

uint64_t sim_abi(void)
{
    return sizeof(struct config) << 40 | sizeof(struct task) << 30 | sizeof(struct piece) << 20 |
           sizeof(struct fault) << 10 | sizeof(struct link_count);
}

/* Runs to the end.  started, finished: a time for each task, UINT64_MAX where it never came to that. */
int sim_run(const struct config *config, uint32_t task_count, const struct task *tasks, const uint32_t *next,
            const struct piece *pieces, uint32_t fault_count, const struct fault *faults, uint64_t *started,
            uint64_t *finished, struct link_count *counts, struct result *result)
{
    struct sim s = {.c = config, .tasks = tasks, .next = next, .pieces = pieces, .faults = faults,
                    .task_count = task_count, .random = config->seed, .started = started, .finished = finished,
                    .left = task_count, .size = config->hosts * config->leaves * config->pods};
    enum outcome outcome = NO_MEMORY;
    s.waits = malloc((task_count + 1) * sizeof *s.waits);
    s.pieces_left = calloc(task_count + 1, sizeof *s.pieces_left);
    if (s.waits && s.pieces_left && lay_out(&s)) {
        for (uint32_t i = 0; i < task_count; i++) {
            started[i] = finished[i] = NEVER;
            s.waits[i] = tasks[i].waits;
            if (!tasks[i].waits) {
                uint64_t late = config->jitter && tasks[i].size ? draw(&s) % config->jitter : 0;
                set_timer(&s, tasks[i].gap + late, START, i);
            }
        }
        for (uint32_t i = 0; i < fault_count; i++) {
            if (faults[i].time)
                set_timer(&s, faults[i].time, FAULT, i);
            else
                fault(&s, &faults[i]);  /* before any flow starts, also one that starts at 0 */
            if (faults[i].announced)
                set_timer(&s, faults[i].announced, ANNOUNCE, i);
            else
                announce(&s, &faults[i]);
        }
        outcome = loop(&s);
        for (uint32_t i = 0; i < s.link_count; i++) {
            counts[i] = s.links[i].count;
            counts[i].deepest = (uint64_t)((double)s.links[i].deepest / s.links[i].rate);
        }
    }
    s.r.end = outcome == DEADLINE ? config->deadline : s.now;
    s.r.unfinished = s.left;
    s.r.pieces = s.sender_count;
    clean_up(&s);
    *result = s.r;
    return outcome;
}
