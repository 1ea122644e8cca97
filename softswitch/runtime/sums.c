/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes and sums over bytes that lie in several places.
 */
#include "internal.h"

uint64_t ss_hash_runs(ss_switch *sw, uint32_t algo, const ss_run *runs, uint32_t n) {
    uint32_t total = 0, at = 0;
    for (uint32_t i = 0; i < n; i++) total += runs[i].len;
    uint8_t *bytes = ss_take(sw, total);
    for (uint32_t i = 0; i < n; at += runs[i++].len) memcpy(bytes + at, runs[i].bytes, runs[i].len);
    return ss_hash(sw, algo, bytes, total);
}

uint64_t ss_sum16_run(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    (void)sw;
    return (uint16_t)~ss_csum16(bytes, n, NULL, 0);
}
