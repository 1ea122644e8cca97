/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "rc_io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define BATCH 8                        /* datagrams, or super-packets, a receive call */
#define ROUNDS 4                       /* receive calls before what is due gets out again */
#define DATAGRAM 65536
#define LOOK_FIRST 5000000ll           /* the housekeeper's rounds, nanoseconds: while something goes on */
#define LOOK_LAST 40000000ll           /* and when all is quiet */
#define OTHERS 4096

struct nf_rc_io {
    nf_rc *rc;
    int receiver;
    uint32_t n_senders;
    nf_rc_sender *senders;
    nf_rc_run run;                     /* what the kernel had no room for yet, where `pending` */
    bool pending;
    uint64_t setbacks;
    int32_t setback, fatal;
    uint8_t (*buffers)[DATAGRAM];
    pthread_mutex_t lock;              /* the endpoint's */
    pthread_mutex_t stop_lock;
    pthread_cond_t stop_told;
    bool stop;
    pthread_t housekeeper;
};

int64_t nf_rc_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

uint32_t nf_rc_abi_size(uint32_t which)
{
    static const uint32_t sizes[] = { sizeof(nf_rc_plan), sizeof(nf_rc_event), sizeof(nf_rc_run),
                                      sizeof(nf_rc_standing), sizeof(nf_rc_sender) };
    return which < sizeof sizes / sizeof *sizes ? sizes[which] : 0;
}

void nf_rc_io_lock(nf_rc_io *io) { pthread_mutex_lock(&io->lock); }
void nf_rc_io_unlock(nf_rc_io *io) { pthread_mutex_unlock(&io->lock); }

void nf_rc_io_setbacks(const nf_rc_io *io, uint64_t *count, int32_t *error)
{
    *count = io->setbacks;
    *error = io->setback;
}

static int sender_of(const nf_rc_io *io, uint16_t port)
{
    for (uint32_t i = 0; i < io->n_senders; i++)
        if (io->senders[i].port == port)
            return io->senders[i].fd;
    return -1;
}

static ssize_t send_run(const nf_rc_io *io, const nf_rc_run *run)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(NF_UDP_PORT),
                              .sin_addr.s_addr = htonl(run->route.destination) };
    struct iovec iov = { (void *)(uintptr_t)run->bytes, run->length };
    union { char space[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } control = { 0 };
    struct msghdr m = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &iov, .msg_iovlen = 1 };
    if (run->packets > 1) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t size = (uint16_t)run->segment;
        memcpy(CMSG_DATA(c), &size, sizeof size);
    }
    return sendmsg(sender_of(io, run->route.source_port), &m, MSG_DONTWAIT);
}

/* Errors that pass: a full queue, a route or neighbour that is not there just now.  The packets count as lost. */
static bool passes(int error)
{
    return error == ENOBUFS || error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN || error == EPERM ||
           error == ECONNREFUSED || error == EHOSTDOWN;
}

/* Sends what there is to send.  Returns an errno that will not pass, or 0. */
static int send_all(nf_rc_io *io)
{
    for (;;) {
        if (!io->pending && !nf_rc_send(io->rc, nf_rc_now(), &io->run))
            return 0;
        io->pending = true;
        if (send_run(io, &io->run) >= 0) {
            io->pending = false;
            continue;
        }
        int error = errno;
        if (error == EINTR)
            continue;
        if (error == EAGAIN || error == EWOULDBLOCK)
            return 0;
        io->pending = false;
        bool refused_run = io->run.packets > 1 && (error == EIO || error == EINVAL || error == EOPNOTSUPP ||
                                                   error == EMSGSIZE);
        if (!refused_run && !passes(error))
            return error;
        if (refused_run) {             /* no segmentation on this path (EIO: no checksum offload on older kernels) */
            nf_rc_no_runs(io->rc);
            nf_rc_unsent(io->rc, &io->run);
            continue;
        }
        io->setbacks++;
        io->setback = error;
        return 0;                      /* lost on the way, as far as we are concerned: the timer leads back here */
    }
}

/* Takes what has arrived.  Returns an errno or 0. */
static int receive_all(nf_rc_io *io)
{
    struct mmsghdr messages[BATCH];
    struct iovec iov[BATCH];
    struct sockaddr_in from[BATCH];
    union { char space[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control[BATCH];
    for (int rounds = 0; rounds < ROUNDS; rounds++) {
        for (int i = 0; i < BATCH; i++) {
            iov[i] = (struct iovec){ io->buffers[i], DATAGRAM };
            messages[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1, .msg_control = &control[i],
                                                   .msg_controllen = sizeof control[i].space,
                                                   .msg_name = &from[i], .msg_namelen = sizeof from[i] };
        }
        int n = recvmmsg(io->receiver, messages, BATCH, MSG_DONTWAIT, NULL);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNREFUSED ? 0 : errno;
        int64_t now = nf_rc_now();
        for (int i = 0; i < n; i++) {
            size_t bytes = messages[i].msg_len, segment = bytes;
            bool marked = false;
            struct msghdr *m = &messages[i].msg_hdr;
            for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
                if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
                    int value;
                    memcpy(&value, CMSG_DATA(c), sizeof value);
                    segment = value > 0 ? (size_t)value : bytes;
                } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
                    marked = (*CMSG_DATA(c) & 3) == NF_ECN_CE;
                }
            }
            nf_rc_receive(io->rc, io->buffers[i], bytes, segment, marked, ntohs(from[i].sin_port), now);
        }
        if (n < BATCH)
            return 0;
    }
    return 0;
}

/* One turn without waiting. */
static int turn(nf_rc_io *io)
{
    int error = io->fatal;
    if (!error)
        error = receive_all(io);
    if (!error) {
        nf_rc_tick(io->rc, nf_rc_now());
        error = send_all(io);
    }
    io->fatal = error;
    return error;
}

int32_t nf_rc_io_run(nf_rc_io *io, int64_t until, struct pollfd *others, uint32_t n_others)
{
    struct pollfd polled[2 + OTHERS];
    int error;
    n_others = n_others < OTHERS ? n_others : OTHERS;
    nf_rc_io_lock(io);
    while (!(error = turn(io)) && !nf_rc_has_events(io->rc)) {
        int64_t now = nf_rc_now();
        if (now >= until)
            break;
        int64_t deadline = nf_rc_deadline(io->rc), wait = (deadline < until ? deadline : until) - now;
        wait = wait < 0 ? 0 : wait;
        struct timespec timeout = { wait / 1000000000, wait % 1000000000 };
        polled[0] = (struct pollfd){ .fd = io->receiver, .events = POLLIN };
        polled[1] = (struct pollfd){ .fd = io->pending ? sender_of(io, io->run.route.source_port) : -1,
                                     .events = POLLOUT };
        if (n_others)
            memcpy(polled + 2, others, n_others * sizeof *others);
        int n = ppoll(polled, 2 + n_others, &timeout, NULL);
        if (n < 0) {
            error = errno == EINTR ? 0 : errno;     /* EINTR: let Python run its signal handlers */
            break;
        }
        bool ready = false;
        for (uint32_t i = 0; n > 0 && i < n_others; i++) {
            others[i].revents = polled[2 + i].revents;
            ready |= others[i].revents != 0;
        }
        if (ready) {                   /* first what came before it: a peer answers, then closes its TCP connection */
            error = turn(io);
            break;
        }
    }
    nf_rc_io_unlock(io);
    return error;
}

static void *keep_house(void *argument)
{
    nf_rc_io *io = argument;
    int64_t look = LOOK_FIRST;
    uint64_t seen = 0;
    pthread_mutex_lock(&io->stop_lock);
    while (!io->stop) {
        int64_t then = nf_rc_now() + look;
        struct timespec at = { then / 1000000000, then % 1000000000 };
        pthread_cond_timedwait(&io->stop_told, &io->stop_lock, &at);
        if (io->stop || pthread_mutex_trylock(&io->lock))
            continue;
        turn(io);                      /* its error, if any, is the next nf_rc_io_run's */
        uint64_t progress = nf_rc_progress(io->rc);
        bool quiet = progress == seen && nf_rc_deadline(io->rc) == NF_RC_NEVER;
        pthread_mutex_unlock(&io->lock);
        look = !quiet ? LOOK_FIRST : 2 * look < LOOK_LAST ? 2 * look : LOOK_LAST;
        seen = progress;
    }
    pthread_mutex_unlock(&io->stop_lock);
    return NULL;
}

nf_rc_io *nf_rc_io_open(nf_rc *rc, int receiver, uint32_t n_senders, const nf_rc_sender *senders)
{
    nf_rc_io *io = calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->rc = rc;
    io->receiver = receiver;
    io->n_senders = n_senders;
    io->senders = malloc(n_senders * sizeof *senders);
    io->buffers = malloc(BATCH * sizeof *io->buffers);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&io->stop_told, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&io->lock, NULL);
    pthread_mutex_init(&io->stop_lock, NULL);
    if (io->senders && io->buffers) {
        memcpy(io->senders, senders, n_senders * sizeof *senders);
        sigset_t all, before;          /* signals are for the program's threads */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        int failed = pthread_create(&io->housekeeper, NULL, keep_house, io);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (!failed)
            return io;
    }
    free(io->senders);
    free(io->buffers);
    free(io);
    return NULL;
}

void nf_rc_io_close(nf_rc_io *io)
{
    if (!io)
        return;
    pthread_mutex_lock(&io->stop_lock);
    io->stop = true;
    pthread_cond_signal(&io->stop_told);
    pthread_mutex_unlock(&io->stop_lock);
    pthread_join(io->housekeeper, NULL);
    pthread_cond_destroy(&io->stop_told);
    pthread_mutex_destroy(&io->lock);
    pthread_mutex_destroy(&io->stop_lock);
    free(io->senders);
    free(io->buffers);
    free(io);
}
