/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending side of one queue pair of a fold: what was sent, what has its result, what must be sent again, and when.
 *
 *        una                next            una + window
 *   done  |  done . lost . in flight  |  may be sent  |  must wait
 *   ------+---------------------------+---------------+------------>   sequence number = PSN without its wrap
 *
 * A result is the acknowledgement of one's own packet.  The window is half of the switches' slots: when a slot is taken
 * over, every rank has the result that it held (docs/protocol.md, "Reuse").
 *
 * Loss is noticed in two ways.  A packet sent well before another whose result is here has lost its way, or somebody
 * else's has: it is sent again (fast retransmit; order of sending, not of PSN, so that a repeated packet can be found
 * lost again).  Otherwise the timer (rtt.h) runs out, and all holes, or else the earliest few packets, go again; each
 * time-out that brings a result doubles how many.  Lasting silence before the first result means that another rank is
 * late: the timer then backs off all the way, and one packet probes; later on it backs off only a little.
 *
 * A slow network looks the same.  What tells them apart: a slot that waits for a late rank swallows the packets that
 * come again, but who repeats what was not lost gets its result twice.  Then the time-out was spurious, and the timer
 * waits twice as long from there on; else the repetitions of all ranks would fill the very queue that they wait for.
 *
 * How many may be in flight is congestion.h's matter.  Nothing here knows packets or clocks: times are nanoseconds
 * handed in.
 */
#ifndef NF_STREAM_H
#define NF_STREAM_H
#include "congestion.h"
#include "rtt.h"

#define NF_REORDER 3                 /* packets sent later that may overtake, as RFC 5681's three duplicates */
#define NF_TIMEOUTS_BEFORE_BACKOFF 3 /* time-outs without a result before the timer backs off */
#define NF_FIRST_PROBES 4            /* packets that go again at the first time-out */
#define NF_RTO_FLOWING 1000000ll     /* least while results come: all ranks are in.  Before that, NF_RTO_LEAST */
#define NF_RTO_SILENT 50000000ll     /* the most that silence adds: bounds how long a repaired path stays unused */

typedef enum { NF_FREE, NF_FLIGHT, NF_LOST, NF_DONE } nf_state;

typedef struct {
    int64_t at;     /* when it was sent last */
    uint64_t order; /* how many packets this stream had sent by then */
    uint8_t state;
    bool again; /* sent more than once: its round trip is ambiguous (Karn) */
    bool probe; /* sent the last time because the timer ran out */
} nf_sent;

typedef struct { /* the latest sending whose result is surely its own */
    uint64_t order;
    int64_t at;
} nf_overtaker;

typedef struct { /* counted since the stream began */
    uint64_t sent, received, retransmitted, timeouts, duplicates, marks;
} nf_counters;

typedef struct {
    uint32_t first_psn, window; /* window: a power of two, at most half of the slots */
    uint64_t una, next;         /* lowest sequence number without result; lowest never sent */
    uint64_t top;               /* above the highest with a result: what is missing below it is a hole */
    uint64_t unknown;           /* all below have a result, or were found lost once */
    nf_sent *ring;              /* of `window` entries, by sequence number modulo window */
    uint32_t n_lost, in_flight; /* entries in the states NF_LOST and NF_FLIGHT */
    uint64_t lost_from;         /* none is lost below this */
    uint64_t order;             /* packets sent so far */
    nf_overtaker overtakers[2]; /* one for packets sent once, one for repeated ones */
    uint64_t suspects;          /* packets below this may have been overtaken by results of this batch */
    bool batch;                 /* results came since nf_stream_end_batch */
    /* the timer, and what time-outs are told apart by */
    nf_rtt rtt;
    nf_timer timer;
    int64_t sample;                  /* round trip seen in this batch, or -1 */
    int64_t least_rtt, round_least;  /* shortest of the last round, of this one: long ones hold other ranks' troubles */
    uint32_t burst;                  /* packets to repeat at the next time-out, if this one brings something */
    bool flowing;                    /* results since the stream was last idle: all ranks are in */
    uint32_t fruitless;              /* time-outs since the last result */
    uint32_t probes;                 /* packets that time-outs repeated, and whose second result may come yet */
    int64_t expired_at, expired_rto; /* when the timer ran out last, and after how long */
    int64_t spurious_rto;            /* the timer waits at least so long: after less, time-outs were spurious */
    nf_congestion congestion;
    nf_counters counters;
    nf_congestion_rules rules;
} nf_stream;

/* Sets a stream up at this PSN, with a window in packets.  Returns false where memory is short. */
bool nf_stream_open(nf_stream *, uint32_t first_psn, uint32_t window);
void nf_stream_close(nf_stream *);
/* Begins again at `seq`, over another path: everything from there on is to be sent anew.  Returns false where memory is
 * short. */
bool nf_stream_restart(nf_stream *, uint64_t seq, uint32_t window);

static inline uint32_t nf_stream_psn(const nf_stream *s, uint64_t seq) {
    return (s->first_psn + (uint32_t)seq) & 0xffffff;
}

/* Returns how many packets may leave now, of those below `limit`, lost ones and new ones together. */
uint64_t nf_stream_sendable(const nf_stream *, uint64_t limit);
/* Returns the sequence number of the packet to send next: the lowest lost one, or else the first one never sent.  To be
 * called only where nf_stream_sendable() > 0. */
uint64_t nf_stream_peek(const nf_stream *);
/* Returns the lowest packet that left once, and neither its result came nor was it found lost; `next` where there is
 * none. */
uint64_t nf_stream_first_unknown(nf_stream *);
/* Records that the packet that nf_stream_peek named leaves at `now` (nanoseconds). */
void nf_stream_send(nf_stream *, int64_t now);

/* Finds the outstanding packet that a result with this PSN answers.  Returns false for a repeated result, or one that
 * was never asked for. */
bool nf_stream_find(nf_stream *, uint32_t psn, uint64_t *seq);
/* Takes in the result of packet `seq`, which nf_stream_find named.  marked: it met congestion (ECN). */
void nf_stream_result(nf_stream *, uint64_t seq, bool marked, int64_t now);
/* After a batch of results: updates round trip and timer, and finds the packets lost that the results overtook. */
void nf_stream_end_batch(nf_stream *, int64_t now);
/* Does what is due by now; the next time is s->timer.deadline. */
void nf_stream_tick(nf_stream *, int64_t now);
/* Gives a stream that has not measured its round trip yet that of another. */
void nf_stream_seed_rtt(nf_stream *, const nf_stream *from);
/* Marks packet `seq`, which left but which the kernel did not take, as one to send again. */
void nf_stream_unsent(nf_stream *, uint64_t seq);
#endif
