/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"

#include "crc32.h"

#define IPV4_VERSION_AND_LENGTH 0x45
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_UDP 17

uint32_t nf_crc32(uint32_t crc, const uint8_t *bytes, size_t n) { return ss_crc32(crc, bytes, n); }

/* InfiniBand annex A17.3.3: CRC-32 over 8 bytes of ones, the IPv4 header (TOS, TTL, checksum as ones), UDP (checksum as
 * ones), BTH (FECN/BECN byte as ones) and all that follows; little endian on the wire. */
typedef struct {
    uint8_t ones[8], ip[NF_IPV4_BYTES], udp[NF_UDP_BYTES], bth[NF_BTH_BYTES];
} masked_headers;

/* `n`: bytes from the BTH to the ICRC, that included. */
static masked_headers mask(const uint8_t *bth, size_t n, const nf_route *route, uint16_t id) {
    size_t length = NF_UDP_BYTES + n;
    masked_headers m;
    memset(&m, 0xff, sizeof m);
    m.ip[0] = IPV4_VERSION_AND_LENGTH;
    nf_put16(m.ip + 2, (uint16_t)(NF_IPV4_BYTES + length));
    nf_put16(m.ip + 4, id);
    nf_put16(m.ip + 6, IPV4_DONT_FRAGMENT);
    m.ip[9] = IPV4_UDP;
    nf_put32(m.ip + 12, route->source);
    nf_put32(m.ip + 16, route->destination);
    nf_put16(m.udp, route->source_port);
    nf_put16(m.udp + 2, route->destination_port);
    nf_put16(m.udp + 4, (uint16_t)length);
    memcpy(m.bth, bth, NF_BTH_BYTES);
    m.bth[4] = 0xff;
    return m;
}

/* The ICRC in the byte order of the wire; roce.h refuses big-endian machines. */
static uint32_t on_wire(const uint8_t *icrc) {
    uint32_t crc;
    memcpy(&crc, icrc, NF_ICRC_BYTES);
    return crc;
}

void nf_write_icrc_behind(const uint8_t *headers, size_t header_bytes, uint8_t *payload, size_t n,
                          const nf_route *route, uint16_t id) {
    masked_headers m = mask(headers, header_bytes + n + NF_ICRC_BYTES, route, id);
    uint32_t crc = ss_crc32(0, m.ones, sizeof m);
    if (header_bytes > NF_BTH_BYTES) crc = ss_crc32(crc, headers + NF_BTH_BYTES, header_bytes - NF_BTH_BYTES);
    crc = ss_crc32(crc, payload, n);
    memcpy(payload + n, &crc, NF_ICRC_BYTES);
}

void nf_write_icrc(uint8_t *packet, size_t n, const nf_route *route, uint16_t id) {
    nf_write_icrc_behind(packet, NF_BTH_BYTES, packet + NF_BTH_BYTES, n - NF_BTH_BYTES - NF_ICRC_BYTES, route, id);
}

bool nf_icrc_holds(const uint8_t *packet, size_t n, const nf_route *route, uint16_t id) {
    masked_headers m = mask(packet, n, route, id);
    uint32_t crc = ss_crc32(0, m.ones, sizeof m);
    crc = ss_crc32(crc, packet + NF_BTH_BYTES, n - NF_BTH_BYTES - NF_ICRC_BYTES);
    return crc == on_wire(packet + n - NF_ICRC_BYTES);
}

bool nf_icrc_holds_for_some(const uint8_t *packet, size_t n, const nf_route *route, uint16_t *id, uint16_t ids) {
    masked_headers m = mask(packet, n, route, 0);
    /* all behind the IPv4 header, once for all IDs */
    size_t rest = sizeof m.udp + n - NF_ICRC_BYTES;
    uint32_t crc = ss_crc32(0, m.udp, sizeof m.udp + sizeof m.bth), factor = ss_crc32_factor((uint32_t)rest);
    crc = ss_crc32(crc, packet + NF_BTH_BYTES, n - NF_BTH_BYTES - NF_ICRC_BYTES);
    for (uint32_t i = 0; i <= ids; i++) {
        uint16_t tried = i ? (uint16_t)(i - 1) : *id;
        nf_put16(m.ip + 4, tried);
        uint32_t before = ss_crc32(0, m.ones, sizeof m.ones + sizeof m.ip);
        if (ss_crc32_join(before, factor, crc) != on_wire(packet + n - NF_ICRC_BYTES)) continue;
        *id = tried;
        return true;
    }
    return false;
}
