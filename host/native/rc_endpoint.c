/* SPDX-License-Identifier: Apache-2.0
 *
 * The endpoint: all queue pairs of one address; what arrives goes to its queue pair; time passes.  See rc.h.
 */
#include <stdlib.h>

#include "crc.h"
#include "rc_contexts.h"
#include "rc_events.h"
#include "rc_pairs.h"
#include "rc_paths.h"
#include "rc_requester.h"
#include "rc_responder.h"

nf_rc *nf_rc_open(uint32_t address, uint16_t port, uint32_t path_mtu, uint32_t window, uint32_t max_run,
                  uint32_t reorder) {
    bool power = path_mtu >= 256 && path_mtu <= 4096 && !(path_mtu & (path_mtu - 1));
    if (!power || window < 2 || window > 1u << 20 || (window & (window - 1)) || max_run < 1 || max_run > NF_RC_RUN ||
        reorder < 1)
        return NULL;
    nf_rc *rc = calloc(1, sizeof *rc);
    if (!rc) return NULL;
    rc->address = address;
    rc->port = port;
    rc->path_mtu = path_mtu;
    rc->window = window;
    rc->reorder = reorder;
    rc->rules = nf_requester_rules(window);
    rc->open_bound = UINT32_MAX;
    uint32_t packet = NF_BTH_BYTES + NF_RETH_BYTES + path_mtu + NF_ICRC_BYTES;
    uint32_t fit = (65535 - NF_IPV4_BYTES - NF_UDP_BYTES) / packet; /* a super-packet is one IP packet */
    rc->max_run = max_run < fit ? max_run : fit;
    rc->buffer = malloc((size_t)NF_RC_RUN * packet);
    if (!rc->buffer) {
        nf_rc_close(rc);
        return NULL;
    }
    return rc;
}

void nf_rc_close(nf_rc *rc) {
    if (!rc) return;
    for (uint32_t i = 0; i < rc->n_qps; i++) {
        nf_context_release(&rc->qps[i]);
        free(rc->qps[i].reps);
    }
    free(rc->qps);
    free(rc->by_number);
    free(rc->active);
    free(rc->answers);
    free(rc->open);
    free(rc->regions);
    free(rc->events);
    free(rc->buffer);
    free(rc->ports);
    free(rc->paths);
    free(rc);
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------- */
int32_t nf_rc_connect(nf_rc *rc, const nf_rc_plan *plan) {
    bool numbers = plan->qp && plan->qp <= NF_PSN_MASK && plan->peer_qp && plan->peer_qp <= NF_PSN_MASK;
    bool ports = plan->source_port && plan->source_port <= 0xffff && plan->peer_port && plan->peer_port <= 0xffff;
    if (!numbers || !ports || nf_qp_find(rc, plan->qp)) return NF_RC_BAD_NUMBERS;
    if (!nf_qp_reserve(rc)) return NF_RC_NO_MEMORY;
    nf_qp *qp = &rc->qps[rc->n_qps];
    memset(qp, 0, sizeof *qp);
    qp->plan = *plan;
    nf_requester_open(rc, &qp->out);
    if (!nf_path_set(rc, qp, plan->peer, (uint16_t)plan->source_port) || !nf_rc_reserve_events(rc, 1))
        return NF_RC_NO_MEMORY;
    rc->reserved_events++;
    nf_qp_enter(rc, rc->n_qps);
    return (int32_t)rc->n_qps++;
}

bool nf_rc_ports(nf_rc *rc, const uint16_t *ports, uint32_t n) {
    uint16_t *copy = n ? malloc(n * sizeof *copy) : NULL;
    if (!copy) return false;
    memcpy(copy, ports, n * sizeof *copy);
    free(rc->ports);
    rc->ports = copy;
    rc->n_ports = n;
    return true;
}

bool nf_rc_use_reps(nf_rc *rc, uint32_t qp, uint64_t seed) {
    if (qp >= rc->n_qps || !rc->n_ports) return false;
    if (!rc->qps[qp].reps) rc->qps[qp].reps = malloc(sizeof *rc->qps[qp].reps);
    if (!rc->qps[qp].reps) return false;
    nf_reps_open(rc->qps[qp].reps, seed, rc->n_ports, rc->window);
    return true;
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */
static void recycle(const nf_rc *rc, nf_qp *qp, uint16_t port) {
    for (uint32_t i = 0; i < rc->n_ports; i++)
        if (rc->ports[i] == port) nf_reps_recycle(qp->reps, i);
}

/* Takes in one packet.  *touched: index of the queue pair that the last data packet was for, plus 1; 0: none yet. */
static void receive_packet(nf_rc *rc, const uint8_t *p, size_t n, const nf_origin *from, bool marked, int64_t now,
                           uint32_t *touched) {
    nf_qp *qp = n >= NF_BTH_BYTES + NF_ICRC_BYTES ? nf_qp_find(rc, nf_get32(p + 4) & NF_PSN_MASK) : NULL;
    if (!qp || nf_get16(p + 2) != NF_PKEY || (p[1] & 0x0f)) {
        rc->foreign++;
        return;
    }
    if (from->source != qp->plan.peer) {
        rc->refused++;
        rc->refused_from = *from;
        return;
    }
    const nf_route route = {from->source, rc->address, from->source_port, rc->port};
    if (!nf_icrc_holds_for_some(p, n, &route, &qp->likely_id, NF_RC_RUN)) {
        rc->corrupt++;
        return;
    }
    qp->likely_id++;
    qp->arrived_at = now;
    if (qp->broken) {
        if (qp->in.refusal && p[0] != NF_RC_ACKNOWLEDGE) {
            qp->in.refusal_due = true;
            nf_qp_owe_answer(rc, qp);
        }
        return;
    }
    nf_rc_header h = {.opcode = p[0], .psn = nf_get32(p + 8) & NF_PSN_MASK};
    size_t headers = NF_BTH_BYTES, pad = p[1] >> 4 & 3;
    if (h.opcode == NF_RC_ACKNOWLEDGE && n == NF_BTH_BYTES + NF_RC_AETH_BYTES + NF_ICRC_BYTES) {
        if (qp->reps && !(p[4] & NF_BECN) && NF_AETH_KIND(p[NF_BTH_BYTES]) == NF_AETH_KIND_ACK)
            recycle(rc, qp, from->source_port);
        bool own = nf_path_answered(rc, qp, from->source_port, now);
        nf_requester_take_answer(rc, qp, h.psn, p[NF_BTH_BYTES], p[4] & NF_BECN, own, now);
        return;
    }
    if (nf_has_reth(h.opcode))
        headers += NF_RETH_BYTES;
    else if (h.opcode != NF_WRITE_MIDDLE && h.opcode != NF_WRITE_LAST)
        headers = n;
    if (n < headers + pad + NF_ICRC_BYTES + 1 || n - headers - NF_ICRC_BYTES > rc->path_mtu) {
        rc->foreign++;
        return;
    }
    if (nf_has_reth(h.opcode)) {
        h.address = nf_get64(p + NF_BTH_BYTES);
        h.key = nf_get32(p + NF_BTH_BYTES + 8);
        h.length = nf_get32(p + NF_BTH_BYTES + 12);
    }
    uint32_t index = nf_rc_index(rc, qp);
    if (*touched != index + 1) {
        if (*touched) nf_responder_find_holes(rc, &rc->qps[*touched - 1]);
        *touched = index + 1;
    }
    nf_responder_came_by(&qp->in, from->source_port);
    nf_responder_take(rc, qp, &h, p + headers, (uint32_t)(n - headers - pad - NF_ICRC_BYTES), marked);
}

void nf_rc_receive(nf_rc *rc, const uint8_t *bytes, size_t n, size_t segment, const nf_origin *from, bool marked,
                   int64_t now) {
    uint32_t touched = 0;
    for (size_t at = 0; segment && at < n; at += segment)
        receive_packet(rc, bytes + at, n - at < segment ? n - at : segment, from, marked, now, &touched);
    if (touched) nf_responder_find_holes(rc, &rc->qps[touched - 1]);
}

/* ---- time -------------------------------------------------------------------------------------------------------- */
void nf_rc_tick(nf_rc *rc, int64_t now) {
    for (uint32_t i = 0; i < rc->n_active; i++) {
        nf_qp *qp = &rc->qps[rc->active[i]];
        bool expired = nf_requester_tick(rc, &qp->out, now);
        if (!qp->reps)
            nf_path_watch(rc, qp, now);
        else if (expired)
            nf_reps_freeze(qp->reps, now);
    }
}

int64_t nf_rc_deadline(const nf_rc *rc) {
    int64_t least = NF_NEVER;
    for (uint32_t i = 0; i < rc->n_active; i++) {
        const nf_qp *qp = &rc->qps[rc->active[i]];
        int64_t one =
            qp->reps || qp->out.timer.deadline < qp->out.path_check ? qp->out.timer.deadline : qp->out.path_check;
        least = one < least ? one : least;
    }
    return least;
}

void nf_rc_reset_stalls(nf_rc *rc) {
    for (uint32_t i = 0; i < rc->n_qps; i++) rc->qps[i].out.longest_stall = 0;
}

bool nf_rc_state_of(const nf_rc *rc, uint32_t index, nf_rc_pair_state *s) {
    if (index >= rc->n_qps) return false;
    const nf_requester *o = &rc->qps[index].out;
    const nf_responder *i = &rc->qps[index].in;
    *s = (nf_rc_pair_state){o->limit,
                            o->next,
                            o->una,
                            o->sent,
                            o->retransmitted,
                            o->timeouts,
                            o->naks,
                            o->marks,
                            i->expected,
                            i->received,
                            i->duplicates,
                            i->refused,
                            o->timer.rto,
                            o->rtt.srtt,
                            o->congestion.allowed,
                            o->longest_stall,
                            rc->qps[index].open};
    return true;
}
