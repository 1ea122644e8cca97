/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_paths.h"

#include <stdlib.h>

#include "rc_events.h"
#include "rc_requester.h"

#define SILENCES 10000000000ll /* nanoseconds for which the longest silence counts, at least; at most twice that */

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

/* The round trips over a path: of one that nobody has measured, those of the slowest one of all that leave here. */
static nf_rtt usual_trip(const nf_rc *rc, const nf_path *path) {
    nf_rtt longest = path->rtt;
    for (uint32_t i = 0; !path->rtt.srtt && i < rc->n_paths; i++)
        if (rc->paths[i].rtt.srtt > longest.srtt) longest = rc->paths[i].rtt;
    return longest;
}

bool nf_rc_move(nf_rc *rc, uint32_t index, uint16_t source_port, bool lost, int64_t now) {
    if (index >= rc->n_qps) return false;
    nf_qp *qp = &rc->qps[index];
    bool proven = rc->paths[qp->path].proven;
    if (!nf_path_set(rc, qp, qp->group, source_port)) return false;
    nf_requester_moved(rc, &qp->out, usual_trip(rc, &rc->paths[qp->path]), lost, proven, now);
    qp->inquiry = (nf_inquiry){0};
    return true;
}

/* A path was silent for so long, and then answered: others may be as well, and yet not be dead. */
static void silence_ended(nf_rc *rc, int64_t lasted, int64_t now) {
    if (now - rc->silences_from > SILENCES) {
        rc->silences[1] = now - rc->silences_from > 2 * SILENCES ? 0 : rc->silences[0];
        rc->silences[0] = 0;
        rc->silences_from = now;
    }
    if (lasted > rc->silences[0]) rc->silences[0] = lasted;
}

/* How long a path must be silent at least to count as dead: half as long again as any that was not, of late. */
static int64_t patience(const nf_rc *rc) {
    int64_t longest = rc->silences[0] > rc->silences[1] ? rc->silences[0] : rc->silences[1];
    return longest + longest / 2;
}

/* Since when nothing has been answered to the queue pair, or over its path. */
static int64_t silent_since(const nf_requester *r, const nf_path *path) {
    return r->silent_since > path->answered ? r->silent_since : path->answered;
}

bool nf_path_answered(nf_rc *rc, nf_qp *qp, uint16_t port, int64_t now) {
    nf_path *path = &rc->paths[qp->path];
    bool own = path->port == port;
    if (!own && !(path = find(rc, qp->group, port)))
        return true; /* the peer cannot send from the port that we asked from, and so it speaks for any */
    if (own && qp->out.una != qp->out.next) silence_ended(rc, now - silent_since(&qp->out, path), now);
    if (path->blamed) silence_ended(rc, now - path->silent, now);
    path->answered = now;
    nf_inquiry *q = &qp->inquiry;
    if (!own && q->at && q->port == port && !q->answered) {
        q->answered = now;
        qp->out.path_check = now + NF_RC_ASK / 2;
    }
    if (path->blamed && nf_rc_reserve_events(rc, 1)) {
        nf_rc_event event = {.what = NF_RC_ANSWERED, .qp = nf_rc_index(rc, qp), .source_port = port};
        path->blamed = path->proven = false;
        nf_rc_emit(rc, &event);
    }
    return own;
}

/* Whether anything came from this peer on another queue pair since then. */
static bool peer_is_alive(const nf_rc *rc, const nf_qp *qp, int64_t since) {
    for (uint32_t i = 0; i < rc->n_qps; i++) {
        const nf_qp *other = &rc->qps[i];
        if (other != qp && other->plan.peer == qp->plan.peer && other->arrived_at > since) return true;
    }
    return false;
}

/* The source port of another path to the same group that is not blamed: the one answered last, but rather not `tried`.
 * Returns 0 where there is none. */
static uint16_t another_path(const nf_rc *rc, const nf_qp *qp, uint16_t tried) {
    const nf_path *best = NULL;
    for (uint32_t i = 0; qp->group && i < rc->n_paths; i++) {
        const nf_path *path = &rc->paths[i];
        if (i == qp->path || path->group != qp->group || path->blamed) continue;
        bool better = !best || (best->port == tried) > (path->port == tried) ||
                      ((best->port == tried) == (path->port == tried) && path->answered > best->answered);
        if (better) best = path;
    }
    return best ? best->port : 0;
}

static int64_t between(int64_t least, int64_t x, int64_t most) { return x < least ? least : x > most ? most : x; }

/* At each look the oldest packet goes again: a clock of its own, so that a dead path is left as soon where round trips
 * are long, and the retransmission timer with them. */
void nf_path_watch(nf_rc *rc, nf_qp *qp, int64_t now) {
    nf_requester *r = &qp->out;
    if (now < r->path_check || r->una == r->next) return;
    nf_path *path = &rc->paths[qp->path];
    int64_t trip = usual_trip(rc, path).srtt, early = between(NF_RC_STALL, 2 * trip, NF_RC_STALL_MOST);
    int64_t late = between(NF_RC_STALL_ALONE, 2 * trip, NF_RC_STALL_MOST);
    int64_t first = trip ? between(NF_RC_ASK, trip + trip / 2, early / 2) : early / 2;
    int64_t own = trip ? between(NF_RC_ASK, trip, early / 2) : early / 2;
    int64_t since = silent_since(r, path), waited = now - since;
    int64_t patient = between(first + own, patience(rc), early);
    nf_inquiry *q = &qp->inquiry;
    if (q->at <= since) *q = (nf_inquiry){0}; /* that was about an earlier silence */
    if (waited < first) {                     /* it has answered somebody since */
        r->path_check = since + first;
        return;
    }
    nf_requester_probe(rc, r, now);
    bool other_answered = q->answered && waited >= patient && now >= q->at + own && now >= q->answered + NF_RC_ASK / 2;
    bool peer_heard = waited >= early && peer_is_alive(rc, qp, now - NF_RC_STALL / 2);
    bool blame = r->unanswered > 1 && (other_answered || peer_heard || waited >= late);
    if (!q->at) q->at = now;
    if (!q->answered) {
        q->port = another_path(rc, qp, q->port);
        q->due = q->port;
    }
    if (blame && nf_rc_reserve_events(rc, 1)) {
        nf_rc_event event = {.what = NF_RC_STALLED, .qp = nf_rc_index(rc, qp), .source_port = path->port};
        r->silent_since = now;
        path->blamed = true;
        path->proven = other_answered;
        path->silent = since;
        nf_rc_emit(rc, &event);
    }
    const int64_t looks[] = {since + patient, q->at + own, q->answered + NF_RC_ASK / 2, since + early, since + late};
    r->path_check = now + early / 2;
    for (uint32_t i = 0; i < sizeof looks / sizeof *looks; i++)
        if (looks[i] > now && looks[i] < r->path_check) r->path_check = looks[i];
}
