/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"

#include "crc32.h"

#define IPV4_VERSION_AND_LENGTH 0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_UDP 17

uint32_t nf_crc32(uint32_t crc, const uint8_t *bytes, size_t n) { return ss_crc32(crc, bytes, n); }

/* InfiniBand annex A17.3.3: CRC-32 over 8 bytes of ones, the IPv4 header (TOS, TTL, checksum as ones), UDP (checksum as
 * ones), BTH (FECN/BECN byte as ones) and all that follows; little endian on the wire. */
void nf_write_icrc_behind(const uint8_t *headers, size_t header_bytes, uint8_t *payload, size_t n,
                          const nf_route *route, uint16_t id) {
    size_t length = NF_UDP_BYTES + header_bytes + n + NF_ICRC_BYTES;
    uint8_t masked[8 + NF_IPV4_BYTES + NF_UDP_BYTES + NF_BTH_BYTES];
    uint8_t *ip = masked + 8, *udp = ip + NF_IPV4_BYTES, *bth = udp + NF_UDP_BYTES;
    memset(masked, 0xff, sizeof masked);
    ip[0] = IPV4_VERSION_AND_LENGTH;
    nf_put16(ip + 2, (uint16_t)(NF_IPV4_BYTES + length));
    nf_put16(ip + 4, id);
    nf_put16(ip + 6, IPV4_DONT_FRAGMENT);
    ip[9] = IPV4_UDP;
    nf_put32(ip + 12, route->source);
    nf_put32(ip + 16, route->destination);
    nf_put16(udp, route->source_port);
    nf_put16(udp + 2, NF_UDP_PORT);
    nf_put16(udp + 4, (uint16_t)length);
    memcpy(bth, headers, NF_BTH_BYTES);
    bth[4] = 0xff;
    uint32_t crc = ss_crc32(0, masked, sizeof masked);
    if (header_bytes > NF_BTH_BYTES) crc = ss_crc32(crc, headers + NF_BTH_BYTES, header_bytes - NF_BTH_BYTES);
    crc = ss_crc32(crc, payload, n);
    memcpy(payload + n, &crc, NF_ICRC_BYTES); /* as it is: roce.h refuses big-endian machines */
}

void nf_write_icrc(uint8_t *packet, size_t n, const nf_route *route, uint16_t id) {
    nf_write_icrc_behind(packet, NF_BTH_BYTES, packet + NF_BTH_BYTES, n - NF_BTH_BYTES - NF_ICRC_BYTES, route, id);
}
