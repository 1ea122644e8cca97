/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of floats that are rounded once: each value as an integer in digits that N ranks can add exactly.
 *
 * A block is up to 256 neighbouring values.  Over all ranks, let every |x| of it be below 2^high, and a multiple of
 * 2^low.  A digit has D = 31 - ceil(log2 N) bits, so that N of them fit into a lane of 32 bits: the *head* of x is
 * q = floor(x / 2^unit), in K lanes of D bits each, the last of which has the sign.
 *
 *   exact block   high - low bits fit into the most lanes that a head may have: unit = low, K as few as they need,
 *                 none where all is zero.  The sum of the heads is the sum.
 *   wide block    they do not fit.  The lowest F bits (N < 2^F) of the head count the ranks whose x is no multiple of
 *                 2^unit.  With S the sum of the q and c the count, the sum is S where c = 0, else above S and below
 *                 S + c, in units.  Rounding is monotone: where S and S + c become the same float, the sum does, too.
 *                 Other elements are *open*, the same ones on all ranks, and settled by their *tails*, x - q 2^unit in
 *                 digits down to 2^low, which make the sum whole.
 *   special       a rank has an Inf or NaN in the block: one more lane counts +Inf and NaN (bits 0-15), -Inf and NaN
 *                 (16-31) for each element, and neither disturbs the block's other elements.
 *
 * What is sent follows from `high` and `low`, on which the ranks agree first, and from sums, so all send alike; and
 * what comes out is the sum of the multiset of contributions, rounded once, whatever blocks it has been cut into.
 * After Demmel and Nguyen, "Parallel reproducible summation" (2015); exact like Kulisch's accumulator, of which a block
 * sends those digits alone that it has.
 */
#ifndef NF_EXACT_H
#define NF_EXACT_H
#include <stddef.h>
#include <stdint.h>

#define NF_EXACT_BLOCK 256
#define NF_EXACT_ZERO (-(1 << 20)) /* `high` and `low` of a block of zeros */
#define NF_EXACT_SPECIAL (1 << 16) /* added to `low` of a block with an Inf or NaN */

/* What x and the result are, in memory.  HALF: float32 in, and out rounded to odd, for one more rounding to a half. */
typedef enum { NF_EXACT_FLOAT, NF_EXACT_DOUBLE, NF_EXACT_HALF } nf_exact_kind;

typedef struct {
    uint32_t kind;    /* nf_exact_kind */
    uint32_t digit;   /* D */
    uint32_t flag;    /* F */
    uint32_t most;    /* lanes of a head at most */
    uint32_t wide;    /* bits of a head at most, the flag's among them */
    uint32_t power;   /* the result is the sum / divisor / 2^power */
    uint32_t divisor; /* odd */
    uint32_t world;   /* N */
} nf_exact_coding;

typedef struct {
    uint64_t at;  /* its first lane; lane k of its element i is at + k size + i */
    int32_t unit; /* exponents of a head's and of a tail's last bit */
    int32_t low;
    uint16_t size; /* elements */
    uint8_t lanes; /* K */
    uint8_t flags; /* NF_EXACT_WIDE_BLOCK, NF_EXACT_SPECIAL_BLOCK */
} nf_exact_block;

enum { NF_EXACT_WIDE_BLOCK = 1, NF_EXACT_SPECIAL_BLOCK = 2 };

/* How a sum over `world` ranks (1 .. NF_MAX_WORLD) is coded, divided by `divisor` (1: a sum). */
void nf_exact_coding_of(uint32_t kind, uint32_t world, uint32_t divisor, nf_exact_coding *how);

/* For each block of n values, `high` and minus `low`, so that the largest over the ranks is what they agree on. */
void nf_exact_scan(uint32_t kind, const void *x, uint64_t n, int32_t *high, int32_t *low);

/* The blocks' lanes, from what the ranks agreed on; returns how many there are in all. */
uint64_t nf_exact_layout(const nf_exact_coding *how, uint64_t n, const int32_t *high, const int32_t *low,
                         nf_exact_block *blocks);

/* The heads of n values. */
void nf_exact_heads(const nf_exact_coding *how, const nf_exact_block *blocks, const void *x, uint64_t n,
                    int32_t *lanes);

/* From sums of heads, the results of all elements that they decide; returns how many are open, which are left alone,
 * and their places in `open`.  `tails` gets the number of lanes that their tails have in all. */
uint64_t nf_exact_round(const nf_exact_coding *how, const nf_exact_block *blocks, const int32_t *lanes, uint64_t n,
                        void *out, uint64_t *open, uint64_t *tails);

/* The tails of the open ones of x. */
void nf_exact_tails(const nf_exact_coding *how, const nf_exact_block *blocks, const void *x, const uint64_t *open,
                    uint64_t count, int32_t *tails);

/* From sums of heads and of tails, the results of the open elements. */
void nf_exact_settle(const nf_exact_coding *how, const nf_exact_block *blocks, const int32_t *lanes,
                     const uint64_t *open, uint64_t count, const int32_t *tails, void *out);

uint32_t nf_exact_abi_size(uint32_t which); /* sizes of the structures, for library.py */
#endif
