/* SPDX-License-Identifier: Apache-2.0
 *
 * RoCEv2's UDP sockets, as folds and queue pairs use them alike: runs of packets out in one call (UDP_SEGMENT),
 * batches of super-packets in (UDP_GRO).  All sockets are the caller's, non-blocking, and stay so.
 */
#ifndef NF_UDP_H
#define NF_UDP_H
#include <sys/uio.h>

#include "roce.h"

typedef struct { /* a socket bound to (our address, port), for packets with this source port */
    uint32_t port;
    int32_t fd;
} nf_sender;

typedef struct nf_udp nf_udp;

/* receiver: socket bound to (our address, our port).  NULL: no memory. */
nf_udp *nf_udp_open(int receiver, uint32_t n_senders, const nf_sender *);
void nf_udp_close(nf_udp *);

int64_t nf_now(void); /* CLOCK_MONOTONIC, nanoseconds */
int nf_udp_receiver(const nf_udp *);
int nf_udp_sender(const nf_udp *, uint16_t port); /* -1: none with this port */

typedef enum {
    NF_SENT,
    NF_BLOCKED,     /* the kernel's send buffer is full: wait until the sender's socket takes more */
    NF_REFUSED_RUN, /* no segmentation on this path (EIO: no checksum offload on older kernels) */
    NF_TRANSIENT,   /* no room or no way just now: the packets count as lost */
    NF_BROKEN,      /* an errno that will not pass */
} nf_sending;

/* Sends `n` bytes in so many pieces, which the kernel cuts into packets of `segment` bytes where that is less; *error:
 * the errno. */
nf_sending nf_udp_send(nf_udp *, const nf_route *, const struct iovec *pieces, uint32_t n_pieces, size_t n,
                       uint32_t segment, int *error);

/* Times the kernel had no room or no way for a packet just then, and the last such errno. */
void nf_udp_transient_errors(const nf_udp *, uint64_t *count, int32_t *error);

typedef struct { /* what arrived: one packet, or several of `segment` bytes, the last maybe shorter */
    const uint8_t *bytes;
    size_t n, segment;
    bool marked; /* ECN: congestion experienced */
    nf_origin from;
} nf_datagram;

#define NF_UDP_BATCH 8 /* datagrams, or super-packets, a receive call */

/* Takes what has arrived, NF_UDP_BATCH at most; fewer: there is no more.  The bytes stay until the next call.  Returns
 * how many there are, or -errno. */
int nf_udp_receive(nf_udp *, nf_datagram got[NF_UDP_BATCH]);
#endif
