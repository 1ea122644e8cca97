/* SPDX-License-Identifier: Apache-2.0
 *
 * Super-packets: one frame of up to 64 KB that stands for a run of segments of one flow, described by a virtio_net_hdr.
 *
 *   ss_cut    super-packet -> the segments that a wire would have shown, checksums filled in
 *   ss_join   neighbouring frames of one flow -> a super-packet, only where the kernel's own segmentation gives back
 *             the very bytes of those frames
 *
 * Pure functions over bytes: no sockets, no state.
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

typedef void ss_segment_fn(void *arg, const uint8_t *frame, uint32_t len);

/* Hands the segments of a received frame to `each`, in order; `frame` is overwritten.  A single packet is one
 * segment; a checksum that its sender left to the hardware is filled in.  Returns the number of segments; 0, with
 * *why set to a static text, where the description contradicts the bytes. */
uint32_t ss_cut(uint8_t *frame, uint32_t len, const ss_vnet *, ss_segment_fn *each, void *arg, const char **why);

typedef struct {
    const uint8_t *bytes;
    uint32_t len;
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
