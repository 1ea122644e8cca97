/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which packets leave to a neighbour: each says which PSN left before it (roce.h), so that who gets it
 * sees what was lost on the link between the two, and takes nothing for lost that has not been sent yet
 * (docs/protocol.md, "Flows and NAKs").  p4src/flow.p4 is the switches' part.
 */
#ifndef NF_ORDER_H
#define NF_ORDER_H
#include "roce.h"

typedef struct {    /* what has come from a neighbour */
    uint32_t last;  /* the PSN that came last */
    uint32_t after; /* the PSN after the highest that came */
    bool begun;     /* something has come */
} nf_order;

/* How far one PSN is ahead of another; serial arithmetic: at most 2^23 either way. */
static inline int32_t nf_psn_ahead(uint32_t psn, uint32_t other) { return (int32_t)((psn - other) << 8) >> 8; }

/* Takes a packet in.  Returns whether the one before it did not come before it: missing may be what is from *first to
 * before *end. previous: the PSN that left before this one, or NF_UNSAID. */
static inline bool nf_order_gap(nf_order *o, uint32_t psn, uint32_t previous, uint32_t *first, uint32_t *end) {
    bool gap = o->begun && previous != NF_UNSAID && previous != o->last;
    *first = nf_psn_ahead(previous, o->after) > 0 ? o->after : previous;
    *end = (previous + 1) & NF_PSN_MASK;
    if (!o->begun || nf_psn_ahead(psn, o->after) >= 0) o->after = (psn + 1) & NF_PSN_MASK;
    o->last = psn;
    o->begun = true;
    return gap;
}
#endif
