/* SPDX-License-Identifier: Apache-2.0
 * Which queue pairs are open: those that have memory for a window, as an adapter has a context for each.
 *
 *            the first write, the first new packet
 *   closed ----------------------------------------> open
 *      ^                                               |
 *      '-- idle for longest, and another one opens ----'
 *
 * A closed one keeps its numbers: where both directions stand, the round trip, the congestion window, its path.  So each
 * end closes by itself, and there is nothing to agree on or to negotiate anew: PSNs go on where they were, the other end
 * cannot tell, and what is late is known to be old and answered with an ACK, without opening anything. */
#include "rc_inside.h"

void nf_rc_bound(nf_rc *rc, uint32_t most) { rc->open_bound = most; }
uint32_t nf_rc_open_now(const nf_rc *rc) { return rc->n_open; }
uint32_t nf_rc_open_most(const nf_rc *rc) { return rc->open_most; }

/* Nothing that memory is needed for: all that was posted is acknowledged, all that came is whole and was answered. */
static bool idle(const nf_qp *qp)
{
    return !qp->broken && !qp->answering && qp->out.una == qp->out.limit && qp->in.expected == qp->in.top &&
           !qp->in.n_messages;
}

static bool close_one(nf_rc *rc)
{
    uint32_t found = rc->n_open;
    for (uint32_t i = 0; i < rc->n_open; i++) {
        const nf_qp *qp = &rc->qps[rc->open[i]];
        if (idle(qp) && (found == rc->n_open || qp->used < rc->qps[rc->open[found]].used))
            found = i;
    }
    if (found == rc->n_open)
        return false;
    nf_qp *qp = &rc->qps[rc->open[found]];
    nf_requester_close(&qp->out);
    nf_responder_close(&qp->in);
    qp->open = false;
    rc->open[found] = rc->open[--rc->n_open];
    return true;
}

/* Before memory for a window is needed. */
void nf_context_use(nf_rc *rc, nf_qp *qp)
{
    qp->used = ++rc->uses;
    if (qp->open)
        return;
    while (rc->n_open >= rc->open_bound && close_one(rc))
        ;
    qp->open = true;
    rc->open[rc->n_open++] = nf_rc_index(rc, qp);
    if (rc->n_open > rc->open_most)
        rc->open_most = rc->n_open;
}
