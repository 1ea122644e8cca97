/* SPDX-License-Identifier: Apache-2.0 */
/* A run's state, and what its modules owe each other.
 *
 *     packet.h     what Python hands over
 *     events       simulated time: what happens next
 *     fabric       links with their queues, ECN and buffers; routes; what is down
 *     paths        which path a packet takes: pinned, random, REPS; what hosts suspect
 *     transport    senders and receivers: windows, time-outs, repeats
 *     tasks        the workload's graph, and the plans of its flows
 *     run          set-up, the event loop, results
 *
 * Elements of the event heap:  [0, links)        a link's first packet arrives
 *                              [links, + hosts)  a host's network card is free for its next packet
 *                              [.., + 3)         an ACK arrives: one FIFO for each distance between hosts */
#pragma once
#include "events.h"
#include "packet.h"

#define REPS_CACHE 8            /* REPS: entropies kept a connection */

struct packet {
    uint64_t time;              /* of arrival at the end of the link it is on */
    uint32_t piece, seq, destination;
    uint16_t agg, core;         /* the path */
    uint16_t bytes;
    uint8_t marked;
    uint8_t answer, echo, nack; /* an ACK that queues like data: what it says */
};

struct ack {
    uint64_t time;
    uint32_t piece, seq;        /* seq: what arrived (tolerant), or the next one expected (go-back-N) */
    uint16_t agg, core;
    uint8_t marked, nack;
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
    uint16_t agg[REPS_CACHE], core[REPS_CACHE];
    uint8_t valid[REPS_CACHE];
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

struct host {
    uint64_t free;
    uint32_t head, tail;        /* senders that may send */
    uint8_t busy;
    struct mark { uint32_t leaf; uint16_t agg, core; uint64_t until; } *marks; /* paths to a leaf that timed out */
    uint32_t mark_count, mark_room;
};

struct progress {
    uint32_t waits;             /* predecessors that are not done */
    uint32_t arriving, leaving; /* pieces that are not all there; that are not all acknowledged */
};

struct sim {
    const struct config *c;
    const struct task *tasks;
    const uint32_t *next;
    const struct piece *pieces;
    const struct fault *faults;
    struct events events;
    uint64_t random;
    uint32_t size, link_count, block[7];
    struct link *links;
    struct host *hosts;
    uint64_t *buffer;           /* bytes in each switch */
    uint32_t broken, known_faults; /* links that are down; that all routing knows to be down */
    struct fifo acks[3];
    uint64_t ack_delay[3];
    struct reps **reps;         /* REPS: [source][destination] */
    struct sender *senders;
    uint32_t sender_count, sender_room;
    struct progress *progress;  /* of each task */
    uint64_t *started, *finished;
    uint32_t left;              /* tasks */
    struct result r;
};

/* ---- random numbers: splitmix64 ---- */

static inline uint64_t draw(struct sim *s)
{
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t below(struct sim *s, uint32_t n) { return (uint32_t)(((draw(s) >> 32) * n) >> 32); }

/* ---- fabric.c ---- */

int fabric_open(struct sim *s); /* 0 without memory */
void fabric_close(struct sim *s);
void transmit(struct sim *s, uint32_t link, const struct packet *p);
void link_event(struct sim *s, uint32_t link);
void fault(struct sim *s, const struct fault *f);
void announce(struct sim *s, const struct fault *f);
/* Is a link on the way from leaf to leaf down (or, with known, announced to be down)? */
int blocked(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core, int known);

static inline uint32_t leaf_of(const struct sim *s, uint32_t host) { return host / s->c->hosts; }
static inline uint32_t pod_of(const struct sim *s, uint32_t leaf) { return leaf / s->c->leaves; }

static inline uint8_t distance(const struct sim *s, uint32_t a, uint32_t b)
{
    return a == b ? 0 : pod_of(s, a) == pod_of(s, b) ? 1 : 2;
}

/* ---- paths.c ---- */

int paths_open(struct sim *s); /* 0 without memory */
void paths_close(struct sim *s);
void take_path(const struct sim *s, const struct sender *t, uint32_t path, uint16_t *agg, uint16_t *core);
int suspect(const struct sim *s, const struct sender *t, uint32_t agg, uint32_t core);
int any_suspect(const struct sim *s, const struct sender *t);
void suspect_path(struct sim *s, const struct sender *t); /* the one that it is on */
void random_path(struct sim *s, const struct sender *t, uint16_t *agg, uint16_t *core);
void reps_open(struct sim *s, struct sender *t);
void reps_path(struct sim *s, struct sender *t, uint16_t *agg, uint16_t *core);
void reps_keep(struct sim *s, struct reps *r, const struct ack *a);
void reps_freeze(struct sim *s, struct reps *r);

/* ---- transport.c ---- */

void transport_close(struct sim *s);
void start_piece(struct sim *s, uint32_t task, const struct piece *piece);
void card_free(struct sim *s, uint32_t host);
void arrive(struct sim *s, const struct packet *p);
void acknowledge(struct sim *s, const struct ack *a);
void ack_event(struct sim *s, uint32_t distance);
void timeout(struct sim *s, uint32_t sender);

/* All-to-all has more senders than caches hold: fetch the one that this queue will need next, well ahead. */
static inline void fetch(const struct sim *s, uint32_t sender)
{
    __builtin_prefetch(&s->senders[sender], 1);
    __builtin_prefetch((const char *)&s->senders[sender] + 64, 1);
}

/* ---- tasks.c ---- */

int tasks_open(struct sim *s, uint32_t count); /* 0 without memory */
void tasks_close(struct sim *s);
void start_task(struct sim *s, uint32_t task);
void piece_arrived(struct sim *s, uint32_t task);      /* all of it */
void piece_acknowledged(struct sim *s, uint32_t task); /* and the sender knows */
