/* SPDX-License-Identifier: Apache-2.0
 *
 * The one rounding of an exact sum: integer * 2^unit / divisor to the nearest float, ties to even.
 */
#ifndef NF_EXACT_ROUND_H
#define NF_EXACT_ROUND_H
#include <stdbool.h>
#include <stdint.h>

typedef unsigned __int128 nf_wide;

/* A magnitude (a + fraction) * 2^unit, where 0 < fraction < 1 if `more`, else fraction = 0.  a != 0 unless all is 0. */
typedef struct {
    nf_wide a;
    int unit;
    bool more;
} nf_magnitude;

/* To float64, nearest even, subnormals and overflow as IEEE 754 has them; +0 for a magnitude that rounds to 0. */
double nf_nearest_double(nf_magnitude, bool negative, uint32_t divisor);

/* To a float64 whose 42 or more bits are rounded to odd (the last bit is set where anything was left out), so that one
 * more rounding to at most 40 bits gives what one rounding alone would have (Boldo and Melquiond, "Emulation of FMA and
 * correctly rounded sums", 2008).  For magnitudes of float32's range, where float64 has no subnormals. */
double nf_odd_double(nf_magnitude, bool negative, uint32_t divisor);

/* The same for a magnitude below 2^63 that is whole: the common case, in 64 bits. */
static inline double nf_odd_double_of(uint64_t a, int unit, bool negative, uint32_t divisor) {
    if (!a) return 0;
    if (divisor != 1) {
        int up = __builtin_clzll(a);
        a <<= up;
        unit -= up;
        uint64_t quotient = a / divisor;
        a = quotient | (quotient * divisor != a);
    }
    /* 53 bits: multiples of 2^11, of which the last is odd where bits below were lost */
    if (a >> 53) a = (a | ((a & 0x7ff) + 0x7ff)) & ~(uint64_t)0x7ff;
    union {
        uint64_t bits;
        double value;
    } scale = {(uint64_t)(unit + 1023) << 52};
    double x = (double)a * scale.value;
    return negative ? -x : x;
}
#endif
