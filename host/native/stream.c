/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <stdlib.h>

static inline nf_sent *at(const nf_stream *s, uint64_t seq) { return &s->ring[seq & (s->window - 1)]; }

/* Everything but where it stands: nothing is in flight, and the window is whole. */
static void begin(nf_stream *s, uint32_t window) {
    double floor = window / 4 > 64 ? window / 4 : window < 64 ? window : 64;
    s->window = window;
    s->timer = (nf_timer){.rto = NF_RTO_FIRST, .deadline = NF_NEVER};
    s->sample = -1;
    s->round_least = NF_NEVER;
    /* A fold has the fabric's slots to itself and starts with the whole window.  Loss leaves a quarter of it, or 64: a
     * repair then queues behind fewer packets, and the rest of the window is room to go on while holes are open. */
    s->rules = (nf_congestion_rules){
        .start = window, .least = 1, .most = window, .loss_floor = floor, .growth = 1 + window / 32, .alpha = 1};
    nf_congestion_open(&s->congestion, &s->rules, s->next);
}

bool nf_stream_open(nf_stream *s, uint32_t first_psn, uint32_t window) {
    *s = (nf_stream){.first_psn = first_psn, .ring = calloc(window, sizeof *s->ring)};
    begin(s, window);
    return s->ring != NULL;
}

void nf_stream_close(nf_stream *s) {
    free(s->ring);
    s->ring = NULL;
}

bool nf_stream_restart(nf_stream *s, uint64_t seq, uint32_t window) {
    nf_sent *ring = calloc(window, sizeof *ring);
    if (!ring) return false;
    free(s->ring);
    /* `order` goes on counting; the round trips that were measured still tell more than nothing */
    *s = (nf_stream){.first_psn = s->first_psn,
                     .una = seq,
                     .next = seq,
                     .top = seq,
                     .ring = ring,
                     .order = s->order,
                     .rtt = s->rtt,
                     .counters = s->counters};
    begin(s, window);
    return true;
}

uint64_t nf_stream_sendable(const nf_stream *s, uint64_t limit) {
    uint64_t end = s->una + s->window, fresh, room;
    end = end < limit ? end : limit;
    fresh = end > s->next ? end - s->next : 0;
    double allowed = s->congestion.allowed;
    room = allowed > s->in_flight + s->n_lost ? (uint64_t)allowed - s->in_flight - s->n_lost : 0;
    return s->n_lost + (fresh < room ? fresh : room);
}

uint64_t nf_stream_peek(const nf_stream *s) {
    uint64_t seq = s->next;
    if (s->n_lost)
        for (seq = s->lost_from > s->una ? s->lost_from : s->una; at(s, seq)->state != NF_LOST;) seq++;
    return seq;
}

uint64_t nf_stream_first_unknown(nf_stream *s) {
    s->unknown = s->unknown > s->una ? s->unknown : s->una;
    while (s->unknown < s->next && (at(s, s->unknown)->state != NF_FLIGHT || at(s, s->unknown)->again)) s->unknown++;
    return s->unknown;
}

/* Before any back-off.  While results flow, the shortest round trip of late bounds it: the smoothed one holds other
 * ranks' troubles. */
static int64_t base_rto(const nf_stream *s) {
    int64_t least = s->flowing ? NF_RTO_FLOWING : NF_RTO_LEAST, most = NF_RTO_MOST;
    if (s->flowing && s->least_rtt && most > 4 * s->least_rtt) most = 4 * s->least_rtt;
    return nf_rtt_timeout(&s->rtt, least < s->spurious_rto ? s->spurious_rto : least, most);
}

void nf_stream_send(nf_stream *s, int64_t now) {
    uint64_t seq = nf_stream_peek(s);
    nf_sent *sent = at(s, seq);
    sent->again = s->n_lost > 0;
    if (sent->again) {
        s->n_lost--;
        s->lost_from = seq + 1;
        s->counters.retransmitted++;
    } else {
        if (s->next++ == s->una) { /* an operation begins: other ranks may be late */
            s->flowing = false;
            s->burst = 0;
            s->timer.rto = base_rto(s);
        }
    }
    sent->at = now;
    sent->order = ++s->order;
    sent->state = NF_FLIGHT;
    s->in_flight++;
    s->counters.sent++;
    nf_timer_start(&s->timer, now);
}

static void lose(nf_stream *s, uint64_t seq, bool probe) {
    nf_sent *sent = at(s, seq);
    if (s->n_lost == 0 || seq < s->lost_from) s->lost_from = seq;
    sent->state = NF_LOST;
    sent->probe = probe;
    s->n_lost++;
    s->in_flight--;
}

/* What a time-out repeated was not lost: its second result is here.  Round trips so long are our own queue. */
static void spurious_timeout(nf_stream *s) {
    s->probes--;
    if (s->spurious_rto > s->expired_rto) return; /* known already */
    s->spurious_rto = 2 * s->expired_rto < NF_RTO_MOST ? 2 * s->expired_rto : NF_RTO_MOST;
    nf_congestion_halve(&s->congestion, NF_FIRST_PROBES);
}

bool nf_stream_find(nf_stream *s, uint32_t psn, uint64_t *seq) {
    /* serial arithmetic: a PSN is at most 2^23 away from the window's start */
    int32_t ahead = (int32_t)((psn - nf_stream_psn(s, s->una)) << 8) >> 8;
    s->counters.received++;
    *seq = s->una + (uint64_t)(int64_t)ahead;
    if (ahead < 0 || *seq >= s->next || at(s, *seq)->state == NF_DONE) {
        s->counters.duplicates++;
        if (s->probes) spurious_timeout(s);
        return false;
    }
    return true;
}

static void overtake(nf_stream *s, const nf_sent *sent, uint64_t suspects) {
    nf_overtaker *overtaker = &s->overtakers[sent->again];
    if (sent->order > overtaker->order) {
        *overtaker = (nf_overtaker){.order = sent->order, .at = sent->at};
        s->suspects = suspects > s->suspects ? suspects : s->suspects;
    }
}

void nf_stream_result(nf_stream *s, uint64_t seq, bool marked, int64_t now) {
    nf_sent *sent = at(s, seq);
    if (sent->state == NF_LOST)
        s->n_lost--;
    else
        s->in_flight--;
    if (!sent->again) {
        if (seq >= s->top) /* a hole's may have waited for another's repair */
            s->sample = now - sent->at;
        if (now - sent->at < s->round_least) s->round_least = now - sent->at;
        s->burst = 0;
        if (sent->at > s->expired_at) s->probes = 0;
        overtake(s, sent, seq);
    } else if (!sent->probe && sent->state == NF_FLIGHT && s->rtt.srtt && now - sent->at >= s->rtt.srtt) {
        /* Old enough to be the repetition's result (RFC 8985, 6.2).  A probe's is none: what answers it is mostly a
         * late rank, and nothing was lost. */
        overtake(s, sent, s->next);
    }
    sent->state = NF_DONE;
    s->top = seq >= s->top ? seq + 1 : s->top;
    while (s->una < s->next && at(s, s->una)->state == NF_DONE) at(s, s->una++)->state = NF_FREE;
    s->flowing = s->batch = true;
    s->fruitless = 0;
    nf_congestion_acknowledged(&s->congestion, &s->rules, 1);
    if (marked) {
        nf_congestion_marked(&s->congestion, 1);
        s->counters.marks++;
    }
}

static void measure(nf_stream *s) {
    if (s->sample >= 0 && s->sample <= NF_RTO_MOST) /* longer: some rank was late, the network was not */
        nf_rtt_measure(&s->rtt, s->sample);
    s->sample = -1;
    s->timer.rto = base_rto(s);
}

static void end_round(nf_stream *s) {
    if (s->round_least != NF_NEVER)
        s->least_rtt = s->least_rtt && s->round_least > 2 * s->least_rtt ? 2 * s->least_rtt : s->round_least;
    if (s->probes == 0) s->spurious_rto /= 2;
    s->round_least = NF_NEVER;
}

/* New packets leave every rank in the same order, and so their results come: who is overtaken there is lost.  Repeated
 * ones leave each rank when it misses them.  Their results need only the rank that lost them, and say nothing of new
 * packets, which wait for the slowest rank; and before they are taken for lost themselves, the other ranks' get half a
 * round trip. */
static bool overtaken(const nf_stream *s, const nf_sent *sent, int64_t now) {
    for (int again = 0; again <= sent->again; again++) {
        const nf_overtaker *by = &s->overtakers[again];
        if (sent->order + NF_REORDER <= by->order && (!sent->again || by->at - sent->at >= (now - by->at) / 2))
            return true;
    }
    return false;
}

void nf_stream_end_batch(nf_stream *s, int64_t now) {
    if (!s->batch) return;
    s->batch = false;
    measure(s);
    if (nf_congestion_round(&s->congestion, &s->rules, s->una, s->next)) end_round(s);
    for (uint64_t seq = s->una; seq < s->suspects; seq++)
        if (at(s, seq)->state == NF_FLIGHT && overtaken(s, at(s, seq), now)) lose(s, seq, false);
    if (s->n_lost) nf_congestion_lost(&s->congestion, &s->rules, s->una, s->next);
    s->suspects = 0;
    nf_timer_restart(&s->timer, s->una < s->next, now);
}

void nf_stream_tick(nf_stream *s, int64_t now) {
    if (!nf_timer_expired(&s->timer, now)) return;
    s->counters.timeouts++;
    s->expired_at = now;
    s->expired_rto = s->timer.rto;
    bool holes = s->top > s->una;
    s->fruitless++;
    if (holes)
        s->burst = s->window; /* all holes: somebody lost them, surely */
    else if (s->fruitless == 1 && s->burst)
        s->burst = s->burst < s->window ? 2 * s->burst : s->window;
    else if (s->fruitless > NF_TIMEOUTS_BEFORE_BACKOFF && !s->flowing)
        s->burst = 1;
    else if (s->burst < NF_FIRST_PROBES)
        s->burst = NF_FIRST_PROBES;
    if (s->fruitless > NF_TIMEOUTS_BEFORE_BACKOFF) {
        int64_t base = base_rto(s), most = s->flowing && 4 * base < NF_RTO_SILENT ? 4 * base : NF_RTO_SILENT;
        nf_timer_back_off(&s->timer, most < base ? base : most);
    }
    uint64_t end = holes ? s->top : s->next;
    uint32_t left = s->burst;
    for (uint64_t seq = s->una; seq < end && left; seq++) {
        nf_sent *sent = at(s, seq);
        if (sent->state == NF_LOST) {
            left--;
        } else if (sent->state == NF_FLIGHT) {
            lose(s, seq, !holes);
            s->probes++;
            left--;
        }
    }
    nf_timer_restart(&s->timer, true, now);
}

void nf_stream_seed_rtt(nf_stream *s, const nf_stream *from) {
    if (s->rtt.srtt || !from->rtt.srtt) return;
    nf_rtt_measure(&s->rtt, from->rtt.srtt);
    s->timer.rto = base_rto(s);
}

void nf_stream_unsent(nf_stream *s, uint64_t seq) {
    nf_sent *sent = at(s, seq);
    if (seq >= s->una && seq < s->next && sent->state == NF_FLIGHT) lose(s, seq, false);
}
