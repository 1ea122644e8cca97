/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket to the control plane (protocol.h: "Over a socket"): requests in, replies and events out, never blocking.
 */
#ifndef SS_CHANNEL_H
#define SS_CHANNEL_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "switch.h"

typedef struct ss_channel {
    int fd;
    bool ended; /* the other side is gone, or broke the framing */
    uint8_t *in;
    size_t n_in; /* a message that is not whole yet */
    uint8_t *out;
    size_t out_at, n_out, out_size;
    size_t out_message; /* where the message begins that out_at is in */
    size_t
        waiting[SS_EVENT_KINDS]; /* bytes of events of each kind that are not sent whole; in the place of 0: replies */
    uint64_t lost[SS_EVENT_KINDS]; /* events of each kind that nobody read for too long, since the last report */
} ss_channel;

/* Executes a request batch and writes the replies to reply[0..cap); returns their length. */
typedef size_t ss_request_fn(void *arg, const uint8_t *batch, size_t n, uint8_t *reply, size_t cap);

bool ss_channel_open(ss_channel *, int fd);
void ss_channel_close(ss_channel *);
void ss_channel_read(ss_channel *, ss_request_fn *, void *arg); /* serves the requests that have arrived */
void ss_channel_event(ss_channel *, uint8_t kind, uint32_t id, uint64_t now_us, const uint8_t *data, uint32_t len);
void ss_channel_write(ss_channel *); /* sends what the socket takes */
static inline bool ss_channel_unsent(const ss_channel *c) { return c->out_at < c->n_out; }
void ss_channel_report_lost(ss_channel *, uint64_t now_us); /* an SS_EVENT_LOST for each kind, once all else is sent */
bool ss_channel_hungry(const ss_channel *);                 /* requests are welcome: replies are being read */
#endif
