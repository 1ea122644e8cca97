/* SPDX-License-Identifier: Apache-2.0
 *
 * Block floating point in lanes of 16 and 8 bits: half and a quarter of the bytes.
 *
 * 256 float32 values share a scale: A, the largest magnitude in the block over all ranks, itself agreed by a MAX fold
 * (a float's bits without the sign order like an integer).  With M = floor((2^(b-1) - 1) / N) levels for each of N
 * ranks
 *
 *   q = round(x * M / A),  |q| <= M,  so |sum of all q| <= N M < 2^(b-1):  no lane overflows
 *   result = sum / M * A
 *
 * Against the exact sum of the N floats
 *
 *   |error| <= N A / M * r  +  2^-22 N A  +  2^-149     r = 1/2 rounded to the nearest, 1 stochastically
 *
 * Stochastic rounding is floor(y + u), u one of the 256 centres of [0, 1), drawn from a counter-based generator (the
 * element's place, and a key made of seed, operation and rank): over many operations its errors have a mean within
 * 2^-9 levels of zero, and a repeated run repeats them.  With error feedback the residual e of a value is added to
 * its next: y = x + e, and e' = y - q A / M is what this one left out: sums over time lose nothing.  Rounded to the
 * nearest, |e'| <= A (1 / 2M + 2^-22), and A <= max|x| + max|e|: max|e| <= max|x| (1 / (2M - 1) + 2^-20) for ever, over
 * all ranks.
 *
 * Special cases: a block of zeros gives +0.  Subnormals are values like others.  A sum beyond float32's range is
 * infinite.  Where any rank has an Inf or NaN in the block, all of the block is NaN on all ranks, and its residuals 0:
 * there is no room to count what met.
 */
#ifndef NF_NARROW_H
#define NF_NARROW_H
#include "lanes.h"

#define NF_TOP_SPECIAL 0x7f800000u /* from here up, A stands for Inf or NaN */

typedef struct {     /* how values become lanes */
    uint32_t bits;   /* 16 or 8 */
    uint32_t levels; /* M: nf_levels */
    bool stochastic;
    uint32_t key; /* of the generator */
} nf_narrowing;

/* M of N ranks; 0 where their sums do not fit (8 bits: N > 127). */
uint32_t nf_levels(uint32_t world, uint32_t bits);
uint32_t nf_key(uint32_t seed, uint32_t number, uint32_t rank);

/* Bits of the largest |x|, or |x + e| where there are residuals, of n values. */
uint32_t nf_block_top(const float *x, const float *residual, size_t n);

/* n <= 256 values to lanes at `wire` (any alignment).  place: the first element's, in its tensor. */
void nf_narrow(const nf_narrowing *, const float *x, const float *residual, size_t n, uint32_t top, uint64_t place,
               uint8_t *wire);
/* What nf_narrow left out, into the residuals that it had. */
void nf_narrow_residual(const nf_narrowing *, const float *x, float *residual, size_t n, uint32_t top, uint64_t place);
/* n sums to values, each divided by `divisor`. */
void nf_widen(const nf_narrowing *, const uint8_t *wire, size_t n, uint32_t top, float divisor, float *x);
#endif
