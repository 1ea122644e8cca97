/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_pairs.h"

#include <stdlib.h>

#include "rc_events.h"

nf_qp *nf_qp_find(const nf_rc *rc, uint32_t number) {
    if (!rc->n_buckets) return NULL;
    for (uint32_t b = number * 2654435761u;; b++) {
        uint32_t entry = rc->by_number[b & (rc->n_buckets - 1)];
        if (!entry) return NULL;
        if (rc->qps[entry - 1].plan.qp == number) return &rc->qps[entry - 1];
    }
}

void nf_qp_enter(nf_rc *rc, uint32_t index) {
    uint32_t b = rc->qps[index].plan.qp * 2654435761u;
    while (rc->by_number[b & (rc->n_buckets - 1)]) b++;
    rc->by_number[b & (rc->n_buckets - 1)] = index + 1;
}

static bool grow(nf_rc *rc) {
    uint32_t room = rc->room_qps ? 2 * rc->room_qps : 16;
    nf_qp *qps = realloc(rc->qps, room * sizeof *qps);
    if (qps) rc->qps = qps;
    uint32_t *active = realloc(rc->active, room * sizeof *active);
    if (active) rc->active = active;
    uint32_t *answers = realloc(rc->answers, room * sizeof *answers);
    if (answers) rc->answers = answers;
    uint32_t *open = realloc(rc->open, room * sizeof *open);
    if (open) rc->open = open;
    uint32_t *buckets = calloc(2 * room, sizeof *buckets);
    if (!qps || !active || !answers || !open || !buckets) {
        free(buckets);
        return false;
    }
    free(rc->by_number);
    rc->by_number = buckets;
    rc->n_buckets = 2 * room;
    rc->room_qps = room;
    for (uint32_t i = 0; i < rc->n_qps; i++) nf_qp_enter(rc, i);
    return true;
}

bool nf_qp_reserve(nf_rc *rc) { return rc->n_qps < rc->room_qps || grow(rc); }

void nf_qp_activate(nf_rc *rc, nf_qp *qp) {
    if (!qp->active) {
        qp->active = true;
        rc->active[rc->n_active++] = nf_rc_index(rc, qp);
    }
}

void nf_qp_owe_answer(nf_rc *rc, nf_qp *qp) {
    if (!qp->owes_answer) {
        qp->owes_answer = true;
        rc->answers[rc->n_answers++] = nf_rc_index(rc, qp);
    }
}

/* Number of posted writes that are not acknowledged, and for each of which nf_rc_write reserved an event. */
static uint32_t told_writes(const nf_requester *r) {
    uint32_t told = 0;
    for (uint32_t i = 0; i < r->count; i++) told += r->writes[(r->head + i) & (r->room - 1)].id != NF_RC_UNTOLD;
    return told;
}

void nf_qp_break(nf_rc *rc, nf_qp *qp, uint8_t syndrome, bool by_peer) {
    if (qp->broken) return;
    qp->broken = true;
    rc->reserved_events -= told_writes(&qp->out) + 1;
    qp->out.count = 0;
    qp->out.una = qp->out.next = qp->out.limit;
    qp->out.n_lost = 0;
    qp->out.timer.deadline = qp->out.path_check = NF_NEVER;
    nf_rc_event event = {.what = NF_RC_BROKEN, .qp = nf_rc_index(rc, qp), .syndrome = syndrome, .by_peer = by_peer};
    rc->reserved_events++; /* nf_rc_emit takes it */
    nf_rc_emit(rc, &event);
}
