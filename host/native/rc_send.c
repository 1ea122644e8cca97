/* SPDX-License-Identifier: Apache-2.0
 *
 * Packets leave: who is next, headers, ICRC.
 */
#include "crc.h"
#include "rc_events.h"
#include "rc_pairs.h"
#include "rc_requester.h"

bool nf_rc_write(nf_rc *rc, uint32_t index, const void *data, uint32_t length, uint32_t key, uint64_t offset,
                 uint64_t id) {
    uint32_t told = id != NF_RC_UNTOLD;
    if (index >= rc->n_qps || rc->qps[index].broken || !length || length > NF_RC_MESSAGE ||
        !nf_rc_reserve_events(rc, told))
        return false;
    nf_write w = {.data = data, .length = length, .key = key, .offset = offset, .id = id};
    if (!nf_requester_post(rc, &rc->qps[index], w)) return false;
    rc->reserved_events += told;
    return true;
}

static size_t put_bth(uint8_t *p, uint8_t opcode, uint32_t pad, uint8_t ecn, uint32_t qp, bool ack, uint32_t psn) {
    p[0] = opcode;
    p[1] = (uint8_t)(pad << 4);
    nf_put16(p + 2, NF_PKEY);
    nf_put32(p + 4, (uint32_t)ecn << 24 | qp);
    nf_put32(p + 8, (ack ? 0x80000000u : 0) | psn);
    return NF_BTH_BYTES;
}

/* Returns the bytes of packet `seq` of a write, all headers from the BTH on and the ICRC included; its opcode and the
 * bytes of its payload in *opcode and *payload. */
static uint32_t layout_of(const nf_rc *rc, const nf_write *w, uint64_t seq, uint8_t *opcode, uint32_t *payload) {
    uint64_t at = (seq - w->first) * rc->path_mtu, left = w->length - at;
    bool first = !at, last = left <= rc->path_mtu;
    *opcode = first ? (last ? NF_WRITE_ONLY : NF_WRITE_FIRST) : (last ? NF_WRITE_LAST : NF_WRITE_MIDDLE);
    *payload = last ? (uint32_t)left : rc->path_mtu;
    return NF_BTH_BYTES + (first ? NF_RETH_BYTES : 0) + ((*payload + 3) & ~3u) + NF_ICRC_BYTES;
}

/* Writes packet `seq` of a write; returns its bytes. */
static uint32_t write_packet(nf_rc *rc, const nf_qp *qp, const nf_write *w, uint64_t seq, bool ack,
                             const nf_route *route, uint16_t id, uint8_t *p) {
    uint8_t opcode;
    uint32_t payload, n = layout_of(rc, w, seq, &opcode, &payload), pad = -payload & 3;
    size_t h = put_bth(p, opcode, pad, 0, qp->plan.peer_qp, ack, nf_rc_psn(qp->plan.psn, seq));
    if (nf_has_reth(opcode)) {
        nf_put64(p + h, w->offset);
        nf_put32(p + h + 8, w->key);
        nf_put32(p + h + 12, w->length);
        h += NF_RETH_BYTES;
    }
    memcpy(p + h, w->data + (seq - w->first) * rc->path_mtu, payload);
    memset(p + h + payload, 0, pad);
    nf_write_icrc(p, n, route, id);
    return n;
}

static void begin_run(const nf_rc *rc, const nf_qp *qp, nf_rc_run *run) {
    run->bytes = rc->buffer;
    run->length = run->packets = 0;
    run->route = (nf_route){rc->address, qp->plan.peer, (uint16_t)qp->plan.source_port, (uint16_t)qp->plan.peer_port};
    run->qp = nf_rc_index(rc, qp);
}

static bool can_send_from(const nf_rc *rc, uint16_t port) {
    for (uint32_t i = 0; i < rc->n_ports; i++)
        if (rc->ports[i] == port) return true;
    return false;
}

static void put_answer(nf_rc *rc, const nf_qp *qp, uint8_t syndrome, uint64_t about, bool marked, nf_rc_run *run) {
    uint8_t *p = rc->buffer + run->length;
    size_t h = put_bth(p, NF_RC_ACKNOWLEDGE, 0, marked ? NF_BECN : 0, qp->plan.peer_qp, false,
                       nf_rc_psn(qp->plan.peer_psn, about));
    nf_put32(p + h, (uint32_t)syndrome << 24 | qp->in.msn);
    nf_write_icrc(p, run->segment, &run->route, (uint16_t)run->packets++);
    run->length += run->segment;
}

/* REPS: one ACK for each of the next packets that came by one port, sent from that port. */
static void send_echoes(nf_rc *rc, nf_qp *qp, nf_rc_run *run) {
    nf_reps *reps = qp->reps;
    uint16_t port = reps->echoes[reps->echoed].port;
    if (can_send_from(rc, port)) run->route.source_port = port;
    for (; reps->echoed < reps->n_echoes && run->packets < rc->max_run; reps->echoed++) {
        const nf_echo *echo = &reps->echoes[reps->echoed];
        if (echo->port != port) return;
        put_answer(rc, qp, NF_AETH_ACK, qp->in.expected - 1, echo->marked, run);
    }
    if (reps->echoed == reps->n_echoes) reps->echoed = reps->n_echoes = 0;
}

static bool send_answers(nf_rc *rc, nf_rc_run *run) {
    while (rc->n_answers) {
        nf_qp *qp = &rc->qps[rc->answers[rc->n_answers - 1]];
        nf_responder *r = &qp->in;
        begin_run(rc, qp, run);
        run->answers = 1;
        run->segment = NF_BTH_BYTES + NF_RC_AETH_BYTES + NF_ICRC_BYTES;
        if (qp->reps && qp->reps->n_echoes) {
            send_echoes(rc, qp, run);
            return true;
        }
        if (r->before_port) {
            bool can = can_send_from(rc, r->before_port);
            run->route.source_port = can ? r->before_port : run->route.source_port;
            r->before_port = 0;
            if (can) {
                put_answer(rc, qp, NF_AETH_ACK, r->expected - 1, r->marked, run);
                return true;
            }
        }
        if (can_send_from(rc, r->source_port)) run->route.source_port = r->source_port;
        uint64_t seq = r->nak_from > r->expected ? r->nak_from : r->expected;
        while (run->packets < rc->max_run) {
            uint8_t syndrome = NF_AETH_ACK;
            uint64_t about = r->expected - 1;
            if (r->due) {
                r->due = false; /* where nothing is in yet it names the PSN before the first: no packet */
            } else {
                while (seq < r->nak_end && r->arrived[seq & (rc->window - 1)]) seq++;
                if (seq < r->nak_end) {
                    syndrome = NF_AETH_SEQUENCE;
                    about = seq++;
                } else if (r->refusal_due) {
                    syndrome = r->refusal;
                    about = r->refused_at;
                    r->refusal_due = false;
                } else {
                    break;
                }
            }
            put_answer(rc, qp, syndrome, about, r->marked, run);
            r->marked = false;
        }
        r->nak_from = seq;
        if (run->packets < rc->max_run) { /* that was all */
            qp->owes_answer = false;
            rc->n_answers--;
        }
        if (run->packets) return true;
    }
    return false;
}

/* The oldest packet leaves by the path that rc_paths.c asks about the peer. */
static void send_inquiry(nf_rc *rc, nf_qp *qp, nf_rc_run *run) {
    nf_requester *r = &qp->out;
    const nf_write *w = nf_requester_write(r, r->una);
    begin_run(rc, qp, run);
    run->route.source_port = qp->inquiry.port;
    run->segment = run->length = write_packet(rc, qp, w, r->una, true, &run->route, 0, rc->buffer);
    run->seqs[run->packets++] = r->una;
    nf_requester_copied(rc, r);
    qp->inquiry.due = false;
}

bool nf_rc_send(nf_rc *rc, int64_t now, nf_rc_run *run) {
    if (send_answers(rc, run)) return true;
    run->answers = 0;
    for (uint32_t tried = 0; tried < rc->n_active;) {
        uint32_t slot = rc->turn % rc->n_active;
        nf_qp *qp = &rc->qps[rc->active[slot]];
        nf_requester *r = &qp->out;
        if (r->una == r->limit) { /* idle: off the list */
            qp->active = false;
            rc->active[slot] = rc->active[--rc->n_active];
            continue;
        }
        if (qp->inquiry.due && r->una < r->next) {
            send_inquiry(rc, qp, run);
            return true;
        }
        uint32_t may = nf_requester_sendable(rc, r);
        rc->turn++;
        if (!may) {
            tried++;
            continue;
        }
        begin_run(rc, qp, run);
        uint32_t most = may < rc->max_run ? may : rc->max_run;
        if (qp->reps) {
            run->route.source_port = rc->ports[nf_reps_next(qp->reps, rc->n_ports, now)];
            most = 1;
        }
        bool shorter = false;
        const nf_write *w = NULL;
        while (run->packets < most && !shorter) {
            uint64_t seq = nf_requester_peek(rc, r);
            if (!w || seq < w->first || seq >= w->first + nf_rc_packets(rc, w->length)) w = nf_requester_write(r, seq);
            uint8_t opcode;
            uint32_t payload, n = layout_of(rc, w, seq, &opcode, &payload);
            if (run->packets && n > run->segment) break;
            if (!run->packets) run->segment = n;
            shorter = n < run->segment;
            bool ack = opcode == NF_WRITE_LAST || opcode == NF_WRITE_ONLY;
            write_packet(rc, qp, w, seq, ack, &run->route, (uint16_t)run->packets, rc->buffer + run->length);
            run->length += n;
            run->seqs[run->packets++] = seq;
            nf_requester_send(rc, r, seq, now);
        }
        return true;
    }
    return false;
}

void nf_rc_unsent(nf_rc *rc, const nf_rc_run *run) {
    if (run->answers) { /* an ACK is owed again; for lost NAKs the peer's timer makes up */
        rc->qps[run->qp].in.due = true;
        nf_qp_owe_answer(rc, &rc->qps[run->qp]);
        return;
    }
    for (uint32_t i = 0; i < run->packets; i++) nf_requester_unsent(rc, &rc->qps[run->qp].out, run->seqs[i]);
}

void nf_rc_no_runs(nf_rc *rc) { rc->max_run = 1; }
