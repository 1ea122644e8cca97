/* SPDX-License-Identifier: Apache-2.0 */
/* A run's state, which its modules share.  Each calls only those that stand above it:
 *
 *     packet.h     what Python hands over
 *     events       simulated time: what happens next
 *     fabric       links with their queues, ECN and buffers; routes; what is down
 *     paths        which path a packet takes: pinned, random, REPS; what hosts suspect
 *     verdict      what a switch does with a packet of a fold
 *     trees        the edges of folds' trees, whose channels take turns at a host's card
 *     folds        NetFold's folds: ranks' streams, by the host library's own stream.c, and the slots of switches
 *     switchml     SwitchML's workers and switches
 *     atp          ATP's workers, switches and parameter servers
 *     transport    senders and receivers: windows, time-outs, repeats
 *     tasks        the workload's graph, and the plans of its flows
 *     run          set-up, the event loop, results
 *
 * A module reports to those below it in this list through the event loop alone, by what its functions return: a link
 * that a packet has reached its host, the transport that a piece is complete.
 *
 * Elements of the event heap:  [0, links)        a link's first packet arrives
 *                              [links, + hosts)  a host's network card is free for its next packet
 *                              [.., + 3)         an ACK arrives: one FIFO for each distance between hosts */
#ifndef SIM_SIM_H
#define SIM_SIM_H
#include "events.h"
#include "packet.h"

#define REPS_CACHE 8 /* REPS: entropies kept a connection */

struct packet {
    uint64_t time; /* of arrival at the end of the link it is on */
    uint32_t piece, seq,
        destination; /* of a fold, the PSN that left before; of an ask, that after the last; ATP: who is in the sum */
    union {
        struct {
            uint16_t agg, core; /* the path */
        };
        uint32_t sum; /* of a packet of SwitchML's or ATP's */
    };
    uint16_t bytes;
    uint8_t marked;
    uint8_t answer, echo, nack; /* an ACK that queues like data: what it says; a packet of ATP's: see atp.c */
    uint8_t fold;               /* enum fold_kind; 0: no packet of a fold */
    uint8_t hop : 7, late : 1;  /* how many links of its edge, `piece`, are behind it; it was put behind others */
};

struct ack {
    uint64_t time;
    uint32_t piece, seq; /* seq: what arrived (tolerant), or the next one expected (go-back-N) */
    uint16_t agg, core;
    uint8_t marked, nack;
};

struct link {
    uint64_t free;     /* when all that is queued has left */
    double rate;       /* ps a byte */
    uint64_t ecn;      /* backlog in ps above which to mark */
    uint64_t deepest;  /* backlog so far, in ps */
    struct fifo queue; /* what is queued or on the wire */
    uint32_t from;     /* switch whose buffer it drains; NONE at hosts */
    uint8_t kind;      /* block of the numbering */
    uint8_t down, known;
    uint16_t agg;
    uint32_t place; /* leaf or pod that it leads to or from */
    struct link_count count;
};

struct reps {
    uint16_t agg[REPS_CACHE], core[REPS_CACHE];
    uint8_t valid[REPS_CACHE];
    uint8_t head, held, cycle; /* where the next goes; how many are held, all just before it; frozen: whose turn */
    uint32_t explore;
    uint64_t frozen_until;
};

struct sender { /* one piece, both its ends */
    uint32_t task, packets, last_bytes, source, destination;
    uint32_t source_leaf, destination_leaf;
    uint16_t agg, core;
    uint8_t distance; /* 0 under one leaf, 1 inside a pod, 2 through the core */
    uint8_t listed, active, done, nacked;
    uint32_t after;                                 /* in the host's list of those that may send */
    uint32_t next, high, una, inflight, lost, scan; /* high: sent at least once below this */
    float cwnd, alpha, share;
    uint32_t acked, marked, window; /* of the current DCTCP window */
    uint64_t progress;
    uint32_t received; /* receiver: next expected, or how many */
    uint8_t *flags;    /* tolerant: RECEIVED, ACKED, LOST for each packet */
    uint32_t *sent;    /* tolerant: when, in ticks */
    struct reps *reps;
};

struct host {
    uint64_t free;
    uint32_t head, tail;           /* senders that may send */
    uint32_t fold_head, fold_tail; /* channels of folds that may send */
    uint8_t busy, fold_turn;
    struct mark {
        uint32_t leaf;
        uint16_t agg, core;
        uint64_t until;
    } *marks; /* paths to a leaf that timed out */
    uint32_t mark_count, mark_room;
};

struct sim;

/* Whose rules folds follow: NetFold's, SwitchML's or ATP's. */
struct fold_rules {
    int (*open)(struct sim *s); /* 0 without memory */
    void (*close)(struct sim *s);
    void (*start)(struct sim *s, uint32_t channel);
    /* Sends one packet of a channel, if one may leave; 0 where none may. */
    int (*send)(struct sim *s, uint32_t channel);
    /* A packet is at the end of its edge.  Returns the task that has all its results by it, or NONE. */
    uint32_t (*packet)(struct sim *s, const struct packet *p);
    void (*timer)(struct sim *s, uint32_t channel);
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
    const double *rates; /* of each link, in ps a byte */
    const struct fault *faults;
    struct events events;
    uint64_t random;
    uint32_t size, link_count, block[7];
    struct link *links;
    struct host *hosts;
    uint64_t *buffer;              /* bytes in each switch */
    uint32_t *turn;                /* SPRAY_TURN: which uplink is next at [switch][destination leaf + 1], 0: any */
    uint32_t broken, known_faults; /* links that are down; that all routing knows to be down */
    struct fifo acks[3];
    uint64_t ack_delay[3];
    struct reps **reps; /* REPS: [source][destination] */
    struct sender *senders;
    uint32_t sender_count, sender_room;
    struct progress *progress; /* of each task */
    const struct folds *folds;
    const struct fold_rules *rules;
    struct trees *trees;
    struct fold_state *fold;
    struct switchml *switchml;
    struct atp *atp;
    uint64_t *started, *finished;
    uint32_t left; /* tasks */
    struct result r;
};

/* ---- random numbers: splitmix64 ---- */

static inline uint64_t draw(struct sim *s) {
    uint64_t z = (s->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline uint32_t below(struct sim *s, uint32_t n) { return (uint32_t)(((draw(s) >> 32) * n) >> 32); }

/* A host has something to send. */
static inline void wake_card(struct sim *s, uint32_t host) {
    struct host *h = &s->hosts[host];
    if (h->busy) return;
    h->busy = 1;
    schedule(&s->events, s->link_count + host, h->free > s->events.now ? h->free : s->events.now);
}

/* ---- places ---- */

static inline uint32_t leaf_of(const struct sim *s, uint32_t host) { return host / s->c->hosts; }
static inline uint32_t pod_of(const struct sim *s, uint32_t leaf) { return leaf / s->c->leaves; }

static inline uint8_t distance(const struct sim *s, uint32_t a, uint32_t b) {
    return a == b ? 0 : pod_of(s, a) == pod_of(s, b) ? 1 : 2;
}

/* All-to-all has more senders than caches hold: fetch the one that this queue will need next, well ahead. */
static inline void fetch(const struct sim *s, uint32_t sender) {
    __builtin_prefetch(&s->senders[sender], 1);
    __builtin_prefetch((const char *)&s->senders[sender] + 64, 1);
}
#endif
