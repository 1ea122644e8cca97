/* SPDX-License-Identifier: Apache-2.0
 *
 * The switch as its host sees it: open a program, feed frames, take frames, control it.
 *
 *   I/O layer (io.c, or capture.c in process)          control plane (protocol.h)
 *        ss_receive ->  [ pipeline.c ] -> reserve/commit         ss_control
 *                          tables.c profiles.c state.c pre.c hash.c
 *
 * Single-threaded: all calls on one ss_switch come from one thread, and the callbacks must not call back into it.
 * Nothing here blocks, reads a clock or draws entropy: time is handed in, randomness comes from the seed.
 */
#ifndef SS_SWITCH_H
#define SS_SWITCH_H
#include "softswitch.h"

#define SS_NO_PORT 0xffffffffu

typedef enum {
    SS_EVENT_PACKET_IN = 1, /* id: ingress port of the frame; data: frame as deparsed for the CPU port */
    SS_EVENT_DIGEST = 2,    /* id: digest index; data: the fields in byte form */
    SS_EVENT_IDLE = 3,      /* id: table index; data: the entry as OP_TABLE_READ gives it (protocol.h) */
    SS_EVENT_LOG = 4,       /* data: UTF-8 text of log_msg, a failed assert or a named loss; no end mark */
    SS_EVENT_PORT = 5,      /* id: port; data: one byte, 1 where frames can pass, 0 where it is down or gone (io.c) */
    SS_EVENT_LOST = 6, /* id: a kind of event; data: u64, how many were dropped since the last report (channel.c) */
    SS_EVENT_KINDS     /* one more than the greatest kind */
} ss_event_kind;

typedef struct {
    ss_event_kind kind;
    uint32_t id;
    uint64_t now_us;
    const uint8_t *data;
    uint32_t len;
} ss_event;

typedef struct {
    ss_parts parts;
    uint32_t sum; /* of parts.ref, as ss_sum16_of has it, or SS_NO_SUM */
} ss_outgoing;

static inline uint32_t ss_outgoing_length(const ss_outgoing *o) {
    return o->parts.head + o->parts.ref_len + o->parts.tail;
}

/* Puts the parts of a frame together in `out`, where its head and tail are; `cap` of reserve is enough for it. */
static inline uint32_t ss_flatten(uint8_t *out, const ss_parts *p) {
    if (p->tail) memmove(out + p->head + p->ref_len, out + p->head, p->tail);
    if (p->ref_len) memcpy(out + p->head, p->ref, p->ref_len);
    return p->head + p->ref_len + p->tail;
}

typedef struct ss_options {
    void *io; /* first argument of every callback */
    /* Where to build a frame of at most `cap` bytes for `port`; NULL: queue full or no such port (counted, frame lost).
     * Every non-NULL reserve is followed by exactly one commit with what the frame consists of, before any other
     * callback; no bytes at all mean: nothing to send after all.  What `ref` refers to stays until ss_turn_end, or the
     * second ss_turn_next. */
    uint8_t *(*reserve)(void *io, uint32_t port, uint32_t cap);
    void (*commit)(void *io, uint32_t port, const ss_outgoing *);
    uint32_t (*depth)(void *io, uint32_t port); /* frames queued; NULL: always 0 */
    void (*event)(void *io, const ss_event *);  /* NULL: nobody listens */
    uint32_t cpu_port;                          /* frames for it become SS_EVENT_PACKET_IN; SS_NO_PORT: none */
    uint64_t seed;                              /* of random() */
#ifdef SS_TRACE
    uint32_t (*refusal)(void *io, uint32_t port); /* why reserve said no: an ss_drop_reason; NULL: its queue is full */
#endif
} ss_options;

/* NULL, with *why set to a static text, where the program's ABI differs or memory is short. */
ss_switch *ss_open(const ss_program *, const ss_options *, const char **why);
void ss_close(ss_switch *);

typedef struct { /* a frame that comes in */
    const uint8_t *bytes;
    uint32_t len;
    uint32_t stable; /* bytes from here on stay as long as what commit refers to, those before it are copied */
    uint32_t sum;    /* of the bytes from there on, as ss_sum16_of has it, or SS_NO_SUM */
} ss_arrival;

/* Runs one frame through the whole pipeline, with all its copies, resubmissions and recirculations.  The frame must
 * stay untouched during the call and must not overlap what reserve returns.  A packet-out is a frame from cpu_port.
 * now_us: microseconds since the switch started, never going back.  Frames longer than SS_MAX_FRAME and ports above 511
 * are dropped, counted as oversize. */
void ss_receive(ss_switch *, uint32_t port, const ss_arrival *, uint64_t now_us);

/* To be called where frames were received or ss_control was called, and all that was committed has been sent or copied:
 * what it refers to is given up. */
void ss_turn_end(ss_switch *);
/* The same, where what was committed since the last such call is still being sent: what that refers to stays until the
 * next call. */
void ss_turn_next(ss_switch *);

/* Reports entries idle for too long; returns when to call again (UINT64_MAX: nothing to wait for; ask again after any
 * ss_control). */
uint64_t ss_tick(ss_switch *, uint64_t now_us);

/* Executes the requests in req[0..n), in order, and writes the replies; returns their length.  cap >= SS_REPLY_MIN;
 * reads are paged, so no single reply needs more.  When there is no room for a further reply the rest of the batch is
 * left undone: fewer replies than requests, and the client sends the rest again.  A request that is cut short ends
 * the batch with one SS_INVALID_ARGUMENT reply. */
#define SS_REPLY_MIN 65536u
size_t ss_control(ss_switch *, uint64_t now_us, const uint8_t *req, size_t n, uint8_t *reply, size_t cap);

typedef struct {
    uint64_t received, received_bytes, sent, sent_bytes, packet_ins;
    uint64_t dropped_ingress, dropped_egress; /* by the program */
    uint64_t dropped_queue;                   /* reserve said no */
    uint64_t dropped_oversize;                /* frame in or out above SS_MAX_FRAME */
    uint64_t dropped_passes;                  /* one frame went round too often, or took too much memory */
    uint64_t parser_errors, asserts_failed, digests;
} ss_stats;
const ss_stats *ss_get_stats(const ss_switch *);
#endif
