/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <stdlib.h>

static inline nf_sent *at(const nf_stream *s, uint64_t seq) { return &s->ring[seq & (s->window - 1)]; }
static inline int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static inline uint64_t above(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Everything but where it stands: nothing is in flight, and the window is whole. */
static void begin(nf_stream *s, uint32_t window) {
    uint32_t floor = window / 4 > s->floor ? window / 4 : window < s->floor ? window : s->floor;
    s->window = window;
    s->timer = (nf_timer){.rto = NF_RTO_FIRST, .deadline = NF_NEVER};
    s->sample = -1;
    nf_quiet_open(&s->quiet);
    s->oldest = s->ask_due = NF_NEVER;
    /* A fold has the fabric's slots to itself and starts with the whole window.  Loss leaves a quarter of it, or
     * `floor`: a repair then queues behind fewer packets, and the rest of the window is room to go on while holes are
     * open. */
    s->rules = (nf_congestion_rules){
        .start = window, .least = 1, .most = window, .loss_floor = floor, .growth = 1 + window / 32, .alpha = 1};
    nf_congestion_open(&s->congestion, &s->rules, s->next);
}

bool nf_stream_open(nf_stream *s, uint32_t first_psn, uint32_t window, uint32_t floor) {
    *s = (nf_stream){
        .first_psn = first_psn, .floor = floor, .last = UINT64_MAX, .ring = calloc(window, sizeof *s->ring)};
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
    /* the round trips that were measured still tell more than nothing */
    *s = (nf_stream){.first_psn = s->first_psn,
                     .floor = s->floor,
                     .una = seq,
                     .next = seq,
                     .top = seq,
                     .last = seq - 1,
                     .end = s->end,
                     .ring = ring,
                     .rtt = s->rtt,
                     .counters = s->counters};
    begin(s, window);
    return true;
}

/* ---- what leaves --------------------------------------------------------------------------------------------------
 */
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
        for (seq = above(s->lost_from, s->una); at(s, seq)->state != NF_LOST;) seq++;
    return seq;
}

static bool unknown(const nf_sent *sent) {
    return !sent->again && (sent->state == NF_FLIGHT || (sent->state == NF_HOLE && !sent->asked));
}

uint64_t nf_stream_first_unknown(nf_stream *s) {
    s->unknown = above(s->unknown, s->una);
    while (s->unknown < s->next && !unknown(at(s, s->unknown))) s->unknown++;
    return s->unknown;
}

/* Not before pauses are over, which round trips of single packets know nothing of; but where processors are late,
 * pauses are long, and packets are lost at full sockets as well. */
static int64_t base_rto(const nf_stream *s) {
    int64_t rto = nf_rtt_timeout(&s->rtt, NF_RTO_LEAST, NF_RTO_MOST);
    int64_t pause = earlier(nf_quiet_pause(&s->quiet), NF_RTO_FIRST);
    return rto > pause ? rto : pause;
}

/* The round trip that NAKs go by; before one was measured, as long as the timer waits at least. */
static int64_t round_trip(const nf_stream *s) {
    return s->rtt.srtt > NF_ROUND_TRIP_LEAST ? s->rtt.srtt : s->rtt.srtt ? NF_ROUND_TRIP_LEAST : NF_RTO_LEAST;
}

/* A packet was found missing, sent again or asked for just now: from here on it may become overdue (once more). */
static void watch(nf_stream *s, nf_sent *sent, int64_t now) {
    sent->since = now;
    sent->due = NF_NEVER;
    s->oldest = earlier(s->oldest, now);
}

static void remember_loss(nf_stream *s) { s->lossy_until = s->next + NF_LOSS_REMEMBERED; }

static void found_loss(nf_stream *s) {
    s->losses = true;
    remember_loss(s);
}

void nf_stream_send(nf_stream *s, int64_t now) {
    uint64_t seq = nf_stream_peek(s);
    nf_sent *sent = at(s, seq);
    if (s->n_lost) {
        s->n_lost--;
        s->lost_from = seq + 1;
        s->counters.retransmitted++;
        sent->again = true;
    } else {
        if (s->next++ == s->una) { /* an operation begins: other ranks may be late */
            s->waits_since = now;
            s->flowing = false;
            nf_quiet_begin(&s->quiet);
            s->timer.rto = base_rto(s);
            s->probes = 0;
        }
        *sent = (nf_sent){0};
    }
    sent->at = s->quiet_since = now;
    sent->asked = false;
    if (sent->again) watch(s, sent, now);
    sent->state = NF_FLIGHT;
    s->in_flight++;
    s->last = seq;
    s->counters.sent++;
    nf_timer_start(&s->timer, now);
}

bool nf_stream_ask(nf_stream *s, uint64_t *seq, int64_t now) {
    if (s->n_ask == 0) return false;
    uint64_t lowest = above(s->ask_from, s->una);
    while (!at(s, lowest)->ask) lowest++;
    nf_sent *sent = at(s, lowest);
    sent->ask = false;
    sent->asked = true;
    watch(s, sent, now);
    s->n_ask--;
    s->ask_from = lowest + 1;
    s->counters.asks++;
    *seq = lowest;
    return true;
}

static void want(nf_stream *s, uint64_t seq) {
    if (at(s, seq)->ask) return;
    if (s->n_ask == 0 || seq < s->ask_from) s->ask_from = seq;
    at(s, seq)->ask = true;
    s->n_ask++;
}

static void leave_state(nf_stream *s, nf_sent *sent) {
    if (sent->state == NF_FLIGHT)
        s->in_flight--;
    else if (sent->state == NF_LOST)
        s->n_lost--;
    if (sent->ask) s->n_ask--;
    sent->ask = false;
}

static void lose(nf_stream *s, uint64_t seq) {
    nf_sent *sent = at(s, seq);
    leave_state(s, sent);
    if (s->n_lost == 0 || seq < s->lost_from) s->lost_from = seq;
    sent->state = NF_LOST;
    s->n_lost++;
}

/* ---- what comes ---------------------------------------------------------------------------------------------------
 */
/* How far a PSN is ahead of the window's start; serial arithmetic: at most 2^23 either way. */
static int64_t ahead(const nf_stream *s, uint32_t psn) { return nf_psn_ahead(psn, nf_stream_psn(s, s->una)); }

static bool outstanding(const nf_stream *s, uint64_t seq) {
    return seq - s->una < s->next - s->una && at(s, seq)->state != NF_DONE;
}

/* Names the outstanding packets of a range of PSNs: from *from to before *to. */
static void within(const nf_stream *s, uint32_t psn, uint32_t end, uint64_t *from, uint64_t *to) {
    int64_t first = ahead(s, psn), last = first + ((end - psn) & NF_PSN_MASK), most = (int64_t)(s->next - s->una);
    *from = s->una + (uint64_t)(first > 0 ? first : 0);
    *to = s->una + (uint64_t)(last < 0 ? 0 : last < most ? last : most);
}

void nf_stream_order(nf_stream *s, uint32_t psn, uint32_t previous) {
    uint32_t first, end;
    uint64_t seq, to;
    if (!nf_order_gap(&s->order, psn, previous, &first, &end)) return;
    for (within(s, first, end, &seq, &to); seq < to; seq++) {
        nf_sent *sent = at(s, seq);
        if (sent->state != NF_FLIGHT && sent->state != NF_HOLE) continue;
        want(s, seq);
        found_loss(s);
    }
}

bool nf_stream_find(nf_stream *s, uint32_t psn, uint64_t *seq) {
    s->counters.received++;
    *seq = s->una + (uint64_t)ahead(s, psn);
    if (outstanding(s, *seq)) return true;
    s->counters.duplicates++;
    s->repeated = true;
    return false;
}

void nf_stream_result(nf_stream *s, uint64_t seq, bool marked, int64_t now) {
    nf_sent *sent = at(s, seq);
    leave_state(s, sent);
    if (!sent->again && !sent->asked) {
        if (seq >= s->top) s->sample = now - sent->at; /* a hole's may have waited for its repair */
        nf_quiet_round_trip(&s->quiet, now - sent->at);
        s->newest = s->newest > sent->at ? s->newest : sent->at;
        s->further |= seq >= s->top && seq + 1 < s->end;
    }
    sent->state = NF_DONE;
    s->top = above(s->top, seq + 1);
    while (s->una < s->next && at(s, s->una)->state == NF_DONE) at(s, s->una++)->state = NF_FREE;
    s->flowing = s->batch = true;
    s->fruitless = s->probes = 0;
    s->quiet_since = now;
    nf_congestion_acknowledged(&s->congestion, &s->rules, 1);
    if (marked) {
        nf_congestion_marked(&s->congestion, 1);
        s->counters.marks++;
    }
}

/* A packet that was sent again just now does not go once more: the switch has said so before it could have it. */
void nf_stream_nak(nf_stream *s, uint32_t psn, uint32_t end, int64_t now) {
    uint64_t seq, to;
    s->counters.naks++;
    for (within(s, psn, end, &seq, &to); seq < to; seq++) {
        nf_sent *sent = at(s, seq);
        if (sent->state == NF_DONE || sent->state == NF_LOST) continue;
        if (sent->again && now - sent->at < round_trip(s) / 4) continue;
        lose(s, seq);
        found_loss(s);
    }
}

/* Packets below `end` without a result are holes from now on. */
static void find_holes(nf_stream *s, uint64_t end, int64_t now) {
    for (s->seen = above(s->seen, s->una); s->seen < end; s->seen++) {
        nf_sent *sent = at(s, s->seen);
        if (sent->state != NF_FLIGHT || sent->again) continue;
        sent->state = NF_HOLE;
        s->in_flight--;
        remember_loss(s); /* sums are complete in order where nothing is lost */
        if (!sent->asked) watch(s, sent, now);
    }
}

/* Where a packet is here that left at `newest`, what was found missing, repaired or asked for before that is overdue:
 * packets do not overtake each other.  It is asked for after a quarter of the same time, since the rank that repairs it
 * may have a longer queue. */
static void find_overdue(nf_stream *s, int64_t newest, int64_t now) {
    if (newest <= s->oldest) return;
    s->oldest = NF_NEVER;
    for (uint64_t seq = s->una; seq < s->seen; seq++) {
        nf_sent *sent = at(s, seq);
        if ((sent->state != NF_FLIGHT && sent->state != NF_HOLE) || sent->due != NF_NEVER) continue;
        if (sent->since >= newest) {
            s->oldest = earlier(s->oldest, sent->since);
            continue;
        }
        sent->due = now + (now - sent->since) / 4;
        s->ask_due = earlier(s->ask_due, sent->due);
    }
}

void nf_stream_end_batch(nf_stream *s, int64_t now) {
    if (!s->batch && !s->repeated) return;
    nf_quiet_arrived(&s->quiet, s->batch, s->further, now);
    s->quiet_since = now;
    s->further = s->repeated = false;
    if (!s->batch) return;
    s->batch = false;
    s->result_at = s->waits_since = now;
    if (s->sample >= 0 && s->sample <= NF_RTO_MOST) /* longer: some rank was late, the network was not */
        nf_rtt_measure(&s->rtt, s->sample);
    s->sample = -1;
    s->timer.rto = base_rto(s);
    nf_congestion_round(&s->congestion, &s->rules, s->una, s->next);
    find_holes(s, s->top, now);
    find_overdue(s, s->newest, now);
    if (s->losses) nf_congestion_lost(&s->congestion, &s->rules, s->una, s->next);
    s->losses = false;
    nf_timer_restart(&s->timer, s->una < s->next, now);
}

void nf_stream_overtaken(nf_stream *s, const nf_stream *by, int64_t now) {
    if (by->quiet.came != now || s->una == s->next) return;
    nf_quiet_learn(&s->quiet, &by->quiet);
    nf_quiet_arrived(&s->quiet, false, false, now);
    s->quiet_since = now;
    if (by->result_at == now) nf_timer_restart(&s->timer, true, now);
    uint64_t end = above(s->seen, s->una);
    while (end < s->next && at(s, end)->at <= by->newest) end++;
    find_holes(s, end, now);
    find_overdue(s, by->newest, now);
}

/* ---- time ---------------------------------------------------------------------------------------------------------
 */
/* Asks for what is overdue. */
static void ask_for_holes(nf_stream *s, int64_t now) {
    s->ask_due = NF_NEVER;
    for (uint64_t seq = s->una; seq < s->seen; seq++) {
        nf_sent *sent = at(s, seq);
        if ((sent->state != NF_FLIGHT && sent->state != NF_HOLE) || sent->ask) continue;
        if (sent->due > now) {
            s->ask_due = earlier(s->ask_due, sent->due);
            continue;
        }
        if (sent->state == NF_FLIGHT) {
            sent->state = NF_HOLE;
            s->in_flight--;
        }
        found_loss(s);
        want(s, seq);
    }
}

/* Asks for the first and the last packet without a result: what the switches then send shows the holes between them. */
static void ask_for_ends(nf_stream *s) {
    uint64_t last = s->next - 1;
    while (at(s, last)->state == NF_DONE) last--;
    if (at(s, s->una)->state != NF_LOST) want(s, s->una);
    if (at(s, last)->state != NF_LOST) want(s, last);
}

/* Nothing has come for long: the ends of what is outstanding are asked for. */
static void ask_in_silence(nf_stream *s, int64_t now) {
    s->counters.timeouts++;
    if (++s->fruitless > NF_TIMEOUTS_BEFORE_BACKOFF) {
        int64_t base = base_rto(s), most = s->flowing ? earlier(4 * base, NF_RTO_SILENT) : NF_RTO_SILENT;
        nf_timer_back_off(&s->timer, most < base ? base : most);
    }
    ask_for_ends(s);
    nf_timer_restart(&s->timer, true, now);
}

/* When silence is probed next; NF_NEVER where packets are to leave again, which will show what was lost before them,
 * where nothing was lost lately, or once the timer is as near. */
static int64_t probe_due(const nf_stream *s) {
    int64_t silence = nf_quiet_silence(&s->quiet, NF_ROUND_TRIP_LEAST, s->rtt.srtt);
    if (s->una == s->next || s->n_lost || s->next >= s->lossy_until || silence == NF_NEVER) return NF_NEVER;
    for (uint32_t probe = 0; probe < s->probes && silence < s->timer.rto; probe++) silence *= 2;
    return silence < s->timer.rto ? s->quiet_since + silence : NF_NEVER;
}

/* Nothing comes, though packets were lost lately: the ends of what is outstanding are asked for, and all holes. */
static void probe(nf_stream *s) {
    ask_for_ends(s);
    for (uint64_t seq = s->una, asked = 0; seq < s->seen && asked < NF_PROBED_AT_ONCE; seq++) {
        if (at(s, seq)->state != NF_FLIGHT && at(s, seq)->state != NF_HOLE) continue;
        want(s, seq);
        asked++;
    }
    s->probes++;
}

void nf_stream_tick(nf_stream *s, int64_t now) {
    if (nf_timer_expired(&s->timer, now)) ask_in_silence(s, now);
    if (now >= probe_due(s)) probe(s);
    if (now >= s->ask_due && s->fruitless == 0) ask_for_holes(s, now);
}

int64_t nf_stream_deadline(const nf_stream *s) {
    int64_t due = earlier(s->timer.deadline, probe_due(s));
    return s->fruitless ? due : earlier(due, s->ask_due);
}

void nf_stream_end_at(nf_stream *s, uint64_t end) { s->end = end; }

void nf_stream_learn(nf_stream *s, const nf_stream *from) {
    nf_quiet_learn(&s->quiet, &from->quiet);
    s->lossy_until = s->next + (from->lossy_until > from->next ? from->lossy_until - from->next : 0);
}

void nf_stream_seed_rtt(nf_stream *s, const nf_stream *from) {
    if (s->rtt.srtt || !from->rtt.srtt) return;
    nf_rtt_measure(&s->rtt, from->rtt.srtt);
    s->timer.rto = base_rto(s);
}

void nf_stream_unsent(nf_stream *s, uint64_t seq) {
    if (outstanding(s, seq) && at(s, seq)->state == NF_FLIGHT) lose(s, seq);
}
