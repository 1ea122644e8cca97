/* SPDX-License-Identifier: Apache-2.0
 *
 * float32 values as their bits (IEEE 754 binary32).
 */
#ifndef NF_FLOAT_BITS_H
#define NF_FLOAT_BITS_H
#include <stdint.h>
#include <string.h>

#define NF_FLOAT_SIGN 0x80000000u
#define NF_FLOAT_INFINITY 0x7f800000u /* magnitudes above it are NaN */
#define NF_FLOAT_QUIET_NAN 0x7fc00000u

static inline uint32_t nf_bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float nf_float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* 2^e, for -126 <= e <= 127. */
static inline float nf_power_of_two(int e) { return nf_float_of((uint32_t)(e + 127) << 23); }
#endif
