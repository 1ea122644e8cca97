/* SPDX-License-Identifier: Apache-2.0 */
#include "exact_round.h"

#include <math.h>

/* The quotient's leading 64 bits, the first of them set; what is behind them goes into `more`. */
static uint64_t leading(nf_magnitude *m, uint32_t divisor) {
    nf_wide a = m->a;
    for (int turn = 0; turn < 2; turn++) {
        uint64_t high = (uint64_t)(a >> 64), low = (uint64_t)a;
        int up = high ? __builtin_clzll(high) : 64 + __builtin_clzll(low);
        a <<= up; /* a fraction, if any, stays one: it is below the bit that was the last */
        m->unit -= up;
        if (turn == 0 && divisor != 1) {
            nf_wide quotient = a / divisor;
            m->more |= quotient * divisor != a;
            a = quotient;
        }
    }
    m->more |= (uint64_t)a != 0;
    m->unit += 64;
    return (uint64_t)(a >> 64);
}

double nf_nearest_double(nf_magnitude m, bool negative, uint32_t divisor) {
    if (!m.a) return 0;
    uint64_t a = leading(&m, divisor);
    int last = m.unit + 11 > -1074 ? m.unit + 11 : -1074; /* exponent of the result's last bit */
    int drop = last - m.unit;
    if (drop > 64) return 0;
    uint64_t kept = drop == 64 ? 0 : a >> drop, half = (uint64_t)1 << (drop - 1), rest = a & (half - 1);
    if (a & half && (rest || m.more || kept & 1)) kept++;
    double x = ldexp((double)kept, last);
    return negative && kept ? -x : x;
}

double nf_odd_double(nf_magnitude m, bool negative, uint32_t divisor) {
    if (!m.a) return 0;
    uint64_t a = leading(&m, divisor);
    return nf_odd_double_of(a | m.more, m.unit, negative, 1);
}
