/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames that wait to leave a port.
 *
 *   slots   first ... settled ... n
 *           \_________/\________/
 *            whole      as the pipeline left them: head and tail in the queue's memory, the rest where it lies
 *
 * Most frames leave before anything that they refer to is given up.  What still waits then is put together in the
 * queue's memory, in which room for that is kept free.
 */
#include <string.h>
#include "queue.h"

static size_t rounded(size_t n) { return (n + 63) & ~(size_t)63; }

static void empty(ss_queue *q) { q->first = q->settled = q->n = 0, q->used = q->owed = 0, q->singles = 0; }

/* Moves what waits to the front; each byte moves seldom, because the memory is at least twice what may wait. */
static void compact(ss_queue *q) {
    if (q->first == 0) return;
    if (q->first == q->n) {
        empty(q);
        return;
    }
    size_t from = q->slots[q->first].at;
    memmove(q->arena, q->arena + from, q->used - from);
    q->used -= from;
    q->n -= q->first;
    q->settled -= q->settled < q->first ? q->settled : q->first;
    for (uint32_t i = 0; i < q->n; i++) {
        q->slots[i] = q->slots[q->first + i];
        q->slots[i].at -= from;
    }
    q->first = 0;
}

static bool has_room(const ss_port *p, const ss_queue *q, uint32_t cap) {
    uint32_t n = q->n;
    size_t taken = q->used + q->owed;
    if (q != p->leaving) /* all of it must find room behind what may be left there (ss_port_unite) */
        n += p->flying, taken += p->leaving->used + p->leaving->owed;
    return n < p->n_slots && taken + rounded(cap) + 64 <= p->arena_size;
}

/* NULL where there is no room, which is counted. */
static uint8_t *room(ss_port *p, ss_queue *q, uint32_t cap) {
    if (!has_room(p, q, cap)) {
        compact(q);
        if (!has_room(p, q, cap)) {
            p->stats.dropped_full++;
            return NULL;
        }
    }
    return q->arena + q->used;
}

static void put(ss_queue *q, struct ss_slot slot) {
    if (!slot.ref_len) slot.ref = NULL;
    slot.at = q->used;
    q->slots[q->n++] = slot;
    q->used += rounded(slot.ref ? slot.head + slot.tail : ss_slot_length(&slot));
    if (slot.ref) q->owed += rounded(slot.ref_len);
}

uint8_t *ss_port_reserve(ss_port *p, uint32_t cap) {
    if (!p->up) {
        p->stats.dropped_down++;
        return NULL;
    }
    if (p->tx != SS_TX_IDLE && ss_port_waiting(p) >= p->limit) {
        p->stats.dropped_full++;
        return NULL;
    }
    return room(p, p->queue, cap);
}

void ss_port_commit(ss_port *p, const ss_outgoing *made) {
    const ss_parts *parts = &made->parts;
    ss_queue *q = p->queue;
    if (!ss_outgoing_length(made)) return;
    if (p->gap_ns && q->first == q->n && p->next_ns < *p->now_us * 1000) p->next_ns = *p->now_us * 1000;
    struct ss_slot slot = {
        .ref = parts->ref, .head = parts->head, .ref_len = parts->ref_len, .tail = parts->tail, .sum = made->sum};
    if (p->pcap_out) {
        ss_pcap_write(p->pcap_out, q->arena + q->used, ss_flatten(q->arena + q->used, parts));
        slot.ref = NULL;
    }
    put(q, slot);
}

/* The last one first: each comes to lie behind where it was, over frames that have moved already. */
static void settle(ss_queue *q) {
    uint32_t from = q->settled > q->first ? q->settled : q->first;
    if (from >= q->n) return;
    size_t at = q->slots[from].at;
    for (uint32_t i = from; i < q->n; i++) at += rounded(ss_slot_length(&q->slots[i]));
    q->used = at;
    for (uint32_t i = q->n; i-- > from;) {
        struct ss_slot *slot = &q->slots[i];
        uint32_t whole = ss_slot_length(slot), here = slot->ref ? slot->head + slot->tail : whole;
        at -= rounded(whole);
        memmove(q->arena + at, q->arena + slot->at, here);
        if (slot->ref) ss_flatten(q->arena + at, &(ss_parts){slot->head, slot->tail, slot->ref_len, slot->ref});
        slot->at = at;
        slot->ref = NULL;
    }
    q->settled = q->n;
    q->owed = 0;
}

void ss_port_settle(ss_port *p) { settle(p->queue); }

void ss_port_part(ss_port *p) {
    if (p->leaving->used > p->arena_size / 2) compact(p->leaving);
    p->flying = ss_port_waiting(p);
    p->queue = &p->queues[p->leaving == p->queues];
}

/* What was not sent stays in front; the frames that came meanwhile are copied behind it, where room was kept. */
void ss_port_unite(ss_port *p) {
    ss_queue *rest = p->leaving, *later = p->queue;
    if (rest == later) return;
    p->flying = 0;
    if (rest->first == rest->n) {
        empty(rest);
        p->leaving = later;
        return;
    }
    settle(rest);
    settle(later);
    for (; later->first < later->n; later->first++) {
        struct ss_slot slot = later->slots[later->first];
        memcpy(room(p, rest, ss_slot_length(&slot)), later->arena + slot.at, ss_slot_length(&slot));
        put(rest, slot);
    }
    rest->settled = rest->n;
    empty(later);
    p->queue = rest;
}

void ss_port_empty(ss_port *p) { empty(p->queue); }
