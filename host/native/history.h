/* SPDX-License-Identifier: Apache-2.0
 *
 * What one stream has sent: its last contributions, word for word, and which of them have their results.  This is the
 * send buffer.
 *
 *        una                          next
 *   with results | some with, some without |  never sent
 *   -------------+-------------------------+-------------> sequence number
 *         '------ the last `size` packets are kept ------'
 *
 * An operation in place writes its results over its source, and narrow lanes are rounded anew each time: a packet that
 * must leave again is the one kept here.  So much is enough for trees that are planned anew (docs/protocol.md, "Trees
 * planned anew"): the rank that lacks the most lacks nothing older.
 */
#ifndef NF_HISTORY_H
#define NF_HISTORY_H
#include "roce.h"

/* The last contributions are kept as they leave, BTH, payload and ICRC one behind the other: packets that follow each
 * other are one run of bytes for the kernel.  A RETH, which few packets have, is not kept; nor are headers where the
 * payloads have to follow each other, for a NIC (nf_history_bare). */
typedef struct {
    nf_header header; /* dest_qp: the operation alone; psn: not kept */
    bool answered;    /* its result is here */
} nf_contribution;

typedef struct {
    uint32_t size;      /* a power of two, at least two windows of any rank: the switches' slots */
    size_t bytes;       /* of a payload */
    size_t head;        /* bytes before a payload, for its BTH */
    size_t stride;      /* bytes from one payload to the next */
    uint64_t una, next; /* lowest sequence number without a result; lowest never sent */
    nf_contribution *sent;
    uint8_t *packets;
} nf_history;

bool nf_history_open(nf_history *, uint32_t size, size_t bytes);
/* Keeps payloads alone, one behind the other from `packets` on, before anything is sent. */
void nf_history_bare(nf_history *);
void nf_history_close(nf_history *);

static inline nf_contribution *nf_history_at(const nf_history *h, uint64_t seq) {
    return &h->sent[seq & (h->size - 1)];
}
static inline uint8_t *nf_history_payload(const nf_history *h, uint64_t seq) {
    return h->packets + (seq & (h->size - 1)) * h->stride + h->head;
}

/* Packet `next` leaves for the first time.  Returns where its payload is to be written. */
uint8_t *nf_history_add(nf_history *, const nf_header *);
/* A sent packet's result is here. */
void nf_history_result(nf_history *, uint64_t seq);
#endif
