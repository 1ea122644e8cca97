/* SPDX-License-Identifier: Apache-2.0
 *
 * For host.py: makes the results of a rank alone of its contributions, whose ICRC differs by the IPv4 ID.
 */
#include "crc.h"

/* Packets of `segment` bytes, the last maybe shorter, `n` bytes together. */
void as_results(uint8_t *packets, size_t n, size_t segment, const nf_route *route) {
    for (size_t at = 0; at < n; at += segment) {
        size_t length = n - at < segment ? n - at : segment;
        nf_write_icrc(packets + at, length, route, (uint16_t)nf_get32(packets + at + 8));
    }
}
