/* SPDX-License-Identifier: Apache-2.0
 *
 * Super-packets: one frame of up to 64 KB that stands for a run of segments of one flow, described by a virtio_net_hdr.
 *
 *   ss_cut    super-packet -> the segments that a wire would have shown, checksums filled in
 *   ss_join   neighbouring frames of one flow -> a super-packet, only where the kernel's own segmentation gives back
 *             the very bytes of those frames
 *
 * Pure functions over bytes: no sockets, no state but a cut that goes on.
 */
#ifndef SS_SEGMENT_H
#define SS_SEGMENT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { /* struct virtio_net_hdr (virtio 1.2, 5.1.6), native byte order as AF_PACKET gives it */
    uint8_t flags, gso_type;
    uint16_t header_len, gso_size, csum_start, csum_offset;
} ss_vnet;

enum { SS_VNET_NEEDS_CSUM = 1 }; /* flags */
enum { SS_GSO_NONE = 0, SS_GSO_TCP4 = 1, SS_GSO_UDP_FRAGMENTS = 3, SS_GSO_TCP6 = 4, SS_GSO_UDP = 5, SS_GSO_ECN = 0x80 };

#define SS_JOIN_MAX 64u     /* most frames in a super-packet */
#define SS_HEADERS_MAX 128u /* longest Ethernet + IP + UDP/TCP header that is joined */
#define SS_CUT_HEADERS 142u /* longest that is cut: two VLAN tags, IP and TCP with all their options */

typedef struct {      /* where a UDP or TCP packet's parts lie */
    uint8_t protocol; /* 17, 6 */
    bool v6;
    uint32_t l3, l4, headers; /* offsets of the IP header, the UDP/TCP header, the payload */
    uint32_t end;             /* of the payload, by the IP header: Ethernet padding may follow */
} ss_layout;

/* ---- cutting ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *bytes;
    uint32_t len;
    uint32_t stable; /* bytes from here on stay; those before it until ss_cut_put_back */
    uint32_t sum;    /* of the bytes from there on, as ss_sum16_of has it, or SS_NO_SUM */
} ss_segment;

typedef struct { /* a received frame that is being cut */
    uint8_t *frame;
    ss_layout at;
    uint32_t size, left, n; /* payload of each segment; bytes to come; segments so far */
    uint32_t seq, single;
    uint16_t id;
    uint8_t flags;
    uint64_t ip_sum, l4_sum;
    uint8_t headers[SS_CUT_HEADERS], under[SS_CUT_HEADERS];
} ss_cut;

/* Returns the number of segments: 1 for a single packet, of which a checksum that its sender left to the hardware is
 * filled in; 0, with *why set to a static text, where the description contradicts the bytes. */
uint32_t ss_cut_begin(ss_cut *, uint8_t *frame, uint32_t len, const ss_vnet *, const char **why);
/* The next segment, false behind the last one.  Its headers are written over the end of the payload before it. */
bool ss_cut_next(ss_cut *, ss_segment *);
/* To be called after each segment: puts back what its headers were written over. */
void ss_cut_put_back(ss_cut *);

/* ---- joining ----------------------------------------------------------------------------------------------------- */

typedef struct { /* a frame in up to three pieces; its headers lie in the first */
    const uint8_t *head, *ref, *tail;
    uint32_t head_len, ref_len, tail_len;
    uint32_t sum; /* of `ref`, or SS_NO_SUM */
} ss_frame;

typedef struct {
    ss_vnet vnet;
    uint32_t header_len;            /* of every frame; what follows in each is payload */
    uint8_t header[SS_HEADERS_MAX]; /* of the super-packet: lengths and partial checksum set */
} ss_super;

/* How many of frames[0..n), from the first on, may leave as one super-packet; at least 1.  *out is set where above 1.
 * mtu: longest IP packet of the link, bytes. */
uint32_t ss_join(const ss_frame *frames, uint32_t n, uint32_t mtu, ss_super *out);
#endif
