/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers wider than 128 bits, as arrays of 64-bit limbs, least significant first, and bit strings in packets.
 * Compiled programs include this; every function is small, static inline, and called with constant sizes, so that
 * compilers unroll and vectorise. Nothing here loops over bits.
 *
 * Invariant: bits above a value's width are zero. Functions that can set them are followed by ss_w_trim.
 */
#ifndef SOFTSWITCH_WIDE_H
#define SOFTSWITCH_WIDE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 ss_u128;
typedef __int128 ss_i128;

#define SS_INLINE static inline __attribute__((always_inline, unused))
#define SS_MASK64(w) ((w) >= 64 ? ~0ull : (1ull << ((w) & 63)) - 1)
#define SS_MASK128(w) ((w) >= 128 ? ~(ss_u128)0 : ((ss_u128)1 << ((w) & 127)) - 1)
#define SS_LIMBS(w) (((w) + 63) / 64)

/* ---- up to 64 and up to 128 bits --------------------------------------------------------------------------------- */

SS_INLINE int64_t ss_sext64(uint64_t a, unsigned w) { return (int64_t)(a << (64 - w)) >> (64 - w); }
SS_INLINE ss_i128 ss_sext128(ss_u128 a, unsigned w) { return (ss_i128)(a << (128 - w)) >> (128 - w); }

SS_INLINE uint64_t ss_shl64(uint64_t a, uint64_t n) { return n < 64 ? a << n : 0; }
SS_INLINE uint64_t ss_shr64(uint64_t a, uint64_t n) { return n < 64 ? a >> n : 0; }
SS_INLINE int64_t ss_sar64(int64_t a, uint64_t n) { return a >> (n < 64 ? n : 63); }
SS_INLINE ss_u128 ss_shl128(ss_u128 a, uint64_t n) { return n < 128 ? a << n : 0; }
SS_INLINE ss_u128 ss_shr128(ss_u128 a, uint64_t n) { return n < 128 ? a >> n : 0; }
SS_INLINE ss_i128 ss_sar128(ss_i128 a, uint64_t n) { return a >> (n < 128 ? n : 127); }

/* Saturating arithmetic; the signed functions take and give two's complement in w bits. */
SS_INLINE uint64_t ss_uadd_sat64(uint64_t a, uint64_t b, unsigned w) {
    uint64_t r = a + b;
    return r < a || r > SS_MASK64(w) ? SS_MASK64(w) : r;
}
SS_INLINE uint64_t ss_usub_sat64(uint64_t a, uint64_t b, unsigned w) {
    (void)w;
    return a < b ? 0 : a - b;
}
SS_INLINE ss_u128 ss_uadd_sat128(ss_u128 a, ss_u128 b, unsigned w) {
    ss_u128 r = a + b;
    return r < a || r > SS_MASK128(w) ? SS_MASK128(w) : r;
}
SS_INLINE ss_u128 ss_usub_sat128(ss_u128 a, ss_u128 b, unsigned w) {
    (void)w;
    return a < b ? 0 : a - b;
}
SS_INLINE uint64_t ss_clamp64(ss_i128 r, unsigned w) {
    ss_i128 high = ((ss_i128)1 << (w - 1)) - 1, low = -high - 1;
    return (uint64_t)(r > high ? high : r < low ? low : r) & SS_MASK64(w);
}
SS_INLINE uint64_t ss_sadd_sat64(uint64_t a, uint64_t b, unsigned w) {
    return ss_clamp64((ss_i128)ss_sext64(a, w) + ss_sext64(b, w), w);
}
SS_INLINE uint64_t ss_ssub_sat64(uint64_t a, uint64_t b, unsigned w) {
    return ss_clamp64((ss_i128)ss_sext64(a, w) - ss_sext64(b, w), w);
}
SS_INLINE ss_u128 ss_clamp128(
    ss_u128 r, bool positive, bool negative,
    unsigned w) { /* `positive` and `negative` say that the exact result overflowed 128 bits in that direction. */
    ss_u128 high = SS_MASK128(w) >> 1, low = (high + 1) & SS_MASK128(w);
    if (positive) return high;
    if (negative) return low;
    if ((ss_i128)r > (ss_i128)high) return high;
    if ((ss_i128)r < -(ss_i128)high - 1) return low;
    return r & SS_MASK128(w);
}
SS_INLINE ss_u128 ss_sadd_sat128(ss_u128 a, ss_u128 b, unsigned w) {
    ss_i128 x = ss_sext128(a, w), y = ss_sext128(b, w), r;
    bool over = __builtin_add_overflow(x, y, &r);
    return ss_clamp128((ss_u128)r, over && x > 0, over && x < 0, w);
}
SS_INLINE ss_u128 ss_ssub_sat128(ss_u128 a, ss_u128 b, unsigned w) {
    ss_i128 x = ss_sext128(a, w), y = ss_sext128(b, w), r;
    bool over = __builtin_sub_overflow(x, y, &r);
    return ss_clamp128((ss_u128)r, over && x >= 0, over && x < 0, w);
}

/* ---- beyond 128 bits: n limbs ------------------------------------------------------------------------------------ */

SS_INLINE void ss_w_trim(uint64_t *d, unsigned w) {
    if (w % 64) d[w / 64] &= SS_MASK64(w % 64);
}
SS_INLINE void ss_w_zero(uint64_t *d, unsigned n) { memset(d, 0, n * 8); }
/* In steps that compilers turn into one load and store each: a call of memcpy for 256 bytes takes longer than the
 * copy. */
SS_INLINE void ss_w_copy(uint64_t *d, const uint64_t *a, unsigned n) {
    unsigned i = 0;
    for (; i + 8 <= n; i += 8) memcpy(d + i, a + i, 64);
    for (; i < n; i++) d[i] = a[i];
}

SS_INLINE bool ss_w_eq(const uint64_t *a, const uint64_t *b, unsigned n) {
    uint64_t diff = 0;
    for (unsigned i = 0; i < n; i++) diff |= a[i] ^ b[i];
    return diff == 0;
}
SS_INLINE bool ss_w_lt(const uint64_t *a, const uint64_t *b, unsigned n) {
    for (unsigned i = n; i-- > 0;)
        if (a[i] != b[i]) return a[i] < b[i];
    return false;
}
SS_INLINE bool ss_w_bit(const uint64_t *a, unsigned bit) { return a[bit / 64] >> (bit % 64) & 1; }
SS_INLINE bool ss_w_slt(const uint64_t *a, const uint64_t *b, unsigned w) {
    bool sa = ss_w_bit(a, w - 1), sb = ss_w_bit(b, w - 1);
    return sa != sb ? sa : ss_w_lt(a, b, SS_LIMBS(w));
}

/* Limb i of a; zero beyond its n limbs. */
SS_INLINE uint64_t ss_w_limb(const uint64_t *a, unsigned n, unsigned i) { return i < n ? a[i] : 0; }

/* The 64 bits of a from bit lo on. */
SS_INLINE uint64_t ss_w_get64(const uint64_t *a, unsigned n, unsigned lo) {
    unsigned q = lo / 64, r = lo % 64;
    uint64_t v = ss_w_limb(a, n, q) >> r;
    return r ? v | ss_w_limb(a, n, q + 1) << (64 - r) : v;
}
SS_INLINE ss_u128 ss_w_get128(const uint64_t *a, unsigned n, unsigned lo) {
    return (ss_u128)ss_w_get64(a, n, lo + 64) << 64 | ss_w_get64(a, n, lo);
}
/* Copies dn limbs of a from bit lo on: also a shift to the right, and a cast to unsigned. */
SS_INLINE void ss_w_get(uint64_t *d, unsigned dn, const uint64_t *a, unsigned n, unsigned lo) {
    for (unsigned i = 0; i < dn; i++) d[i] = ss_w_get64(a, n, lo + 64 * i);
}
/* Extends the sign of a, which has w bits, over dn limbs. */
SS_INLINE void ss_w_sext(uint64_t *d, unsigned dn, const uint64_t *a, unsigned w) {
    unsigned n = SS_LIMBS(w);
    uint64_t fill = ss_w_bit(a, w - 1) ? ~0ull : 0;
    for (unsigned i = 0; i < dn; i++) d[i] = i < n ? a[i] : fill;
    if (w % 64 && n <= dn) d[n - 1] |= fill & ~SS_MASK64(w % 64);
}
SS_INLINE void ss_w_set64(uint64_t *d, unsigned n, uint64_t v) {
    d[0] = v;
    for (unsigned i = 1; i < n; i++) d[i] = 0;
}
SS_INLINE void ss_w_set128(uint64_t *d, unsigned n, ss_u128 v) {
    ss_w_set64(d, n, (uint64_t)v);
    if (n > 1) d[1] = (uint64_t)(v >> 64);
}
/* Sets the w bits of d at bit lo, which are zero, to v. */
SS_INLINE void ss_w_or64(uint64_t *d, unsigned n, unsigned lo, uint64_t v) {
    unsigned q = lo / 64, r = lo % 64;
    d[q] |= v << r;
    if (r && q + 1 < n) d[q + 1] |= v >> (64 - r);
}
SS_INLINE void ss_w_or128(uint64_t *d, unsigned n, unsigned lo, ss_u128 v) {
    ss_w_or64(d, n, lo, (uint64_t)v);
    if (lo / 64 + 1 < n) ss_w_or64(d, n, lo + 64, (uint64_t)(v >> 64));
}
SS_INLINE void ss_w_or(uint64_t *d, unsigned n, unsigned lo, const uint64_t *v, unsigned vn) {
    for (unsigned i = 0; i < vn; i++)
        if (lo / 64 + i < n) ss_w_or64(d, n, lo + 64 * i, v[i]);
}
/* Sets bits [lo, lo + w) of d to zero. */
SS_INLINE void ss_w_clear(uint64_t *d, unsigned lo, unsigned w) {
    for (unsigned i = lo / 64; i <= (lo + w - 1) / 64; i++) {
        unsigned from = i == lo / 64 ? lo % 64 : 0, to = i == (lo + w - 1) / 64 ? (lo + w - 1) % 64 + 1 : 64;
        d[i] &= ~(SS_MASK64(to) & ~(SS_MASK64(from)));
    }
}
SS_INLINE void ss_w_shl(uint64_t *d, const uint64_t *a, unsigned n, uint64_t by) {
    if (by >= 64ull * n) {
        ss_w_zero(d, n);
        return;
    }
    unsigned q = by / 64, r = by % 64;
    for (unsigned i = n; i-- > 0;) {
        uint64_t v = i >= q ? a[i - q] << r : 0;
        if (r && i > q) v |= a[i - q - 1] >> (64 - r);
        d[i] = v;
    }
}
SS_INLINE void ss_w_shr(uint64_t *d, const uint64_t *a, unsigned n, uint64_t by) {
    if (by >= 64ull * n) {
        ss_w_zero(d, n);
        return;
    }
    ss_w_get(d, n, a, n, (unsigned)by);
}
SS_INLINE void ss_w_sar(uint64_t *d, const uint64_t *a, unsigned w, uint64_t by) {
    unsigned n = SS_LIMBS(w);
    bool negative = ss_w_bit(a, w - 1);
    ss_w_shr(d, a, n, by);
    if (negative) {
        unsigned keep = by >= w ? 0 : w - (unsigned)by;
        for (unsigned i = keep / 64; i < n; i++) d[i] |= i == keep / 64 ? ~SS_MASK64(keep % 64) : ~0ull;
        ss_w_trim(d, w);
    }
}
/* carry out of a + b + c */
SS_INLINE uint64_t ss_addc(uint64_t a, uint64_t b, uint64_t *carry) {
    ss_u128 r = (ss_u128)a + b + *carry;
    *carry = (uint64_t)(r >> 64);
    return (uint64_t)r;
}
SS_INLINE uint64_t ss_subb(uint64_t a, uint64_t b, uint64_t *borrow) {
    ss_u128 r = (ss_u128)a - b - *borrow;
    *borrow = (uint64_t)(r >> 64) & 1;
    return (uint64_t)r;
}
SS_INLINE void ss_w_mul(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned n) { /* d differs from a and b */
    ss_w_zero(d, n);
    for (unsigned i = 0; i < n; i++) {
        uint64_t carry = 0;
        if (!a[i]) continue;
        for (unsigned j = 0; i + j < n; j++) {
            ss_u128 r = (ss_u128)a[i] * b[j] + d[i + j] + carry;
            d[i + j] = (uint64_t)r;
            carry = (uint64_t)(r >> 64);
        }
    }
}
SS_INLINE void ss_w_fill(uint64_t *d, unsigned w, bool ones) {
    memset(d, ones ? 0xff : 0, SS_LIMBS(w) * 8);
    if (ones) ss_w_trim(d, w);
}
/* The largest or the smallest int<w>. */
SS_INLINE void ss_w_extreme(uint64_t *d, unsigned w, bool negative) {
    ss_w_fill(d, w, !negative);
    d[(w - 1) / 64] ^= 1ull << ((w - 1) % 64);
}
SS_INLINE void ss_w_add_sat(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned w, bool is_signed) {
    uint64_t carry = 0;
    bool sa = ss_w_bit(a, w - 1), sb = ss_w_bit(b, w - 1), over;
    for (unsigned i = 0; i < SS_LIMBS(w); i++) d[i] = ss_addc(a[i], b[i], &carry);
    if (w % 64) carry = d[w / 64] >> (w % 64);
    ss_w_trim(d, w);
    if (!is_signed) {
        if (carry) ss_w_fill(d, w, true);
        return;
    }
    over = sa == sb && ss_w_bit(d, w - 1) != sa;
    if (over) ss_w_extreme(d, w, sa);
}
SS_INLINE void ss_w_sub_sat(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned w, bool is_signed) {
    uint64_t borrow = 0;
    bool sa = ss_w_bit(a, w - 1), sb = ss_w_bit(b, w - 1), over;
    for (unsigned i = 0; i < SS_LIMBS(w); i++) d[i] = ss_subb(a[i], b[i], &borrow);
    ss_w_trim(d, w);
    if (!is_signed) {
        if (borrow) ss_w_zero(d, SS_LIMBS(w));
        return;
    }
    over = sa != sb && ss_w_bit(d, w - 1) != sa;
    if (over) ss_w_extreme(d, w, sa);
}
/* A value as a shift amount, cut off at 2^32. */
SS_INLINE uint64_t ss_amount128(ss_u128 a) { return a >> 32 ? 1ull << 32 : (uint64_t)a; }
SS_INLINE uint64_t ss_w_amount(const uint64_t *a, unsigned n) {
    for (unsigned i = 1; i < n; i++)
        if (a[i]) return 1ull << 32;
    return a[0] >> 32 ? 1ull << 32 : a[0];
}

/* ---- bytes, big endian ------------------------------------------------------------------------------------------- */

SS_INLINE uint64_t ss_load64(const uint8_t *b) {
    uint64_t v;
    memcpy(&v, b, 8);
    return __builtin_bswap64(v);
}
SS_INLINE uint64_t ss_load32(const uint8_t *b) {
    uint32_t v;
    memcpy(&v, b, 4);
    return __builtin_bswap32(v);
}
SS_INLINE uint64_t ss_load16(const uint8_t *b) {
    uint16_t v;
    memcpy(&v, b, 2);
    return __builtin_bswap16(v);
}
SS_INLINE void ss_store64(uint8_t *b, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(b, &v, 8);
}
SS_INLINE void ss_store32(uint8_t *b, uint64_t v) {
    uint32_t x = __builtin_bswap32((uint32_t)v);
    memcpy(b, &x, 4);
}
SS_INLINE void ss_store16(uint8_t *b, uint64_t v) {
    uint16_t x = __builtin_bswap16((uint16_t)v);
    memcpy(b, &x, 2);
}

/* The number that k bytes stand for; k <= 8 is a constant. */
SS_INLINE uint64_t ss_load(const uint8_t *b, unsigned k) {
    switch (k) {
    case 0: return 0;
    case 1: return b[0];
    case 2: return ss_load16(b);
    case 3: return ss_load16(b) << 8 | b[2];
    case 4: return ss_load32(b);
    case 5: return ss_load32(b) << 8 | b[4];
    case 6: return ss_load32(b) << 16 | ss_load16(b + 4);
    case 7: return ss_load32(b) << 24 | ss_load16(b + 4) << 8 | b[6];
    default: return ss_load64(b);
    }
}
SS_INLINE void ss_store(uint8_t *b, unsigned k, uint64_t v) {
    switch (k) {
    case 0: break;
    case 1: b[0] = (uint8_t)v; break;
    case 2: ss_store16(b, v); break;
    case 3:
        ss_store16(b, v >> 8);
        b[2] = (uint8_t)v;
        break;
    case 4: ss_store32(b, v); break;
    case 5:
        ss_store32(b, v >> 8);
        b[4] = (uint8_t)v;
        break;
    case 6:
        ss_store32(b, v >> 16);
        ss_store16(b + 4, v);
        break;
    case 7:
        ss_store32(b, v >> 24);
        ss_store16(b + 4, v >> 8);
        b[6] = (uint8_t)v;
        break;
    default: ss_store64(b, v);
    }
}
/* The same for 8 < k <= 16. */
SS_INLINE ss_u128 ss_load_128(const uint8_t *b, unsigned k) {
    return (ss_u128)ss_load(b, k - 8) << 64 | ss_load64(b + k - 8);
}
SS_INLINE void ss_store_128(uint8_t *b, unsigned k, ss_u128 v) {
    ss_store(b, k - 8, (uint64_t)(v >> 64));
    ss_store64(b + k - 8, (uint64_t)v);
}
/* A field of size <= 8 bytes at byte `at` of a table's key, where zeros stand. */
SS_INLINE void ss_key_put(uint64_t *key, unsigned at, unsigned size, uint64_t v) {
    uint64_t bytes = __builtin_bswap64(v << (64 - 8 * size));
    key[at / 8] |= bytes << 8 * (at % 8);
    if (at % 8 + size > 8) key[at / 8 + 1] |= bytes >> (64 - 8 * (at % 8));
}
/* Limbs and packets hold a wide number's bytes in opposite orders: n bytes, n a multiple of 8, from last to first.  As
 * vectors by hand, since compilers find them in only some of the loops. */
#if defined(__AVX512BW__)
#define SS_VECTOR 64
#define SS_COUNT_DOWN(n) SS_DOWN16(n + 48), SS_DOWN16(n + 32), SS_DOWN16(n + 16), SS_DOWN16(n)
#elif defined(__AVX2__)
#define SS_VECTOR 32
#define SS_COUNT_DOWN(n) SS_DOWN16(n + 16), SS_DOWN16(n)
#else
#define SS_VECTOR 16
#define SS_COUNT_DOWN(n) SS_DOWN16(n)
#endif
#define SS_DOWN16(n) \
    n + 15, n + 14, n + 13, n + 12, n + 11, n + 10, n + 9, n + 8, n + 7, n + 6, n + 5, n + 4, n + 3, n + 2, n + 1, n
typedef uint8_t ss_vector __attribute__((vector_size(SS_VECTOR)));
SS_INLINE ss_vector ss_reversed(ss_vector v) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, SS_COUNT_DOWN(0));
#else
    return __builtin_shuffle(v, (ss_vector){SS_COUNT_DOWN(0)});
#endif
}
SS_INLINE void ss_reverse(uint8_t *d, const uint8_t *s, unsigned n) {
    unsigned i = 0;
    for (; i + SS_VECTOR <= n; i += SS_VECTOR) {
        ss_vector v;
        memcpy(&v, s + n - i - SS_VECTOR, sizeof v);
        v = ss_reversed(v);
        memcpy(d + i, &v, sizeof v);
    }
    for (; i < n; i += 8) {
        uint64_t v = ss_load64(s + n - i - 8);
        memcpy(d + i, &v, 8);
    }
}
/* The number that k bytes stand for, in n limbs. */
SS_INLINE void ss_w_load(uint64_t *d, unsigned n, const uint8_t *b, unsigned k) {
    unsigned whole = k / 8;
    ss_reverse((uint8_t *)d, b + k % 8, 8 * whole);
    if (whole < n) d[whole] = ss_load(b, k % 8);
    for (unsigned i = whole + 1; i < n; i++) d[i] = 0;
}
SS_INLINE void ss_w_store(uint8_t *b, unsigned k, const uint64_t *a, unsigned n) {
    unsigned whole = k / 8;
    ss_reverse(b + k % 8, (const uint8_t *)a, 8 * whole);
    ss_store(b, k % 8, ss_w_limb(a, n, whole));
}

/* ---- checksums: a ones' complement sum of 16-bit words is the number modulo 2^16 - 1, wherever its parts stand --- */

/* A field of up to 64 bits that ends s bits above a word's end; thousands of these fit one sum. */
SS_INLINE uint64_t ss_sum16(uint64_t v, unsigned s) { return ((v & 0xffffffffu) + (v >> 32)) << s; }
SS_INLINE uint64_t ss_w_sum16(const uint64_t *a, unsigned n, unsigned s) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < n; i++) sum += (a[i] & 0xffffffffu) + (a[i] >> 32);
    return ss_sum16(sum, s);
}
SS_INLINE uint64_t ss_sum16_end(uint64_t sum) {
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~sum & 0xffff;
}

/* ---- bit strings at any bit offset (slow path: fields that share bytes with wide ones) --------------------------- */

/* Up to 64 bits of b from bit `at` on; bit 0 is the first byte's highest. */
SS_INLINE uint64_t ss_bits_get(const uint8_t *b, size_t at, unsigned w) {
    uint64_t v = 0;
    for (unsigned got = 0; got < w;) {
        unsigned in = (unsigned)((at + got) % 8), take = 8 - in < w - got ? 8 - in : w - got;
        v = v << take | (b[(at + got) / 8] >> (8 - in - take) & ((1u << take) - 1));
        got += take;
    }
    return v;
}
SS_INLINE void ss_bits_put(uint8_t *b, size_t at, unsigned w, uint64_t v) {
    for (unsigned put = 0; put < w;) {
        unsigned in = (unsigned)((at + put) % 8), take = 8 - in < w - put ? 8 - in : w - put;
        uint8_t mask = (uint8_t)(((1u << take) - 1) << (8 - in - take));
        uint8_t bits = (uint8_t)((v >> (w - put - take)) << (8 - in - take));
        b[(at + put) / 8] = (uint8_t)((b[(at + put) / 8] & ~mask) | (bits & mask));
        put += take;
    }
}
SS_INLINE void ss_w_bits_get(uint64_t *d, const uint8_t *b, size_t at, unsigned w) {
    for (unsigned i = 0; i < SS_LIMBS(w); i++) {
        unsigned k = w - 64 * i < 64 ? w - 64 * i : 64;
        d[i] = ss_bits_get(b, at + w - 64 * i - k, k);
    }
}
SS_INLINE void ss_w_bits_put(uint8_t *b, size_t at, unsigned w, const uint64_t *a) {
    for (unsigned i = 0; i < SS_LIMBS(w); i++) {
        unsigned k = w - 64 * i < 64 ? w - 64 * i : 64;
        ss_bits_put(b, at + w - 64 * i - k, k, a[i]);
    }
}

/* ---- header stacks ----------------------------------------------------------------------------------------------- */

/* An index out of range selects the scratch element behind the last. */
SS_INLINE uint32_t ss_at(uint64_t index, uint32_t size) { return index < size ? (uint32_t)index : size; }

#endif
