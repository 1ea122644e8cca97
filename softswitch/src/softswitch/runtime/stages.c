/* SPDX-License-Identifier: Apache-2.0
 *
 * The stages of packets, one after another or overlapping; see stages.h.
 *
 * While they overlap each has memory of its own: buffers of three batches (receive.c), memory of two turns (turn.c), two
 * queues of a port that sends (queue.c).  Of a port, the receiving thread uses the socket, the sending one the socket
 * and what ss_port_send names, the event loop all the rest.
 */
#include "stages.h"
#include "parallel.h"
#include "queue.h"
#include "transmit.h"

/* ---- sending ----------------------------------------------------------------------------------------------------- */

static bool due(const ss_io *io, const ss_port *p) {
    if (!ss_port_waiting(p)) return false;
    switch (p->tx) {
    case SS_TX_IDLE: return true;
    case SS_TX_WAIT_WRITABLE: return p->writable;
    case SS_TX_WAIT_TIMER: return io->now_us >= p->retry_us;
    case SS_TX_WAIT_RATE: return io->now_us * 1000 >= p->next_ns;
    }
    return false;
}

static bool crowded(const ss_io *io, const ss_port *p) {
    (void)io;
    return ss_port_crowded(p);
}

static void sent(ss_io *io, ss_port *p) {
    ss_port_sent(p);
    ss_port_unite(p);
    if (p->fd >= 0 && p->watched != (p->tx == SS_TX_WAIT_WRITABLE)) ss_io_watch_port(io, p);
}

static void send_those(ss_io *io, bool (*wanted)(const ss_io *, const ss_port *)) {
    for (uint32_t i = 0; i < io->n_ports; i++) {
        ss_port *p = io->ports[io->numbers[i]];
        if (!wanted(io, p)) continue;
        ss_port_send(p);
        sent(io, p);
    }
}

static void send_one(void *ports, uint32_t i) { ss_port_send(((ss_port **)ports)[i]); }

/* Waits until no other thread sends. */
static void join(ss_io *io) {
    if (!io->n_sending) return;
    ss_parallel_end(SS_SENDING);
    for (uint32_t i = 0; i < io->n_sending; i++) sent(io, io->sending[i]);
    io->n_sending = 0;
}

/* Has other threads send what was made since the last call, once they have sent what was made before. */
static void depart(ss_io *io) {
    join(io);
    ss_turn_next(io->sw);
    for (uint32_t i = 0; i < io->n_ports; i++) {
        ss_port *p = io->ports[io->numbers[i]];
        if (due(io, p)) {
            ss_port_part(p);
            io->sending[io->n_sending++] = p;
        } else
            ss_port_settle(p);
    }
    if (io->n_sending) ss_parallel_begin(SS_SENDING, send_one, io->sending, io->n_sending);
}

void ss_stages_settle(ss_io *io) {
    send_those(io, due);
    for (uint32_t i = 0; i < io->n_ports; i++) ss_port_settle(io->ports[io->numbers[i]]);
    ss_turn_end(io->sw);
    ss_port_forget();
    io->crowded = false;
}

/* ---- handling ---------------------------------------------------------------------------------------------------- */

typedef struct {
    ss_io *io;
    uint32_t port;
} arrival;

static void receive(void *arg, const ss_segment *s) {
    arrival *a = arg;
    ss_io *io = a->io;
    io->last_port = a->port, io->last_len = s->len, io->last_frame = s->bytes;
    ss_arrival in = {s->bytes, s->len, s->stable, s->sum};
    ss_receive(io->sw, a->port, &in, io->now_us);
}

/* Where frames pile up they leave before the rest of the batch is handled; here, as the next frame's headers are
 * written over a part of what they refer to. */
static void relieve(void *arg) {
    ss_io *io = ((arrival *)arg)->io;
    if (!io->crowded) return;
    io->crowded = false;
    join(io);
    send_those(io, crowded);
}

static void handle(ss_io *io, ss_batch **batches, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        arrival a = {io, ss_batch_port(batches[i])};
        ss_batch_hand_on(batches[i], &(ss_port_user){&a, receive, relieve});
    }
    io->last_frame = NULL;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static void receive_one(void *batches, uint32_t i) { ss_batch_receive(((ss_batch **)batches)[i]); }

void ss_stages_turn(ss_io *io, ss_port **ports, uint32_t n) {
    ss_stages_drain(io);
    send_those(io, due);
    for (uint32_t i = 0; i < n; i++) {
        ss_batch *batch;
        while (!(batch = ss_batch_begin(ports[i]))) ss_stages_settle(io);
        ss_batch_receive(batch);
        handle(io, &batch, 1);
    }
    ss_stages_settle(io);
}

void ss_stages_overlap(ss_io *io, ss_port **ports, uint32_t n) {
    uint32_t begun = 0;
    do {
        uint32_t coming = 0;
        if (begun < n) ss_port_forget_oldest();
        while (begun < n && coming < SS_BATCHES && (io->coming[coming] = ss_batch_begin(ports[begun]))) begun++, coming++;
        ss_parallel_begin(SS_RECEIVING, receive_one, io->coming, coming);
        handle(io, io->arrived, io->n_arrived);
        depart(io);
        ss_parallel_end(SS_RECEIVING);
        for (io->n_arrived = 0; io->n_arrived < coming; io->n_arrived++)
            io->arrived[io->n_arrived] = io->coming[io->n_arrived];
    } while (begun < n);
}

void ss_stages_drain(ss_io *io) {
    if (!ss_stages_busy(io)) return;
    handle(io, io->arrived, io->n_arrived);
    io->n_arrived = 0;
    join(io);
    ss_stages_settle(io);
}
