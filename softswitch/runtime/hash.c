/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes as BMv2 computes them, and the switch's random numbers.
 *
 * crc32 is the polynomial remainder of the bits, so 64 bytes at a time can be multiplied down by carry-less products
 * (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009); short inputs and other
 * machines take eight table look-ups for eight bytes.  Built with -march=native, as the switch is, the vectors are as wide
 * as the machine has them.
 */
#include "internal.h"

#define CRC32_POLY 0xEDB88320u    /* 0x04C11DB7 reflected */
#define CRC16_POLY 0xA001u        /* 0x8005 reflected */

typedef uint32_t crc_tables[8][256];
static crc_tables crc32_table, crc16_table;
static bool have_clmul;

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static bool cpu_has_clmul(void) {
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL) && (c & bit_SSE4_1);
}

#define XOR(x, y) _mm_xor_si128(x, y)
#define FOLD(x, k, next) XOR(XOR(_mm_clmulepi64_si128(x, k, 0x00), _mm_clmulepi64_si128(x, k, 0x11)), next)
#define LOAD(i) _mm_loadu_si128((const __m128i *)(p + 16 * (i)))

#if defined(__VPCLMULQDQ__) && defined(__PCLMUL__) && defined(__AVX512F__)
/* Four vectors of four products each: what crc32_fold does, four times as much at once. */
#define FOLD4(x, k, next) \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(x, k, 0x00), _mm512_clmulepi64_epi128(x, k, 0x11), next, 0x96)
#define LOAD4(i) _mm512_loadu_si512((const void *)(p + 64 * (i)))

static void crc32_fold(uint32_t crc, const uint8_t *p, size_t n, uint8_t out[16]) {
    const __m512i by2048 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1322d1430, 0x11542778a));    /* x^(2048-32), x^(2048+32) */
    const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(0x1c6e41596, 0x154442bd4));
    const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m512i a = _mm512_xor_si512(LOAD4(0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    if (n >= 256) {
        __m512i b = LOAD4(1), c = LOAD4(2), d = LOAD4(3);
        for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
            a = FOLD4(a, by2048, LOAD4(0));
            b = FOLD4(b, by2048, LOAD4(1));
            c = FOLD4(c, by2048, LOAD4(2));
            d = FOLD4(d, by2048, LOAD4(3));
        }
        a = FOLD4(a, by512, b);
        a = FOLD4(a, by512, c);
        a = FOLD4(a, by512, d);
    } else p += 64, n -= 64;
    for (; n >= 64; p += 64, n -= 64) a = FOLD4(a, by512, LOAD4(0));
    __m128i x = FOLD(_mm512_castsi512_si128(a), by128, _mm512_extracti32x4_epi32(a, 1));
    x = FOLD(x, by128, _mm512_extracti32x4_epi32(a, 2));
    x = FOLD(x, by128, _mm512_extracti32x4_epi32(a, 3));
    for (; n >= 16; p += 16, n -= 16) x = FOLD(x, by128, LOAD(0));
    _mm_storeu_si128((__m128i *)out, x);
}
#else
/* Folds n >= 64 bytes, n a multiple of 16, into 16 bytes that have the same remainder. */
__attribute__((target("pclmul,sse4.1")))
static void crc32_fold(uint32_t crc, const uint8_t *p, size_t n, uint8_t out[16]) {
    const __m128i by512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);      /* x^(512-32), x^(512+32) mod P, reflected */
    const __m128i by128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);      /* x^(128-32), x^(128+32) mod P, reflected */
    __m128i a = XOR(LOAD(0), _mm_cvtsi32_si128((int)crc)), b = LOAD(1), c = LOAD(2), d = LOAD(3);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = FOLD(a, by512, LOAD(0));
        b = FOLD(b, by512, LOAD(1));
        c = FOLD(c, by512, LOAD(2));
        d = FOLD(d, by512, LOAD(3));
    }
    a = FOLD(a, by128, b);
    a = FOLD(a, by128, c);
    a = FOLD(a, by128, d);
    for (; n >= 16; p += 16, n -= 16) a = FOLD(a, by128, LOAD(0));
    _mm_storeu_si128((__m128i *)out, a);
}
#endif
#else
static bool cpu_has_clmul(void) { return false; }
static void crc32_fold(uint32_t crc, const uint8_t *p, size_t n, uint8_t out[16]) { (void)crc, (void)p, (void)n, (void)out; }
#endif

/* t[k][b]: what byte b does to a reflected crc of at most 32 bits k bytes later. */
static void make(crc_tables t, uint32_t poly) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? poly : 0);
        t[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 0xff];
}

__attribute__((constructor))
static void make_tables(void) {
    make(crc32_table, CRC32_POLY);
    make(crc16_table, CRC16_POLY);
    have_clmul = cpu_has_clmul();
}

static inline uint32_t crc_by_table(const crc_tables t, uint32_t crc, const uint8_t *p, size_t n) {
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

static uint32_t crc32(const uint8_t *p, size_t n) {
    uint32_t crc = 0xffffffffu;
    if (have_clmul && n >= 64) {
        uint8_t rest[16];
        size_t folded = n & ~(size_t)15;
        crc32_fold(crc, p, folded, rest);
        crc = crc_by_table(crc32_table, 0, rest, 16);
        p += folded, n -= folded;
    }
    return ~crc_by_table(crc32_table, crc, p, n);
}

static uint16_t crc16(const uint8_t *p, size_t n) { return (uint16_t)crc_by_table(crc16_table, 0, p, n); }

/* The ones' complement sum of 16-bit words, in machine byte order, not folded; in vectors as wide as the machine has. */
static inline uint64_t sum16_short(const uint8_t *p, size_t n) {
    uint64_t sum = 0;
    for (; n >= 4; p += 4, n -= 4) {
        uint32_t w;
        memcpy(&w, p, 4);
        sum += w;
    }
    if (n >= 2) {
        uint16_t w;
        memcpy(&w, p, 2);
        sum += w;
        p += 2, n -= 2;
    }
    return n ? sum + *p : sum;    /* an odd byte is the upper half of a big-endian word */
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
/* Words are summed in pairs by the dot product with ones, which is signed: each is taken as its difference from 2^15.
 * 32-bit sums hold 2^15 steps of it, more than SS_MAX_FRAME needs. */
static uint64_t sum16(const uint8_t *p, size_t n) {
    if (n < 32) return sum16_short(p, n);
    const __m512i middle = _mm512_set1_epi16(INT16_MIN), ones = _mm512_set1_epi16(1);
    __m512i a = _mm512_setzero_si512(), b = a;
    int64_t words = 64;
    for (; n >= 128; p += 128, n -= 128, words += 64) {
        a = _mm512_dpwssd_epi32(a, _mm512_xor_si512(_mm512_loadu_si512(p), middle), ones);
        b = _mm512_dpwssd_epi32(b, _mm512_xor_si512(_mm512_loadu_si512(p + 64), middle), ones);
    }
    /* What is left, and zeros. */
    __mmask64 first = n < 64 ? (1ull << n) - 1 : ~0ull, second = n > 64 ? (1ull << (n - 64)) - 1 : 0;
    a = _mm512_dpwssd_epi32(a, _mm512_xor_si512(_mm512_maskz_loadu_epi8(first, p), middle), ones);
    b = _mm512_dpwssd_epi32(b, _mm512_xor_si512(_mm512_maskz_loadu_epi8(second, p + 64), middle), ones);
    return (uint64_t)(_mm512_reduce_add_epi32(_mm512_add_epi32(a, b)) + 32768 * words);
}
#else
#if defined(__AVX2__)
#define VECTOR 32
#else
#define VECTOR 16
#endif
typedef uint64_t lanes __attribute__((vector_size(VECTOR)));

static uint64_t sum16(const uint8_t *p, size_t n) {
    lanes low = {0}, high = {0};
    for (; n >= 2 * sizeof(lanes); p += 2 * sizeof(lanes), n -= 2 * sizeof(lanes)) {
        lanes a, b;
        memcpy(&a, p, sizeof a);
        memcpy(&b, p + sizeof a, sizeof b);
        low += (a & 0xffffffffu) + (b & 0xffffffffu);
        high += (a >> 32) + (b >> 32);
    }
    uint64_t sum = 0;
    low += high;
    for (size_t i = 0; i < VECTOR / 8; i++) sum += low[i];
    return sum + sum16_short(p, n);
}
#endif

uint16_t ss_csum16(const uint8_t *bytes, uint32_t n, const uint8_t *more, uint32_t n_more) {
    uint64_t sum = sum16(bytes, n) + sum16(more, n_more);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return __builtin_bswap16((uint16_t)~sum);
}

static uint64_t identity(const uint8_t *p, uint32_t n) {     /* BMv2: the first 8 bytes */
    uint64_t v = 0;
    for (uint32_t i = 0; i < n && i < 8; i++) v = v << 8 | p[i];
    return v;
}

static uint16_t xor16(const uint8_t *p, uint32_t n) {
    uint16_t v = 0;
    for (; n >= 2; p += 2, n -= 2) v ^= (uint16_t)(p[0] << 8 | p[1]);
    return n ? (uint16_t)(v ^ p[0] << 8) : v;
}

static inline uint64_t rotate(uint64_t x, int k) { return x << k | x >> (64 - k); }

static uint64_t prng_next(ss_prng *r) {      /* xoshiro256**, Blackman and Vigna */
    uint64_t result = rotate(r->s[1] * 5, 7) * 9, t = r->s[1] << 17;
    r->s[2] ^= r->s[0], r->s[3] ^= r->s[1], r->s[1] ^= r->s[2], r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = rotate(r->s[3], 45);
    return result;
}

void ss_prng_seed(ss_prng *r, uint64_t seed) {      /* splitmix64: any seed gives four well mixed words */
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        r->s[i] = z ^ z >> 31;
    }
}

uint64_t ss_random(ss_switch *sw, uint64_t lo, uint64_t hi) {
    if (lo >= hi) return lo;
    uint64_t span = hi - lo + 1, bits = prng_next(&sw->prng);
    if (span == 0) return bits;
    uint64_t limit = -span % span;           /* draws below it would favour some values (Lemire) */
    unsigned __int128 product = (unsigned __int128)bits * span;
    while ((uint64_t)product < limit) product = (unsigned __int128)prng_next(&sw->prng) * span;
    return lo + (uint64_t)(product >> 64);
}

uint64_t ss_hash(ss_switch *sw, uint32_t algo, const uint8_t *bytes, uint32_t n) {
    switch (algo) {
    case SS_CRC32: case SS_CRC32_CUSTOM: return crc32(bytes, n);    /* BMv2's custom ones start as the plain ones */
    case SS_CRC16: case SS_CRC16_CUSTOM: return crc16(bytes, n);
    case SS_RANDOM: return prng_next(&sw->prng);
    case SS_IDENTITY: return identity(bytes, n);
    case SS_CSUM16: return ss_csum16(bytes, n, NULL, 0);
    case SS_XOR16: return xor16(bytes, n);
    default: return 0;
    }
}
