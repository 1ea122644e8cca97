/* SPDX-License-Identifier: Apache-2.0
 *
 * The stages of packets, one after another or overlapping; see stages.h.
 *
 * While they overlap each has memory of its own: buffers of three batches (receive.c), memory of two turns (turn.c),
 * two queues of a port that sends (queue.c).  Of a port, the receiving thread uses the socket, the sending one the
 * socket and what ss_port_send names, the event loop all the rest.
 */
#include "stages.h"
#include "parallel.h"
#include "queue.h"
#include "transmit.h"

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static bool due(const ss_stages *s, const ss_port *p) {
    if (!ss_port_waiting(p)) return false;
    switch (p->tx) {
    case SS_TX_IDLE: return true;
    case SS_TX_WAIT_WRITABLE: return p->writable;
    case SS_TX_WAIT_TIMER: return s->now_us >= p->retry_us;
    case SS_TX_WAIT_RATE: return s->now_us * 1000 >= p->next_ns;
    }
    return false;
}

static bool crowded(const ss_stages *s, const ss_port *p) {
    (void)s;
    return ss_port_crowded(p);
}

static void sent(ss_port *p) {
    ss_port_sent(p);
    ss_port_unite(p);
}

static void send_those(ss_stages *s, bool (*wanted)(const ss_stages *, const ss_port *)) {
    for (uint32_t i = 0; i < s->n_ports; i++) {
        ss_port *p = s->ports[s->numbers[i]];
        if (!wanted(s, p)) continue;
        ss_port_send(p);
        sent(p);
    }
}

static void send_one(void *ports, uint32_t i) { ss_port_send(((ss_port **)ports)[i]); }

/* Waits until no other thread sends. */
static void join(ss_stages *s) {
    if (!s->n_sending) return;
    ss_parallel_end(SS_SENDING);
    for (uint32_t i = 0; i < s->n_sending; i++) sent(s->sending[i]);
    s->n_sending = 0;
}

/* Has other threads send what was made since the last call, once they have sent what was made before. */
static void depart(ss_stages *s) {
    join(s);
    ss_turn_next(s->sw);
    for (uint32_t i = 0; i < s->n_ports; i++) {
        ss_port *p = s->ports[s->numbers[i]];
        if (due(s, p)) {
            ss_port_part(p);
            s->sending[s->n_sending++] = p;
        } else
            ss_port_settle(p);
    }
    if (s->n_sending) ss_parallel_begin(SS_SENDING, send_one, s->sending, s->n_sending);
}

void ss_stages_settle(ss_stages *s) {
    send_those(s, due);
    for (uint32_t i = 0; i < s->n_ports; i++) ss_port_settle(s->ports[s->numbers[i]]);
    ss_turn_end(s->sw);
    ss_port_forget();
    s->crowded = false;
}

/* ---- handling ---------------------------------------------------------------------------------------------------- */

typedef struct {
    ss_stages *stages;
    uint32_t port;
} arrival;

static void receive(void *arg, const ss_segment *frame) {
    arrival *a = arg;
    ss_stages *s = a->stages;
    s->last_port = a->port, s->last_len = frame->len, s->last_frame = frame->bytes;
    ss_arrival in = {frame->bytes, frame->len, frame->stable, frame->sum};
    ss_receive(s->sw, a->port, &in, s->now_us);
}

/* Where frames pile up they leave before the rest of the batch is handled; here, as the next frame's headers are
 * written over a part of what they refer to. */
static void relieve(void *arg) {
    ss_stages *s = ((arrival *)arg)->stages;
    if (!s->crowded) return;
    s->crowded = false;
    join(s);
    send_those(s, crowded);
}

static void handle(ss_stages *s, ss_batch **batches, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        arrival a = {s, ss_batch_port(batches[i])};
        ss_batch_hand_on(batches[i], &(ss_port_user){&a, receive, relieve});
    }
    s->last_frame = NULL;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static void receive_one(void *batches, uint32_t i) { ss_batch_receive(((ss_batch **)batches)[i]); }

void ss_stages_turn(ss_stages *s, ss_port **ports, uint32_t n) {
    ss_stages_drain(s);
    send_those(s, due);
    for (uint32_t i = 0; i < n; i++) {
        ss_batch *batch;
        while (!(batch = ss_batch_begin(ports[i]))) ss_stages_settle(s);
        ss_batch_receive(batch);
        handle(s, &batch, 1);
    }
    ss_stages_settle(s);
}

void ss_stages_overlap(ss_stages *s, ss_port **ports, uint32_t n) {
    uint32_t begun = 0;
    do {
        uint32_t coming = 0;
        if (begun < n) ss_port_forget_oldest();
        while (begun < n && coming < SS_BATCHES && (s->coming[coming] = ss_batch_begin(ports[begun])))
            begun++, coming++;
        ss_parallel_begin(SS_RECEIVING, receive_one, s->coming, coming);
        handle(s, s->arrived, s->n_arrived);
        depart(s);
        ss_parallel_end(SS_RECEIVING);
        for (s->n_arrived = 0; s->n_arrived < coming; s->n_arrived++)
            s->arrived[s->n_arrived] = s->coming[s->n_arrived];
    } while (begun < n);
}

void ss_stages_drain(ss_stages *s) {
    if (!ss_stages_busy(s)) return;
    handle(s, s->arrived, s->n_arrived);
    s->n_arrived = 0;
    join(s);
    ss_stages_settle(s);
}
