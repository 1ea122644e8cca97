/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a fold, which the parts of fold.h share: fold_operation.c begins and ends operations, fold_send.c says
 * what leaves when, fold_receive.c takes results, fold_payload.c knows what packets hold.
 */
#ifndef NF_FOLD_STATE_H
#define NF_FOLD_STATE_H
#include "fold.h"
#include "fold_guess.h"
#include "narrow.h"
#include "quantise.h"

#define NF_FIELD_TOP 0x7fffffffu /* of the signature's values: MAX lanes are signed (p4src/lanes.p4) */
#define NF_LARGE (4u << 20)      /* bytes of results from which on they pass the caches by */
#define NF_LOSS_FLOOR 65536      /* payload bytes that losses leave of a window at the least */
#define NF_UDP_MOST 65507        /* bytes of UDP payload in one super-packet */
#define NF_HELD_BYTES (NF_GUESSES * NF_SHORT_BLOCKS * NF_BLOCK * sizeof(nf_lane))

typedef struct { /* one stream, and its share of the operation */
    nf_stream stream;
    nf_stream_plan plan;
    nf_history history;
    uint32_t tree;
    nf_kind kind;
    uint64_t base, packets; /* sequence number of its first packet, how many there are */
    uint32_t lanes;         /* what the switches do with this operation's: NF_SUM32, ... */
} nf_channel;

typedef struct {
    double weight;
    nf_channel channels[2];
    uint64_t first, pieces; /* this tree's stripe */
    uint64_t signature;     /* 1 where the agreement starts with the signature, else 0 */
} nf_tree;

typedef struct { /* the elements of one packet */
    uint64_t first;
    uint32_t count, owner; /* owner: of its row; an allreduce's is nobody's, NF_NOBODY */
    bool bytes;            /* to be gathered or broadcast, not reduced */
} nf_piece;
#define NF_NOBODY UINT32_MAX

struct nf_fold {
    uint32_t address, world, path_mtu, n_trees;
    uint16_t port;
    uint32_t max_run, kernel_run; /* packets of a super-packet: full ones; of any length */
    unsigned headroom;
    nf_tree *trees;
    bool no_presence;
    uint32_t message, credits; /* packets of a message; messages in flight at most, 0: as the window has it */
    uint32_t turn;             /* which tree may send next */
    /* the operation */
    nf_operation op;
    uint32_t piece;   /* elements of one packet at most */
    size_t itemsize;  /* bytes of an element */
    nf_piece *pieces; /* of rows, in the order in which they leave */
    uint64_t pieces_room;
    uint32_t entries;       /* scales of one packet */
    bool brief;             /* of one tree, whose packets leave in as few runs as can be */
    bool scaled;            /* blocks have scales */
    bool past_caches;       /* results are more than caches hold */
    nf_narrowing narrowing; /* of narrow lanes */
    nf_past past;           /* scales of short sums so far */
    nf_guess guess;
    uint8_t *held;    /* sums of guessed data that wait, by packet of the stream: NF_HELD_BYTES */
    uint32_t *scales; /* agreed ones, by block */
    uint64_t scales_room;
    uint64_t saturated;
    uint32_t signature[NF_FIELDS];
    int64_t progress;
    nf_failure failure;
    uint64_t foreign, refused, unfolded, corrupt;
    nf_origin refused_from; /* the last of `refused` */
    nf_totals totals;       /* as of the last call of nf_fold_totals */
    /* of the run that was made last: headers that do not stand before their payload, or NAKs */
    uint8_t heads[NF_RUN_PACKETS][NF_PRESENCE_BYTES];
};

/* The elements of piece `p` of the tensor; none beyond its end. */
static inline nf_piece nf_piece_at(const nf_fold *f, uint64_t p) {
    if (f->op.rows) return f->pieces[p];
    uint64_t first = p * f->piece, left = f->op.count > first ? f->op.count - first : 0;
    return (nf_piece){first, (uint32_t)(left < f->piece ? left : f->piece), NF_NOBODY, false};
}

/* Packets of a stream's longest message. */
static inline uint32_t nf_message_of(const nf_fold *f, const nf_channel *c) {
    return c->plan.message ? c->plan.message : f->message;
}

/* Blocks of a tree's stripe.  A packet's elements are whole blocks, so that a stripe begins with one. */
static inline uint64_t nf_blocks_of(const nf_fold *f, const nf_tree *tr) { return tr->pieces * f->piece / NF_BLOCK; }
#endif
