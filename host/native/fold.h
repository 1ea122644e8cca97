/* SPDX-License-Identifier: Apache-2.0
 *
 * One collective over T aggregation trees, without sockets or clocks: packets in, packets out, next deadline.
 *
 *   tensor | piece | piece | ... | piece |  as many elements each as a packet has lanes
 *          |--- tree 0 ---|--- tree 1 ---|  one contiguous stripe of pieces for each tree, sized by weight
 *
 *   each tree:  agreement    [signature, tree 0 only] scales of blocks 0..255 | of blocks 256..511 | ...
 *               data         piece 0 | piece 1 | ...        leaves once the scales of its blocks are agreed on
 *
 * Blocks are 256 elements of a sum of floats; what they agree on is in quantise.h (an exponent) and narrow.h (the
 * largest magnitude).  Integers, maxima and minima have none: their first packets leave at once.
 *
 * An allreduce is of the whole tensor.  The other kinds are of rows, one for each rank, its owner:
 *
 *   reduce_scatter, reduce     all contribute but the owner, which alone wants the result, and adds its own integers
 *   all_gather, broadcast      the owner contributes, and the others want what it sends: bytes, as they are
 *   barrier                    there are no rows: the signature is all
 *   exchange                   a reduce_scatter and an all_gather, whose rows take turns: the one fills the links up,
 * the other those down
 *
 * Who contributes nothing to a packet sends presence, a header without lanes; who wants nothing says so, and gets such
 * a header as the acknowledgement.  So sequence numbers, windows, history and losses are those of an allreduce.  In a
 * job with RC queue pairs there is no presence: all send lanes, such that change nothing, and leave alone what they do
 * not want.  Of a reduce all rows but the root's are empty, of a broadcast as well.  Rows take turns, some packets of
 * each, so that all links are used at any time:
 *
 *   row 0: pieces 0 .. 14 | row 1: pieces 0 .. 14 | ... | row 0: pieces 15 .. 29 | ...
 *
 * The agreement stream runs a few packets ahead, so that scales are there when the window reaches their blocks.  A
 * short tensor does not wait for them: its data leaves at once in scales that are guessed (fold_guess.h), all on one
 * tree. Packets are made from the tensor when they first leave, and kept (history.h) for when they must leave again.
 *
 * The signature: every operation starts with one packet of pairs (v, 2^31 - 1 - v) for what all ranks must agree on.
 * After the MAX fold a pair's two halves tell every rank the largest and the smallest v of all ranks.
 */
#ifndef NF_FOLD_H
#define NF_FOLD_H
#include <sys/uio.h>

#include "history.h"
#include "stream.h"

#define NF_MAX_TREES 64
#define NF_MAX_WINDOW (1u << 19)           /* packets: two windows of PSNs are far from half of their space, 2^23 */
#define NF_RUN_PACKETS 60                  /* segments in a super-packet: below UDP_MAX_SEGMENTS (64) and 64 KiB */
#define NF_RUN_PIECES (2 * NF_RUN_PACKETS) /* a packet with a RETH has two */
#define NF_TURN_PACKETS 15 /* of a row, before it is the next one's turn: a super-packet of path MTU 4096 */

/* NF_BYTES: what all_gather and broadcast move. */
typedef enum { NF_FLOAT32 = 0, NF_INT32 = 1, NF_BYTES = 2 } nf_dtype;
typedef enum {
    NF_ALLREDUCE = 0,
    NF_REDUCE_SCATTER = 1,
    NF_REDUCE = 2,
    NF_ALL_GATHER = 3,
    NF_BROADCAST = 4,
    NF_BARRIER = 5,
    NF_EXCHANGE = 6 /* a reduce_scatter, and an all_gather of other data beside it */
} nf_collective;
/* NF_AVERAGE is a sum whose results are divided; NF_SATURATED is of int32. */
typedef enum { NF_SUM = 0, NF_AVERAGE = 1, NF_SATURATED = 2, NF_MAX = 3, NF_MIN = 4 } nf_reduction;
typedef enum { NF_AGREEMENT_STREAM = 0, NF_DATA_STREAM = 1 } nf_kind;

typedef struct {   /* wire.jobs.Stream */
    uint32_t peer; /* IPv4 address, host byte order */
    uint32_t peer_port, peer_qp, qp, source_port, psn, window, slots;
    uint32_t predecessor, predecessor_port; /* source address and UDP source port of results */
    /* Contributions are SENDs in messages of so many packets, a quarter of the slots at most, as the NICs of a job with
     * RC queue pairs send them; nf_fold_missing then names the beginning of a message, where a NIC can begin again.  0:
     * WRITEs. */
    uint32_t message;
} nf_stream_plan;

typedef struct { /* wire.jobs.Tree */
    double weight;
    nf_stream_plan streams[2]; /* by nf_kind */
    bool stays;                /* for nf_fold_resume: the streams go on as they are */
} nf_tree_plan;

typedef enum { /* what the signature holds, and what can be wrong */
               NF_FIELD_NUMBER,
               NF_FIELD_COLLECTIVE,
               NF_FIELD_ROOT,
               NF_FIELD_DTYPE,
               NF_FIELD_REDUCTION,
               NF_FIELD_LANE_BITS,
               NF_FIELD_COUNT_LOW,
               NF_FIELD_COUNT_HIGH,
               NF_FIELD_ROWS, /* a digest of their lengths */
               NF_FIELD_WORLD,
               NF_FIELD_TREES,
               NF_FIELD_GUESS,   /* a digest of the guessed scales (fold_guess.h) */
               NF_FIELD_MESSAGE, /* packets of a message of data at most */
               NF_FIELDS,
} nf_field;

typedef enum { NF_OK = 0, NF_SIGNATURES_DIFFER = 1, NF_HEADERS_DIFFER = 2 } nf_error;

typedef struct {           /* a rank's part of a tensor */
    uint64_t first, count; /* elements */
} nf_row;

typedef struct {        /* what is to be done, and how: first what no operation has in common with the one before */
    const void *source; /* the tensor; untouched until the end, unless it is `out` */
    void *out;          /* the tensor from element `out_first` on */
    float *residual;    /* error feedback of narrow lanes: `count` of them, or NULL */
    uint64_t count;     /* elements of the tensor */
    uint32_t number;
    int32_t collective;       /* nf_collective */
    uint32_t rank, root;      /* this rank among those that fold; of a reduce or a broadcast */
    int32_t dtype, reduction; /* nf_dtype, nf_reduction; for bytes that are moved, a code of what they hold, above it */
    uint32_t called;     /* what the caller's elements are, where they are another dtype: for the signature alone */
    uint32_t lane_bits;  /* 32; or 16 or 8 for sums and averages of float32, and for bytes */
    uint32_t stochastic; /* narrow lanes are rounded stochastically, by a generator of this key */
    uint32_t key;
    float divisor;      /* of results of float32 */
    const nf_row *rows; /* one for each rank, which do not overlap, until the operation has begun; NULL: an allreduce's,
                         * or a barrier's */
    uint64_t out_first;
    uint8_t *gathered; /* an exchange's all_gather: all rows, of which this rank has filled its own; else NULL */
    uint64_t gathered_bytes;
    const nf_row *gathered_rows; /* as `rows`, in bytes */
} nf_operation;

typedef struct {   /* why an operation failed */
    int32_t error; /* nf_error */
    uint32_t tree, kind;
    uint32_t low[NF_FIELDS], high[NF_FIELDS]; /* NF_SIGNATURES_DIFFER: smallest and largest of all ranks */
    uint32_t psn, expected_opcode, got_opcode, expected_length, got_length; /* NF_HEADERS_DIFFER */
    uint64_t expected_address, got_address;
} nf_failure;

typedef struct {                           /* where a stream stands, for messages and statistics */
    uint64_t sent_ahead, results, packets; /* in packets of this operation: sent, with a result, all */
    uint64_t una_psn, window;
    int64_t rto, srtt;
    int64_t waits_since; /* when a result came last, or the stream sent while it was idle */
    nf_counters counters;
} nf_stream_state;

typedef struct {                        /* a run of packets for one destination, in one super-packet */
    struct iovec pieces[NF_RUN_PIECES]; /* of it, in order; a packet's border need not be one of theirs */
    uint32_t n_pieces;
    uint32_t length, segment; /* every packet but the last has `segment` bytes */
    uint32_t packets;
    uint32_t asks; /* whether these are NAKs, which nobody sends again */
    nf_route route;
    /* the streams and the sequence numbers of the packets, for nf_fold_unsent: those from `data` on are of the data
     * stream, those before of `kind` */
    uint32_t tree, kind, data;
    uint64_t seqs[NF_RUN_PACKETS];
} nf_run;

typedef struct nf_fold nf_fold;

/* address, port: where results arrive.  path_mtu: 1024 or 4096.  max_run: packets in a super-packet, 1 where the kernel
 * has no UDP_SEGMENT.  NULL with *why set where memory is short or a number is out of range. */
nf_fold *nf_fold_open(uint32_t address, uint16_t port, uint32_t world, uint32_t path_mtu, uint32_t n_trees,
                      const nf_tree_plan *trees, uint32_t max_run, const char **why);
void nf_fold_close(nf_fold *);
/* NetReduce's flow control, before the first operation and the same on all ranks: the data goes in messages of so many
 * packets, and message i + credits leaves once message i is through: each packet has its result, or was found lost.
 * 0 credits: the window alone bounds what is in flight.  False where a message would be too long. */
bool nf_fold_messages(nf_fold *, uint32_t packets, uint32_t credits);
/* The switches cannot put presence and lanes into one slot (wire.jobs.Plan.presence): who has nothing to contribute
 * sends lanes that change nothing. */
void nf_fold_no_presence(nf_fold *);

/* Begins an operation.  False with *why set where the last one has not ended, where memory is short, or where it cannot
 * be. */
bool nf_fold_start(nf_fold *, const nf_operation *, int64_t now, const char **why);

/* Switches have lost what they held, or others fold from now on: these are the streams, and each one's `psn` is where
 * all ranks begin again, but for those of trees that stay, whose switches have lost nothing.  Nothing may have been
 * sent or received since nf_fold_missing told where this rank was.  False with *why set where that is not to be had. */
bool nf_fold_resume(nf_fold *, const nf_tree_plan *trees, int64_t now, const char **why);
uint32_t nf_fold_missing(
    const nf_fold *, uint32_t tree,
    nf_kind); /* PSN of the lowest packet without a result, or where its message begins (`message`) */

/* Makes the next run to send now; its bytes are good until the next call.  Returns false where nothing may leave. */
bool nf_fold_send(nf_fold *, int64_t now, nf_run *);
/* Takes the packets of a run from the `from`-th on back, which the kernel did not take: they are to be sent again. */
void nf_fold_unsent(nf_fold *, const nf_run *, uint32_t from);
/* From now on each run has one packet: the kernel refuses super-packets on this path. */
void nf_fold_no_runs(nf_fold *);

/* Takes UDP payloads in: `n` bytes cut every `segment` bytes, which came `from` there.  marked: the IP header said
 * congestion experienced. */
void nf_fold_receive(nf_fold *, const uint8_t *bytes, size_t n, size_t segment, const nf_origin *from, bool marked,
                     int64_t now);

/* Does what the retransmission timers of all streams have due by `now` (nanoseconds). */
void nf_fold_tick(nf_fold *, int64_t now);
/* Returns when nf_fold_tick is due, in nanoseconds; NF_NEVER where nothing is waited for. */
int64_t nf_fold_deadline(const nf_fold *);

typedef struct {            /* what a rank looks at after each run */
    int64_t progress;       /* nf_fold_progress */
    uint64_t retransmitted; /* packets that were repeated, on all streams, since nf_fold_open */
    uint64_t dropped;       /* nf_fold_refused and nf_fold_corrupt */
    uint64_t saturated;     /* nf_fold_saturated */
} nf_totals;

/* Counts them anew, as the loops do that carry a fold's packets whenever they return, and says where they stand. */
const nf_totals *nf_fold_totals(nf_fold *);
bool nf_fold_finished(const nf_fold *);
const nf_failure *nf_fold_failure(const nf_fold *);
/* Returns when the last new result came, or the operation began, in nanoseconds. */
int64_t nf_fold_progress(const nf_fold *);
/* Returns how many packets came that belong to none of our streams. */
uint64_t nf_fold_foreign(const nf_fold *);
/* Returns how many packets came to queue pairs of ours from where no result comes from; *last: where the last one did.
 */
uint64_t nf_fold_refused(const nf_fold *, nf_origin *last);
/* Returns how many packets came that no switch folded: the rank before us sent them, and they were routed here. */
uint64_t nf_fold_unfolded(const nf_fold *);
/* Returns how many results and NAKs were dropped since their ICRC is wrong: they changed on the way from our switch. */
uint64_t nf_fold_corrupt(const nf_fold *);
/* Returns how many bytes this operation's tensor has. */
uint64_t nf_fold_bytes(const nf_fold *);
/* Returns how many bytes of this operation's arrays are in this tree's stripe. */
uint64_t nf_fold_carried(const nf_fold *, uint32_t tree);
/* Returns how many elements of this operation are in this tree's stripe. */
uint64_t nf_fold_elements(const nf_fold *, uint32_t tree);
/* Returns how many packets were repeated, on all streams, since nf_fold_open. */
uint64_t nf_fold_retransmitted(const nf_fold *);
/* Returns how many results of NF_SATURATED so far are -2^31 or 2^31 - 1, where the sum may have been cut off. */
uint64_t nf_fold_saturated(const nf_fold *);
void nf_fold_stream_state(const nf_fold *, uint32_t tree, nf_kind, nf_stream_state *);
#endif
