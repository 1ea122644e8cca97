/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "io.h"
#include "quantise.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
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
#define DATAGRAM 65536

struct nf_io {
    nf_fold *fold;
    int receiver, interrupt;
    uint32_t n_senders;
    nf_sender *senders;
    nf_run run;                        /* what is being sent; the kernel may take it in pieces */
    uint32_t taken;                    /* packets of it that left */
    bool blocked;                      /* the kernel's send buffer is full */
    uint64_t setbacks, unfolded;
    int32_t setback;
    uint8_t (*buffers)[DATAGRAM];
    nf_span *spans;                    /* NULL: nobody asked */
    uint64_t n_spans, spans_room, spans_lost;
    bool repeats;                      /* some packets of `run` are sent again */
};

nf_io *nf_io_open(nf_fold *fold, int receiver, uint32_t n_senders, const nf_sender *senders)
{
    nf_io *io = calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->fold = fold;
    io->receiver = receiver;
    io->interrupt = -1;
    io->n_senders = n_senders;
    io->senders = malloc(n_senders * sizeof *senders);
    io->buffers = malloc(BATCH * sizeof *io->buffers);
    if (!io->senders || !io->buffers) {
        nf_io_close(io);
        return NULL;
    }
    memcpy(io->senders, senders, n_senders * sizeof *senders);
    return io;
}

void nf_io_close(nf_io *io)
{
    if (!io)
        return;
    free(io->senders);
    free(io->buffers);
    free(io);
}

void nf_io_interrupt_by(nf_io *io, int fd) { io->interrupt = fd; }
uint64_t nf_io_unfolded(const nf_io *io) { return io->unfolded; }
void nf_io_forget(nf_io *io) { io->run.packets = io->taken = 0; }

int64_t nf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void nf_io_setbacks(const nf_io *io, uint64_t *count, int32_t *error)
{
    *count = io->setbacks;
    *error = io->setback;
}

/* ---- the timeline: one comparison where nobody asked ---------------------------------------------------------------- */
void nf_io_trace(nf_io *io, nf_span *spans, uint64_t room)
{
    io->spans = spans;
    io->spans_room = room;
    io->n_spans = io->spans_lost = 0;
}

uint64_t nf_io_traced(nf_io *io, uint64_t *lost)
{
    uint64_t n = io->n_spans;
    *lost = io->spans_lost;
    io->n_spans = io->spans_lost = 0;
    return n;
}

static int64_t begin_span(const nf_io *io) { return io->spans ? nf_now() : 0; }

static void end_span(nf_io *io, nf_span_kind kind, int64_t begin, uint32_t packets)
{
    if (!io->spans)
        return;
    if (io->n_spans == io->spans_room)
        io->spans_lost++;
    else
        io->spans[io->n_spans++] = (nf_span){ begin, nf_now(), kind, packets };
}

/* Makes the next run of packets. */
static bool make_run(nf_io *io)
{
    if (!io->spans)
        return nf_fold_send(io->fold, nf_now(), &io->run);
    uint64_t repeated = nf_fold_retransmitted(io->fold);
    int64_t begin = nf_now();
    bool made = nf_fold_send(io->fold, begin, &io->run);
    io->repeats = nf_fold_retransmitted(io->fold) > repeated;
    if (made)
        end_span(io, io->repeats ? NF_RETRANSMIT : NF_QUANTISE, begin, io->run.packets);
    return made;
}

static int sender_of(const nf_io *io, uint16_t port)
{
    for (uint32_t i = 0; i < io->n_senders; i++)
        if (io->senders[i].port == port)
            return io->senders[i].fd;
    return -1;
}

/* Sends `n` bytes, cut into packets of `segment` bytes by the kernel. */
static ssize_t send_bytes(int fd, const nf_route *route, const uint8_t *bytes, size_t n, uint32_t segment)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(NF_UDP_PORT),
                              .sin_addr.s_addr = htonl(route->destination) };
    struct iovec iov = { (void *)bytes, n };
    union { char space[CMSG_SPACE(sizeof(uint16_t))]; struct cmsghdr align; } control = { 0 };
    struct msghdr m = { .msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &iov, .msg_iovlen = 1 };
    if (n > segment) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control.space;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_UDP;
        c->cmsg_type = UDP_SEGMENT;
        c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
        uint16_t size = (uint16_t)segment;
        memcpy(CMSG_DATA(c), &size, sizeof size);
    }
    return sendmsg(fd, &m, MSG_DONTWAIT);
}

/* Errors that pass: a full queue, a route or neighbour that is not there just now.  The packets count as lost. */
static bool passes(int error)
{
    return error == ENOBUFS || error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN || error == EPERM ||
           error == ECONNREFUSED || error == EHOSTDOWN;
}

/* Sends what the fold has to send.  Returns an errno that will not pass, or 0. */
static int send_all(nf_io *io)
{
    io->blocked = false;
    for (;;) {
        nf_run *run = &io->run;
        if (io->taken == run->packets) {
            run->packets = io->taken = 0;
            if (!make_run(io))
                return 0;
        }
        int fd = sender_of(io, run->route.source_port);
        int64_t begin = begin_span(io);
        ssize_t sent = send_bytes(fd, &run->route, run->bytes, run->length, run->segment);
        int error = errno;
        end_span(io, io->repeats ? NF_RETRANSMIT : NF_SEND, begin, run->packets);
        if (sent >= 0) {
            io->taken = run->packets;
            continue;
        }
        if (error == EINTR)
            continue;
        if (error == EAGAIN || error == EWOULDBLOCK) {
            io->blocked = true;
            return 0;
        }
        bool refused_run = run->packets > 1 && (error == EIO || error == EINVAL || error == EOPNOTSUPP ||
                                                error == EMSGSIZE);
        if (!refused_run && !passes(error))
            return error;
        if (refused_run) {              /* no segmentation on this path (EIO: no checksum offload on older kernels) */
            nf_fold_no_runs(io->fold);
        } else {
            io->setbacks++;
            io->setback = error;
        }
        nf_fold_unsent(io->fold, run, 0);
        io->taken = run->packets;
        if (!refused_run)
            return 0;                   /* not again at once: the stream's timer or the next result leads back here */
    }
}

/* Takes what has arrived.  Returns an errno or 0. */
static int receive_all(nf_io *io)
{
    struct mmsghdr messages[BATCH];
    struct iovec iov[BATCH];
    union { char space[3 * CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control[BATCH];
    for (int rounds = 0; rounds < 4; rounds++) {                /* then let others' packets out again */
        for (int i = 0; i < BATCH; i++) {
            iov[i] = (struct iovec){ io->buffers[i], DATAGRAM };
            messages[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1, .msg_control = &control[i],
                                                   .msg_controllen = sizeof control[i].space };
        }
        int64_t begin = begin_span(io);
        int n = recvmmsg(io->receiver, messages, BATCH, MSG_DONTWAIT, NULL);
        if (n > 0)
            end_span(io, NF_RECEIVE, begin, (uint32_t)n);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNREFUSED ? 0 : errno;
        int64_t now = nf_now();
        for (int i = 0; i < n; i++) {
            size_t bytes = messages[i].msg_len, segment = bytes;
            bool marked = false, folded = true;
            struct msghdr *m = &messages[i].msg_hdr;
            for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
                int value = 0;
                if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
                    memcpy(&value, CMSG_DATA(c), sizeof value);
                    segment = value > 0 ? (size_t)value : bytes;
                } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
                    marked = (*CMSG_DATA(c) & 3) == NF_ECN_CE;
                } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) {
                    memcpy(&value, CMSG_DATA(c), sizeof value);
                    folded = value == NF_RESULT_TTL;
                }
            }
            if (bytes && !folded)                   /* a switch that lost its entries routes what it should fold */
                io->unfolded += (bytes + segment - 1) / segment;
            if (!bytes || !folded)
                continue;
            begin = begin_span(io);
            nf_fold_receive(io->fold, io->buffers[i], bytes, segment, marked, now);
            end_span(io, NF_DEQUANTISE, begin, (uint32_t)((bytes + segment - 1) / segment));
        }
        if (n < BATCH)
            return 0;
    }
    return 0;
}

static nf_run_status run_loop(nf_io *io, int64_t until, int32_t *error)
{
    for (;;) {
        if ((*error = send_all(io)))
            return NF_RUN_OS_ERROR;
        if ((*error = receive_all(io)))
            return NF_RUN_OS_ERROR;
        if (nf_fold_failure(io->fold)->error != NF_OK)
            return NF_RUN_FAILED;
        if (nf_fold_finished(io->fold))
            return NF_RUN_DONE;
        int64_t now = nf_now();
        if (now >= until)
            return NF_RUN_AGAIN;
        nf_fold_tick(io->fold, now);
        if (!io->blocked && (*error = send_all(io)))
            return NF_RUN_OS_ERROR;
        int64_t deadline = nf_fold_deadline(io->fold), wait = (deadline < until ? deadline : until) - now;
        wait = wait < 0 ? 0 : wait;
        struct timespec timeout = { wait / 1000000000, wait % 1000000000 };
        struct pollfd polled[3] = { { .fd = io->receiver, .events = POLLIN },
                                    { .fd = io->interrupt, .events = POLLIN }, { .fd = -1 } };
        if (io->blocked)
            polled[2] = (struct pollfd){ .fd = sender_of(io, io->run.route.source_port), .events = POLLOUT };
        int64_t begin = begin_span(io);
        int ready = ppoll(polled, 3, &timeout, NULL);
        *error = errno;
        end_span(io, NF_WAIT, begin, 0);
        if (ready < 0)
            return *error == EINTR ? NF_RUN_AGAIN : NF_RUN_OS_ERROR;    /* let Python run its signal handlers */
        if (polled[1].revents)
            return NF_RUN_AGAIN;
    }
}

nf_run_status nf_io_run(nf_io *io, int64_t until, int32_t *error)
{
    uint32_t mode = nf_floats_exact();
    nf_run_status status = run_loop(io, until, error);
    nf_floats_restore(mode);
    return status;
}
