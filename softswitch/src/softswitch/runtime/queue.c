/* SPDX-License-Identifier: Apache-2.0
 *
 * The frames that wait to leave a port.
 *
 *   slots   first ... settled ... n
 *           \_________/\________/
 *            whole      as the pipeline left them: head and tail in the port's memory, the rest where it lies
 *
 * Most frames leave before anything that they refer to is given up.  What still waits then is put together in the
 * port's memory, in which room for that is kept free.
 */
#include <string.h>
#include "queue.h"

static size_t rounded(size_t n) { return (n + 63) & ~(size_t)63; }

void ss_port_empty(ss_port *p) { p->first = p->settled = p->n = 0, p->used = p->owed = 0, p->singles = 0; }

/* Moves what waits to the front; each byte moves seldom, because the memory is at least twice what may wait. */
static void compact(ss_port *p) {
    if (p->first == 0) return;
    if (p->first == p->n) {
        ss_port_empty(p);
        return;
    }
    size_t from = p->slots[p->first].at;
    memmove(p->arena, p->arena + from, p->used - from);
    p->used -= from;
    p->n -= p->first;
    p->settled -= p->settled < p->first ? p->settled : p->first;
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i] = p->slots[p->first + i];
        p->slots[i].at -= from;
    }
    p->first = 0;
}

static bool has_room(const ss_port *p, uint32_t cap) {
    return p->n < p->n_slots && p->arena_size - p->used - p->owed >= rounded(cap) + 64;
}

uint8_t *ss_port_reserve(ss_port *p, uint32_t cap) {
    if (!p->up) {
        p->stats.dropped_down++;
        return NULL;
    }
    if (ss_port_waiting(p) >= p->limit && p->tx != SS_TX_IDLE) {
        p->stats.dropped_full++;
        return NULL;
    }
    if (!has_room(p, cap)) {
        compact(p);
        if (!has_room(p, cap)) {
            p->stats.dropped_full++;
            return NULL;
        }
    }
    return p->arena + p->used;
}

void ss_port_commit(ss_port *p, const ss_outgoing *made) {
    const ss_parts *parts = &made->parts;
    if (!ss_outgoing_length(made)) return;
    if (p->gap_ns && p->first == p->n && p->next_ns < *p->now_us * 1000) p->next_ns = *p->now_us * 1000;
    struct ss_slot *slot = &p->slots[p->n++];
    *slot = (struct ss_slot){p->used, parts->ref, parts->head, parts->ref_len, parts->tail, made->sum};
    if (p->pcap_out) {
        ss_pcap_write(p->pcap_out, p->arena + p->used, ss_flatten(p->arena + p->used, parts));
        slot->ref = NULL;
    }
    if (!slot->ref_len) slot->ref = NULL;
    p->used += rounded(slot->ref ? slot->head + slot->tail : ss_slot_length(slot));
    if (slot->ref) p->owed += rounded(slot->ref_len);
}

/* The last one first: each comes to lie behind where it was, over frames that have moved already. */
void ss_port_settle(ss_port *p) {
    uint32_t from = p->settled > p->first ? p->settled : p->first;
    if (from >= p->n) return;
    size_t at = p->slots[from].at;
    for (uint32_t i = from; i < p->n; i++) at += rounded(ss_slot_length(&p->slots[i]));
    p->used = at;
    for (uint32_t i = p->n; i-- > from;) {
        struct ss_slot *slot = &p->slots[i];
        uint32_t whole = ss_slot_length(slot), here = slot->ref ? slot->head + slot->tail : whole;
        at -= rounded(whole);
        memmove(p->arena + at, p->arena + slot->at, here);
        if (slot->ref) ss_flatten(p->arena + at, &(ss_parts){slot->head, slot->tail, slot->ref_len, slot->ref});
        slot->at = at;
        slot->ref = NULL;
    }
    p->settled = p->n;
    p->owed = 0;
}
