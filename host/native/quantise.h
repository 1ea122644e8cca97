/* SPDX-License-Identifier: Apache-2.0
 *
 * Block floating point: 256 float32 values share one exponent, each becomes an int32 that N ranks can add.
 *
 * Let E be the largest biased exponent of the block over all ranks, so that every |x| < 2^(E - 126) (for E = 0, zeros
 * and subnormals, too).  A lane is q = rint(x * 2^k), k = 31 - L - (E - 126), ties to even, L = headroom(N):
 *
 *   N <= 128   L = ceil(log2 N).  A float32 has 24 bits, so |x| <= 2^(E-126) (1 - 2^-24) and
 *              |x| 2^k <= 2^(31-L) - 2^(7-L): rounding cannot reach 2^(31-L), as 2^(7-L) >= 1.
 *              |sum| <= N (2^(31-L) - 1) < 2^31.
 *   N > 128    L = bits of N, so that N + 1 <= 2^L.  Rounding may reach 2^(31-L), and yet
 *              |sum| <= N 2^(31-L) <= 2^31 N / (N + 1) < 2^31.
 *
 * The result is float32(sum) * 2^-k, the same bits on every rank.  Against the exact sum of the N floats
 *
 *   |error| <= N / 2 * 2^(E - 157 + L)  +  2^-24 |sum|  +  2^-150        (roundings of q; to 24 bits; to subnormal)
 *
 * Special cases: an all-zero block gives +0 (the sign of -0 is lost).  A sum beyond float32's range is +-Inf, as in
 * float arithmetic.  Where any rank has an Inf or NaN in the block, E is NF_SPECIAL on all ranks, the lanes count
 * (bits 0-15: +Inf and NaN, 16-31: -Inf and NaN), and the result is NaN where both counts or none is above 0, and else
 * the Inf of the one that is: NaN where a NaN or Infs of both signs met, +-Inf where Infs of one sign did, and NaN for
 * the block's other elements: their exponent was never agreed on, and NaN says so to every rank where a made-up number
 * would not.
 *
 * Narrower lanes are in narrow.h.
 */
#ifndef NF_QUANTISE_H
#define NF_QUANTISE_H
#include "lanes.h"

#define NF_MAX_WORLD 4096 /* MAX_WORLD of wire/jobs.py; a block with Inf or NaN could count 65535 ranks */
#define NF_SPECIAL 256    /* exponent lane of a block with Inf or NaN: above every biased exponent */

unsigned nf_headroom(uint32_t world); /* L */

/* Around work on floats: a training script may have set its thread to flush subnormals to zero, and the ranks must not
 * depend on that.  Returns what nf_floats_restore puts back. */
uint32_t nf_floats_exact(void);
void nf_floats_restore(uint32_t);

/* Largest biased exponent (0..254) of n <= 256 values, or NF_SPECIAL. */
uint32_t nf_block_exponent(const float *x, size_t n);

/* n <= 256 values to big-endian lanes at `wire` (any alignment). */
void nf_quantise(const float *x, size_t n, uint32_t exponent, unsigned headroom, uint8_t *wire);

/* n <= 256 big-endian lanes to values, each divided by `divisor` (1: a sum). */
void nf_dequantise(const uint8_t *wire, size_t n, uint32_t exponent, unsigned headroom, float divisor, float *x);
#endif
