/* SPDX-License-Identifier: Apache-2.0 */
#include "outgoing.h"
#include "sums.h"
#include "trace.h"
#include "turn.h"

#define SHORTEST_REF 256u /* bytes: shorter payloads are copied */

/* A run that was to be referred to is where it will stay, or else copied there. */
static const uint8_t *lasting(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    size_t at = (uintptr_t)bytes - (uintptr_t)sw->stable, size = sw->frame_len - (size_t)(sw->stable - sw->frame);
    if (at > size || n > size - at) {
        if (!ss_taken(sw, bytes, n)) bytes = memcpy(ss_take(sw, n), bytes, n);
        ss_turn_keep(sw, bytes, n);
    }
    return bytes;
}

/* Puts the payload behind what was deparsed: as the run that is referred to, if there is none or it goes on there. */
static void add_payload(const ss_switch *sw, uint8_t *out, ss_parts *parts, const uint8_t *payload, uint32_t n) {
    if (parts->ref_len && !parts->tail && payload == parts->ref + parts->ref_len) {
        parts->ref_len += n;
        return;
    }
    if (!parts->ref_len && n >= SHORTEST_REF) {
        size_t movable = (uintptr_t)sw->stable - (uintptr_t)payload; /* bytes that will be overwritten */
        if (movable <= (size_t)(sw->stable - sw->frame)) {
            uint32_t first = movable < n ? (uint32_t)movable : n;
            memcpy(out + parts->head, payload, first);
            parts->head += first, payload += first, n -= first;
        }
        parts->ref = payload;
        parts->ref_len = n;
        return;
    }
    memcpy(out + parts->head + parts->tail, payload, n);
    parts->tail += n;
}

static void cut_to(ss_parts *p, uint32_t len) {
    if (p->head > len) p->head = len;
    if (p->ref_len > len - p->head) p->ref_len = len - p->head;
    if (p->tail > len - p->head - p->ref_len) p->tail = len - p->head - p->ref_len;
}

uint32_t ss_build(ss_switch *sw, void *state, uint8_t *out, uint32_t cap, bool truncate, ss_outgoing *made) {
    ss_packet *p = state;
    ss_parts *parts = &made->parts;
    *made = (ss_outgoing){.sum = SS_NO_SUM};
    sw->program->deparse(sw, state, out, parts);
    uint64_t len = parts->head == SS_NO_FRAME ? UINT32_MAX : (uint64_t)ss_outgoing_length(made) + p->payload_len;
    bool cut = len < UINT32_MAX && truncate && p->truncate_to < len;
    if ((cut ? p->truncate_to : len) > SS_MAX_FRAME || len > cap) {
        sw->stats.dropped_oversize++;
        TRACE(NUMBERS(sw, SS_REC_DROP, SS_DROP_TOO_LONG_OUT, (uint32_t)len);)
        *made = (ss_outgoing){.sum = SS_NO_SUM};
        return 0;
    }
    if (cut && !p->truncate_to) {
        sw->stats.dropped_egress++;
        TRACE(NUMBERS(sw, SS_REC_DROP, SS_DROP_TRUNCATED, 0);)
        *made = (ss_outgoing){.sum = SS_NO_SUM};
        return 0;
    }
    if (p->payload_len) add_payload(sw, out, parts, p->payload, p->payload_len);
    if (cut) cut_to(parts, p->truncate_to);
    if (parts->ref_len) {
        parts->ref = lasting(sw, parts->ref, parts->ref_len);
        made->sum = ss_sum_known(sw, parts->ref, parts->ref_len);
    }
    return cut ? p->truncate_to : (uint32_t)len;
}

uint32_t ss_build_whole(ss_switch *sw, void *state, uint8_t *out, uint32_t cap, bool truncate) {
    ss_outgoing made;
    uint32_t len = ss_build(sw, state, out, cap, truncate, &made);
    return len ? ss_flatten(out, &made.parts) : 0;
}
