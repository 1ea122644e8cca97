/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <stdlib.h>

static inline nf_sent *at(const nf_stream *s, uint64_t seq) { return &s->ring[seq & (s->window - 1)]; }

bool nf_stream_open(nf_stream *s, uint32_t first_psn, uint32_t window)
{
    *s = (nf_stream){ .first_psn = first_psn, .window = window, .rto = NF_RTO_FIRST, .deadline = NF_NEVER,
                      .sample = -1, .round_least = NF_NEVER, .allowed = window, .marked_share = 1 };
    s->least = window / 4 > 64 ? window / 4 : window < 64 ? window : 64;
    s->ring = calloc(window, sizeof *s->ring);
    return s->ring != NULL;
}

void nf_stream_close(nf_stream *s) { free(s->ring); s->ring = NULL; }

bool nf_stream_restart(nf_stream *s, uint64_t seq, uint32_t window)
{
    nf_sent *ring = calloc(window, sizeof *ring);
    if (!ring)
        return false;
    nf_stream old = *s;
    free(old.ring);
    /* `order` goes on counting; what was measured still tells more than nothing */
    *s = (nf_stream){ .first_psn = old.first_psn, .window = window, .una = seq, .next = seq, .top = seq, .ring = ring,
                      .order = old.order, .srtt = old.srtt, .rttvar = old.rttvar, .rto = NF_RTO_FIRST,
                      .deadline = NF_NEVER, .sample = -1, .round_least = NF_NEVER, .allowed = window,
                      .marked_share = 1, .round_end = seq, .counters = old.counters };
    s->least = window / 4 > 64 ? window / 4 : window < 64 ? window : 64;
    return true;
}

uint64_t nf_stream_sendable(const nf_stream *s, uint64_t limit)
{
    uint64_t end = s->una + s->window, fresh, room;
    end = end < limit ? end : limit;
    fresh = end > s->next ? end - s->next : 0;
    room = s->allowed > s->in_flight + s->n_lost ? (uint64_t)s->allowed - s->in_flight - s->n_lost : 0;
    return s->n_lost + (fresh < room ? fresh : room);
}

uint64_t nf_stream_peek(const nf_stream *s)
{
    uint64_t seq = s->next;
    if (s->n_lost)
        for (seq = s->lost_from > s->una ? s->lost_from : s->una; at(s, seq)->state != NF_LOST;)
            seq++;
    return seq;
}

uint64_t nf_stream_unknown(nf_stream *s)
{
    s->unknown = s->unknown > s->una ? s->unknown : s->una;
    while (s->unknown < s->next && (at(s, s->unknown)->state != NF_FLIGHT || at(s, s->unknown)->again))
        s->unknown++;
    return s->unknown;
}

static int64_t base_rto(const nf_stream *s)
{
    int64_t rto = s->srtt ? s->srtt + 4 * s->rttvar : NF_RTO_FIRST;
    if (s->flowing && s->least_rtt && rto > 4 * s->least_rtt)
        rto = 4 * s->least_rtt;
    int64_t least = s->flowing ? NF_RTO_FLOWING : NF_RTO_IDLE;
    least = least < s->slow ? s->slow : least;
    return rto < least ? least : rto > NF_RTO_MAX ? NF_RTO_MAX : rto;
}

void nf_stream_send(nf_stream *s, int64_t now)
{
    uint64_t seq = nf_stream_peek(s);
    nf_sent *sent = at(s, seq);
    sent->again = s->n_lost > 0;
    if (sent->again) {
        s->n_lost--;
        s->lost_from = seq + 1;
        s->counters.retransmitted++;
    } else {
        if (s->next++ == s->una) {                              /* an operation begins: other ranks may be late */
            s->flowing = false;
            s->burst = 0;
            s->rto = base_rto(s);
        }
    }
    sent->at = now;
    sent->order = ++s->order;
    sent->state = NF_FLIGHT;
    s->in_flight++;
    s->counters.sent++;
    if (s->deadline == NF_NEVER)
        s->deadline = now + s->rto;
}

static void lose(nf_stream *s, uint64_t seq, bool probe)
{
    nf_sent *sent = at(s, seq);
    if (s->n_lost == 0 || seq < s->lost_from)
        s->lost_from = seq;
    sent->state = NF_LOST;
    sent->probe = probe;
    s->n_lost++;
    s->in_flight--;
}

/* What a time-out repeated was not lost: the second result is here. */
static void fired_too_soon(nf_stream *s)
{
    s->asked--;
    if (s->slow > s->fired)
        return;                                                 /* known already */
    s->slow = 2 * s->fired < NF_RTO_MAX ? 2 * s->fired : NF_RTO_MAX;
    double half = s->allowed / 2 > NF_PROBES ? s->allowed / 2 : NF_PROBES;
    s->allowed = half < s->allowed ? half : s->allowed;         /* round trips so long are our own queue */
}

bool nf_stream_find(nf_stream *s, uint32_t psn, uint64_t *seq)
{
    /* serial arithmetic: a PSN is at most 2^23 away from the window's start */
    int32_t ahead = (int32_t)((psn - nf_stream_psn(s, s->una)) << 8) >> 8;
    s->counters.received++;
    *seq = s->una + (uint64_t)(int64_t)ahead;
    if (ahead < 0 || *seq >= s->next || at(s, *seq)->state == NF_DONE) {
        s->counters.duplicates++;
        if (s->asked)
            fired_too_soon(s);
        return false;
    }
    return true;
}

static void overtake(nf_stream *s, const nf_sent *sent, uint64_t suspects)
{
    nf_overtaker *overtaker = &s->overtakers[sent->again];
    if (sent->order > overtaker->order) {
        *overtaker = (nf_overtaker){ .order = sent->order, .at = sent->at };
        s->suspects = suspects > s->suspects ? suspects : s->suspects;
    }
}

void nf_stream_result(nf_stream *s, uint64_t seq, bool marked, int64_t now)
{
    nf_sent *sent = at(s, seq);
    if (sent->state == NF_LOST)
        s->n_lost--;
    else
        s->in_flight--;
    if (!sent->again) {
        if (seq >= s->top)                                      /* a hole's may have waited for another's repair */
            s->sample = now - sent->at;
        if (now - sent->at < s->round_least)
            s->round_least = now - sent->at;
        s->burst = 0;
        if (sent->at > s->asked_at)
            s->asked = 0;
        overtake(s, sent, seq);
    } else if (!sent->probe && sent->state == NF_FLIGHT && s->srtt && now - sent->at >= s->srtt) {
        /* Old enough to be the repetition's result (RFC 8985, 6.2).  A probe's is none: what answers it is mostly a late
         * rank, and nothing was lost. */
        overtake(s, sent, s->next);
    }
    sent->state = NF_DONE;
    s->top = seq >= s->top ? seq + 1 : s->top;
    while (s->una < s->next && at(s, s->una)->state == NF_DONE)
        at(s, s->una++)->state = NF_FREE;
    s->flowing = s->batch = true;
    s->quiet = 0;
    s->round_results++;
    if (marked) {
        s->round_marks++;
        s->counters.marks++;
    }
}

static void measure(nf_stream *s)
{
    if (s->sample >= 0 && s->sample <= NF_RTO_MAX) {            /* longer: some rank was late, the network was not */
        if (s->srtt == 0) {
            s->srtt = s->sample;
            s->rttvar = s->sample / 2;
        } else {
            int64_t error = s->sample - s->srtt;
            s->rttvar += ((error < 0 ? -error : error) - s->rttvar) / 4;
            s->srtt += error / 8;
        }
    }
    s->sample = -1;
    s->rto = base_rto(s);
}

static void adapt_window(nf_stream *s)
{
    if (s->una < s->round_end || s->round_results == 0)
        return;
    double share = (double)s->round_marks / s->round_results;
    s->marked_share += (share - s->marked_share) / 16;
    if (s->round_lost && s->allowed > s->least)
        s->allowed = s->allowed / 2 > s->least ? s->allowed / 2 : s->least;
    if (s->round_marks)
        s->allowed *= 1 - s->marked_share / 2;
    else if (!s->round_lost)
        s->allowed += 1 + s->window / 32;
    s->allowed = s->allowed < 1 ? 1 : s->allowed > s->window ? s->window : s->allowed;
    if (s->round_least != NF_NEVER)
        s->least_rtt = s->least_rtt && s->round_least > 2 * s->least_rtt ? 2 * s->least_rtt : s->round_least;
    if (s->asked == 0)
        s->slow /= 2;
    s->round_least = NF_NEVER;
    s->round_end = s->next;
    s->round_results = s->round_marks = 0;
    s->round_lost = false;
}

/* New packets leave every rank in the same order, and so their results come: who is overtaken there is lost.  Repeated
 * ones leave each rank when it misses them.  Their results need only the rank that lost them, and say nothing of new
 * packets, which wait for the slowest rank; and before they are taken for lost themselves, the other ranks' get half a
 * round trip. */
static bool overtaken(const nf_stream *s, const nf_sent *sent, int64_t now)
{
    for (int again = 0; again <= sent->again; again++) {
        const nf_overtaker *by = &s->overtakers[again];
        if (sent->order + NF_REORDER <= by->order && (!sent->again || by->at - sent->at >= (now - by->at) / 2))
            return true;
    }
    return false;
}

void nf_stream_settle(nf_stream *s, int64_t now)
{
    if (!s->batch)
        return;
    s->batch = false;
    measure(s);
    adapt_window(s);
    for (uint64_t seq = s->una; seq < s->suspects; seq++)
        if (at(s, seq)->state == NF_FLIGHT && overtaken(s, at(s, seq), now))
            lose(s, seq, false);
    s->round_lost |= s->n_lost > 0;
    s->suspects = 0;
    s->deadline = s->una < s->next ? now + s->rto : NF_NEVER;
}

void nf_stream_tick(nf_stream *s, int64_t now)
{
    if (now < s->deadline)
        return;
    s->counters.timeouts++;
    s->asked_at = now;
    s->fired = s->rto;
    bool holes = s->top > s->una;
    s->quiet++;
    if (holes)
        s->burst = s->window;                                   /* all holes: somebody lost them, surely */
    else if (s->quiet == 1 && s->burst)
        s->burst = s->burst < s->window ? 2 * s->burst : s->window;
    else if (s->quiet > NF_PATIENCE && !s->flowing)
        s->burst = 1;
    else if (s->burst < NF_PROBES)
        s->burst = NF_PROBES;
    if (s->quiet > NF_PATIENCE) {
        int64_t base = base_rto(s), most = s->flowing && 4 * base < NF_RTO_SILENT ? 4 * base : NF_RTO_SILENT;
        most = most < base ? base : most;
        s->rto = 2 * s->rto < most ? 2 * s->rto : most;
    }
    uint64_t end = holes ? s->top : s->next;
    uint32_t left = s->burst;
    for (uint64_t seq = s->una; seq < end && left; seq++) {
        nf_sent *sent = at(s, seq);
        if (sent->state == NF_LOST) {
            left--;
        } else if (sent->state == NF_FLIGHT) {
            lose(s, seq, !holes);
            s->asked++;
            left--;
        }
    }
    s->deadline = now + s->rto;
}

void nf_stream_borrow(nf_stream *s, const nf_stream *from)
{
    if (s->srtt || !from->srtt)
        return;
    s->srtt = from->srtt;
    s->rttvar = from->srtt / 2;
    s->rto = base_rto(s);
}

void nf_stream_unsent(nf_stream *s, uint64_t seq)
{
    nf_sent *sent = at(s, seq);
    if (seq >= s->una && seq < s->next && sent->state == NF_FLIGHT)
        lose(s, seq, false);
}
