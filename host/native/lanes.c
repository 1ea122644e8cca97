/* SPDX-License-Identifier: Apache-2.0 */
#include "lanes.h"

#include "float_bits.h"

void nf_to_lanes(const int32_t *restrict x, size_t n, bool complement, uint8_t *restrict bytes) {
    nf_lane *wire = (nf_lane *)bytes;
    uint32_t flip = complement ? ~0u : 0;
    for (size_t i = 0; i < n; i++) wire[i] = __builtin_bswap32((uint32_t)x[i] ^ flip);
}

void nf_from_lanes(const uint8_t *restrict bytes, size_t n, bool complement, int32_t *restrict x) {
    const nf_lane *wire = (const nf_lane *)bytes;
    uint32_t flip = complement ? ~0u : 0;
    for (size_t i = 0; i < n; i++) x[i] = (int32_t)(__builtin_bswap32(wire[i]) ^ flip);
}

/* Maps the bits of a float32 to a number that orders as the float does among signed integers, and back: the function is
 * its own inverse. */
static inline uint32_t ordered(uint32_t bits) { return bits ^ (uint32_t)((int32_t)bits >> 31) >> 1; }

void nf_to_order(const float *restrict x, size_t n, bool negate, uint8_t *restrict bytes) {
    nf_lane *wire = (nf_lane *)bytes;
    uint32_t flip = negate ? NF_FLOAT_SIGN : 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = nf_bits_of(x[i]);
        u = (u & ~NF_FLOAT_SIGN) > NF_FLOAT_INFINITY ? NF_FLOAT_QUIET_NAN : u ^ flip;
        wire[i] = __builtin_bswap32(ordered(u));
    }
}

void nf_from_order(const uint8_t *restrict bytes, size_t n, bool negate, float *restrict x) {
    const nf_lane *wire = (const nf_lane *)bytes;
    uint32_t flip = negate ? NF_FLOAT_SIGN : 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = ordered(__builtin_bswap32(wire[i]));
        u = (u & ~NF_FLOAT_SIGN) > NF_FLOAT_INFINITY ? NF_FLOAT_QUIET_NAN : u ^ flip;
        x[i] = nf_float_of(u);
    }
}

static bool at_limit(int32_t x) { return x == INT32_MAX || x == INT32_MIN; }

void nf_saturating_sum(const int32_t *a, const int32_t *b, size_t n, int32_t *out) {
    for (size_t i = 0; i < n; i++) {
        int64_t sum = (int64_t)a[i] + b[i];
        int32_t stopped = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
        out[i] = at_limit(a[i]) ? a[i] : at_limit(b[i]) ? b[i] : stopped;
    }
}

uint64_t nf_count_at_limits(const int32_t *x, size_t n) {
    uint64_t ends = 0;
    for (size_t i = 0; i < n; i++) ends += at_limit(x[i]);
    return ends;
}
