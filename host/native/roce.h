/* SPDX-License-Identifier: Apache-2.0
 *
 * RoCEv2 on the wire: IPv4 / UDP / BTH / [RETH] / payload / ICRC.  The numbers are those of wire/roce.py and
 * p4src/sizes.p4 (tests/host/innet/test_wire.py compares).  A socket gives and takes what follows the UDP header.
 */
#ifndef NF_ROCE_H
#define NF_ROCE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian machines only: headers, lanes and the ICRC are swapped on that ground"
#endif

#define NF_MIN_PATH_MTU 1024 /* a fold has one of these two: payload bytes of every packet */
#define NF_MAX_PATH_MTU 4096
#define NF_MESSAGE_PACKETS 4096 /* longest message; long, since a FIRST is longer and parts super-packets */
#define NF_PKEY 0xffff          /* queue pairs of end points that are not folded, as NICs have it */
#define NF_PKEY_WINDOWED 0x8001 /* folds: the lowest bits of the queue pair are the operation */
#define NF_PSN_MASK 0xffffffu
#define NF_ECN_CE 3
#define NF_RESULT_TTL 255 /* p4src/replica.p4 writes it; a packet that was routed has less */

#define NF_SEND_FIRST 0x00
#define NF_SEND_MIDDLE 0x01
#define NF_SEND_LAST 0x02
#define NF_SEND_ONLY 0x04
#define NF_WRITE_FIRST 0x06
#define NF_WRITE_MIDDLE 0x07
#define NF_WRITE_LAST 0x08
#define NF_WRITE_ONLY 0x0a

/* What the switches do with the lanes of packets that meet: the lowest bits of the destination queue pair say it. */
#define NF_OPERATION_BITS 3
#define NF_SUM32 0
#define NF_MAX32 1
#define NF_SUM16 2
#define NF_SUM8 3
#define NF_SAT32 4

#define NF_IPV4_BYTES 20
#define NF_UDP_BYTES 8
#define NF_BTH_BYTES 12
#define NF_RETH_BYTES 16
#define NF_AETH_BYTES 4
#define NF_ICRC_BYTES 4
#define NF_ACKNOWLEDGE 0x11
#define NF_NAK_SEQUENCE_ERROR 0x60
#define NF_NAK_BYTES (NF_BTH_BYTES + NF_AETH_BYTES + NF_ICRC_BYTES)
#define NF_PRESENCE_BYTES (NF_BTH_BYTES + NF_RETH_BYTES + NF_ICRC_BYTES) /* a WRITE ONLY of no bytes */
/* The order of a windowed packet, in bits of the BTH that InfiniBand reserves: its PSN - 1, less that of the packet
 * that left before it to the same neighbour, as a two's complement */
#define NF_ORDER_BITS 13
#define NF_ORDER_LOW_BITS 7                         /* of them beside the PSN, the others beside the queue pair */
#define NF_ORDER_UNSAID (1u << (NF_ORDER_BITS - 1)) /* too far to be said */
#define NF_UNSAID UINT32_MAX                        /* no PSN: nothing is said */

#define NF_CONTENT 0x80 /* BTH, solicited event: to the sender the acknowledgement is enough */

static inline bool nf_has_reth(uint8_t opcode) { return opcode == NF_WRITE_FIRST || opcode == NF_WRITE_ONLY; }
static inline bool nf_begins_message(uint8_t opcode) {
    return opcode == NF_SEND_FIRST || opcode == NF_SEND_ONLY || nf_has_reth(opcode);
}
static inline bool nf_ends_message(uint8_t opcode) {
    return opcode == NF_SEND_LAST || opcode == NF_SEND_ONLY || opcode == NF_WRITE_LAST || opcode == NF_WRITE_ONLY;
}
static inline bool nf_folds_opcode(uint8_t opcode) {
    return nf_begins_message(opcode) || nf_ends_message(opcode) || opcode == NF_SEND_MIDDLE ||
           opcode == NF_WRITE_MIDDLE;
}
static inline size_t nf_packet_bytes(uint8_t opcode, uint32_t path_mtu) {
    return NF_BTH_BYTES + (nf_has_reth(opcode) ? NF_RETH_BYTES : 0) + path_mtu + NF_ICRC_BYTES;
}

static inline void nf_put16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void nf_put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void nf_put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}
static inline uint16_t nf_get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t nf_get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t nf_get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}

typedef struct { /* the header fields of one packet */
    uint8_t opcode;
    uint32_t dest_qp, psn;
    uint32_t previous; /* the PSN that left before this one to the same neighbour, or NF_UNSAID */
    uint64_t address;  /* RETH, on FIRST and ONLY */
    uint32_t length;
    bool presence; /* no lanes: a WRITE ONLY of no bytes */
    bool content;  /* of a contribution: its sender wants no lanes back */
} nf_header;

static inline size_t nf_bytes_of(const nf_header *h, uint32_t path_mtu) {
    return h->presence ? NF_PRESENCE_BYTES : nf_packet_bytes(h->opcode, path_mtu);
}

typedef struct { /* where a packet goes: what its ICRC covers besides itself; host byte order */
    uint32_t source, destination;
    uint16_t source_port, destination_port;
} nf_route;

typedef struct { /* where a packet came from, as the kernel says; host byte order */
    uint32_t source;
    uint16_t source_port;
    int16_t ttl; /* -1: the socket does not tell */
} nf_origin;

static inline uint32_t nf_order_of(uint32_t psn, uint32_t previous) {
    uint32_t order = (psn - 1 - previous) & NF_PSN_MASK;
    bool far = previous == NF_UNSAID || ((order + NF_ORDER_UNSAID - 1) & NF_PSN_MASK) > 2 * (NF_ORDER_UNSAID - 1);
    return far ? NF_ORDER_UNSAID : order & (2 * NF_ORDER_UNSAID - 1);
}

static inline uint32_t nf_previous_of(uint32_t psn, uint32_t order) {
    if (order == NF_ORDER_UNSAID) return NF_UNSAID;
    return (psn - 1 - ((order ^ NF_ORDER_UNSAID) - NF_ORDER_UNSAID)) & NF_PSN_MASK;
}

/* Writes the headers; returns where the payload goes.  rkey is 0: the switches rewrite it. */
static inline uint8_t *nf_write_header(uint8_t *packet, const nf_header *h) {
    bool last = nf_ends_message(h->opcode);
    packet[0] = h->opcode;
    packet[1] = h->content ? NF_CONTENT : 0; /* no padding, version 0 */
    nf_put16(packet + 2, NF_PKEY_WINDOWED);
    uint32_t order = nf_order_of(h->psn, h->previous), low = order & ((1u << NF_ORDER_LOW_BITS) - 1);
    nf_put32(packet + 4, (h->dest_qp & NF_PSN_MASK) | (order >> NF_ORDER_LOW_BITS) << 24); /* above: FECN, BECN */
    nf_put32(packet + 8, (h->psn & NF_PSN_MASK) | low << 24 | (last ? 0x80000000u : 0));   /* acknowledge requested */
    packet += NF_BTH_BYTES;
    if (nf_has_reth(h->opcode)) {
        nf_put64(packet, h->address);
        nf_put32(packet + 8, 0);
        nf_put32(packet + 12, h->length);
        packet += NF_RETH_BYTES;
    }
    return packet;
}

/* Reads and checks the headers of a packet of `n` bytes; returns its payload, which presence has none of, or NULL where
 * it is none of this path MTU.  The ICRC is not checked here (crc.h). */
static inline const uint8_t *nf_read_header(const uint8_t *packet, size_t n, uint32_t path_mtu, nf_header *h) {
    *h = (nf_header){.presence = n == NF_PRESENCE_BYTES};
    if (n < NF_BTH_BYTES + path_mtu + NF_ICRC_BYTES && !h->presence) return NULL;
    h->opcode = packet[0];
    h->dest_qp = nf_get32(packet + 4) & NF_PSN_MASK;
    h->psn = nf_get32(packet + 8) & NF_PSN_MASK;
    h->previous = nf_previous_of(h->psn, (packet[4] & 0x3fu) << NF_ORDER_LOW_BITS | (packet[8] & 0x7fu));
    if (!nf_folds_opcode(h->opcode) || (h->presence && h->opcode != NF_WRITE_ONLY)) return NULL;
    if (n != nf_bytes_of(h, path_mtu)) return NULL;
    packet += NF_BTH_BYTES;
    if (nf_has_reth(h->opcode)) {
        h->address = nf_get64(packet);
        h->length = nf_get32(packet + 12);
        packet += NF_RETH_BYTES;
    }
    return packet;
}

/* A NAK between neighbours in a fold: its sender lacks the receiver's packets from `psn` to before `end`, which stands
 * where the AETH of InfiniBand has a message sequence number. */
typedef struct {
    uint32_t dest_qp, psn, end;
} nf_nak;

static inline void nf_write_nak(uint8_t *packet, const nf_nak *nak) {
    packet[0] = NF_ACKNOWLEDGE;
    packet[1] = 0;
    nf_put16(packet + 2, NF_PKEY_WINDOWED);
    nf_put32(packet + 4, nak->dest_qp & NF_PSN_MASK);
    nf_put32(packet + 8, nak->psn & NF_PSN_MASK);
    nf_put32(packet + NF_BTH_BYTES, (uint32_t)NF_NAK_SEQUENCE_ERROR << 24 | (nak->end & NF_PSN_MASK));
}

static inline bool nf_read_nak(const uint8_t *packet, size_t n, nf_nak *nak) {
    if (n != NF_NAK_BYTES || packet[0] != NF_ACKNOWLEDGE || packet[NF_BTH_BYTES] != NF_NAK_SEQUENCE_ERROR) return false;
    *nak = (nf_nak){nf_get32(packet + 4) & NF_PSN_MASK, nf_get32(packet + 8) & NF_PSN_MASK,
                    nf_get32(packet + NF_BTH_BYTES) & NF_PSN_MASK};
    return true;
}
#endif
