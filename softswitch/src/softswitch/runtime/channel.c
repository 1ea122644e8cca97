/* SPDX-License-Identifier: Apache-2.0
 *
 * The socket to the control plane; see channel.h.
 */
#define _GNU_SOURCE
#include "channel.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol.h"

#define HEAD 5u /* u32 size, u8 type */
#define TAG 4u
#define EVENTS_MAX (2u << 20)  /* bytes of events of one kind that may wait: a flood of one costs no other its room */
#define REPLIES_MAX (4u << 20) /* bytes of replies waiting, from which on no request is taken */
#define REPLIES 0              /* the place of replies among the kinds of events */

bool ss_channel_open(ss_channel *c, int fd) {
    *c = (ss_channel){.fd = fd, .in = malloc(4 + SS_MESSAGE_MAX)};
    return c->in != NULL;
}

void ss_channel_close(ss_channel *c) {
    close(c->fd);
    free(c->in);
    free(c->out);
}

bool ss_channel_hungry(const ss_channel *c) { return c->waiting[REPLIES] < REPLIES_MAX; }

static uint8_t *room(ss_channel *c, size_t n) {
    if (c->out_at == c->n_out) c->out_message = c->out_at = c->n_out = 0;
    if (c->out_size - c->n_out < n && c->out_message) {
        memmove(c->out, c->out + c->out_message, c->n_out - c->out_message);
        c->n_out -= c->out_message;
        c->out_at -= c->out_message;
        c->out_message = 0;
    }
    if (c->out_size - c->n_out < n) {
        size_t size = 2 * c->out_size + n;
        uint8_t *out = realloc(c->out, size);
        if (!out) return NULL;
        c->out = out;
        c->out_size = size;
    }
    return c->out + c->n_out;
}

static void put_head(uint8_t *at, size_t payload, uint8_t type) {
    uint32_t size = (uint32_t)payload + 1;
    memcpy(at, &size, 4);
    at[4] = type;
}

void ss_channel_event(ss_channel *c, uint8_t kind, uint32_t id, uint64_t now_us, const uint8_t *data, uint32_t len) {
    size_t n = HEAD + 13 + len;
    uint8_t *at = c->waiting[kind] + n > EVENTS_MAX ? NULL : room(c, n);
    if (!at) {
        c->lost[kind]++;
        return;
    }
    put_head(at, 13 + len, SS_MSG_EVENT);
    at[5] = kind;
    memcpy(at + 6, &id, 4);
    memcpy(at + 10, &now_us, 8);
    if (len) memcpy(at + 18, data, len);
    c->n_out += n;
    c->waiting[kind] += n;
}

void ss_channel_report_lost(ss_channel *c, uint64_t now_us) {
    if (ss_channel_unsent(c)) return;
    for (uint8_t kind = 1; kind < SS_EVENT_KINDS; kind++) {
        uint64_t lost = c->lost[kind];
        c->lost[kind] = 0;
        if (lost) ss_channel_event(c, SS_EVENT_LOST, kind, now_us, (const uint8_t *)&lost, sizeof lost);
    }
}

/* Takes the messages that are sent whole out of the counts of what waits. */
static void settle(ss_channel *c) {
    while (c->out_message < c->out_at) {
        const uint8_t *message = c->out + c->out_message;
        uint32_t size;
        memcpy(&size, message, 4);
        if (c->out_message + 4 + size > c->out_at) return;
        c->waiting[message[4] == SS_MSG_EVENT ? message[5] : REPLIES] -= 4 + size;
        c->out_message += 4 + size;
    }
}

void ss_channel_write(ss_channel *c) {
    while (ss_channel_unsent(c)) {
        ssize_t n = send(c->fd, c->out + c->out_at, c->n_out - c->out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            c->ended |= errno != EAGAIN;
            return;
        }
        c->out_at += (size_t)n;
        settle(c);
    }
}

/* One whole message; the reply is built right behind what waits to be sent. */
static void serve(ss_channel *c, const uint8_t *payload, size_t n, ss_request_fn *execute, void *arg) {
    /* Events of the requests themselves (packet-in after packet-out) would land in between: replies get a place of
     * their own first. */
    static uint8_t reply[SS_MESSAGE_MAX - TAG - 1];
    size_t length = execute(arg, payload + TAG, n - TAG, reply, sizeof reply);
    uint8_t *at = room(c, HEAD + TAG + length);
    if (!at) {
        c->ended = true;
        return;
    }
    put_head(at, TAG + length, SS_MSG_REPLY);
    memcpy(at + HEAD, payload, TAG);
    memcpy(at + HEAD + TAG, reply, length);
    c->n_out += HEAD + TAG + length;
    c->waiting[REPLIES] += HEAD + TAG + length;
}

void ss_channel_read(ss_channel *c, ss_request_fn *execute, void *arg) {
    ssize_t got = recv(c->fd, c->in + c->n_in, 4 + SS_MESSAGE_MAX - c->n_in, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        c->ended = true;
        return;
    }
    c->n_in += (size_t)got;
    size_t at = 0;
    while (c->n_in - at >= 4) {
        uint32_t size;
        memcpy(&size, c->in + at, 4);
        if (size < 1 + TAG || size > SS_MESSAGE_MAX) {
            c->ended = true;
            return;
        }
        if (c->n_in - at < 4 + size) break;
        if (c->in[at + 4] != SS_MSG_REQUEST) {
            c->ended = true;
            return;
        }
        serve(c, c->in + at + HEAD, size - 1, execute, arg);
        at += 4 + size;
    }
    memmove(c->in, c->in + at, c->n_in - at);
    c->n_in -= at;
}
