/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing results that are larger than the caches: stores that pass the caches by (non-temporal) do not read a line
 * before they overwrite it, and leave what the ranks and switches of this machine work on where it is.
 */
#ifndef NF_PAST_CACHES_H
#define NF_PAST_CACHES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NF_LINE 64

#if defined(__x86_64__)
#include <immintrin.h>
static inline bool nf_can_pass_caches(void) { return true; }

static inline void nf_put_line(uint8_t *to, const uint8_t *from) {
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)to, _mm512_loadu_si512((const void *)from));
#else
    for (int i = 0; i < NF_LINE; i += 16) _mm_stream_si128((void *)(to + i), _mm_loadu_si128((const void *)(from + i)));
#endif
}

/* What was copied so far comes before what this thread writes from now on, for all others. */
static inline void nf_passed_caches(void) { _mm_sfence(); }
#else
static inline bool nf_can_pass_caches(void) { return false; }
static inline void nf_put_line(uint8_t *to, const uint8_t *from) { memcpy(to, from, NF_LINE); }
static inline void nf_passed_caches(void) {}
#endif

/* Whole lines pass the caches; the ends share theirs with what stands before and behind. */
static inline void nf_copy_past_caches(uint8_t *to, const uint8_t *from, size_t n) {
    size_t before = -(uintptr_t)to & (NF_LINE - 1);
    before = before < n ? before : n;
    memcpy(to, from, before);
    to += before, from += before, n -= before;
    for (; n >= NF_LINE; to += NF_LINE, from += NF_LINE, n -= NF_LINE) nf_put_line(to, from);
    memcpy(to, from, n);
}
#endif
