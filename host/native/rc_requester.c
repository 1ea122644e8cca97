/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_requester.h"

#include <stdlib.h>

#include "rc_contexts.h"
#include "rc_events.h"
#include "rc_pairs.h"

#define RTO_SILENT 100000000ll /* the most that back-off adds: bounds how long a repaired path stays unused */
#define WRITES_FIRST 16

/* Other flows may share the path, so a queue pair starts slowly.  alpha begins at 0, since the first mark ends slow
 * start already. */
nf_congestion_rules nf_requester_rules(uint32_t window) {
    double floor = window / 8 > 2 ? window / 8 : 2;
    return (nf_congestion_rules){.start = window < 32 ? window : 32,
                                 .least = 2,
                                 .most = window,
                                 .loss_floor = floor,
                                 .growth = 1 + floor / 8, /* a window's worth in some tens of round trips */
                                 .alpha = 0,
                                 .slow_start = true,
                                 .halve_at_once = true};
}

void nf_requester_open(const nf_rc *rc, nf_requester *r) {
    r->timer = (nf_timer){.rto = NF_RTO_FIRST, .deadline = NF_NEVER};
    r->path_check = NF_NEVER;
    r->burst = 1;
    nf_congestion_open(&r->congestion, &rc->rules, 0);
}

static nf_write *at(const nf_requester *r, uint32_t i) { return &r->writes[(r->head + i) & (r->room - 1)]; }

bool nf_requester_post(nf_rc *rc, nf_qp *qp, nf_write w) {
    nf_requester *r = &qp->out;
    nf_context_open(rc, qp);
    if (!r->flights && !(r->flights = calloc(rc->window, sizeof *r->flights))) return false;
    if (r->count == r->room) {
        uint32_t room = r->room ? 2 * r->room : WRITES_FIRST;
        nf_write *more = malloc(room * sizeof *more);
        if (!more) return false;
        for (uint32_t i = 0; i < r->count; i++) more[i] = *at(r, i);
        free(r->writes);
        r->writes = more;
        r->head = 0;
        r->room = room;
    }
    w.first = r->limit;
    r->limit += nf_rc_packets(rc, w.length);
    r->writes[(r->head + r->count++) & (r->room - 1)] = w;
    nf_qp_activate(rc, qp);
    return true;
}

const nf_write *nf_requester_write(const nf_requester *r, uint64_t seq) {
    uint32_t low = 0, high = r->count; /* the last one that begins at or before seq */
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (at(r, middle)->first <= seq)
            low = middle;
        else
            high = middle;
    }
    return at(r, low);
}

static nf_flight *flight(const nf_rc *rc, const nf_requester *r, uint64_t seq) {
    return &r->flights[seq & (rc->window - 1)];
}

/* Lost packets may always go: what arrived behind a hole counts as in flight until the hole is filled. */
uint32_t nf_requester_sendable(const nf_rc *rc, const nf_requester *r) {
    uint64_t in_flight = r->next - r->una, allowed = (uint64_t)r->congestion.allowed;
    uint64_t end = r->una + rc->window < r->limit ? r->una + rc->window : r->limit, fresh = end - r->next;
    uint64_t room = allowed > in_flight ? allowed - in_flight : 0;
    return r->n_lost + (uint32_t)(fresh < room ? fresh : room);
}

uint64_t nf_requester_peek(const nf_rc *rc, const nf_requester *r) {
    if (!r->n_lost) return r->next;
    uint64_t seq = r->lost_from > r->una ? r->lost_from : r->una;
    while (!flight(rc, r, seq)->lost) seq++;
    return seq;
}

void nf_requester_send(const nf_rc *rc, nf_requester *r, uint64_t seq, int64_t now) {
    nf_flight *f = flight(rc, r, seq);
    if (seq == r->next) {
        r->next++;
        f->again = false;
    } else {
        f->again = true;
        r->n_lost--;
        r->lost_from = seq + 1;
        r->retransmitted++;
    }
    f->lost = false;
    f->at = now;
    r->sent++;
    if (r->timer.deadline == NF_NEVER) {
        nf_timer_start(&r->timer, now);
        r->path_check = now + NF_RC_ASK;
        r->acknowledged_at = r->silent_since = now;
    }
}

void nf_requester_copied(const nf_rc *rc, nf_requester *r) {
    flight(rc, r, r->una)->again = true;
    r->sent++;
    r->retransmitted++;
}

static void lose(const nf_rc *rc, nf_requester *r, uint64_t seq) {
    nf_flight *f = flight(rc, r, seq);
    if (f->lost) return;
    f->lost = true;
    r->n_lost++;
    if (seq < r->lost_from) r->lost_from = seq;
}

void nf_requester_unsent(const nf_rc *rc, nf_requester *r, uint64_t seq) {
    if (seq >= r->una && seq < r->next) lose(rc, r, seq);
}

static void set_rto(nf_requester *r) { r->timer.rto = nf_rtt_timeout(&r->rtt, NF_RTO_LEAST, NF_RTO_MOST); }

/* An ACK told of congestion that so many packets met. */
static void mark(nf_requester *r, uint32_t packets) {
    r->marks++;
    nf_congestion_marked(&r->congestion, packets);
}

void nf_requester_probe(const nf_rc *rc, nf_requester *r, int64_t now) {
    if (!r->unanswered) r->probed_at = now;
    r->unanswered += !flight(rc, r, r->una)->lost; /* one that has not left yet is no probe */
    r->recover = r->next;
    r->repeated_below = r->una + 1;
    if (!r->left_path) r->burst = 1;
    r->probe_rtt = 0;
    lose(rc, r, r->una);
}

/* After a time-out an answer came, `age` after the first packet that it acknowledges was sent: does more go again?
 * Packets on a path that is dead do, however soon the answer came. */
static void recover(const nf_rc *rc, nf_requester *r, int64_t age, int64_t now) {
    if (!r->probe_rtt) age = now - r->probed_at; /* of several repetitions the first may be what was answered */
    int64_t usual = r->srtt_doubtful || r->probe_rtt > r->rtt.srtt ? r->probe_rtt : r->rtt.srtt;
    if (!r->left_path && age < usual / 2) {
        r->recover = r->una; /* what was repeated had arrived: the time-out was spurious */
        r->srtt_doubtful = true;
        return;
    }
    if (r->una > r->repeated_below) r->repeated_below = r->una; /* what waited behind a hole, now filled */
    r->probe_rtt = age;
    if (r->burst < rc->window) r->burst *= 2;
    uint64_t end = r->una + r->burst < r->recover ? r->una + r->burst : r->recover;
    for (; r->repeated_below < end; r->repeated_below++) lose(rc, r, r->repeated_below);
}

static void acknowledged(nf_rc *rc, nf_qp *qp, uint64_t end, bool marked, bool own, int64_t now) {
    nf_requester *r = &qp->out;
    uint64_t before = r->una;
    const nf_flight *last = flight(rc, r, end - 1);
    int64_t age = now - last->at, waited = now - flight(rc, r, before)->at;
    bool once = !last->again && !last->lost, in_order = true;
    for (; r->una < end; r->una++) {
        nf_flight *f = flight(rc, r, r->una);
        in_order &= !f->again && !f->lost;
        if (f->lost) {
            f->lost = false;
            r->n_lost--;
        }
    }
    /* Karn; until then the back-off stands.  What waited behind a hole took as long as the hole's repair, which counts
     * only where no round trip is known. */
    if (own && once && (in_order || !r->rtt.srtt || r->srtt_doubtful)) {
        nf_rtt_measure(&r->rtt, age);
        nf_rtt_measure(&rc->paths[qp->path].rtt, age);
        r->srtt_doubtful = false;
        set_rto(r);
    }
    rc->progress += end - before;
    r->longest_stall = now - r->acknowledged_at > r->longest_stall ? now - r->acknowledged_at : r->longest_stall;
    r->acknowledged_at = now;
    if (own) {
        r->silent_since = now;
        r->unanswered = 0;
    }
    nf_timer_restart(&r->timer, r->una < r->next, now);
    if (r->una == r->next) r->path_check = NF_NEVER;
    if (marked) mark(r, qp->reps ? 1 : (uint32_t)(end - before)); /* one ACK a packet, or one for all of them */
    nf_congestion_acknowledged(&r->congestion, &rc->rules, (uint32_t)(end - before));
    nf_congestion_round(&r->congestion, &rc->rules, r->una, r->next);
    if (r->una < r->recover)
        recover(rc, r, waited, now);
    else
        r->left_path = false;
    while (r->count && at(r, 0)->first + nf_rc_packets(rc, at(r, 0)->length) <= r->una) {
        nf_rc_event event = {.what = NF_RC_SENT, .qp = nf_rc_index(rc, qp), .id = at(r, 0)->id};
        if (event.id != NF_RC_UNTOLD) nf_rc_emit(rc, &event); /* room was reserved when it was posted */
        r->head = (r->head + 1) & (r->room - 1);
        r->count--;
    }
}

/* Whether a packet was sent again so short a time ago that an answer cannot be about that: a round trip. */
static bool repeated_just_now(const nf_requester *r, const nf_flight *f, int64_t now) {
    return f->again && now - f->at < (r->rtt.srtt > NF_RTO_LEAST ? r->rtt.srtt : NF_RTO_LEAST);
}

void nf_requester_take_answer(nf_rc *rc, nf_qp *qp, uint32_t psn, uint8_t syndrome, bool marked, bool own,
                              int64_t now) {
    nf_requester *r = &qp->out;
    int64_t seq = nf_rc_seq(qp->plan.psn, psn, r->una);
    if (seq == (int64_t)r->una - 1 && qp->reps && NF_AETH_KIND(syndrome) == NF_AETH_KIND_ACK && marked) mark(r, 1);
    if (seq < (int64_t)r->una || seq >= (int64_t)r->next) return; /* old, or for a packet that was never sent */
    if (NF_AETH_KIND(syndrome) == NF_AETH_KIND_ACK) {
        acknowledged(rc, qp, (uint64_t)seq + 1, marked, own, now);
    } else if (syndrome == NF_AETH_SEQUENCE) {
        r->naks++;
        if (repeated_just_now(r, flight(rc, r, (uint64_t)seq), now)) return; /* said twice, it is not lost twice */
        lose(rc, r, (uint64_t)seq);
        nf_congestion_lost(&r->congestion, &rc->rules, r->una, r->next);
    } else if (NF_AETH_KIND(syndrome) == NF_AETH_KIND_NAK) {
        nf_qp_break(rc, qp, syndrome, true);
    }
}

bool nf_requester_tick(const nf_rc *rc, nf_requester *r, int64_t now) {
    if (!nf_timer_expired(&r->timer, now)) return false;
    r->timeouts++;
    nf_timer_back_off(&r->timer, r->timer.rto > RTO_SILENT ? r->timer.rto : RTO_SILENT);
    nf_timer_restart(&r->timer, true, now);
    nf_requester_probe(rc, r, now);
    nf_congestion_lost(&r->congestion, &rc->rules, r->una, r->next);
    return true;
}

void nf_requester_moved(const nf_rc *rc, nf_requester *r, nf_rtt trip, bool lost, bool proven, int64_t now) {
    r->silent_since = now; /* the new path gets its full time */
    if (!lost || r->una == r->next) return;
    r->srtt_doubtful = !trip.srtt; /* the round trip was the old path's, and so was the back-off */
    if (trip.srtt) r->rtt = trip;
    set_rto(r);
    r->unanswered = 0;
    nf_timer_restart(&r->timer, true, now);
    r->path_check = now + NF_RC_ASK;
    nf_requester_probe(rc, r, now);
    r->left_path = proven;
    uint32_t half = (uint32_t)r->congestion.allowed / 2; /* twice as many follow the probe's answer */
    r->burst = proven && trip.srtt && half > 1 ? half : 1;
}
