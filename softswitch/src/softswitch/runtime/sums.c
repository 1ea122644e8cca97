/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes and sums over bytes that lie in several places, and what is remembered of them: all copies of a packet carry
 * the same payload, and what was summed when a super-packet was cut is asked for again.
 *
 * Remembered are runs of the frame and of memory of the turn, which stay as they are while their packet is in the
 * pipeline.  A register's cell does not.
 */
#include "sums.h"
#include "crc32.h"
#include "internal.h"
#include "turn.h"

#define LONG 128u  /* bytes from which on remembering pays */
#define EDGES 256u /* most bytes that are summed to find the sum of a run from that of a longer or shorter one */

static bool immutable(const ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    size_t at = (uintptr_t)bytes - (uintptr_t)sw->frame;
    return (at <= sw->frame_len && n <= sw->frame_len - at) || ss_taken(sw, bytes, n);
}

static ss_known *find(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    for (uint32_t i = 0; i < SS_KNOWN && i < sw->n_known; i++)
        if (sw->known[i].bytes == bytes && sw->known[i].len == n) return &sw->known[i];
    return NULL;
}

/* A place to remember what is found out of a run; of runs that may change, a place that nobody looks at. */
static ss_known *remember(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    ss_known *known = find(sw, bytes, n);
    if (known) return known;
    known = &sw->known[SS_KNOWN];
    if (immutable(sw, bytes, n)) known = &sw->known[sw->n_known++ % SS_KNOWN];
    *known = (ss_known){.bytes = bytes, .len = n, .sum = SS_NO_SUM};
    return known;
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Bytes that begin at an odd place of what is summed count the other way round. */
static uint64_t placed(uint64_t sum, size_t at) { return at & 1 ? __builtin_bswap16((uint16_t)sum) : sum; }

static uint32_t folded(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)sum;
}

/* The sum of a run that is part of a known one, but for a few bytes at its ends; SS_NO_SUM where there is none. */
static uint32_t sum_within(const ss_known *whole, const uint8_t *bytes, uint32_t n) {
    size_t before = (uintptr_t)bytes - (uintptr_t)whole->bytes;
    if (whole->sum == SS_NO_SUM || before > whole->len || n > whole->len - before || whole->len - n > EDGES)
        return SS_NO_SUM;
    if (n == whole->len) return whole->sum;
    size_t behind = before + n;
    uint64_t rest = ss_sum16_of(whole->bytes, (uint32_t)before);
    rest += placed(ss_sum16_of(bytes + n, (uint32_t)(whole->len - behind)), behind);
    uint32_t sum = folded(whole->sum + (0xffffu - folded(rest)));
    if (sum == 0xffff || sum == 0) return SS_NO_SUM; /* nothing but zeros, or not: cannot be told */
    return (uint32_t)placed(sum, before);
}

uint32_t ss_sum_known(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    for (uint32_t i = 0; i < SS_KNOWN && i < sw->n_known; i++) {
        uint32_t sum = sum_within(&sw->known[i], bytes, n);
        if (sum != SS_NO_SUM) return sum;
    }
    return SS_NO_SUM;
}

uint64_t ss_sum16_run(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    if (n < LONG) return ss_sum16_of(bytes, n);
    ss_known *known = find(sw, bytes, n);
    if (known && known->sum != SS_NO_SUM) return known->sum;
    uint32_t sum = ss_sum_known(sw, bytes, n);
    return remember(sw, bytes, n)->sum = sum != SS_NO_SUM ? sum : ss_sum16_of(bytes, n);
}

void ss_sum_is(ss_switch *sw, const uint8_t *bytes, uint32_t n, uint32_t sum) {
    if (n >= LONG) remember(sw, bytes, n)->sum = sum;
}

static uint16_t csum16_runs(ss_switch *sw, const ss_run *runs, uint32_t n) {
    uint64_t sum = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < n; at += runs[i++].len) sum += placed(ss_sum16_run(sw, runs[i].bytes, runs[i].len), at);
    return (uint16_t)~folded(sum);
}

/* ---- CRC-32 ------------------------------------------------------------------------------------------------------ */

static uint32_t factor_of(ss_switch *sw, uint32_t n) {
    ss_factor *f = &sw->factors[n % SS_FACTORS];
    if (f->len != n) *f = (ss_factor){n, ss_crc32_factor(n)};
    return f->factor;
}

static uint32_t crc32_runs(ss_switch *sw, const ss_run *runs, uint32_t n) {
    uint32_t crc = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (runs[i].len < LONG) {
            crc = ss_crc32(crc, runs[i].bytes, runs[i].len);
            continue;
        }
        ss_known *known = remember(sw, runs[i].bytes, runs[i].len);
        if (!known->has_crc) known->crc = ss_crc32(0, runs[i].bytes, runs[i].len), known->has_crc = true;
        crc = ss_crc32_join(crc, factor_of(sw, runs[i].len), known->crc);
    }
    return crc;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

uint64_t ss_hash_runs(ss_switch *sw, uint32_t algo, const ss_run *runs, uint32_t n) {
    if (n == 1 && runs->len < LONG) return ss_hash(sw, algo, runs->bytes, runs->len);
    if (algo == SS_CRC32 || algo == SS_CRC32_CUSTOM) return crc32_runs(sw, runs, n);
    if (algo == SS_CSUM16) return csum16_runs(sw, runs, n);
    uint32_t total = 0, at = 0;
    for (uint32_t i = 0; i < n; i++) total += runs[i].len;
    uint8_t *bytes = ss_take(sw, total);
    for (uint32_t i = 0; i < n; at += runs[i++].len) memcpy(bytes + at, runs[i].bytes, runs[i].len);
    return ss_hash(sw, algo, bytes, total);
}
