/* SPDX-License-Identifier: Apache-2.0
 *
 * Wide values in the order of the wire: immutable strings of n bytes, big endian, n a multiple of 8, held by pointer.
 * Compiled programs include this; functions are inline and called with constant sizes, as in wide.h.
 *
 * NULL stands for zeros, so that memory of zeros is a value.  What a pointer leads to never changes while the packet
 * is in the switch: it lies in the frame, in constants, or in memory of the turn (ss_take); in a register's cell only
 * where nothing writes to that register while the pointer is used.
 */
#ifndef SOFTSWITCH_WIRE_H
#define SOFTSWITCH_WIRE_H
#include "softswitch.h"
#include "wide.h"

#define SS_WIDEST 8192 /* bytes of the widest value that a program can have, at least */
static const uint8_t ss_zeros[SS_WIDEST] __attribute__((aligned(64), unused));

SS_INLINE const uint8_t *ss_bytes(const uint8_t *value) { return value ? value : ss_zeros; }

/* In steps that compilers turn into one load and store each, as ss_w_copy. */
SS_INLINE void ss_b_copy(uint8_t *to, const uint8_t *from, uint32_t n) {
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64) memcpy(to + i, from + i, 64);
    memcpy(to + i, from + i, n - i);
}
/* A value of its own with the bytes of one that may change. */
SS_INLINE const uint8_t *ss_b_kept(ss_switch *sw, const uint8_t *from, uint32_t n) {
    uint8_t *to = ss_take(sw, n);
    ss_b_copy(to, from, n);
    return to;
}

/* Word i in the machine's order, where only its bits count and not what it is worth. */
SS_INLINE uint64_t ss_b_word(const uint8_t *b) {
    uint64_t v;
    memcpy(&v, b, 8);
    return v;
}
SS_INLINE void ss_b_put(uint8_t *b, uint64_t v) { memcpy(b, &v, 8); }

/* A loop over the words of values, compiled once for all places that compute alike. */
#define SS_LOOP __attribute__((noinline))

/* Adds lanes of 8, 16 or 32 bits, each by itself. */
SS_INLINE void ss_b_add8(uint8_t *restrict d, const uint8_t *a, const uint8_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) d[i] = (uint8_t)(a[i] + b[i]);
}
SS_INLINE void ss_b_add16(uint8_t *restrict d, const uint8_t *a, const uint8_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 2) ss_store16(d + i, ss_load16(a + i) + ss_load16(b + i));
}
SS_INLINE void ss_b_add32(uint8_t *restrict d, const uint8_t *a, const uint8_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i += 4) ss_store32(d + i, ss_load32(a + i) + ss_load32(b + i));
}

/* The word that has bits 64 i to 64 i + 63; zero beyond the highest. */
SS_INLINE uint64_t ss_b_limb(const uint8_t *b, uint32_t n, uint32_t i) {
    return 8 * i + 8 <= n ? ss_load64(b + n - 8 * i - 8) : 0;
}
/* The 64 bits of a value from bit lo on. */
SS_INLINE uint64_t ss_b_get64(const uint8_t *b, uint32_t n, uint32_t lo) {
    uint32_t q = lo / 64, r = lo % 64;
    uint64_t v = ss_b_limb(b, n, q) >> r;
    return r ? v | ss_b_limb(b, n, q + 1) << (64 - r) : v;
}
SS_INLINE ss_u128 ss_b_get128(const uint8_t *b, uint32_t n, uint32_t lo) {
    return (ss_u128)ss_b_get64(b, n, lo + 64) << 64 | ss_b_get64(b, n, lo);
}
SS_INLINE bool ss_b_negative(const uint8_t *b) { return b[0] >> 7; }

/* A value that has `got` bytes, extended to n by zeros or ones in front. */
SS_INLINE void ss_b_extend(uint8_t *d, uint32_t n, const uint8_t *a, uint32_t got, bool ones) {
    memset(d, ones ? 0xff : 0, n - got);
    ss_b_copy(d + n - got, a, got);
}
/* A number of up to 128 bits, extended likewise. */
SS_INLINE void ss_b_set(uint8_t *d, uint32_t n, ss_u128 v, bool ones) {
    memset(d, ones ? 0xff : 0, n - 16);
    ss_store_128(d + n - 16, 16, v);
}
static SS_LOOP __attribute__((unused)) void ss_b_shr(uint8_t *restrict d, const uint8_t *a, uint32_t n, uint64_t by) {
    uint32_t q = by < 8ull * n ? (uint32_t)by / 64 * 8 : n, r = by % 64;
    memset(d, 0, q);
    if (q == n) return;
    if (!r) {
        memcpy(d + q, a, n - q);
        return;
    }
    ss_store64(d + q, ss_load64(a) >> r);
    for (uint32_t i = 8; i < n - q; i += 8)
        ss_store64(d + q + i, ss_load64(a + i) >> r | ss_load64(a + i - 8) << (64 - r));
}
static SS_LOOP __attribute__((unused)) void ss_b_shl(uint8_t *restrict d, const uint8_t *a, uint32_t n, uint64_t by) {
    uint32_t q = by < 8ull * n ? (uint32_t)by / 64 * 8 : n, r = by % 64;
    memset(d + n - q, 0, q);
    if (q == n) return;
    if (!r) {
        memcpy(d, a + q, n - q);
        return;
    }
    for (uint32_t i = 0; i + 8 < n - q; i += 8)
        ss_store64(d + i, ss_load64(a + q + i) << r | ss_load64(a + q + i + 8) >> (64 - r));
    ss_store64(d + n - q - 8, ss_load64(a + n - 8) << r);
}

/* ---- bytes that lie in several places ---------------------------------------------------------------------------- */

/* Adds bytes behind n runs, to the last of them where they follow it; returns the number of runs. */
SS_INLINE uint32_t ss_run_add(ss_run *runs, uint32_t n, const uint8_t *bytes, uint32_t len) {
    if (n && runs[n - 1].bytes + runs[n - 1].len == bytes) {
        runs[n - 1].len += len;
        return n;
    }
    runs[n] = (ss_run){bytes, len};
    return n + 1;
}
/* Their ones' complement sum: runs of even lengths. */
SS_INLINE uint64_t ss_run_sum16(ss_switch *sw, const ss_run *runs, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += ss_sum16_run(sw, runs[i].bytes, runs[i].len);
    return sum;
}

/* ---- a frame in parts: headers are written, and the first long value that is only passed on is referred to --------
 */

SS_INLINE void ss_parts_begin(ss_parts *parts) { *parts = (ss_parts){0, 0, 0, NULL}; }

/* Appends a value to the frame of which `o` is the end of what is written; returns the new end. */
SS_INLINE uint8_t *ss_parts_pass(ss_switch *sw, ss_packet *p, ss_parts *parts, uint8_t *out, uint8_t *o,
                                 const uint8_t *bytes, uint32_t n) {
    if (!parts->ref) {
        parts->head = (uint32_t)(o - out);
        parts->ref = ss_refer(sw, p, bytes, n);
        parts->ref_len = n;
        return o;
    }
    if (bytes == parts->ref + parts->ref_len && o == out + parts->head) {
        parts->ref_len += n;
        return o;
    }
    ss_b_copy(o, bytes, n);
    return o + n;
}
SS_INLINE void ss_parts_end(ss_parts *parts, uint8_t *out, uint8_t *o) {
    if (parts->ref)
        parts->tail = (uint32_t)(o - out) - parts->head;
    else
        parts->head = (uint32_t)(o - out);
}

#endif
