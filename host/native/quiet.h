/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a stream hears nothing though all is well, and so from when on silence means that something was lost.
 *
 * Packets arrive in bursts: a shaped link, a network card and a processor that others use let many through at once and
 * then none for a while.  The smoothed round trip does not tell how long that is: the queue of the stream's own window
 * is in it, and the time for which other ranks were late.  So the waits are measured that end with a packet further on
 * than all before it.  Not measured are those for the first and the last packet of an operation, since ranks may be
 * late and the end may have been repaired, and those that a repair or an answer ends: ranks would learn each other's
 * patience.
 *
 * Nothing here knows a clock: times are nanoseconds handed in.
 */
#ifndef NF_QUIET_H
#define NF_QUIET_H
#include "rtt.h"

/* Operations of which the shortest round trip is taken: in some of them no other rank is late. */
#define NF_LEAST_OPERATIONS 8

typedef struct {
    int64_t came;                /* when something came last in this operation; NF_NEVER: nothing has */
    int64_t pause, pause_before; /* longest wait between arrivals in this operation, and before: it fades, see begin */
    int64_t least, least_before; /* shortest round trips of these operations and of those before; NF_NEVER: none yet */
    uint32_t operations;
} nf_quiet;

static inline void nf_quiet_open(nf_quiet *q) {
    *q = (nf_quiet){.came = NF_NEVER, .least = NF_NEVER, .least_before = NF_NEVER};
}

/* An operation begins.  What was measured before counts for an eighth less with each. */
static inline void nf_quiet_begin(nf_quiet *q) {
    int64_t faded = q->pause_before - q->pause_before / 8;
    q->pause_before = q->pause > faded ? q->pause : faded;
    q->pause = 0;
    q->came = NF_NEVER;
    if (++q->operations % NF_LEAST_OPERATIONS == 0) {
        q->least_before = q->least;
        q->least = NF_NEVER;
    }
}

/* Takes in the round trip of a packet that was neither sent again nor asked for. */
static inline void nf_quiet_round_trip(nf_quiet *q, int64_t sample) {
    q->least = sample < q->least ? sample : q->least;
}

/* Something came: results, or what only shows that the links are busy.  further: the wait for it is to be measured. */
static inline void nf_quiet_arrived(nf_quiet *q, bool results, bool further, int64_t now) {
    if (further && q->came != NF_NEVER && now - q->came > q->pause) q->pause = now - q->came;
    if (results || q->came != NF_NEVER) q->came = now;
}

static inline int64_t nf_quiet_shortest(const nf_quiet *q) {
    return q->least < q->least_before ? q->least : q->least_before;
}

/* Gives a stream what another one over the same links has measured. */
static inline void nf_quiet_learn(nf_quiet *q, const nf_quiet *from) {
    int64_t pause = from->pause > from->pause_before ? from->pause : from->pause_before;
    q->pause = pause > q->pause ? pause : q->pause;
    nf_quiet_round_trip(q, nf_quiet_shortest(from));
}

/* The longest wait that is to be expected: a quarter more than the longest one lately; 0 where none was measured. */
static inline int64_t nf_quiet_pause(const nf_quiet *q) {
    int64_t pause = q->pause > q->pause_before ? q->pause : q->pause_before;
    return pause + pause / 4;
}

/* The silence after which something was lost, most likely: two round trips of an empty network, but no less than
 * `least` each, and longer than pauses are; where this operation has shown no pause yet, than smoothed round trips
 * `srtt` are, too.  NF_NEVER where no round trip was measured. */
static inline int64_t nf_quiet_silence(const nf_quiet *q, int64_t least, int64_t srtt) {
    int64_t shortest = nf_quiet_shortest(q), pause = nf_quiet_pause(q);
    if (shortest == NF_NEVER) return NF_NEVER;
    if (q->pause == 0 && pause < srtt + srtt / 4) pause = srtt + srtt / 4;
    int64_t trips = 2 * (shortest > least ? shortest : least);
    return trips > pause ? trips : pause;
}
#endif
