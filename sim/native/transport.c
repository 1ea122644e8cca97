/* SPDX-License-Identifier: Apache-2.0 */
/* Simplification, on purpose: unless told what it weighs, an ACK takes its reverse path's empty-network time and no
 * bandwidth (64 bytes in 9000), and is lost if that path is down. */
#include "transport.h"

#include <string.h>

#include "fabric.h"
#include "paths.h"
#include "trees.h"

enum { RECEIVED = 1, ACKED = 2, LOST = 4 }; /* flags of a tolerant sender's packets */
enum { TICK_SHIFT = 12 };                   /* ps to ticks, in which they were sent */

/* ---- the network card: senders of a host take turns, packet by packet ---- */

static int may_send(const struct sender *t) {
    return t->active && (t->lost || t->next < t->packets) && (float)t->inflight < t->cwnd;
}

static void enlist(struct sim *s, uint32_t number) {
    struct sender *t = &s->senders[number];
    struct host *h = &s->hosts[t->source];
    if (t->listed || !may_send(t)) return;
    t->listed = 1;
    t->after = NONE;
    if (h->tail == NONE)
        h->head = number;
    else
        s->senders[h->tail].after = number;
    h->tail = number;
    wake_card(s, t->source);
}

static uint32_t take_first(struct sim *s, struct host *h) {
    uint32_t number = h->head;
    h->head = s->senders[number].after;
    if (h->head == NONE)
        h->tail = NONE;
    else
        fetch(s, h->head);
    s->senders[number].listed = 0;
    return number;
}

/* The packet to send: one that is known to be lost, else the next. */
static uint32_t take_next(struct sender *t) {
    if (!t->lost) return t->next++;
    while (!(t->flags[t->scan] & LOST)) t->scan++;
    t->flags[t->scan] = (uint8_t)(t->flags[t->scan] & ~LOST);
    t->lost--;
    return t->scan++;
}

void card_free(struct sim *s, uint32_t host) {
    struct host *h = &s->hosts[host];
    h->fold_turn ^= 1; /* flows and folds take turns */
    if ((h->fold_turn || h->head == NONE) && fold_send(s, host)) {
        h->free = s->links[host].free;
        retime_first(&s->events, h->free);
        return;
    }
    while (h->head != NONE) {
        uint32_t number = take_first(s, h);
        struct sender *t = &s->senders[number];
        if (!may_send(t)) continue;
        uint32_t seq = take_next(t);
        if (seq < t->high)
            s->r.resent++;
        else
            t->high = seq + 1;
        if (!t->inflight) t->progress = s->events.now;
        t->inflight++;
        if (t->sent) t->sent[seq] = (uint32_t)(s->events.now >> TICK_SHIFT);
        struct packet p = {.piece = number, .seq = seq, .destination = t->destination, .agg = t->agg, .core = t->core};
        p.bytes = (uint16_t)((seq + 1 == t->packets ? t->last_bytes : s->c->mtu) + s->c->header);
        if (s->c->mode == SPRAY)
            random_path(s, t, &p.agg, &p.core);
        else if (s->c->mode == REPS && t->distance)
            reps_path(s, t, &p.agg, &p.core);
        s->r.sent++;
        transmit(s, host, &p);
        h->free = s->links[host].free;
        retime_first(&s->events, h->free); /* this host is the first of the heap, or just behind the packet it sent */
        enlist(s, number);
        return;
    }
    if (fold_send(s, host)) {
        h->free = s->links[host].free;
        retime_first(&s->events, h->free);
        return;
    }
    h->busy = 0;
    remove_first(&s->events);
}

/* ---- a piece's life ---- */

/* A piece's share of a window: rounded up and one more, since a window of one packet idles for a round trip. */
static float window_share(const struct sender *t, double window) {
    return t->share < 1 ? (float)(uint32_t)(window * t->share) + 2 : (float)window;
}

void start_piece(struct sim *s, uint32_t task, const struct piece *piece) {
    if (s->sender_count == s->sender_room) {
        uint32_t room = s->sender_room ? 2 * s->sender_room : 1024;
        struct sender *senders = realloc(s->senders, room * sizeof *senders);
        if (!senders) {
            s->events.no_memory = 1;
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
    if (s->c->mode == PINNED && t->distance && suspect(s, t, t->agg, t->core)) random_path(s, t, &t->agg, &t->core);
    t->share = piece->share;
    t->cwnd = window_share(t, s->c->window);
    t->alpha = 1.0f;
    t->window = (uint32_t)t->cwnd;
    t->progress = s->events.now;
    t->active = 1;
    if (s->c->tolerant) {
        t->sent = calloc(t->packets, sizeof *t->sent + sizeof *t->flags); /* one block: often one cache line */
        t->flags = t->sent ? (uint8_t *)(t->sent + t->packets) : NULL;
        s->events.no_memory |= !t->sent;
    }
    if (s->c->mode == REPS) reps_open(s, t);
    if (s->events.no_memory) return;
    set_timer(&s->events, s->events.now + s->c->rto, TIMEOUT, number);
    enlist(s, number);
}

static void retire(struct sender *t) {
    t->active = 0;
    free(t->sent);
    t->flags = NULL;
    t->sent = NULL;
}

void transport_close(struct sim *s) {
    for (uint32_t i = 0; i < s->sender_count; i++) retire(&s->senders[i]);
    for (int i = 0; i < 3; i++) free(s->acks[i].items);
    free(s->senders);
}

/* ---- receiving ---- */

static void answer(struct sim *s, const struct sender *t, const struct packet *p, uint32_t seq, int nack) {
    if (s->c->ack_bytes) {
        struct packet back = {.piece = p->piece,
                              .seq = seq,
                              .destination = t->source,
                              .agg = p->agg,
                              .core = p->core,
                              .bytes = (uint16_t)s->c->ack_bytes,
                              .answer = 1,
                              .echo = p->marked,
                              .nack = (uint8_t)nack};
        s->r.answers++;
        transmit(s, t->destination, &back);
        return;
    }
    if (s->broken && blocked(s, t->destination_leaf, t->source_leaf, p->agg, p->core, 0)) {
        s->r.lost_acks++;
        return;
    }
    struct fifo *f = &s->acks[t->distance];
    struct ack *a = push(&s->events, f, sizeof *a);
    if (!a) return;
    *a = (struct ack){
        s->events.now + s->ack_delay[t->distance], p->piece, seq, p->agg, p->core, p->marked, (uint8_t)nack};
    if (f->count == 1) schedule(&s->events, s->link_count + s->size + t->distance, a->time);
}

uint32_t arrive(struct sim *s, const struct packet *p) {
    struct sender *t = &s->senders[p->piece];
    int fresh, nack = 0;
    uint32_t next = p->seq, complete = NONE;
    if (s->c->tolerant) {
        fresh = t->flags && !(t->flags[p->seq] & RECEIVED); /* no flags: the sender knows already that all is there */
        if (fresh) t->flags[p->seq] |= RECEIVED;
    } else {
        fresh = p->seq == t->received;
        nack = p->seq > t->received && !t->nacked;
        next = t->received + (uint32_t)fresh;
        if (p->seq > t->received && !nack) { /* one NAK a gap; the rest of the gap's followers are dropped silently */
            s->r.discarded++;
            return NONE;
        }
        t->nacked = nack || (t->nacked && !fresh);
    }
    if (fresh) {
        t->received++;
        s->r.delivered++;
        if (t->received == t->packets) complete = t->task;
    } else {
        s->r.discarded++;
    }
    s->r.marked += p->marked;
    answer(s, t, p, next, nack);
    return complete;
}

/* ---- acknowledgements and time-outs ---- */

static void dctcp(struct sim *s, struct sender *t, uint32_t acked, int marked) {
    t->acked += acked;
    t->marked += marked ? acked : 0;
    if (t->acked < t->window) return;
    float share = (float)t->marked / (float)t->acked;
    t->alpha += (float)s->c->gain * (share - t->alpha);
    t->cwnd = t->marked ? t->cwnd * (1 - t->alpha / 2) : t->cwnd + t->share;
    if (t->cwnd > window_share(t, s->c->max_window)) t->cwnd = window_share(t, s->c->max_window);
    if (t->cwnd < (float)s->c->min_window) t->cwnd = (float)s->c->min_window;
    t->acked = t->marked = 0;
    t->window = (uint32_t)t->cwnd;
}

uint32_t acknowledge(struct sim *s, const struct ack *a) {
    struct sender *t = &s->senders[a->piece];
    if (!t->active) return NONE;
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
            while (t->una < t->next && t->flags[t->una] & ACKED) t->una++;
        }
    } else if (a->seq > t->una) {
        acked = a->seq - t->una;
        t->una = a->seq;
        if (t->next < t->una) t->next = t->una;
        t->inflight = t->next - t->una;
    }
    if (acked) {
        t->progress = s->events.now;
        dctcp(s, t, acked, a->marked);
        if (t->reps) reps_keep(s, t->reps, a);
    }
    if (t->una == t->packets) {
        retire(t);
        return t->task;
    }
    if (a->nack && a->seq == t->una && t->next > t->una) { /* go back */
        t->next = t->una;
        t->inflight = 0;
        t->cwnd = t->cwnd / 2 < (float)s->c->min_window ? (float)s->c->min_window : t->cwnd / 2;
    }
    enlist(s, a->piece);
    return NONE;
}

uint32_t ack_event(struct sim *s, uint32_t line) {
    struct fifo *f = &s->acks[line];
    struct ack a = *(struct ack *)front(f, sizeof a);
    pop(f);
    if (f->count) {
        const struct ack *after = front(f, sizeof a);
        retime_first(&s->events, after->time);
        fetch(s, after->piece);
    } else
        remove_first(&s->events);
    return acknowledge(s, &a);
}

/* When a sender's time is out: from its oldest packet in flight (tolerant), or from its last progress. */
static uint64_t timeout_due(const struct sim *s, const struct sender *t) {
    uint64_t now = s->events.now, rto = s->c->rto;
    if (!t->inflight) /* waits for its turn at the card */
        return now + rto;
    if (!s->c->tolerant) return t->progress + rto;
    uint32_t oldest = t->una;
    while (oldest < t->next && t->flags[oldest] & (ACKED | LOST)) oldest++;
    uint32_t age = (uint32_t)(now >> TICK_SHIFT) - t->sent[oldest];
    return now - ((uint64_t)age << TICK_SHIFT) + rto;
}

/* What is in flight counts as lost: where each packet has its own time, what was sent long enough ago. */
static void give_up(struct sim *s, struct sender *t) {
    if (!s->c->tolerant) {
        t->next = t->una;
        t->inflight = 0;
        return;
    }
    uint32_t ticks = (uint32_t)(s->c->rto >> TICK_SHIFT), present = (uint32_t)(s->events.now >> TICK_SHIFT);
    for (uint32_t i = t->una; i < t->next; i++)
        if (!(t->flags[i] & (ACKED | LOST)) && present - t->sent[i] >= ticks) {
            t->flags[i] |= LOST;
            t->lost++;
            t->inflight--;
        }
    t->scan = t->una;
}

void timeout(struct sim *s, uint32_t number) {
    struct sender *t = &s->senders[number];
    if (!t->active) return;
    uint64_t due = timeout_due(s, t);
    if (due > s->events.now) {
        set_timer(&s->events, due, TIMEOUT, number);
        return;
    }
    s->r.timeouts++;
    give_up(s, t);
    t->cwnd = window_share(t, s->c->window); /* as the paper: back to line rate */
    t->window = (uint32_t)t->cwnd;
    t->acked = t->marked = 0;
    if (t->reps) reps_freeze(s, t->reps);
    if (s->c->mode == PINNED && t->distance && (s->c->move || suspect(s, t, t->agg, t->core))) {
        if (s->c->move) /* else: the routing, not the host, takes it off a path that is known to be dead */
            suspect_path(s, t);
        random_path(s, t, &t->agg, &t->core);
        s->r.moved++;
    }
    set_timer(&s->events, s->events.now + s->c->rto, TIMEOUT, number);
    enlist(s, number);
}
