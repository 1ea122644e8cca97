/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes as BMv2 computes them, and the switch's random numbers.
 */
#include "hash.h"
#include "crc32.h"

#define CRC16_POLY 0xA001u      /* 0x8005 reflected */
#define CRC32C_POLY 0x82F63B78u /* 0x1EDC6F41 reflected */

static ss_crc_tables crc16_table, crc32c_table;

__attribute__((constructor)) static void make_tables(void) {
    ss_crc_make(crc16_table, CRC16_POLY);
    ss_crc_make(crc32c_table, CRC32C_POLY);
}

static uint16_t crc16(const uint8_t *p, size_t n) { return (uint16_t)ss_crc_by_table(crc16_table, 0, p, n); }

uint32_t ss_crc32c(const uint8_t *bytes, uint32_t n) { return ~ss_crc_by_table(crc32c_table, ~0u, bytes, n); }

/* The ones' complement sum of 16-bit words, in machine byte order, not folded; in vectors as wide as the machine
 * has. */
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
/* Words are summed in pairs by the dot product with ones, which is signed: each is taken as its difference from 2^15.
 * 32-bit sums hold 2^15 steps of it, more than SS_MAX_FRAME needs. */
static uint64_t sum16(const uint8_t *p, size_t n) {
    const __m512i middle = _mm512_set1_epi16(INT16_MIN), ones = _mm512_set1_epi16(1);
    __m512i a = _mm512_setzero_si512(), b = a;
    int64_t words = 32;
    for (; n >= 128; p += 128, n -= 128, words += 64) {
        a = _mm512_dpwssd_epi32(a, _mm512_xor_si512(_mm512_loadu_si512(p), middle), ones);
        b = _mm512_dpwssd_epi32(b, _mm512_xor_si512(_mm512_loadu_si512(p + 64), middle), ones);
    }
    if (n >= 64) {
        a = _mm512_dpwssd_epi32(a, _mm512_xor_si512(_mm512_loadu_si512(p), middle), ones);
        p += 64, n -= 64, words += 32;
    }
    /* What is left, and zeros. */
    b = _mm512_dpwssd_epi32(b, _mm512_xor_si512(_mm512_maskz_loadu_epi8((1ull << n) - 1, p), middle), ones);
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
    return n ? sum + *p : sum; /* an odd byte is the upper half of a big-endian word */
}
#endif

static uint16_t fold16(uint64_t sum) {
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

uint16_t ss_sum16_of(const uint8_t *bytes, uint32_t n) { return __builtin_bswap16(fold16(sum16(bytes, n))); }

uint16_t ss_csum16(const uint8_t *bytes, uint32_t n, const uint8_t *more, uint32_t n_more) {
    return __builtin_bswap16((uint16_t)~fold16(sum16(bytes, n) + (n_more ? sum16(more, n_more) : 0)));
}

uint16_t ss_csum16_after(uint64_t sum, const uint8_t *bytes, uint32_t n) {
    return (uint16_t)~fold16(fold16(sum) + (uint64_t)__builtin_bswap16(fold16(sum16(bytes, n))));
}

static uint64_t identity(const uint8_t *p, uint32_t n) { /* BMv2: the first 8 bytes */
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

static uint64_t prng_next(ss_prng *r) { /* xoshiro256**, Blackman and Vigna */
    uint64_t result = rotate(r->s[1] * 5, 7) * 9, t = r->s[1] << 17;
    r->s[2] ^= r->s[0], r->s[3] ^= r->s[1], r->s[1] ^= r->s[2], r->s[0] ^= r->s[3];
    r->s[2] ^= t;
    r->s[3] = rotate(r->s[3], 45);
    return result;
}

void ss_prng_seed(ss_prng *r, uint64_t seed) { /* splitmix64: any seed gives four well mixed words */
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
    uint64_t limit = -span % span; /* draws below it would favour some values (Lemire) */
    unsigned __int128 product = (unsigned __int128)bits * span;
    while ((uint64_t)product < limit) product = (unsigned __int128)prng_next(&sw->prng) * span;
    return lo + (uint64_t)(product >> 64);
}

static uint32_t reflect(uint32_t value, uint32_t bits) {
    uint32_t reflected = 0;
    for (uint32_t i = 0; i < bits; i++) reflected |= (value >> i & 1) << (bits - 1 - i);
    return reflected;
}

/* One pair of parameters of each customary CRC: catalogues name them width, poly, init, xorout, refin, refout. */
static uint32_t custom_crc(const ss_custom_crc *c, const uint8_t *p, uint32_t n) {
    uint32_t crc = c->initial, down = c->bits - 8;
    uint32_t ones = c->bits == 32 ? 0xffffffffu : (1u << c->bits) - 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t byte = c->data_reflected ? reflect(p[i], 8) : p[i];
        crc = (c->table[(byte ^ crc >> down) & 0xff] ^ crc << 8) & ones;
    }
    return (c->remainder_reflected ? reflect(crc, c->bits) : crc) ^ c->final_xor;
}

int ss_do_crc_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    uint32_t number = get_u32(r), bits = get_u8(r), polynomial = get_u32(r), initial = get_u32(r);
    uint32_t final_xor = get_u32(r), flags = get_u8(r);
    if (r->bad) return refuse_short(w);
    if (!number || number > SS_MAX_CRCS || (bits != 16 && bits != 32))
        return refuse(w, SS_INVALID_ARGUMENT, "custom CRC %u of %u bits: expected one of 1..%u, 16 or 32", number, bits,
                      SS_MAX_CRCS);
    uint32_t ones = bits == 32 ? 0xffffffffu : 0xffffu;
    if ((polynomial | initial | final_xor) & ~ones)
        return refuse(w, SS_INVALID_ARGUMENT, "custom CRC %u: a parameter has more than %u bits", number, bits);
    ss_custom_crc *c = malloc(sizeof *c);
    if (!c) return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    *c = (ss_custom_crc){bits, polynomial, initial, final_xor, flags & 1, flags & 2, {0}};
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i << (bits - 8);
        for (int bit = 0; bit < 8; bit++) crc = (crc << 1 ^ (crc >> (bits - 1) & 1 ? polynomial : 0)) & ones;
        c->table[i] = crc;
    }
    free(sw->crcs[number]);
    sw->crcs[number] = c;
    return SS_OK;
}

uint64_t ss_hash(ss_switch *sw, uint32_t algo, const uint8_t *bytes, uint32_t n) {
    switch (algo) {
    case SS_CRC32:
    case SS_CRC32_CUSTOM: return ss_crc32(0, bytes, n); /* BMv2's custom ones start as the plain ones */
    case SS_CRC16:
    case SS_CRC16_CUSTOM: return crc16(bytes, n);
    case SS_RANDOM: return prng_next(&sw->prng);
    case SS_IDENTITY: return identity(bytes, n);
    case SS_CSUM16: return ss_csum16(bytes, n, NULL, 0);
    case SS_XOR16: return xor16(bytes, n);
    default: break;
    }
    if (algo >> 8 > SS_MAX_CRCS || !(algo >> 8)) return 0;
    const ss_custom_crc *custom = sw->crcs[algo >> 8];
    return custom ? custom_crc(custom, bytes, n) : ss_hash(sw, algo & 0xff, bytes, n);
}
