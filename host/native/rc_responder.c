/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_responder.h"

#include <stdlib.h>

#include "rc_contexts.h"
#include "rc_events.h"
#include "rc_pairs.h"
#include "rc_regions.h"

/* Memory for a window, with the first packet: many queue pairs never get one, and some have closed since. */
static bool opened(nf_rc *rc, nf_qp *qp) {
    nf_responder *r = &qp->in;
    nf_context_open(rc, qp);
    if (!r->arrived) r->arrived = calloc(rc->window, 1);
    if (!r->messages) r->messages = malloc((rc->window + 1) * sizeof *r->messages);
    return r->arrived && r->messages;
}

static uint8_t *state(const nf_rc *rc, const nf_responder *r, uint64_t seq) {
    return &r->arrived[seq & (rc->window - 1)];
}

/* The message that holds seq, or NULL; *where: how many begin at or before it. */
static nf_message *message_of(nf_responder *r, uint64_t seq, uint32_t *where) {
    uint32_t low = 0, high = r->n_messages;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (r->messages[middle].first <= seq)
            low = middle + 1;
        else
            high = middle;
    }
    *where = low;
    return low && seq < r->messages[low - 1].end ? &r->messages[low - 1] : NULL;
}

/* Refuses a packet for good: the connection breaks.  Remembered until the NAK is out. */
static void refuse(nf_rc *rc, nf_qp *qp, uint64_t seq, uint8_t syndrome) {
    qp->in.refused++;
    qp->in.refusal = syndrome;
    qp->in.refusal_due = true;
    qp->in.refused_at = seq;
    nf_qp_owe_answer(rc, qp);
    nf_qp_break(rc, qp, syndrome, false);
}

/* Copies a payload to its place.  False: it contradicts its message, or the memory is not registered any more. */
static bool place(nf_rc *rc, nf_qp *qp, const nf_message *m, uint64_t seq, const uint8_t *payload, uint32_t length) {
    uint64_t at = (seq - m->first) * rc->path_mtu;
    uint32_t wanted = m->length - at < rc->path_mtu ? (uint32_t)(m->length - at) : rc->path_mtu;
    if (length != wanted) {
        refuse(rc, qp, seq, NF_AETH_INVALID);
        return false;
    }
    uint8_t *to = nf_rc_region(rc, m->key, m->offset + at, length);
    if (!to) {
        refuse(rc, qp, seq, NF_AETH_ACCESS);
        return false;
    }
    memcpy(to, payload, length);
    return true;
}

static bool stash(nf_rc *rc, nf_responder *r, uint64_t seq, const uint8_t *payload, uint32_t length) {
    if (!r->stash) {
        r->stash = malloc((size_t)rc->window * rc->path_mtu);
        r->stashed = malloc(rc->window * sizeof *r->stashed);
        if (!r->stash || !r->stashed) {
            free(r->stash);
            free(r->stashed);
            r->stash = NULL;
            r->stashed = NULL;
            return false; /* no memory: as if the packet had been lost */
        }
    }
    uint64_t slot = seq & (rc->window - 1);
    memcpy(r->stash + slot * rc->path_mtu, payload, length);
    r->stashed[slot] = (uint16_t)length;
    return true;
}

/* A FIRST or ONLY: the message is known from here on.  NULL: refused. */
static nf_message *begin(nf_rc *rc, nf_qp *qp, uint64_t seq, const nf_rc_header *h) {
    nf_responder *r = &qp->in;
    uint32_t where;
    uint64_t end = seq + nf_rc_packets(rc, h->length);
    bool only = h->opcode == NF_WRITE_ONLY;
    if (message_of(r, seq, &where) || h->length > NF_RC_MESSAGE || !h->length || (end - seq == 1) != only ||
        (where < r->n_messages && r->messages[where].first < end)) {
        refuse(rc, qp, seq, NF_AETH_INVALID);
        return NULL;
    }
    memmove(&r->messages[where + 1], &r->messages[where], (r->n_messages - where) * sizeof *r->messages);
    r->messages[where] = (nf_message){seq, end, h->address, h->key, h->length};
    r->n_messages++;
    for (uint64_t s = seq + 1; s < end && s < r->top; s++) {
        if (*state(rc, r, s) != NF_STASHED) continue;
        uint64_t slot = s & (rc->window - 1);
        if (!place(rc, qp, &r->messages[where], s, r->stash + slot * rc->path_mtu, r->stashed[slot])) return NULL;
        *state(rc, r, s) = NF_PLACED;
    }
    return &r->messages[where];
}

/* Moves `expected` over what is in, and hands out the messages that are whole.  One that its region refuses stays
 * unacknowledged, by its last packet. */
static void advance(nf_rc *rc, nf_qp *qp) {
    nf_responder *r = &qp->in;
    uint64_t end = r->expected;
    while (end < r->top && *state(rc, r, end) == NF_PLACED) end++;
    uint32_t whole = 0;
    for (; whole < r->n_messages && r->messages[whole].end <= end; whole++) {
        const nf_message *m = &r->messages[whole];
        nf_rc_event event = {
            .what = NF_RC_ARRIVED, .qp = nf_rc_index(rc, qp), .offset = m->offset, .key = m->key, .length = m->length};
        bool tell;
        uint8_t refusal = nf_rc_filled(rc, &event, &tell);
        if (refusal) {
            end = m->end - 1;
            refuse(rc, qp, end, refusal);
            break;
        }
        if (tell) nf_rc_emit(rc, &event);
    }
    while (r->expected < end) *state(rc, r, r->expected++) = NF_MISSING;
    r->msn = (r->msn + whole) & NF_PSN_MASK;
    r->n_messages -= whole;
    memmove(r->messages, r->messages + whole, r->n_messages * sizeof *r->messages);
}

void nf_responder_came_by(nf_responder *r, uint16_t port) {
    if (r->due && r->source_port != port) r->before_port = r->source_port;
    r->source_port = port;
}

void nf_responder_take(nf_rc *rc, nf_qp *qp, const nf_rc_header *h, const uint8_t *payload, uint32_t length,
                       bool marked) {
    nf_responder *r = &qp->in;
    int64_t place_of = nf_rc_seq(qp->plan.peer_psn, h->psn, r->expected);
    if (place_of >= (int64_t)(r->expected + rc->window) || place_of < -(int64_t)rc->window) {
        rc->foreign++; /* no peer that keeps to the window sends this */
        return;
    }
    bool old = place_of < (int64_t)r->expected; /* it is acknowledged again, and opens nothing */
    if (!old && !opened(rc, qp)) return;        /* no memory: as if the packet had been lost */
    nf_qp_owe_answer(rc, qp);
    if (!qp->reps || !nf_reps_echo(qp->reps, r->source_port, marked)) {
        r->due = true;
        r->marked |= marked;
    }
    uint64_t seq = (uint64_t)place_of;
    if (old || *state(rc, r, seq) != NF_MISSING) {
        r->duplicates++;
        return;
    }
    if (!nf_rc_reserve_events(rc, r->n_messages + 2)) return; /* the same */
    uint32_t where;
    nf_message *m = nf_has_reth(h->opcode) ? begin(rc, qp, seq, h) : message_of(r, seq, &where);
    if (qp->broken) return;
    if (m) {
        if (!nf_has_reth(h->opcode) && (h->opcode == NF_WRITE_LAST) != (seq == m->end - 1)) {
            refuse(rc, qp, seq, NF_AETH_INVALID);
            return;
        }
        if (!place(rc, qp, m, seq, payload, length)) return;
    } else if (seq == r->expected) {
        refuse(rc, qp, seq, NF_AETH_INVALID); /* in order, and no message has begun */
        return;
    } else if (!stash(rc, r, seq, payload, length)) {
        return;
    }
    *state(rc, r, seq) = m ? NF_PLACED : NF_STASHED;
    r->received++;
    rc->progress++;
    if (seq >= r->top) r->top = seq + 1;
    advance(rc, qp);
}

void nf_responder_find_holes(const nf_rc *rc, nf_qp *qp) {
    nf_responder *r = &qp->in;
    if (r->reported < r->expected) r->reported = r->expected;
    if (r->top < r->reported + rc->reorder) return;
    if (r->nak_end <= r->nak_from) r->nak_from = r->reported;
    r->nak_end = r->reported = r->top - rc->reorder;
}
