/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "io.h"
#include "quantise.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>

#define ROUNDS 4                 /* receive calls before what is due gets out again */
#define BATCH_BYTES (1ull << 20) /* of a tensor: from here on its time is the processors', not a round trip's */

struct nf_io {
    nf_fold *fold;
    nf_udp *udp;
    int interrupt;
    nf_run run;     /* what is being sent; the kernel may take it in pieces */
    uint32_t taken; /* packets of it that left */
    bool blocked;   /* the kernel's send buffer is full */
    nf_span *spans; /* NULL: none are recorded */
    uint64_t n_spans, spans_room, spans_lost;
    nf_span_kind leaving; /* what the run that waits to be sent is: NF_SEND, NF_RETRANSMIT or NF_ASK */
};

nf_io *nf_io_open(nf_fold *fold, int receiver, uint32_t n_senders, const nf_sender *senders) {
    nf_io *io = calloc(1, sizeof *io);
    if (!io) return NULL;
    io->fold = fold;
    io->interrupt = -1;
    io->udp = nf_udp_open(receiver, n_senders, senders);
    if (!io->udp) {
        free(io);
        return NULL;
    }
    return io;
}

void nf_io_close(nf_io *io) {
    if (!io) return;
    nf_udp_close(io->udp);
    free(io);
}

void nf_io_interrupt_by(nf_io *io, int fd) { io->interrupt = fd; }
void nf_io_discard(nf_io *io) {
    nf_fold_unsent(io->fold, &io->run, io->taken);
    io->run.packets = io->taken = 0;
}

void nf_io_transient_errors(const nf_io *io, uint64_t *count, int32_t *error) {
    nf_udp_transient_errors(io->udp, count, error);
}

/* ---- the timeline: one comparison where none is kept ------------------------------------------------------------- */
void nf_io_trace(nf_io *io, nf_span *spans, uint64_t room) {
    io->spans = spans;
    io->spans_room = room;
    io->n_spans = io->spans_lost = 0;
}

uint64_t nf_io_traced(nf_io *io, uint64_t *lost) {
    uint64_t n = io->n_spans;
    *lost = io->spans_lost;
    io->n_spans = io->spans_lost = 0;
    return n;
}

static int64_t begin_span(const nf_io *io) { return io->spans ? nf_now() : 0; }

static void end_span(nf_io *io, nf_span_kind kind, int64_t begin, uint32_t packets) {
    if (!io->spans) return;
    if (io->n_spans == io->spans_room)
        io->spans_lost++;
    else
        io->spans[io->n_spans++] = (nf_span){begin, nf_now(), kind, packets};
}

/* Makes the next run of packets. */
static bool make_run(nf_io *io) {
    if (!io->spans) return nf_fold_send(io->fold, nf_now(), &io->run);
    uint64_t repeated = nf_fold_retransmitted(io->fold);
    int64_t begin = nf_now();
    bool made = nf_fold_send(io->fold, begin, &io->run);
    bool repeats = nf_fold_retransmitted(io->fold) > repeated;
    io->leaving = io->run.asks ? NF_ASK : repeats ? NF_RETRANSMIT : NF_SEND;
    if (made) end_span(io, io->leaving == NF_SEND ? NF_QUANTISE : io->leaving, begin, io->run.packets);
    return made;
}

/* Sends what the fold has to send.  Returns an errno that will not pass, or 0. */
static int send_all(nf_io *io) {
    io->blocked = false;
    for (;;) {
        nf_run *run = &io->run;
        if (io->taken == run->packets) {
            run->packets = io->taken = 0;
            if (!make_run(io)) return 0;
        }
        int64_t begin = begin_span(io);
        int error;
        nf_sending sending =
            nf_udp_send(io->udp, &run->route, run->pieces, run->n_pieces, run->length, run->segment, &error);
        end_span(io, io->leaving, begin, run->packets);
        switch (sending) {
        case NF_SENT: io->taken = run->packets; continue;
        case NF_BLOCKED: io->blocked = true; return 0;
        case NF_BROKEN: return error;
        case NF_REFUSED_RUN: nf_fold_no_runs(io->fold); break;
        case NF_TRANSIENT: break;
        }
        nf_fold_unsent(io->fold, run, 0);
        io->taken = run->packets;
        if (sending == NF_TRANSIENT)
            return 0; /* not again at once: the stream's timer or the next result leads back here */
    }
}

/* Takes what has arrived.  Returns an errno or 0. */
static int receive_all(nf_io *io) {
    for (int rounds = 0; rounds < ROUNDS; rounds++) { /* then let others' packets out again */
        nf_datagram got[NF_UDP_BATCH];
        int64_t begin = begin_span(io);
        int n = nf_udp_receive(io->udp, got);
        if (n < 0) return -n;
        if (n > 0) end_span(io, NF_RECEIVE, begin, (uint32_t)n);
        int64_t now = nf_now();
        for (nf_datagram *d = got; d < got + n; d++) {
            if (!d->n) continue;
            begin = begin_span(io);
            nf_fold_receive(io->fold, d->bytes, d->n, d->segment, &d->from, d->marked, now);
            end_span(io, NF_DEQUANTISE, begin, (uint32_t)((d->n + d->segment - 1) / d->segment));
        }
        if (n < NF_UDP_BATCH) return 0;
    }
    return 0;
}

static nf_run_status run_loop(nf_io *io, int64_t until, int32_t *error) {
    for (;;) {
        if ((*error = send_all(io))) return NF_RUN_OS_ERROR;
        if ((*error = receive_all(io))) return NF_RUN_OS_ERROR;
        if (nf_fold_failure(io->fold)->error != NF_OK) return NF_RUN_FAILED;
        if (nf_fold_finished(io->fold)) return NF_RUN_DONE;
        int64_t now = nf_now();
        if (now >= until) return NF_RUN_AGAIN;
        nf_fold_tick(io->fold, now);
        if (!io->blocked && (*error = send_all(io))) return NF_RUN_OS_ERROR;
        int64_t deadline = nf_fold_deadline(io->fold), wait = (deadline < until ? deadline : until) - now;
        wait = wait < 0 ? 0 : wait;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        struct pollfd polled[3] = {
            {.fd = nf_udp_receiver(io->udp), .events = POLLIN}, {.fd = io->interrupt, .events = POLLIN}, {.fd = -1}};
        if (io->blocked)
            polled[2] = (struct pollfd){.fd = nf_udp_sender(io->udp, io->run.route.source_port), .events = POLLOUT};
        int64_t begin = begin_span(io);
        int ready = ppoll(polled, 3, &timeout, NULL);
        *error = errno;
        end_span(io, NF_WAIT, begin, 0);
        if (ready < 0) return *error == EINTR ? NF_RUN_AGAIN : NF_RUN_OS_ERROR; /* let Python run its signal handlers */
        if (polled[1].revents) return NF_RUN_AGAIN;
    }
}

/* Where ranks and switches share processors, a thread that is woken by each packet takes the processor from one that
 * would have had more to do for it soon: batch threads wait for their turn, and find more packets then.  Returns
 * whether the thread is to be made an ordinary one again; one that the program has given another policy stays as it is.
 */
static bool begin_batch(const nf_io *io) {
    const struct sched_param param = {0};
    return nf_fold_bytes(io->fold) >= BATCH_BYTES && sched_getscheduler(0) == SCHED_OTHER &&
           !sched_setscheduler(0, SCHED_BATCH, &param);
}

static void end_batch(void) {
    const struct sched_param param = {0};
    sched_setscheduler(0, SCHED_OTHER, &param);
}

nf_run_status nf_io_run(nf_io *io, int64_t until, int32_t *error) {
    uint32_t mode = nf_floats_exact();
    bool batch = begin_batch(io);
    nf_run_status status = run_loop(io, until, error);
    nf_fold_totals(io->fold);
    if (batch) end_batch();
    nf_floats_restore(mode);
    return status;
}

nf_run_status nf_io_fold(nf_io *io, const nf_operation *op, const char **why, int32_t *error, int64_t now,
                         int64_t until) {
    return nf_fold_start(io->fold, op, now, why) ? nf_io_run(io, until, error) : NF_RUN_REFUSED;
}
