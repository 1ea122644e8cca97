/* SPDX-License-Identifier: Apache-2.0
 *
 * The switch inside another process (softswitch/engine/transport.py): what leaves is written one after another as
 *     u8 kind (0: frame, else ss_event_kind) | u32 port or id | u64 now_us | u32 len | bytes
 * until the next ss_capture_take.  The packet trace is kept likewise, the records of each frame behind their u32
 * length, up to TRACED_MAX bytes.
 */
#include <stdlib.h>
#include <string.h>
#include "switch.h"
#include "trace.h"

#define HEAD 17u
#define TRACED_MAX (64u << 20)

typedef struct {
    ss_switch *sw;
    uint8_t *out;
    size_t used, cap;
    uint32_t frames_left, frame_limit;
    uint64_t now_us;
    TRACE(uint8_t *traced; size_t traced_used, traced_cap; uint64_t traced_lost;)
} capture;

static uint8_t *room(capture *c, size_t n) {
    if (c->cap - c->used < n) {
        size_t cap = 2 * c->cap + n;
        uint8_t *out = realloc(c->out, cap);
        if (!out) return NULL;
        c->out = out;
        c->cap = cap;
    }
    return c->out + c->used;
}

static void head(uint8_t *at, uint8_t kind, uint32_t id, uint64_t now_us, uint32_t len) {
    at[0] = kind;
    memcpy(at + 1, &id, 4);
    memcpy(at + 5, &now_us, 8);
    memcpy(at + 13, &len, 4);
}

static uint8_t *reserve(void *io, uint32_t port, uint32_t cap) {
    capture *c = io;
    (void)port;
    if (c->frames_left == 0) return NULL;
    uint8_t *at = room(c, HEAD + cap);
    return at ? at + HEAD : NULL;
}

static void commit(void *io, uint32_t port, const ss_outgoing *made) {
    capture *c = io;
    uint32_t len = ss_flatten(c->out + c->used + HEAD, &made->parts);
    if (len == 0) return;
    head(c->out + c->used, 0, port, c->now_us, len);
    c->used += HEAD + len;
    c->frames_left--;
}

static void event(void *io, const ss_event *e) {
    capture *c = io;
    uint8_t *at = room(c, HEAD + e->len);
    if (!at) return;
    head(at, (uint8_t)e->kind, e->id, e->now_us, e->len);
    if (e->len) memcpy(at + HEAD, e->data, e->len);
    c->used += HEAD + e->len;
}

void ss_capture_close(capture *c) {
    ss_close(c->sw);
    TRACE(free(c->traced);)
    free(c->out), free(c);
}

capture *ss_capture_open(uint32_t cpu_port, uint64_t seed, const char **why) {
    capture *c = calloc(1, sizeof *c);
    *why = "out of memory";
    if (!c) return NULL;
    ss_options options = {
        .io = c, .reserve = reserve, .commit = commit, .event = event, .cpu_port = cpu_port, .seed = seed};
    c->frames_left = c->frame_limit = UINT32_MAX;
    c->sw = ss_open(&ss_the_program, &options, why);
    if (c->sw) return c;
    free(c);
    return NULL;
}

void ss_capture_limit(capture *c, uint32_t frames) { c->frames_left = c->frame_limit = frames; }

void ss_capture_receive(capture *c, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_us) {
    c->now_us = now_us;
    ss_receive(c->sw, port, &(ss_arrival){.bytes = frame, .len = len, .sum = SS_NO_SUM}, now_us);
    ss_turn_end(c->sw);
}

uint64_t ss_capture_tick(capture *c, uint64_t now_us) {
    c->now_us = now_us;
    return ss_tick(c->sw, now_us);
}

size_t ss_capture_control(capture *c, uint64_t now_us, const uint8_t *req, size_t n, uint8_t *reply, size_t cap) {
    c->now_us = now_us;
    size_t replied = ss_control(c->sw, now_us, req, n, reply, cap);
    ss_turn_end(c->sw);
    return replied;
}

/* The bytes since the last call; they stay where they are until the next call of anything here. */
const uint8_t *ss_capture_take(capture *c, size_t *n) {
    *n = c->used;
    c->used = 0;
    c->frames_left = c->frame_limit;
    return c->out ? c->out : (const uint8_t *)"";
}

#ifdef SS_TRACE
static void keep_trace(void *arg, const uint8_t *records, size_t n) {
    capture *c = arg;
    if (c->traced_cap - c->traced_used < 4 + n) {
        size_t cap = 2 * c->traced_cap + 4 + n;
        uint8_t *traced = cap <= TRACED_MAX ? realloc(c->traced, cap) : NULL;
        if (!traced) {
            c->traced_lost++;
            return;
        }
        c->traced = traced;
        c->traced_cap = cap;
    }
    uint32_t size = (uint32_t)n;
    memcpy(c->traced + c->traced_used, &size, 4);
    memcpy(c->traced + c->traced_used + 4, records, n);
    c->traced_used += 4 + n;
}

/* Traces every frame from now on, with at most `keep` bytes of each frame. */
bool ss_capture_trace(capture *c, uint32_t keep) { return ss_trace_open(c->sw, keep_trace, c, keep); }

/* What was traced since the last call, and of how many frames nothing was kept. */
const uint8_t *ss_capture_trace_take(capture *c, size_t *n, uint64_t *lost) {
    *n = c->traced_used;
    *lost = c->traced_lost;
    c->traced_used = 0;
    c->traced_lost = 0;
    return c->traced ? c->traced : (const uint8_t *)"";
}
#endif
