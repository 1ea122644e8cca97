/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rc_io.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 4 /* receive calls before what is due gets out again */
/* Nanoseconds between two rounds of the progress thread: while something goes on, and at most when all is quiet. */
#define INTERVAL_BUSY 5000000ll
#define INTERVAL_SERVED 10000000ll /* after somebody was found in nf_rc_io_run */
#define INTERVAL_QUIET 40000000ll
#define OTHERS 4096

struct nf_rc_io {
    nf_rc *rc;
    nf_udp *udp;
    nf_rc_run run; /* what the kernel had no room for yet, where `pending` */
    bool pending;
    int32_t fatal;
    pthread_mutex_t lock; /* the endpoint's */
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_told;
    bool stop;
    pthread_t progress_thread;
};

uint32_t nf_rc_abi_size(uint32_t which) {
    static const uint32_t sizes[] = {sizeof(nf_rc_plan),       sizeof(nf_rc_event), sizeof(nf_rc_run),
                                     sizeof(nf_rc_pair_state), sizeof(nf_sender),   sizeof(nf_origin),
                                     sizeof(nf_rc_outcome)};
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

void nf_rc_io_lock(nf_rc_io *io) { pthread_mutex_lock(&io->lock); }
void nf_rc_io_unlock(nf_rc_io *io) { pthread_mutex_unlock(&io->lock); }

void nf_rc_io_transient_errors(const nf_rc_io *io, uint64_t *count, int32_t *error) {
    nf_udp_transient_errors(io->udp, count, error);
}

/* Sends what there is to send.  Returns an errno that will not pass, or 0. */
static int send_all(nf_rc_io *io) {
    for (;;) {
        if (!io->pending && !nf_rc_send(io->rc, nf_now(), &io->run)) return 0;
        const nf_rc_run *run = &io->run;
        int error;
        const struct iovec bytes = {(void *)(uintptr_t)run->bytes, run->length};
        nf_sending sending = nf_udp_send(io->udp, &run->route, &bytes, 1, run->length, run->segment, &error);
        io->pending = sending == NF_BLOCKED;
        switch (sending) {
        case NF_SENT: continue;
        case NF_REFUSED_RUN:
            nf_rc_no_runs(io->rc);
            nf_rc_unsent(io->rc, run);
            continue;
        case NF_BROKEN: return error;
        case NF_BLOCKED:
        case NF_TRANSIENT: return 0; /* these packets count as lost: the timer leads back here */
        }
    }
}

/* Takes what has arrived.  Returns an errno or 0. */
static int receive_all(nf_rc_io *io) {
    for (int rounds = 0; rounds < ROUNDS; rounds++) {
        nf_datagram got[NF_UDP_BATCH];
        int n = nf_udp_receive(io->udp, got);
        if (n < 0) return -n;
        int64_t now = nf_now();
        for (nf_datagram *d = got; d < got + n; d++)
            nf_rc_receive(io->rc, d->bytes, d->n, d->segment, &d->from, d->marked, now);
        if (n < NF_UDP_BATCH) return 0;
    }
    return 0;
}

/* Receives, runs the timers and sends, all without waiting.  Returns an errno that will not pass, or 0. */
static int turn(nf_rc_io *io) {
    int error = io->fatal;
    if (!error) error = receive_all(io);
    if (!error) {
        nf_rc_tick(io->rc, nf_now());
        error = send_all(io);
    }
    io->fatal = error;
    return error;
}

bool nf_rc_io_write(nf_rc_io *io, uint32_t qp, const void *data, uint32_t length, uint32_t key, uint64_t offset,
                    uint64_t id) {
    nf_rc_io_lock(io);
    bool posted = nf_rc_write(io->rc, qp, data, length, key, offset, id);
    nf_rc_io_unlock(io);
    return posted;
}

int64_t nf_rc_io_register(nf_rc_io *io, void *base, uint64_t length, bool fill) {
    nf_rc_io_lock(io);
    int64_t key = nf_rc_register(io->rc, base, length, fill);
    nf_rc_io_unlock(io);
    return key;
}

void nf_rc_io_run(nf_rc_io *io, int64_t until, struct pollfd *others, uint32_t n_others, uint32_t quiet,
                  nf_rc_event *events, uint32_t room, nf_rc_outcome *outcome) {
    struct pollfd polled[2 + OTHERS];
    int error;
    n_others = n_others < OTHERS ? n_others : OTHERS;
    for (uint32_t i = 0; i < n_others; i++) others[i].revents = 0;
    nf_rc_io_lock(io);
    while (!(error = turn(io)) && !nf_rc_has_events(io->rc, quiet)) {
        int64_t now = nf_now();
        if (now >= until) break;
        int64_t deadline = nf_rc_deadline(io->rc), wait = (deadline < until ? deadline : until) - now;
        wait = wait < 0 ? 0 : wait;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        polled[0] = (struct pollfd){.fd = nf_udp_receiver(io->udp), .events = POLLIN};
        polled[1] = (struct pollfd){.fd = io->pending ? nf_udp_sender(io->udp, io->run.route.source_port) : -1,
                                    .events = POLLOUT};
        if (n_others) memcpy(polled + 2, others, n_others * sizeof *others);
        int n = ppoll(polled, 2 + n_others, &timeout, NULL);
        if (n < 0) {
            error = errno == EINTR ? 0 : errno; /* EINTR: let Python run its signal handlers */
            break;
        }
        bool ready = false;
        for (uint32_t i = 0; n > 0 && i < n_others; i++) {
            others[i].revents = polled[2 + i].revents;
            ready |= others[i].revents != 0;
        }
        if (ready) { /* first what came before it: a peer answers, then closes its TCP connection */
            error = turn(io);
            break;
        }
    }
    uint32_t n = 0;
    while (n < room && nf_rc_event_next(io->rc, &events[n])) n++;
    *outcome = (nf_rc_outcome){nf_rc_progress(io->rc), n, error};
    nf_rc_io_unlock(io);
}

static void *make_progress(void *argument) {
    nf_rc_io *io = argument;
    int64_t interval = INTERVAL_BUSY;
    uint64_t seen = 0;
    pthread_mutex_lock(&io->stop_lock);
    while (!io->stop) {
        int64_t then = nf_now() + interval;
        struct timespec at = {then / 1000000000, then % 1000000000};
        pthread_cond_timedwait(&io->stop_told, &io->stop_lock, &at);
        if (io->stop) break;
        if (pthread_mutex_trylock(&io->lock)) {
            interval = INTERVAL_SERVED;
            continue;
        }
        turn(io); /* its error, if any, is the next nf_rc_io_run's */
        uint64_t progress = nf_rc_progress(io->rc);
        bool quiet = progress == seen && nf_rc_deadline(io->rc) == NF_NEVER;
        pthread_mutex_unlock(&io->lock);
        interval = !quiet ? INTERVAL_BUSY : 2 * interval < INTERVAL_QUIET ? 2 * interval : INTERVAL_QUIET;
        seen = progress;
    }
    pthread_mutex_unlock(&io->stop_lock);
    return NULL;
}

nf_rc_io *nf_rc_io_open(nf_rc *rc, int receiver, uint32_t n_senders, const nf_sender *senders) {
    nf_rc_io *io = calloc(1, sizeof *io);
    if (!io) return NULL;
    io->rc = rc;
    io->udp = nf_udp_open(receiver, n_senders, senders);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&io->stop_told, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&io->lock, NULL);
    pthread_mutex_init(&io->stop_lock, NULL);
    if (io->udp) {
        sigset_t all, before; /* signals are for the program's threads */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int failed = pthread_create(&io->progress_thread, NULL, make_progress, io);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!failed) return io;
    }
    nf_udp_close(io->udp);
    free(io);
    return NULL;
}

void nf_rc_io_close(nf_rc_io *io) {
    if (!io) return;
    pthread_mutex_lock(&io->stop_lock);
    io->stop = true;
    pthread_cond_signal(&io->stop_told);
    pthread_mutex_unlock(&io->stop_lock);
    pthread_join(io->progress_thread, NULL);
    pthread_cond_destroy(&io->stop_told);
    pthread_mutex_destroy(&io->lock);
    pthread_mutex_destroy(&io->stop_lock);
    nf_udp_close(io->udp);
    free(io);
}
