/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending side of one queue pair of a fold: what was sent, what has its result, what must be sent again, what is to
 * be asked for, and when.
 *
 *        una                     top            next            una + window
 *   done  |  done . lost . holes  |  in flight  |  may be sent  |  must wait
 *   ------+-----------------------+-------------+---------------+------------>   sequence number = PSN without its wrap
 *
 * A result is the acknowledgement of one's own packet.  The window is half of the switches' slots: when a slot is taken
 * over, every rank has the result that it held (docs/protocol.md, "Reuse").
 *
 * A contribution is sent again when a switch says that it lacks it (a NAK), and never otherwise.  Switches see for
 * themselves what was lost on the way from a neighbour, and so does a rank (order.h).  It asks for that by a NAK of its
 * own without any data: the switch then sends the result, or asks its parent, or says that it lacks the contribution.
 *
 *   lost      the result that left before the one that is here has not come: it is asked for at once
 *   hole      later results are here, this one is not: it was lost elsewhere.  Somebody repairs it, mostly, behind
 *             what that rank has sent already.  So it is asked for once a result is here of a packet that left after
 *             the hole was found, and a quarter of that time more has passed; again by the same rule, from the time of
 *             the ask or the repair on (as RACK finds losses, RFC 8985).  A clock would not do: a round trip has the
 *             queue of the whole window in it or not, and what is asked for too early comes twice, as a whole packet
 *   silence   no result for as long as the timer (RFC 6298) waits: another rank is late, or the last packets were
 *             lost.  The first and the last packet without a result are asked for: what the switches then send shows
 *             the holes between them.  Lasting silence backs the timer off
 *   probe     no result for longer than pauses are (quiet.h), and packets were lost lately: nothing may leave that
 *             would show what was lost, as the operation is at its end or the window is closed.  The ends are asked
 *             for, and all holes; again after two, four.. times that, until the timer takes over (a tail loss probe as
 *             in RFC 8985, but without data)
 *
 * An ask has some 60 bytes on the wire, and its answer may be a whole result: an ask too many delays what it waits for,
 * and a rank whose link is full stays behind the others from then on.  So second results, which answer such asks, count
 * as arrivals: the links are busy.  They put off probes, and never the timer.
 *
 * How many may be in flight is congestion.h's matter.  Nothing here knows packets or clocks: times are nanoseconds
 * handed in.
 */
#ifndef NF_STREAM_H
#define NF_STREAM_H
#include "congestion.h"
#include "order.h"
#include "quiet.h"

#define NF_TIMEOUTS_BEFORE_BACKOFF 3 /* time-outs without a result before the timer backs off */
#define NF_RTO_SILENT 50000000ll     /* the most that silence adds: bounds how long a repaired path stays unused */

#define NF_ROUND_TRIP_LEAST 20000ll /* asks do not follow each other faster than this */
#define NF_LOSS_REMEMBERED 4096     /* packets after a loss that more losses are reckoned with */
#define NF_PROBED_AT_ONCE 16        /* packets that a probe of a tail asks for at most */

typedef enum {
    NF_FREE,
    NF_FLIGHT,
    NF_HOLE, /* later results are here: no longer in flight (forward acknowledgement, Mathis and Mahdavi 1996) */
    NF_LOST, /* to be sent again */
    NF_DONE,
} nf_state;

typedef struct {
    int64_t at;    /* when it was sent last */
    int64_t since; /* when it was found missing, sent again or asked for last */
    int64_t due;   /* when it is asked for, where it is overdue; else NF_NEVER */
    uint8_t state;
    bool again; /* sent more than once: its round trip is ambiguous (Karn) */
    bool asked; /* asked for since it was sent last */
    bool ask;   /* to be asked for now */
} nf_sent;

typedef struct { /* packets, counted since the stream began */
    uint64_t sent, received, retransmitted, timeouts, duplicates, marks;
    uint64_t asks, naks; /* NAKs sent, and received */
} nf_counters;

typedef struct {
    uint32_t first_psn, window; /* window: a power of two, at most half of the slots */
    uint32_t floor;             /* packets that losses leave of the window at the least */
    uint64_t una, next;         /* lowest sequence number without result; lowest never sent */
    uint64_t top;               /* above the highest with a result: what is missing below it is a hole */
    uint64_t seen;              /* the holes below this are known as such */
    uint64_t end;               /* of the operation: nothing is to leave from here on */
    uint64_t lossy_until;       /* below this losses are reckoned with, as there were some lately */
    uint64_t last;              /* the packet that left last; one below the first that is to leave at the beginning */
    nf_order order;             /* of the results */
    uint64_t unknown;           /* all below have a result, or were found lost once */
    nf_sent *ring;              /* of `window` entries, by sequence number modulo window */
    uint32_t in_flight, n_lost; /* entries in the states NF_FLIGHT and NF_LOST */
    uint64_t lost_from;         /* none is lost below this */
    uint32_t n_ask;             /* entries to be asked for now */
    uint64_t ask_from;          /* none is to be asked for below this */
    int64_t oldest;             /* none that is missing and not overdue is so since before this */
    int64_t ask_due;            /* the earliest `due`; NF_NEVER: there is none */
    int64_t newest;             /* when the packet left that left last of those with a result */
    bool batch;                 /* results came since nf_stream_end_batch */
    bool losses;                /* and packets were found lost */
    bool further;               /* and one of them was the highest so far, and not repaired; nor the operation's last */
    bool repeated;              /* second results came since nf_stream_end_batch */
    nf_rtt rtt;
    nf_timer timer;
    nf_quiet quiet;
    int64_t sample;      /* round trip seen in this batch, or -1 */
    int64_t result_at;   /* when a result came last that was none yet: what comes twice may come without end */
    int64_t waits_since; /* the same, or when the stream sent while it was idle */
    int64_t quiet_since; /* when a result came last, or a packet left */
    uint32_t probes;     /* since the last result */
    bool flowing;        /* results since the stream was last idle: all ranks are in */
    uint32_t fruitless;  /* time-outs since the last result */
    nf_congestion congestion;
    nf_counters counters;
    nf_congestion_rules rules;
} nf_stream;

/* Sets a stream up at this PSN.  window: packets; floor: those that losses leave of it at the least.  Returns false
 * where memory is short. */
bool nf_stream_open(nf_stream *, uint32_t first_psn, uint32_t window, uint32_t floor);
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
/* Returns the PSN of the packet that left last, for the one that leaves next to say. */
static inline uint32_t nf_stream_previous(const nf_stream *s) { return nf_stream_psn(s, s->last); }
/* Records that the packet that nf_stream_peek named leaves at `now` (nanoseconds). */
void nf_stream_send(nf_stream *, int64_t now);
/* Returns whether a packet is to be asked for now; *seq: the lowest one, whose ask leaves. */
bool nf_stream_ask(nf_stream *, uint64_t *seq, int64_t now);

/* Takes in the order of a result, before all else of it: what was lost on the way before it is to be asked for. */
void nf_stream_order(nf_stream *, uint32_t psn, uint32_t previous);
/* Finds the outstanding packet that a result with this PSN answers.  Returns false for a repeated result, or one that
 * was never asked for. */
bool nf_stream_find(nf_stream *, uint32_t psn, uint64_t *seq);
/* Takes in the result of packet `seq`, which nf_stream_find named.  marked: it met congestion (ECN). */
void nf_stream_result(nf_stream *, uint64_t seq, bool marked, int64_t now);
/* Takes in a NAK: a switch lacks the contributions from `psn` to before `end`. */
void nf_stream_nak(nf_stream *, uint32_t psn, uint32_t end, int64_t now);
/* After a batch of results: updates round trip and timer, and finds holes. */
void nf_stream_end_batch(nf_stream *, int64_t now);
/* Does what is due by now. */
void nf_stream_tick(nf_stream *, int64_t now);
/* Returns when nf_stream_tick is due next; NF_NEVER where nothing is waited for. */
int64_t nf_stream_deadline(const nf_stream *);
/* Says that the packets of the operation end before `end`. */
void nf_stream_end_at(nf_stream *, uint64_t end);
/* Makes a stream, of too few packets to see much itself, reckon with losses for as many packets as another one over the
 * same links still does, and with its pauses. */
void nf_stream_learn(nf_stream *, const nf_stream *from);
/* Takes in that results of another stream came at `now` over the same links: what left no later than the packets that
 * they answer is missing.  Second results only show that the links are busy, and put off no timer.  To be called after
 * nf_stream_end_batch of both. */
void nf_stream_overtaken(nf_stream *, const nf_stream *by, int64_t now);
/* Gives a stream that has not measured its round trip yet that of another. */
void nf_stream_seed_rtt(nf_stream *, const nf_stream *from);
/* Marks packet `seq`, which left but which the kernel did not take, as one to send again. */
void nf_stream_unsent(nf_stream *, uint64_t seq);
#endif
