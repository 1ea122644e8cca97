/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32 (IEEE 802.3, reflected): what P4's crc32 is, and RoCEv2's invariant CRC.
 *
 * It is the polynomial remainder of the bits, so 16 or 64 bytes at a time can be multiplied down by carry-less products
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009; constants from the
 * paper's table for the reflected polynomial).  Short inputs and other machines take eight table look-ups for eight
 * bytes.  Where built with -march=native the vectors are as wide as the machine has them.
 */
#ifndef SS_CRC32_H
#define SS_CRC32_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SS_CRC32_POLY 0xEDB88320u /* 0x04C11DB7 reflected */

/* t[k][b]: what byte b does to a reflected crc of at most 32 bits k bytes later. */
typedef uint32_t ss_crc_tables[8][256];
static ss_crc_tables ss_crc32_table;
static bool ss_have_clmul;

static void ss_crc_make(ss_crc_tables t, uint32_t poly) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? poly : 0);
        t[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 0xff];
}

static inline uint32_t ss_crc_by_table(const ss_crc_tables t, uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= crc;
        crc = t[7][w & 0xff] ^ t[6][w >> 8 & 0xff] ^ t[5][w >> 16 & 0xff] ^ t[4][w >> 24 & 0xff] ^
              t[3][w >> 32 & 0xff] ^ t[2][w >> 40 & 0xff] ^ t[1][w >> 48 & 0xff] ^ t[0][w >> 56];
    }
    while (n--) crc = crc >> 8 ^ t[0][(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* Not __builtin_cpu_supports: its table does not link into a shared library with ziglang. */
static bool ss_cpu_has_clmul(void) {
    unsigned a, b, c = 0, d; /* leaf 1, ECX: bit 1 PCLMULQDQ, bit 19 SSE4.1 */
    return __get_cpuid(1, &a, &b, &c, &d) && (c & 1u << 1) && (c & 1u << 19);
}

#define SS_CLMUL __attribute__((target("pclmul,sse4.1"))) static inline
#define SS_BY128 _mm_set_epi64x(0x0ccaa009e, 0x1751997d0) /* x^(128-32), x^(128+32) mod P, reflected */
#define SS_BY512 _mm_set_epi64x(0x1c6e41596, 0x154442bd4)
#define SS_BY2048 _mm_set_epi64x(0x1322d1430, 0x11542778a)

/* x, which stands the constant's distance further ahead, added to the data there. */
SS_CLMUL __m128i ss_ahead(__m128i x, __m128i k, __m128i data) {
    __m128i low = _mm_clmulepi64_si128(x, k, 0x00), high = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

/* 128 -> 96 -> 64 bits, then Barrett's reduction to 32. */
SS_CLMUL uint32_t ss_crc32_reduce(__m128i a) {
    const __m128i by64 = _mm_set_epi64x(0, 0x163cd6124), low32 = _mm_setr_epi32(-1, 0, -1, 0);
    const __m128i barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641); /* quotient, polynomial */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, SS_BY128, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low32), by64, 0x00));
    __m128i t = _mm_clmulepi64_si128(_mm_and_si128(a, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, t), 1);
}

#define SS_LOAD(i) _mm_loadu_si128((const __m128i *)(p + 16 * (i)))
#if defined(__VPCLMULQDQ__) && defined(__PCLMUL__) && defined(__AVX512F__)
#define SS_AHEAD4(x, k, next) \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96)
#define SS_LOAD4(i) _mm512_loadu_si512((const void *)(p + 64 * (i)))

/* n >= 64, a multiple of 16. */
static inline uint32_t ss_crc32_long(uint32_t crc, const uint8_t *p, size_t n) {
    const __m512i by512 = _mm512_broadcast_i32x4(SS_BY512);
    __m512i a = _mm512_xor_si512(SS_LOAD4(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    if (n >= 256) {
        const __m512i by2048 = _mm512_broadcast_i32x4(SS_BY2048);
        __m512i b = SS_LOAD4(1), c = SS_LOAD4(2), d = SS_LOAD4(3);
        for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
            a = SS_AHEAD4(a, by2048, SS_LOAD4(0));
            b = SS_AHEAD4(b, by2048, SS_LOAD4(1));
            c = SS_AHEAD4(c, by2048, SS_LOAD4(2));
            d = SS_AHEAD4(d, by2048, SS_LOAD4(3));
        }
        a = SS_AHEAD4(a, by512, b);
        a = SS_AHEAD4(a, by512, c);
        a = SS_AHEAD4(a, by512, d);
    } else
        p += 64, n -= 64;
    for (; n >= 64; p += 64, n -= 64) a = SS_AHEAD4(a, by512, SS_LOAD4(0));
    __m128i x = ss_ahead(_mm512_castsi512_si128(a), SS_BY128, _mm512_extracti32x4_epi32(a, 1));
    x = ss_ahead(x, SS_BY128, _mm512_extracti32x4_epi32(a, 2));
    x = ss_ahead(x, SS_BY128, _mm512_extracti32x4_epi32(a, 3));
    for (; n >= 16; p += 16, n -= 16) x = ss_ahead(x, SS_BY128, SS_LOAD(0));
    return ss_crc32_reduce(x);
}
#else
SS_CLMUL uint32_t ss_crc32_long(uint32_t crc, const uint8_t *p, size_t n) {
    __m128i a = _mm_xor_si128(SS_LOAD(0), _mm_cvtsi32_si128((int)crc)), b = SS_LOAD(1), c = SS_LOAD(2), d = SS_LOAD(3);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = ss_ahead(a, SS_BY512, SS_LOAD(0));
        b = ss_ahead(b, SS_BY512, SS_LOAD(1));
        c = ss_ahead(c, SS_BY512, SS_LOAD(2));
        d = ss_ahead(d, SS_BY512, SS_LOAD(3));
    }
    a = ss_ahead(a, SS_BY128, b);
    a = ss_ahead(a, SS_BY128, c);
    a = ss_ahead(a, SS_BY128, d);
    for (; n >= 16; p += 16, n -= 16) a = ss_ahead(a, SS_BY128, SS_LOAD(0));
    return ss_crc32_reduce(a);
}
#endif

/* n >= 16, a multiple of 16. */
SS_CLMUL uint32_t ss_crc32_short(uint32_t crc, const uint8_t *p, size_t n) {
    __m128i a = _mm_xor_si128(SS_LOAD(0), _mm_cvtsi32_si128((int)crc));
    for (p += 16, n -= 16; n >= 16; p += 16, n -= 16) a = ss_ahead(a, SS_BY128, SS_LOAD(0));
    return ss_crc32_reduce(a);
}
#else
static bool ss_cpu_has_clmul(void) { return false; }
#define ss_crc32_long(crc, p, n) (crc)
#define ss_crc32_short(crc, p, n) (crc)
#endif

/* ---- bytes that are known by their own CRC: crc(a b) = crc(a) x^(8 |b|) + crc(b), modulo the polynomial -------------
 */

#define SS_CRC32_X33 0x76dc4190u /* x^33 */

/* a b, where bit 31 is x^0. */
static uint32_t ss_crc32_times(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit) product ^= b;
        b = b >> 1 ^ (b & 1 ? SS_CRC32_POLY : 0);
    }
    return product;
}

/* What ss_crc32_join multiplies by for `n` >= 5 bytes: x^(8 n - 33). */
static uint32_t ss_crc32_factor(uint32_t n) {
    uint32_t power = 1u << 31, square = 1u << 30; /* 1, x */
    for (uint64_t e = 8 * (uint64_t)n - 33; e; e >>= 1, square = ss_crc32_times(square, square))
        if (e & 1) power = ss_crc32_times(power, square);
    return power;
}

#if defined(__x86_64__)
SS_CLMUL uint64_t ss_crc32_clmul(uint32_t a, uint32_t b) {
    return (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0));
}
#else
#define ss_crc32_clmul(a, b) ((uint64_t)0)
#endif

/* The CRC of some bytes and `n` >= 5 more, from that of either; `factor` is ss_crc32_factor(n).  The product of 64 bits
 * is one x too great, and the tables reduce it to what stands x^32 ahead. */
static inline uint32_t ss_crc32_join(uint32_t before, uint32_t factor, uint32_t after) {
    if (!ss_have_clmul) return after ^ ss_crc32_times(before, ss_crc32_times(factor, SS_CRC32_X33));
    uint64_t w = ss_crc32_clmul(before, factor);
    uint8_t bytes[8];
    memcpy(bytes, &w, 8);
    return after ^ ss_crc_by_table(ss_crc32_table, 0, bytes, 8);
}

__attribute__((constructor)) static void ss_crc32_prepare(void) {
    ss_crc_make(ss_crc32_table, SS_CRC32_POLY);
    ss_have_clmul = ss_cpu_has_clmul();
}

/* Start with 0 and hand the result in to go on, like zlib's. */
static inline uint32_t ss_crc32(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    if (ss_have_clmul && n >= 16) {
        size_t whole = n & ~(size_t)15;
        crc = n >= 64 ? ss_crc32_long(crc, p, whole) : ss_crc32_short(crc, p, whole);
        p += whole, n -= whole;
    }
    return ~ss_crc_by_table(ss_crc32_table, crc, p, n);
}
#endif
