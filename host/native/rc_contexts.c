/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_contexts.h"

#include <stdlib.h>

void nf_rc_limit_open(nf_rc *rc, uint32_t most) { rc->open_bound = most; }
uint32_t nf_rc_open_now(const nf_rc *rc) { return rc->n_open; }
uint32_t nf_rc_open_most(const nf_rc *rc) { return rc->open_most; }

void nf_context_release(nf_qp *qp) {
    free(qp->out.writes);
    free(qp->out.flights);
    qp->out.writes = NULL;
    qp->out.flights = NULL;
    qp->out.head = qp->out.room = 0;
    free(qp->in.arrived);
    free(qp->in.messages);
    free(qp->in.stash);
    free(qp->in.stashed);
    qp->in.arrived = qp->in.stash = NULL;
    qp->in.messages = NULL;
    qp->in.stashed = NULL;
}

/* Nothing that memory is needed for: all that was posted is acknowledged, all that came is whole and was answered. */
static bool idle(const nf_qp *qp) {
    return !qp->broken && !qp->owes_answer && qp->out.una == qp->out.limit && qp->in.expected == qp->in.top &&
           !qp->in.n_messages;
}

static bool close_one(nf_rc *rc) {
    uint32_t found = rc->n_open;
    for (uint32_t i = 0; i < rc->n_open; i++) {
        const nf_qp *qp = &rc->qps[rc->open[i]];
        if (idle(qp) && (found == rc->n_open || qp->last_use < rc->qps[rc->open[found]].last_use)) found = i;
    }
    if (found == rc->n_open) return false;
    nf_qp *qp = &rc->qps[rc->open[found]];
    nf_context_release(qp);
    qp->open = false;
    rc->open[found] = rc->open[--rc->n_open];
    return true;
}

void nf_context_open(nf_rc *rc, nf_qp *qp) {
    qp->last_use = ++rc->uses;
    if (qp->open) return;
    while (rc->n_open >= rc->open_bound && close_one(rc));
    qp->open = true;
    rc->open[rc->n_open++] = nf_rc_index(rc, qp);
    if (rc->n_open > rc->open_most) rc->open_most = rc->n_open;
}
