/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting and joining super-packets (segment.h).  What segmentation changes from segment to segment (Linux
 * net/ipv4/{af_inet,udp_offload,tcp_offload}.c; the same rules bind both directions here):
 *   IPv4    total length, ID (+1 each), header checksum
 *   IPv6    payload length
 *   UDP     length, checksum (never 0)
 *   TCP     sequence number, checksum; FIN and PSH only on the last, CWR only on the first
 */
#include "segment.h"
#include <string.h>
#include "hash.h"
#include "softswitch.h"
#include "wide.h"

enum { ETH = 14, VLAN = 4, UDP = 17, TCP = 6, SCTP = 132 };
enum { FIN = 0x01, SYN = 0x02, RST = 0x04, PSH = 0x08, ACK = 0x10, URG = 0x20, ECE = 0x40, CWR = 0x80 };

static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static void put16(uint8_t *p, uint32_t v) { p[0] = (uint8_t)(v >> 8), p[1] = (uint8_t)v; }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }
static void put32(uint8_t *p, uint32_t v) { put16(p, v >> 16), put16(p + 2, v); }

typedef ss_layout layout;

/* Where the header begins whose EtherType is not a VLAN tag's, at most two of which are passed over; 0: the frame is
 * too short. */
static uint32_t network_header(const uint8_t *f, uint32_t here) {
    uint32_t type_at = 12;
    if (here < ETH) return 0;
    for (int tags = 0; tags < 2 && (get16(f + type_at) == 0x8100 || get16(f + type_at) == 0x88a8); tags++) {
        type_at += VLAN;
        if (here < type_at + 2) return 0;
    }
    return type_at + 2;
}

/* Understands plain UDP and TCP over IPv4 or IPv6, behind up to two VLAN tags; no fragments, no extension headers.
 * In a super-packet the IP length says nothing, so that the frame's length counts.  Of `len` bytes the first `here` lie
 * at f; all headers must. */
static bool understand(const uint8_t *f, uint32_t here, uint32_t len, bool super, layout *at) {
    uint32_t l3 = network_header(f, here), ip_len;
    if (!l3) return false;
    const uint8_t *ip = f + l3;
    if (get16(ip - 2) == 0x0800) {
        if (here < l3 + 20 || ip[0] >> 4 != 4 || (ip[0] & 15) < 5 || (get16(ip + 6) & 0x3fff)) return false;
        *at = (layout){.protocol = ip[9], .v6 = false, .l3 = l3, .l4 = l3 + 4u * (ip[0] & 15)};
        ip_len = get16(ip + 2);
    } else if (get16(ip - 2) == 0x86dd) {
        if (here < l3 + 40 || ip[0] >> 4 != 6) return false;
        *at = (layout){.protocol = ip[6], .v6 = true, .l3 = l3, .l4 = l3 + 40};
        ip_len = 40 + get16(ip + 4);
    } else
        return false;
    at->end = super ? len : l3 + ip_len;
    if (at->end > len) return false;
    if (at->protocol == UDP)
        at->headers = at->l4 + 8;
    else if (at->protocol == TCP && here >= at->l4 + 20) {
        uint32_t words = f[at->l4 + 12] >> 4;
        if (words < 5) return false;
        at->headers = at->l4 + 4 * words;
    } else
        return false;
    return at->headers <= at->end && at->headers <= here;
}

static uint32_t checksum_at(const layout *at) { return at->l4 + (at->protocol == UDP ? 6 : 16); }

/* Headers are added up as numbers of 32 bits, which a ones' complement sum of 16 allows: no vectors over bytes that
 * were just written one by one. */
static uint64_t sum_of(const uint8_t *p, uint32_t n) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i += 4) sum += get32(p + i);
    return sum;
}

static uint64_t pseudo_header(const uint8_t *f, const layout *at, uint32_t l4_len) {
    return (at->v6 ? sum_of(f + at->l3 + 8, 32) : sum_of(f + at->l3 + 12, 8)) + at->protocol + l4_len;
}

/* The one's complement sum that checksum offload wants in the checksum field: pseudo header only, not inverted. */
static uint16_t partial_checksum(const uint8_t *f, const layout *at, uint32_t l4_len) {
    return (uint16_t)~ss_sum16_end(pseudo_header(f, at, l4_len));
}

/* Bytes that begin at an odd place of what is summed count the other way round. */
static uint64_t placed(uint16_t sum, uint32_t at) { return at & 1 ? __builtin_bswap16(sum) : sum; }

/* 0 where the checksum in the packet is right (RFC 1071: the sum over it is then all ones). */
static uint16_t checksum_error(const ss_frame *frame, const layout *at) {
    const uint8_t *f = frame->head;
    uint64_t sum = pseudo_header(f, at, at->end - at->l4) + sum_of(f + at->l4, at->headers - at->l4);
    sum += ss_sum16_of(f + at->headers, frame->head_len - at->headers);
    uint32_t place = frame->head_len - at->l4;
    if (frame->ref_len)
        sum +=
            placed((uint16_t)(frame->sum == SS_NO_SUM ? ss_sum16_of(frame->ref, frame->ref_len) : frame->sum), place);
    if (frame->tail_len) sum += placed(ss_sum16_of(frame->tail, frame->tail_len), place + frame->ref_len);
    return (uint16_t)ss_sum16_end(sum);
}

static uint16_t ip_checksum_error(const uint8_t *ip) { return (uint16_t)ss_sum16_end(sum_of(ip, 4u * (ip[0] & 15))); }

static void fill_ip_checksum(uint8_t *ip) {
    put16(ip + 10, 0);
    put16(ip + 10, ip_checksum_error(ip));
}

static void set_lengths(uint8_t *f, const layout *at, uint32_t payload) {
    uint32_t l4_len = at->headers - at->l4 + payload;
    if (at->v6)
        put16(f + at->l3 + 4, l4_len);
    else
        put16(f + at->l3 + 2, at->l4 - at->l3 + l4_len);
    if (at->protocol == UDP) put16(f + at->l4 + 4, l4_len);
}

/* What is not the same in all segments. */
static void clear_what_changes(uint8_t *f, const layout *at) {
    if (at->v6)
        put16(f + at->l3 + 4, 0);
    else
        memset(f + at->l3 + 2, 0, 4), put16(f + at->l3 + 10, 0);
    if (at->protocol == UDP)
        put16(f + at->l4 + 4, 0);
    else
        put32(f + at->l4 + 4, 0), f[at->l4 + 13] = 0;
    put16(f + checksum_at(at), 0);
}

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

/* Whether the checksum is SCTP's, which no description says.  Nothing else over IPv6 has one there, where extension
 * headers may come first. */
static bool is_sctp(const uint8_t *f, uint32_t len, const ss_vnet *v) {
    uint32_t l3 = v->csum_offset == 8 ? network_header(f, len) : 0;
    if (!l3 || len < l3 + 20) return false;
    return get16(f + l3 - 2) == 0x0800 ? f[l3 + 9] == SCTP : get16(f + l3 - 2) == 0x86dd;
}

/* A single packet whose checksum, of whatever protocol, was left to the hardware: the field holds the pseudo header's
 * sum, which SCTP does not have. */
static bool complete(uint8_t *f, uint32_t len, const ss_vnet *v) {
    uint32_t field = (uint32_t)v->csum_start + v->csum_offset;
    bool sctp = is_sctp(f, len, v);
    if (v->csum_start > len || field + (sctp ? 4 : 2) > len) return false;
    if (sctp) { /* the least significant byte comes first (RFC 9260, appendix A) */
        put32(f + field, 0);
        put32(f + field, __builtin_bswap32(ss_crc32c(f + v->csum_start, len - v->csum_start)));
        return true;
    }
    /* An odd number of bytes may stand before the field in the sum only in broken packets; csum16 would pad there. */
    uint16_t sum = ss_csum16(f + v->csum_start, len - v->csum_start, NULL, 0);
    put16(f + field, sum == 0 && v->csum_offset == 6 ? 0xffff : sum);
    return true;
}

uint32_t ss_cut_begin(ss_cut *c, uint8_t *f, uint32_t len, const ss_vnet *v, const char **why) {
    uint8_t type = v->gso_type & (uint8_t)~SS_GSO_ECN;
    layout at = {0};
    *c = (ss_cut){.frame = f, .left = len, .n = 0, .single = type == SS_GSO_NONE};
    if (c->single) {
        if ((v->flags & SS_VNET_NEEDS_CSUM) && !complete(f, len, v)) {
            *why = "checksum offload points outside of the frame";
            return 0;
        }
        return 1;
    }
    if (!understand(f, len, len, true, &at)) {
        *why = "super-packet that is not plain UDP or TCP over IP";
        return 0;
    }
    bool right =
        type == SS_GSO_UDP ? at.protocol == UDP : at.protocol == TCP && type == (at.v6 ? SS_GSO_TCP6 : SS_GSO_TCP4);
    if (!right) {
        *why = "super-packet of a kind that does not match its headers";
        return 0;
    }
    if (!v->gso_size) {
        *why = "super-packet with segments of 0 bytes";
        return 0;
    }
    uint8_t *saved = c->headers;
    c->at = at;
    c->size = v->gso_size;
    c->left = len - at.headers;
    memcpy(saved, f, at.headers);
    c->flags = at.protocol == TCP ? saved[at.l4 + 13] : 0;
    c->seq = at.protocol == TCP ? get32(saved + at.l4 + 4) : 0;
    c->id = at.v6 ? 0 : get16(saved + at.l3 + 4);
    /* What the segments' checksums have in common; the rest is added as the numbers that are written. */
    clear_what_changes(saved, &at);
    c->ip_sum = at.v6 ? 0 : sum_of(saved + at.l3, at.l4 - at.l3);
    c->l4_sum = pseudo_header(saved, &at, 0) + sum_of(saved + at.l4, at.headers - at.l4);
    return c->left ? (c->left - 1) / c->size + 1 : 1;
}

static bool next_single(ss_cut *c, ss_segment *out) {
    if (c->n++) return false;
    *out = (ss_segment){.bytes = c->frame, .len = c->left, .sum = SS_NO_SUM};
    return true;
}

void ss_cut_put_back(ss_cut *c) {
    if (!c->single) memcpy(c->frame + (size_t)(c->n - 1) * c->size, c->under, c->at.headers);
}

bool ss_cut_next(ss_cut *c, ss_segment *out) {
    if (c->single) return next_single(c, out);
    const layout at = c->at;
    const uint32_t headers = at.headers, n = c->n, payload = c->left < c->size ? c->left : c->size;
    if (n && !c->left) return false;
    uint8_t *segment = c->frame + (size_t)n * c->size;
    uint32_t l4_len = headers - at.l4 + payload;
    uint64_t sum = c->l4_sum + l4_len;
    c->left -= payload;
    c->n++;
    memcpy(c->under, segment, headers);
    memcpy(segment, c->headers, headers);
    set_lengths(segment, &at, payload);
    if (!at.v6) {
        uint16_t own = (uint16_t)(c->id + n);
        put16(segment + at.l3 + 4, own);
        put16(segment + at.l3 + 10, ss_sum16_end(c->ip_sum + at.l4 - at.l3 + l4_len + own));
    }
    if (at.protocol == TCP) {
        uint8_t only = c->flags;
        if (c->left) only &= (uint8_t)~(FIN | PSH);
        if (n) only &= (uint8_t)~CWR;
        segment[at.l4 + 13] = only;
        put32(segment + at.l4 + 4, c->seq + n * c->size);
        sum += (uint64_t)only + (c->seq + n * c->size);
    } else
        sum += l4_len;
    uint16_t own = ss_sum16_of(segment + headers, payload), checksum = (uint16_t)ss_sum16_end(sum + own);
    put16(segment + checksum_at(&at), checksum == 0 && at.protocol == UDP ? 0xffff : checksum); /* 0: "none" */
    *out = (ss_segment){.bytes = segment, .len = headers + payload, .stable = headers, .sum = own};
    return true;
}

/* ---- joining ----------------------------------------------------------------------------------------------------- */

static uint32_t length(const ss_frame *frame) { return frame->head_len + frame->ref_len + frame->tail_len; }

/* A frame that could be the first or a further part of a super-packet, as far as its headers say. */
static bool joinable(const ss_frame *frame, uint32_t mtu, layout *at) {
    const uint8_t *f = frame->head;
    uint32_t len = length(frame);
    if (!understand(f, frame->head_len, len, false, at) || at->l3 != ETH || at->end != len || at->headers == at->end ||
        at->headers > SS_HEADERS_MAX || len - ETH > mtu)
        return false;
    if (!at->v6 && at->l4 != at->l3 + 20) return false; /* options: rare, left alone */
    if (at->protocol == UDP) return get16(f + at->l4 + 4) == len - at->l4 && get16(f + at->l4 + 6);
    return !(f[at->l4 + 13] & (SYN | RST | URG | CWR)) && (f[at->l4 + 13] & ACK) && !(f[at->l4 + 12] & 15) &&
           get16(f + at->l4 + 16) != 0xffff;
}

/* 0xffff and 0 both check as the number zero; the kernel writes 0 (but 0xffff in UDP), so that the other is not
 * joined. */
static bool right_checksums(const ss_frame *frame, const layout *at) {
    const uint8_t *f = frame->head;
    return (at->v6 || (get16(f + at->l3 + 10) != 0xffff && ip_checksum_error(f + at->l3) == 0)) &&
           checksum_error(frame, at) == 0;
}

/* May `f` (same layout but for its end) follow `before` frames of `size` payload bytes, the first of which is `a`? */
static bool follows(const uint8_t *a, const uint8_t *f, const layout *at, uint32_t before, uint32_t size) {
    uint32_t ip = at->l3, l4 = at->l4;
    if (memcmp(a, f, ETH)) return false;
    if (at->v6) {
        if (memcmp(a + ip, f + ip, 4) || memcmp(a + ip + 6, f + ip + 6, 34)) return false;
    } else if (memcmp(a + ip, f + ip, 2) || memcmp(a + ip + 6, f + ip + 6, 4) || memcmp(a + ip + 12, f + ip + 12, 8) ||
               (uint16_t)(get16(a + ip + 4) + before) != get16(f + ip + 4))
        return false;
    if (memcmp(a + l4, f + l4, 4)) return false; /* ports */
    if (at->protocol == UDP) return true;
    return get32(f + l4 + 4) == get32(a + l4 + 4) + before * size && !memcmp(a + l4 + 8, f + l4 + 8, 5) &&
           (a[l4 + 13] | FIN | PSH) == (f[l4 + 13] | FIN | PSH) && !memcmp(a + l4 + 14, f + l4 + 14, 2) &&
           !memcmp(a + l4 + 18, f + l4 + 18, at->headers - l4 - 18); /* urgent pointer, options */
}

uint32_t ss_join(const ss_frame *frames, uint32_t n, uint32_t mtu, ss_super *out) {
    layout at, next;
    if (n < 2 || !joinable(&frames[0], mtu, &at)) return 1;
    const uint8_t *first = frames[0].head;
    uint32_t len = at.end, size = len - at.headers, total = size, taken = 1;
    if (n > SS_JOIN_MAX) n = SS_JOIN_MAX;
    while (taken < n) {
        const ss_frame *frame = &frames[taken];
        const uint8_t *before = frames[taken - 1].head;
        if (length(&frames[taken - 1]) != len) break;                        /* a shorter one is the last */
        if (at.protocol == TCP && (before[at.l4 + 13] & (FIN | PSH))) break; /* so is one with FIN or PSH */
        if (length(frame) > len || !joinable(frame, mtu, &next)) break;
        if (next.protocol != at.protocol || next.v6 != at.v6 || next.headers != at.headers) break;
        uint32_t payload = next.end - next.headers;
        if (at.headers - at.l3 + total + payload > 65535) break;
        if (!follows(first, frame->head, &at, taken, size)) break;
        if (taken == 1 && !right_checksums(&frames[0], &at)) break;
        if (!right_checksums(frame, &next)) break;
        total += payload;
        taken++;
    }
    if (taken == 1) return 1;
    out->header_len = at.headers;
    memcpy(out->header, first, at.headers);
    set_lengths(out->header, &at, total);
    if (!at.v6) fill_ip_checksum(out->header + at.l3);
    if (at.protocol == TCP) out->header[at.l4 + 13] = frames[taken - 1].head[at.l4 + 13];
    put16(out->header + checksum_at(&at), partial_checksum(first, &at, at.headers - at.l4 + total));
    out->vnet = (ss_vnet){
        .flags = SS_VNET_NEEDS_CSUM,
        .gso_type = at.protocol == UDP ? SS_GSO_UDP
                    : at.v6            ? SS_GSO_TCP6
                                       : SS_GSO_TCP4,
        .header_len = (uint16_t)at.headers,
        .gso_size = (uint16_t)size,
        .csum_start = (uint16_t)at.l4,
        .csum_offset = (uint16_t)(checksum_at(&at) - at.l4),
    };
    return taken;
}
