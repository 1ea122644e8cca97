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

typedef struct {
    nf_header header; /* dest_qp: the operation alone; psn: not kept */
    bool answered;    /* its result is here */
} nf_contribution;

typedef struct {
    uint32_t size;      /* a power of two, at least two windows of any rank: the switches' slots */
    size_t bytes;       /* of a payload */
    uint64_t una, next; /* lowest sequence number without a result; lowest never sent */
    nf_contribution *sent;
    uint8_t *payloads;
} nf_history;

bool nf_history_open(nf_history *, uint32_t size, size_t bytes);
void nf_history_close(nf_history *);

static inline nf_contribution *nf_history_at(const nf_history *h, uint64_t seq) {
    return &h->sent[seq & (h->size - 1)];
}
static inline uint8_t *nf_history_payload(const nf_history *h, uint64_t seq) {
    return h->payloads + (seq & (h->size - 1)) * h->bytes;
}

/* Packet `next` leaves for the first time.  Returns where its payload is to be written. */
uint8_t *nf_history_add(nf_history *, const nf_header *);
/* A sent packet's result is here. */
void nf_history_result(nf_history *, uint64_t seq);
#endif
