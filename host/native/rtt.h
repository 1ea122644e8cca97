/* SPDX-License-Identifier: Apache-2.0
 *
 * Round-trip times and the retransmission timer (RFC 6298), as streams of folds (stream.c) and queue pairs
 * (rc_requester.c) share them.  Each of the two says which round trips it measures, between which bounds its timer
 * waits, and what is sent again when the timer runs out.
 *
 * Nothing here knows a clock: times are nanoseconds handed in.
 */
#ifndef NF_RTT_H
#define NF_RTT_H
#include <stdbool.h>
#include <stdint.h>

#define NF_NEVER INT64_MAX       /* a deadline that never comes */
#define NF_RTO_FIRST 20000000ll  /* the timer before the first round trip is known */
#define NF_RTO_LEAST 2000000ll   /* the process at the other end may not be running just now */
#define NF_RTO_MOST 1000000000ll /* the most that round trips ask for: queues of slow links */

typedef struct {
    int64_t srtt, rttvar; /* smoothed round trip and its mean deviation; srtt is 0 before the first sample */
} nf_rtt;

typedef struct {
    int64_t rto;      /* how long the timer waits when it is started next */
    int64_t deadline; /* when it runs out; NF_NEVER: it is off */
} nf_timer;

/* Takes in a round trip of a packet that was sent once (Karn's algorithm: the caller leaves out all others). */
static inline void nf_rtt_measure(nf_rtt *r, int64_t sample) {
    if (r->srtt == 0) {
        r->srtt = sample;
        r->rttvar = sample / 2;
        return;
    }
    int64_t error = sample - r->srtt;
    r->rttvar += ((error < 0 ? -error : error) - r->rttvar) / 4;
    r->srtt += error / 8;
}

/* The retransmission time-out that the round trips ask for, cut off at `most` and then raised to `least`. */
static inline int64_t nf_rtt_timeout(const nf_rtt *r, int64_t least, int64_t most) {
    int64_t rto = r->srtt ? r->srtt + 4 * r->rttvar : NF_RTO_FIRST;
    rto = rto < most ? rto : most;
    return rto > least ? rto : least;
}

/* A packet leaves: the timer runs from the first one that is in flight. */
static inline void nf_timer_start(nf_timer *t, int64_t now) {
    if (t->deadline == NF_NEVER) t->deadline = now + t->rto;
}

/* An acknowledgement came: the timer begins anew while more is in flight. */
static inline void nf_timer_restart(nf_timer *t, bool in_flight, int64_t now) {
    t->deadline = in_flight ? now + t->rto : NF_NEVER;
}

static inline bool nf_timer_expired(const nf_timer *t, int64_t now) { return now >= t->deadline; }

/* The next time-out takes twice as long, but no longer than `most`. */
static inline void nf_timer_back_off(nf_timer *t, int64_t most) { t->rto = 2 * t->rto < most ? 2 * t->rto : most; }
#endif
