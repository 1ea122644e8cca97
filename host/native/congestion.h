/* SPDX-License-Identifier: Apache-2.0
 *
 * The congestion window: how many packets may be in flight, adapted once a round trip.
 *
 *   marks   DCTCP (RFC 8257): alpha, the share of marked packets, smoothed over the rounds; less by alpha / 2
 *   loss    half, at most once a round, and not below a floor: random loss must not starve a path
 *   else    a constant more; or, in slow start, a packet more for each that is acknowledged
 *
 * Streams of folds (stream.c) and queue pairs (rc_requester.c) share it.  What they do differently are the rules.
 */
#ifndef NF_CONGESTION_H
#define NF_CONGESTION_H
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double start, least, most; /* packets: at first; marks leave no fewer; never more */
    double loss_floor;         /* loss halves the window down to this */
    double growth;             /* packets more after a round without congestion */
    double alpha;              /* at first: 1 is RFC 8257's, and reacts to the first marks with a half */
    bool slow_start;           /* the window starts small, and grows with each acknowledgement */
    /* Loss counts at once, as for queue pairs: an answer of the peer names each lost packet.  Otherwise it counts
     * when the round ends, as for folds, and then the round adds nothing either. */
    bool halve_at_once;
} nf_congestion_rules;

typedef struct {
    double allowed;                   /* packets that may be in flight */
    double alpha;                     /* smoothed share of marked packets */
    uint64_t round_end, halved_until; /* sequence numbers: the round ends there; no second halving before */
    uint32_t acknowledged, marked;    /* packets of this round */
    bool slow_start, lost;            /* lost: something was, in this round */
} nf_congestion;

/* The first round begins with sequence number `next`. */
void nf_congestion_open(nf_congestion *, const nf_congestion_rules *, uint64_t next);

static inline void nf_congestion_acknowledged(nf_congestion *c, const nf_congestion_rules *rules, uint32_t packets) {
    c->acknowledged += packets;
    if (c->slow_start) c->allowed = c->allowed + packets < rules->most ? c->allowed + packets : rules->most;
}

/* So many packets met congestion on their way. */
static inline void nf_congestion_marked(nf_congestion *c, uint32_t packets) {
    c->marked += packets;
    c->slow_start = false;
}

/* After acknowledgements: adapts the window where a round trip has passed, and says whether one has.
 * una, next: lowest sequence number that is not acknowledged, lowest that was never sent. */
bool nf_congestion_round(nf_congestion *, const nf_congestion_rules *, uint64_t una, uint64_t next);
/* A packet was found lost. */
void nf_congestion_lost(nf_congestion *, const nf_congestion_rules *, uint64_t una, uint64_t next);
/* Half as many, but not below `floor`; where there are fewer already they stay as many. */
void nf_congestion_halve(nf_congestion *, double floor);
#endif
