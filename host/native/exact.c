/* SPDX-License-Identifier: Apache-2.0 */
#include "exact.h"

#include <math.h>
#include <string.h>

#include "exact_round.h"
#include "float_bits.h"
#include "quantise.h"

typedef __int128 signed_wide;

#define LIMBS 72 /* of 32 bits: a float64 has 2098 bits, a sum of 4096 of them 12 more */
#define SPARE 16 /* bits of a wide block's head below the significand of its largest element, 13 of 4096 ranks */
#define PLUS 1u  /* counts in the lane of a special block */
#define MINUS (1u << 16)

/* ---- values as integers ------------------------------------------------------------------------------------------ */
/* x = mantissa 2^exponent, an odd mantissa or 0. */
typedef struct {
    int64_t mantissa;
    int exponent;
} parts;

static inline parts parts_of(int64_t magnitude, int exponent, bool negative) {
    if (!magnitude) return (parts){0, 0};
    int zeros = __builtin_ctzll((uint64_t)magnitude);
    magnitude >>= zeros;
    return (parts){negative ? -magnitude : magnitude, exponent + zeros};
}

static inline parts parts_of_float(float x) {
    uint32_t bits = nf_bits_of(x);
    int biased = bits >> 23 & 255;
    int64_t fraction = bits & 0x7fffff;
    return parts_of(biased ? fraction | 1 << 23 : fraction, (biased ? biased : 1) - 150, bits >> 31);
}

static inline parts parts_of_double(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int biased = bits >> 52 & 2047;
    int64_t fraction = bits & 0xfffffffffffff;
    return parts_of(biased ? fraction | (int64_t)1 << 52 : fraction, (biased ? biased : 1) - 1075, bits >> 63);
}

static inline bool is_double(uint32_t kind) { return kind == NF_EXACT_DOUBLE; }

/* 0 for an Inf or NaN, which are counted elsewhere. */
static inline parts element(uint32_t kind, const void *x, uint64_t i) {
    if (is_double(kind)) {
        double value = ((const double *)x)[i];
        return parts_of_double(isfinite(value) ? value : 0);
    }
    float value = ((const float *)x)[i];
    return parts_of_float(isfinite(value) ? value : 0);
}

static inline uint32_t special(uint32_t kind, const void *x, uint64_t i) {
    double value = is_double(kind) ? ((const double *)x)[i] : (double)((const float *)x)[i];
    return isnan(value) ? PLUS | MINUS : isinf(value) ? value > 0 ? PLUS : MINUS : 0;
}

static void store(uint32_t kind, void *out, uint64_t i, double value) {
    if (is_double(kind)) {
        ((double *)out)[i] = value;
        return;
    }
    float nearest = (float)value + 0.0f; /* a negative one that rounds to 0 is +0 */
    if (kind == NF_EXACT_HALF && (double)nearest != value && !isnan(value)) { /* to odd: down, and the last bit set */
        uint32_t bits = nf_bits_of(nearest);
        nearest = nf_float_of((bits - (fabs((double)nearest) > fabs(value))) | 1);
    }
    ((float *)out)[i] = nearest;
}

/* ---- what is agreed on ------------------------------------------------------------------------------------------- */
void nf_exact_coding_of(uint32_t kind, uint32_t world, uint32_t divisor, nf_exact_coding *how) {
    unsigned headroom = 0, flag = 1;
    while (1u << headroom < world) headroom++;
    while (1u << flag <= world) flag++;
    unsigned digit = 31 - headroom, precision = is_double(kind) ? 53 : 24;
    unsigned most = (precision + SPARE + flag + digit - 1) / digit, wide = most * digit;
    unsigned word = (is_double(kind) ? 126 : 62) - headroom; /* heads are added in words of 64 and 128 bits */
    unsigned power = (unsigned)__builtin_ctz(divisor);
    *how = (nf_exact_coding){kind, digit, flag, most, wide < word ? wide : word, power, divisor >> power, world};
}

static uint64_t size_at(uint64_t n, uint64_t i) { return n - i < NF_EXACT_BLOCK ? n - i : NF_EXACT_BLOCK; }

/* Both return whether all are finite.  The exponent of the lowest bit that is set is that of m & -m, a power of two
 * that a float32 holds. */
static bool scan_floats(const float *x, uint64_t n, int32_t *high, int32_t *low) {
    uint32_t top = 0, worst = 0;
    int32_t bottom = 255 + 24;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t magnitude = nf_bits_of(x[i]) & ~NF_FLOAT_SIGN;
        bool finite = magnitude < NF_FLOAT_INFINITY, zero = !magnitude;
        top = finite && magnitude > top ? magnitude : top;
        worst = magnitude > worst ? magnitude : worst;
        int32_t biased = (int32_t)(magnitude >> 23), fraction = magnitude & 0x7fffff;
        int32_t mantissa = biased ? fraction | 1 << 23 : fraction;
        int32_t last = (int32_t)(nf_bits_of((float)(mantissa & -mantissa)) >> 23) - 127 + (biased ? biased : 1);
        bottom = !zero && finite && last < bottom ? last : bottom;
    }
    if (top) {
        *high = top >> 23 ? (int32_t)(top >> 23) - 126 : 32 - __builtin_clz(top) - 149;
        *low = 150 - bottom;
    }
    return worst < NF_FLOAT_INFINITY;
}

static bool scan_doubles(const double *x, uint64_t n, int32_t *high, int32_t *low) {
    bool finite = true;
    for (uint64_t i = 0; i < n; i++) {
        finite &= isfinite(x[i]) != 0;
        parts p = element(NF_EXACT_DOUBLE, x, i);
        if (!p.mantissa) continue;
        uint64_t magnitude = (uint64_t)(p.mantissa < 0 ? -p.mantissa : p.mantissa);
        int32_t top = 64 - __builtin_clzll(magnitude) + p.exponent;
        if (top > *high) *high = top;
        if (-p.exponent > *low) *low = -p.exponent;
    }
    return finite;
}

void nf_exact_scan(uint32_t kind, const void *x, uint64_t n, int32_t *high, int32_t *low) {
    for (uint64_t at = 0, b = 0; at < n; at += NF_EXACT_BLOCK, b++) {
        uint64_t size = size_at(n, at);
        high[b] = low[b] = NF_EXACT_ZERO;
        bool finite = is_double(kind) ? scan_doubles((const double *)x + at, size, &high[b], &low[b])
                                      : scan_floats((const float *)x + at, size, &high[b], &low[b]);
        /* The lowest bit that there may be, so that no rank's own is below it: the largest over the ranks has both. */
        if (!finite) low[b] = NF_EXACT_SPECIAL + (is_double(kind) ? 1074 : 149);
    }
}

uint64_t nf_exact_layout(const nf_exact_coding *how, uint64_t n, const int32_t *high, const int32_t *low,
                         nf_exact_block *blocks) {
    uint64_t lanes = 0;
    for (uint64_t at = 0, b = 0; at < n; at += NF_EXACT_BLOCK, b++) {
        nf_exact_block *block = &blocks[b];
        *block = (nf_exact_block){.at = lanes, .size = (uint16_t)size_at(n, at)};
        int32_t negative = low[b];
        if (negative >= NF_EXACT_SPECIAL) {
            negative -= NF_EXACT_SPECIAL;
            block->flags = NF_EXACT_SPECIAL_BLOCK;
        }
        if (high[b] != NF_EXACT_ZERO) {
            uint32_t need = (uint32_t)(high[b] + negative);
            block->unit = block->low = -negative;
            if (need <= how->wide) {
                block->lanes = (uint8_t)((need + how->digit - 1) / how->digit);
            } else {
                block->lanes = (uint8_t)how->most;
                block->unit = high[b] - (int32_t)(how->wide - how->flag);
                block->flags |= NF_EXACT_WIDE_BLOCK;
            }
        }
        lanes += (uint64_t)block->size * (block->lanes + !!(block->flags & NF_EXACT_SPECIAL_BLOCK));
    }
    return lanes;
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */
/* floor(x / 2^unit), and with it, in a wide block, whether that leaves anything out. */
static inline signed_wide head_of(const nf_exact_coding *how, const nf_exact_block *block, parts p) {
    signed_wide q = p.mantissa;
    int up = p.exponent - block->unit;
    bool inexact = up < 0 && p.mantissa; /* the mantissa is odd */
    q = !q ? 0 : up >= 0 ? (signed_wide)((nf_wide)q << up) : q >> (-up > 127 ? 127 : -up);
    return block->flags & NF_EXACT_WIDE_BLOCK ? (signed_wide)((nf_wide)q << how->flag) | inexact : q;
}

static void heads_of_doubles(const nf_exact_coding *how, const nf_exact_block *block, const double *x, int32_t *lanes) {
    uint32_t mask = (1u << how->digit) - 1;
    for (uint64_t i = 0; i < block->size; i++) {
        signed_wide q = head_of(how, block, element(NF_EXACT_DOUBLE, x, i));
        for (unsigned k = 0; k + 1 < block->lanes; k++, q >>= how->digit)
            lanes[k * block->size + i] = (int32_t)((uint32_t)q & mask);
        lanes[(block->lanes - 1u) * block->size + i] = (int32_t)q;
    }
}

/* A float32 times a power of two is exact in float64, and so is its floor; a head has at most 62 bits. */
static void heads_of_floats(const nf_exact_coding *how, const nf_exact_block *block, const float *x, int32_t *lanes) {
    uint32_t mask = (1u << how->digit) - 1;
    bool wide = block->flags & NF_EXACT_WIDE_BLOCK, finite = !(block->flags & NF_EXACT_SPECIAL_BLOCK);
    double scale = ldexp(1, -block->unit);
    uint64_t size = block->size;
    if (block->lanes == 1 && !wide && finite) {
        for (uint64_t i = 0; i < size; i++) lanes[i] = (int32_t)((double)x[i] * scale);
        return;
    }
    for (uint64_t i = 0; i < size; i++) {
        double value = (double)x[i] * scale;
        if (!finite && !isfinite(value)) value = 0;
        int64_t q = (int64_t)value;
        if (wide) {
            q -= (double)q > value; /* floor: below 2^53 in magnitude, or whole */
            q = (int64_t)((uint64_t)q << how->flag) | ((double)q != value);
        }
        for (unsigned k = 0; k + 1 < block->lanes; k++, q >>= how->digit)
            lanes[k * size + i] = (int32_t)((uint32_t)q & mask);
        lanes[(block->lanes - 1u) * size + i] = (int32_t)q;
    }
}

void nf_exact_heads(const nf_exact_coding *how, const nf_exact_block *blocks, const void *x, uint64_t n,
                    int32_t *lanes) {
    uint32_t mode = nf_floats_exact();
    for (uint64_t at = 0, b = 0; at < n; at += NF_EXACT_BLOCK, b++) {
        const nf_exact_block *block = &blocks[b];
        int32_t *first = lanes + block->at;
        if (block->lanes && is_double(how->kind))
            heads_of_doubles(how, block, (const double *)x + at, first);
        else if (block->lanes)
            heads_of_floats(how, block, (const float *)x + at, first);
        if (block->flags & NF_EXACT_SPECIAL_BLOCK)
            for (uint64_t i = 0; i < block->size; i++)
                first[(uint64_t)block->lanes * block->size + i] = (int32_t)special(how->kind, x, at + i);
    }
    nf_floats_restore(mode);
}

/* ---- sums of heads ----------------------------------------------------------------------------------------------- */
/* The sum of heads of element i of a block, in two's complement: what lies may wrap, and nothing else happens. */
static inline signed_wide sum_of(const nf_exact_coding *how, const nf_exact_block *block, const int32_t *first,
                                 uint64_t i) {
    nf_wide sum = 0;
    for (unsigned k = 0; k < block->lanes; k++)
        sum += (nf_wide)(signed_wide)first[k * block->size + i] << (k * how->digit);
    return (signed_wide)sum;
}

static inline int64_t short_sum_of(const nf_exact_coding *how, const nf_exact_block *block, const int32_t *first,
                                   uint64_t i) {
    uint64_t sum = 0;
    for (unsigned k = 0; k < block->lanes; k++)
        sum += (uint64_t)(int64_t)first[k * block->size + i] << (k * how->digit);
    return (int64_t)sum;
}

static double rounded(const nf_exact_coding *how, nf_magnitude m, bool negative) {
    m.unit -= (int)how->power;
    return is_double(how->kind) ? nf_nearest_double(m, negative, how->divisor)
                                : nf_odd_double(m, negative, how->divisor);
}

/* sum * 2^unit / divisor as it is stored. */
static inline double value_of(const nf_exact_coding *how, signed_wide sum, int unit) {
    if (is_double(how->kind)) {
        nf_magnitude m = {sum < 0 ? -(nf_wide)sum : (nf_wide)sum, unit, false};
        return rounded(how, m, sum < 0);
    }
    int64_t small = (int64_t)sum;
    uint64_t magnitude = small < 0 ? -(uint64_t)small : (uint64_t)small;
    return nf_odd_double_of(magnitude, unit - (int)how->power, small < 0, how->divisor);
}

static inline bool same(uint32_t kind, double a, double b) {
    if (is_double(kind)) return a == b;
    float stored[2];
    store(kind, stored, 0, a);
    store(kind, stored, 1, b);
    return stored[0] == stored[1];
}

/* What the lane of counts says of an element: NaN, an Inf, or 0 where it is neither. */
static double special_of(uint32_t counts) {
    bool plus = counts & 0xffff, minus = counts >> 16;
    return plus && minus ? NAN : plus ? INFINITY : minus ? -INFINITY : 0;
}

static uint64_t digits_of_tail(const nf_exact_coding *how, const nf_exact_block *block) {
    return ((uint64_t)(block->unit - block->low) + how->digit - 1) / how->digit;
}

/* An exact block of floats without Infs and NaNs, not divided but by a power of two: nothing branches.  Sums of 53 bits
 * and more are rounded to odd, as in nf_odd_double_of; in two's complement that is the same on either side of zero. */
static void round_floats(const nf_exact_coding *how, const nf_exact_block *block, const int32_t *first, float *out) {
    double scale = ldexp(1, block->unit - (int)how->power);
    uint64_t size = block->size;
    if (block->lanes == 1) {
        for (uint64_t i = 0; i < size; i++) out[i] = (float)((double)first[i] * scale) + 0.0f;
        return;
    }
    for (uint64_t i = 0; i < size; i++) {
        int64_t sum = short_sum_of(how, block, first, i);
        int64_t odd = (sum | ((sum & 0x7ff) + 0x7ff)) & ~(int64_t)0x7ff;
        bool fits = ((uint64_t)sum + ((uint64_t)1 << 53)) >> 54 == 0;
        out[i] = (float)((double)(fits ? sum : odd) * scale) + 0.0f;
    }
}

uint64_t nf_exact_round(const nf_exact_coding *how, const nf_exact_block *blocks, const int32_t *lanes, uint64_t n,
                        void *out, uint64_t *open, uint64_t *tails) {
    uint32_t mode = nf_floats_exact(), kind = how->kind;
    uint64_t count = 0;
    *tails = 0;
    for (uint64_t at = 0, b = 0; at < n; at += NF_EXACT_BLOCK, b++) {
        const nf_exact_block *block = &blocks[b];
        const int32_t *first = lanes + block->at;
        bool wide = block->flags & NF_EXACT_WIDE_BLOCK;
        if (kind == NF_EXACT_FLOAT && !block->flags && how->divisor == 1) {
            round_floats(how, block, first, (float *)out + at);
            continue;
        }
        for (uint64_t i = 0; i < block->size; i++) {
            signed_wide sum = is_double(kind) ? sum_of(how, block, first, i) : short_sum_of(how, block, first, i);
            uint32_t missing = wide ? (uint32_t)sum & ((1u << how->flag) - 1) : 0;
            if (wide) sum >>= how->flag;
            double value = value_of(how, sum, block->unit);
            if (block->flags & NF_EXACT_SPECIAL_BLOCK) {
                uint32_t counts = (uint32_t)first[(uint64_t)block->lanes * block->size + i];
                if (counts) {
                    store(kind, out, at + i, special_of(counts));
                    continue;
                }
            }
            if (missing && !same(kind, value, value_of(how, sum + missing, block->unit))) {
                open[count++] = at + i;
                *tails += digits_of_tail(how, block);
                continue;
            }
            store(kind, out, at + i, value);
        }
    }
    nf_floats_restore(mode);
    return count;
}

/* ---- tails ------------------------------------------------------------------------------------------------------- */
/* Bits at .. at + count - 1 of mantissa 2^up in two's complement. */
static uint32_t bits_of(int64_t mantissa, int up, int at, int count) {
    int down = at - up;
    uint32_t mask = (1u << count) - 1;
    if (down >= 0) return (uint32_t)(mantissa >> (down > 63 ? 63 : down)) & mask;
    return -down < count ? (uint32_t)((uint64_t)mantissa << -down) & mask : 0;
}

void nf_exact_tails(const nf_exact_coding *how, const nf_exact_block *blocks, const void *x, const uint64_t *open,
                    uint64_t count, int32_t *tails) {
    for (uint64_t k = 0; k < count; k++) {
        const nf_exact_block *block = &blocks[open[k] / NF_EXACT_BLOCK];
        parts p = element(how->kind, x, open[k]);
        int end = block->unit - block->low, digit = (int)how->digit;
        for (int at = 0; at < end; at += digit)
            *tails++ = p.mantissa ? (int32_t)bits_of(p.mantissa, p.exponent - block->low, at,
                                                     end - at < digit ? end - at : digit)
                                  : 0;
    }
}

/* Adds value * 2^at to limbs in two's complement. */
static void add_at(uint32_t *limbs, signed_wide value, int at) {
    uint64_t carry = 0;
    int shift = at % 32;
    for (int limb = at / 32, from = -shift; limb < LIMBS; limb++, from += 32) {
        uint32_t word = from < 0     ? (uint32_t)((nf_wide)value << shift)
                        : from < 127 ? (uint32_t)(value >> from)
                                     : (uint32_t)(value >> 127);
        carry += (uint64_t)limbs[limb] + word;
        limbs[limb] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* The magnitude of limbs, which it may change, in units of 2^unit. */
static nf_magnitude magnitude_of(uint32_t *limbs, int unit, bool *negative) {
    *negative = limbs[LIMBS - 1] >> 31;
    if (*negative) {
        uint64_t carry = 1;
        for (int i = 0; i < LIMBS; i++) {
            carry += (uint32_t)~limbs[i];
            limbs[i] = (uint32_t)carry;
            carry >>= 32;
        }
    }
    int top = LIMBS - 1;
    while (top > 3 && !limbs[top]) top--;
    nf_magnitude m = {0, unit + 32 * (top - 3), false};
    for (int i = top; i > top - 4; i--) m.a = m.a << 32 | limbs[i];
    for (int i = 0; i < top - 3; i++) m.more |= limbs[i] != 0;
    return m;
}

void nf_exact_settle(const nf_exact_coding *how, const nf_exact_block *blocks, const int32_t *lanes,
                     const uint64_t *open, uint64_t count, const int32_t *tails, void *out) {
    uint32_t mode = nf_floats_exact();
    for (uint64_t k = 0; k < count; k++) {
        const nf_exact_block *block = &blocks[open[k] / NF_EXACT_BLOCK];
        const int32_t *first = lanes + block->at;
        uint64_t i = open[k] % NF_EXACT_BLOCK;
        signed_wide sum = is_double(how->kind) ? sum_of(how, block, first, i) : short_sum_of(how, block, first, i);
        uint32_t limbs[LIMBS] = {0};
        int end = block->unit - block->low;
        add_at(limbs, sum >> how->flag, end);
        for (int at = 0; at < end; at += (int)how->digit) add_at(limbs, (uint32_t)*tails++, at);
        bool negative;
        nf_magnitude m = magnitude_of(limbs, block->low, &negative);
        store(how->kind, out, open[k], m.a ? rounded(how, m, negative) : 0);
    }
    nf_floats_restore(mode);
}

uint32_t nf_exact_abi_size(uint32_t which) {
    static const uint32_t sizes[] = {sizeof(nf_exact_coding), sizeof(nf_exact_block)};
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}
