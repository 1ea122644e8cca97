/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops that the compiler vectorises; what is the same for a whole block is decided outside of them.
 */
#include "narrow.h"

#include "float_bits.h"

typedef uint16_t half __attribute__((aligned(1), may_alias));

uint32_t nf_levels(uint32_t world, uint32_t bits) { return ((1u << (bits - 1)) - 1) / world; }

/* A bijection that mixes all bits (C. Wellons, "Prospecting for hash functions"). */
static inline uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

uint32_t nf_key(uint32_t seed, uint32_t number, uint32_t rank) { return mix(mix(mix(seed) + number) + rank); }

uint32_t nf_block_top(const float *x, const float *residual, size_t n) {
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++) {
        float y = residual ? x[i] + residual[i] : x[i];
        uint32_t magnitude = nf_bits_of(y) & ~NF_FLOAT_SIGN;
        top = magnitude > top ? magnitude : top;
    }
    return top;
}

typedef struct {
    float up, more, coefficient; /* M / A, in three factors: together they may be no float32 */
    float most, unit;            /* M, A */
} scale;

static scale scale_of(const nf_narrowing *how, uint32_t top) {
    uint32_t exponent = top >> 23 ? top >> 23 : 1;
    int k = 127 - (int)exponent; /* A 2^k is below 2, and 1 or more but for subnormals */
    float up = nf_power_of_two(k / 2), more = nf_power_of_two(k - k / 2), unit = nf_float_of(top);
    return (scale){.up = up,
                   .more = more,
                   .coefficient = (float)how->levels / (unit * up * more),
                   .most = (float)how->levels,
                   .unit = unit};
}

/* Lanes of up to 256 values, as integers. */
static inline void round_block(const nf_narrowing *how, const float *restrict x, const float *restrict residual,
                               size_t n, uint32_t top, uint64_t place, int32_t *restrict q) {
    scale s = scale_of(how, top);
    float y[NF_BLOCK];
    for (size_t i = 0; i < n; i++) y[i] = residual ? x[i] + residual[i] : x[i];
    for (size_t i = 0; i < n; i++) {
        float v = y[i] * s.up * s.more * s.coefficient;
        y[i] = v > s.most ? s.most : v < -s.most ? -s.most : v; /* the factors' rounding may carry A itself beyond M */
    }
    if (how->stochastic) {
        uint32_t first = (uint32_t)place + how->key;
        for (size_t i = 0; i < n; i++) {
            float u = (float)(int32_t)(mix(first + (uint32_t)i) >> 24) * 0x1p-8f + 0x1p-9f;
            q[i] = (int32_t)__builtin_floorf(y[i] + u);
        }
    } else {
        for (size_t i = 0; i < n; i++) q[i] = (int32_t)__builtin_rintf(y[i]);
    }
}

static bool has_lanes(uint32_t top) { return top != 0 && top < NF_TOP_SPECIAL; }

void nf_narrow(const nf_narrowing *how, const float *restrict x, const float *restrict residual, size_t n, uint32_t top,
               uint64_t place, uint8_t *restrict wire) {
    if (!has_lanes(top)) {
        memset(wire, 0, n * how->bits / 8);
        return;
    }
    int32_t q[NF_BLOCK];
    round_block(how, x, residual, n, top, place, q);
    if (how->bits == 16)
        for (size_t i = 0; i < n; i++) ((half *)wire)[i] = __builtin_bswap16((uint16_t)q[i]);
    else
        for (size_t i = 0; i < n; i++) wire[i] = (uint8_t)q[i];
}

void nf_narrow_residual(const nf_narrowing *how, const float *restrict x, float *restrict residual, size_t n,
                        uint32_t top, uint64_t place) {
    if (!has_lanes(top)) {
        memset(residual, 0, n * sizeof *residual);
        return;
    }
    int32_t q[NF_BLOCK];
    round_block(how, x, residual, n, top, place, q);
    scale s = scale_of(how, top);
    for (size_t i = 0; i < n; i++) residual[i] = x[i] + residual[i] - (float)q[i] / s.most * s.unit;
}

void nf_widen(const nf_narrowing *how, const uint8_t *restrict wire, size_t n, uint32_t top, float divisor,
              float *restrict x) {
    if (!has_lanes(top)) {
        float all = top ? nf_float_of(NF_FLOAT_QUIET_NAN) : 0;
        for (size_t i = 0; i < n; i++) x[i] = all;
        return;
    }
    float most = (float)how->levels, unit = nf_float_of(top);
    if (how->bits == 16)
        for (size_t i = 0; i < n; i++) x[i] = (float)(int16_t)__builtin_bswap16(((const half *)wire)[i]) / most * unit;
    else
        for (size_t i = 0; i < n; i++) x[i] = (float)(int8_t)wire[i] / most * unit;
    if (divisor != 1)
        for (size_t i = 0; i < n; i++) x[i] /= divisor;
}
