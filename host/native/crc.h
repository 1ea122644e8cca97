/* SPDX-License-Identifier: Apache-2.0
 *
 * RoCEv2's invariant CRC, and the CRC-32 under it.
 */
#ifndef NF_CRC_H
#define NF_CRC_H
#include "roce.h"

/* CRC-32 (IEEE 802.3, reflected); start with 0 and hand the result in to go on, like zlib's. */
uint32_t nf_crc32(uint32_t crc, const uint8_t *bytes, size_t n);

/* Writes the ICRC behind `n` bytes of payload at `payload`; `headers` are the packet's, from the BTH on.  `id` is the
 * IPv4 ID that the kernel will write: an unconnected UDP socket with IP_MTU_DISCOVER = IP_PMTUDISC_DO sends DF and ID
 * 0, and 0, 1, 2, ... in the segments of one super-packet (UDP_SEGMENT). */
void nf_write_icrc_behind(const uint8_t *headers, size_t header_bytes, uint8_t *payload, size_t n,
                          const nf_route *route, uint16_t id);
/* The same for a packet whose headers and payload stand together, `n` bytes with the ICRC. */
void nf_write_icrc(uint8_t *packet, size_t n, const nf_route *route, uint16_t id);

/* Returns whether a packet of `n` bytes, a BTH and an ICRC at least, came by this route with this IPv4 ID as it was
 * sent.  A socket does not show the ID: what a switch makes has the low 16 bits of its PSN. */
bool nf_icrc_holds(const uint8_t *packet, size_t n, const nf_route *route, uint16_t id);
/* The same for a packet of a kernel, whose ID is its place in the super-packet that it left in: one below `ids`.  *id:
 * the likely one, which is tried first and may be any; then the one that it has. */
bool nf_icrc_holds_for_some(const uint8_t *packet, size_t n, const nf_route *route, uint16_t *id, uint16_t ids);
#endif
