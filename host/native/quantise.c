/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops that the compiler vectorises; nothing here branches per element but in blocks with Inf or NaN.
 */
#include "quantise.h"

#include <math.h>

#include "float_bits.h"

/* Counts of special values in one lane, 16 bits each. */
#define PLUS 1u
#define MINUS (1u << 16)
#define COUNT 0xffffu

unsigned nf_headroom(uint32_t world) {
    unsigned bits = 0;
    while (world >> bits) bits++; /* bits of N */
    bool power = (world & (world - 1)) == 0;
    return world <= 128 && power ? bits - 1 : bits; /* ceil(log2 N) up to 128 */
}

#if defined(__x86_64__)
#include <immintrin.h>
uint32_t nf_floats_exact(void) {
    uint32_t mode = _mm_getcsr();
    _mm_setcsr(0x1f80); /* nearest even, no flushing, exceptions masked */
    return mode;
}
void nf_floats_restore(uint32_t mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
uint32_t nf_floats_exact(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (uint32_t)mode;
}
void nf_floats_restore(uint32_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode)); }
#else
uint32_t nf_floats_exact(void) { return 0; }
void nf_floats_restore(uint32_t mode) { (void)mode; }
#endif

uint32_t nf_block_exponent(const float *x, size_t n) {
    uint32_t top = 0; /* magnitudes order like their bits */
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = nf_bits_of(x[i]) & ~NF_FLOAT_SIGN;
        top = magnitude > top ? magnitude : top;
    }
    return top >> 23 == 255 ? NF_SPECIAL : top >> 23;
}

static void count_specials(const float *x, size_t n, nf_lane *wire) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word = isnan(x[i]) ? PLUS | MINUS : isinf(x[i]) ? (x[i] > 0 ? PLUS : MINUS) : 0;
        wire[i] = __builtin_bswap32(word);
    }
}

static void read_specials(const nf_lane *wire, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word = __builtin_bswap32(wire[i]);
        bool plus = word & COUNT * PLUS, minus = word & COUNT * MINUS;
        x[i] = nf_float_of(plus == minus ? NF_FLOAT_QUIET_NAN
                           : plus        ? NF_FLOAT_INFINITY
                                         : NF_FLOAT_SIGN | NF_FLOAT_INFINITY);
    }
}

/* 2^k is no float32 for every k (|k| <= 157): two factors are, and as scaling by a power of two is exact, nothing is
 * lost, but for x so small against the block that it becomes 0 either way. */
static inline void split(int k, float *one, float *other) {
    *one = nf_power_of_two(k / 2);
    *other = nf_power_of_two(k - k / 2);
}

void nf_quantise(const float *restrict x, size_t n, uint32_t exponent, unsigned headroom, uint8_t *restrict bytes) {
    nf_lane *wire = (nf_lane *)bytes;
    if (exponent == NF_SPECIAL) {
        count_specials(x, n, wire);
    } else {
        float one, other;
        split(157 - (int)headroom - (int)exponent, &one, &other);
        for (size_t i = 0; i < n; i++)
            wire[i] = __builtin_bswap32((uint32_t)(int32_t)__builtin_rintf(x[i] * one * other));
    }
}

void nf_dequantise(const uint8_t *restrict bytes, size_t n, uint32_t exponent, unsigned headroom, float divisor,
                   float *restrict x) {
    const nf_lane *wire = (const nf_lane *)bytes;
    if (exponent == NF_SPECIAL) {
        read_specials(wire, n, x);
        return;
    }
    float one, other;
    split((int)exponent + (int)headroom - 157, &one, &other);
    for (size_t i = 0; i < n; i++) x[i] = (float)(int32_t)__builtin_bswap32(wire[i]) * one * other;
    if (divisor != 1)
        for (size_t i = 0; i < n; i++) x[i] /= divisor;
}
