/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales guessed from the operations before, so that a short sum of floats takes one round trip instead of two.
 *
 *   without    signature, own scales -> agreed scales    data in agreed scales -> sums
 *   with       signature, own scales -> agreed scales
 *              data in guessed scales -> sums            [packets with a wrong guess once more -> sums]
 *
 * A sum of guessed data is held back until signature and scales are agreed on, and counts for a block only where the
 * scale that it was made with is the agreed one: every bit of the result is what it is without guessing.  A packet with
 * a block whose guess was wrong is sent once more, under a PSN of its own, after all that were guessed.  So a wrong
 * guess costs its packets and a round trip, and nothing else.
 *
 * All ranks must send equally many packets, so that the guess follows from what they have agreed on before, and from
 * nothing else.  Of each of the lengths that were summed last it remembers, by block, the last agreed scale and the
 * last other one (where the largest value is near a power of two, now the one and now the other is agreed on); a packet
 * with such a block leaves twice, once in each.  Where a guess was wrong, the next operations of that length do not
 * guess: one, then two, four and so on.  The signature has a digest of the guess: ranks that remember different things
 * fail before any of it is used.
 */
#ifndef NF_FOLD_GUESS_H
#define NF_FOLD_GUESS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NF_SHORT_BLOCKS 64  /* of the longest tensor whose scales are guessed: 64 KiB */
#define NF_GUESSES 2        /* scales that are tried for a block */
#define NF_GUESS_LENGTHS 16 /* lengths that are remembered */
#define NF_GUESS_AGE 64     /* operations after which a scale that did not come again is tried no longer */
#define NF_GUESS_PAUSE 16   /* operations that do not guess, at most, after several wrong guesses */
#define NF_NO_SCALE UINT16_MAX
#define NF_GUESS_PACKETS ((NF_GUESSES + 1) * NF_SHORT_BLOCKS) /* at most, with those that are sent once more */

typedef struct {                /* a block's scales */
    uint16_t tried[NF_GUESSES]; /* the last one, and the last other one; NF_NO_SCALE: there is none */
    uint16_t age;               /* operations since the other one was the last */
} nf_block_past;

typedef struct {            /* what is remembered of the sums of one length */
    uint64_t count;         /* elements */
    uint32_t n_blocks;      /* more than they fill, where rows begin blocks of their own */
    uint64_t used;          /* when there was one last; 0: this is free */
    bool known;             /* one has ended */
    uint32_t pause, paused; /* how long a wrong guess stops guessing, and what is left of it */
    nf_block_past blocks[NF_SHORT_BLOCKS];
} nf_length_past;

typedef struct {
    uint64_t clock; /* operations */
    nf_length_past lengths[NF_GUESS_LENGTHS];
} nf_past;

typedef struct {                /* one operation's guess, and what its packets of data are */
    nf_length_past *past;       /* what it goes by, and where its scales are remembered; NULL: neither */
    uint32_t blocks, each;      /* of the tensor; of a packet */
    uint32_t guessed, repeated; /* packets of data in guessed scales, 0: all are in agreed ones; those that follow */
    bool agreed;
    uint16_t tried[NF_GUESSES][NF_SHORT_BLOCKS];
    uint8_t piece[NF_GUESS_PACKETS]; /* by packet: which piece of the tensor it has */
    bool wrong[NF_SHORT_BLOCKS];     /* by piece: it is sent once more */
    bool held[NF_GUESS_PACKETS];     /* by packet: its sums wait for what is agreed on */
} nf_guess;

/* Begins a sum of `count` floats in so many blocks, `each` of them in a packet.  It guesses nothing where that length
 * is too long, or was not summed before. */
void nf_guess_begin(nf_guess *, nf_past *, uint64_t count, uint64_t blocks, uint32_t each);
/* 31 bits that differ, but for chance, where guesses do; 0 where nothing is guessed. */
uint32_t nf_guess_digest(const nf_guess *);
/* The scale that packet i has this block in; NF_NO_SCALE: it has zeros, and counts for nothing. */
uint32_t nf_guess_scale(const nf_guess *, const uint32_t *agreed, uint32_t i, uint32_t block);
/* The scales are agreed on: says which packets are sent once more, and remembers the scales. */
void nf_guess_settle(nf_guess *, const uint32_t *agreed);
/* Whether the output has this block from the sums of packet i.  Of the packets that have a block, one holds. */
bool nf_guess_holds(const nf_guess *, const uint32_t *agreed, uint32_t i, uint32_t block);
#endif
