/* SPDX-License-Identifier: Apache-2.0
 *
 * 32-bit lanes that are integers already, or that only have to keep their order: int32 sums, and maxima and minima of
 * int32 and float32.  Lanes are big endian on the wire; only little-endian machines are supported.
 *
 * The switches have one order, that of signed integers, and one direction, the maximum:
 *   int32    as it is; for a minimum its complement, since min(x) = ~max(~x)
 *   float32  a negative number's bits but the sign are turned over, so that integers order as the floats do (+0 above
 *            -0); for a minimum its negative.  Every NaN goes as the one above +Inf, so that it reaches every rank
 */
#ifndef NF_LANES_H
#define NF_LANES_H
#include "roce.h"

#define NF_BLOCK 256 /* float32 values that share an exponent (quantise.h) or a scale (narrow.h) */

typedef uint32_t nf_lane __attribute__((aligned(1), may_alias));

/* n values to lanes at `wire` and back (any alignment).  complement: for a minimum. */
void nf_to_lanes(const int32_t *x, size_t n, bool complement, uint8_t *wire);
void nf_from_lanes(const uint8_t *wire, size_t n, bool complement, int32_t *x);
void nf_to_order(const float *x, size_t n, bool negate, uint8_t *wire);
void nf_from_order(const uint8_t *wire, size_t n, bool negate, float *x);

/* out = a + b by the rule of SAT32 in p4src/lanes.p4: what has reached an end of the range stays there, a's before b's.
 * `out` may be a or b. */
void nf_saturating_sum(const int32_t *a, const int32_t *b, size_t n, int32_t *out);

/* How many of n values are -2^31 or 2^31 - 1: there a saturating sum may have been cut off. */
uint64_t nf_count_at_limits(const int32_t *x, size_t n);
#endif
