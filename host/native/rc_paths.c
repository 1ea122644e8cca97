/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_paths.h"

#include <stdlib.h>

#include "rc_events.h"
#include "rc_requester.h"

static nf_path *find(const nf_rc *rc, uint32_t group, uint16_t port) {
    for (uint32_t i = 0; i < rc->n_paths; i++)
        if (rc->paths[i].group == group && rc->paths[i].port == port) return &rc->paths[i];
    return NULL;
}

bool nf_path_set(nf_rc *rc, nf_qp *qp, uint32_t group, uint16_t port) {
    nf_path *path = find(rc, group, port);
    if (!path && rc->n_paths == rc->room_paths) {
        uint32_t room = rc->room_paths ? 2 * rc->room_paths : 16;
        nf_path *more = realloc(rc->paths, room * sizeof *more);
        if (!more) return false;
        rc->paths = more;
        rc->room_paths = room;
    }
    if (!path) {
        path = &rc->paths[rc->n_paths++];
        *path = (nf_path){.group = group, .port = port};
    }
    qp->path = (uint32_t)(path - rc->paths);
    qp->group = group;
    qp->plan.source_port = port;
    return true;
}

bool nf_rc_set_group(nf_rc *rc, uint32_t qp, uint32_t group) {
    return qp < rc->n_qps && nf_path_set(rc, &rc->qps[qp], group, (uint16_t)rc->qps[qp].plan.source_port);
}

bool nf_rc_move(nf_rc *rc, uint32_t index, uint16_t source_port, bool lost, int64_t now) {
    if (index >= rc->n_qps) return false;
    nf_qp *qp = &rc->qps[index];
    if (!nf_path_set(rc, qp, qp->group, source_port)) return false;
    nf_requester_moved(rc, &qp->out, lost, now);
    return true;
}

void nf_path_answered(nf_rc *rc, const nf_qp *qp, uint16_t port, int64_t now) {
    nf_path *path = &rc->paths[qp->path];
    if (path->port != port && !(path = find(rc, qp->group, port)))
        return; /* the peer cannot send from the port that we asked from */
    path->answered = now;
    if (path->blamed && nf_rc_reserve_events(rc, 1)) {
        nf_rc_event event = {.what = NF_RC_ANSWERED, .qp = nf_rc_index(rc, qp), .source_port = port};
        path->blamed = false;
        nf_rc_emit(rc, &event);
    }
}

/* Whether anything came from this peer on another queue pair since then. */
static bool peer_is_alive(const nf_rc *rc, const nf_qp *qp, int64_t since) {
    for (uint32_t i = 0; i < rc->n_qps; i++) {
        const nf_qp *other = &rc->qps[i];
        if (other != qp && other->plan.peer == qp->plan.peer && other->arrived_at > since) return true;
    }
    return false;
}

/* Halfway to the verdict the oldest packet goes again: a clock of its own, so that a dead path is left as soon where
 * round trips are long, and the retransmission timer with them. */
void nf_path_watch(nf_rc *rc, nf_qp *qp, int64_t now) {
    nf_requester *r = &qp->out;
    if (now < r->path_check || r->una == r->next) return;
    nf_path *path = &rc->paths[qp->path];
    int64_t far = 2 * r->rtt.srtt < NF_RC_STALL_MOST ? 2 * r->rtt.srtt : NF_RC_STALL_MOST;
    int64_t early = far > NF_RC_STALL ? far : NF_RC_STALL, late = far > NF_RC_STALL_ALONE ? far : NF_RC_STALL_ALONE;
    int64_t since = r->silent_since > path->answered ? r->silent_since : path->answered, waited = now - since;
    if (waited < early / 2) { /* it has answered somebody since */
        r->path_check = since + early / 2;
        return;
    }
    nf_requester_probe(rc, r, now);
    bool blame =
        r->unanswered > 1 && (waited >= late || (waited >= early && peer_is_alive(rc, qp, now - NF_RC_STALL / 2)));
    if (blame && nf_rc_reserve_events(rc, 1)) {
        nf_rc_event event = {.what = NF_RC_STALLED, .qp = nf_rc_index(rc, qp), .source_port = path->port};
        r->silent_since = now;
        path->blamed = true;
        nf_rc_emit(rc, &event);
    }
    r->path_check = waited < early ? since + early : waited < late ? since + late : now + early / 2;
}
