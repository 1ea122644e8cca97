/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "udp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define DATAGRAM 65536

struct nf_udp {
    int receiver;
    uint32_t n_senders;
    nf_sender *senders;
    uint64_t transient_errors;
    int32_t transient_error;
    uint8_t (*buffers)[DATAGRAM];
};

nf_udp *nf_udp_open(int receiver, uint32_t n_senders, const nf_sender *senders) {
    nf_udp *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    u->receiver = receiver;
    u->n_senders = n_senders;
    u->senders = malloc(n_senders * sizeof *senders);
    u->buffers = malloc(NF_UDP_BATCH * sizeof *u->buffers);
    if (!u->senders || !u->buffers) {
        nf_udp_close(u);
        return NULL;
    }
    memcpy(u->senders, senders, n_senders * sizeof *senders);
    return u;
}

void nf_udp_close(nf_udp *u) {
    if (!u) return;
    free(u->senders);
    free(u->buffers);
    free(u);
}

int64_t nf_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int nf_udp_receiver(const nf_udp *u) { return u->receiver; }

int nf_udp_sender(const nf_udp *u, uint16_t port) {
    for (uint32_t i = 0; i < u->n_senders; i++)
        if (u->senders[i].port == port) return u->senders[i].fd;
    return -1;
}

void nf_udp_transient_errors(const nf_udp *u, uint64_t *count, int32_t *error) {
    *count = u->transient_errors;
    *error = u->transient_error;
}

static ssize_t send_pieces(int fd, const nf_route *route, const struct iovec *pieces, uint32_t n_pieces, size_t n,
                           uint32_t segment) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(route->destination_port),
                             .sin_addr.s_addr = htonl(route->destination)};
    union {
        char space[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr m = {.msg_name = &to,
                       .msg_namelen = sizeof to,
                       .msg_iov = (struct iovec *)(uintptr_t)pieces,
                       .msg_iovlen = n_pieces};
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
    ssize_t sent;
    while ((sent = sendmsg(fd, &m, MSG_DONTWAIT)) < 0 && errno == EINTR) {
    }
    return sent;
}

/* Errors that pass: a full queue, a route or neighbour that is not there just now. */
static bool passes(int error) {
    return error == ENOBUFS || error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN || error == EPERM ||
           error == ECONNREFUSED || error == EHOSTDOWN;
}

nf_sending nf_udp_send(nf_udp *u, const nf_route *route, const struct iovec *pieces, uint32_t n_pieces, size_t n,
                       uint32_t segment, int *error) {
    *error = 0;
    if (send_pieces(nf_udp_sender(u, route->source_port), route, pieces, n_pieces, n, segment) >= 0) return NF_SENT;
    int e = *error = errno;
    if (e == EAGAIN || e == EWOULDBLOCK) return NF_BLOCKED;
    if (n > segment && (e == EIO || e == EINVAL || e == EOPNOTSUPP || e == EMSGSIZE)) return NF_REFUSED_RUN;
    if (!passes(e)) return NF_BROKEN;
    u->transient_errors++;
    u->transient_error = e;
    return NF_TRANSIENT;
}

static nf_datagram describe(struct mmsghdr *message, const uint8_t *bytes, const struct sockaddr_in *from) {
    nf_datagram d = {.bytes = bytes,
                     .n = message->msg_len,
                     .segment = message->msg_len,
                     .from = {.source = ntohl(from->sin_addr.s_addr), .source_port = ntohs(from->sin_port), .ttl = -1}};
    struct msghdr *m = &message->msg_hdr;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        int value = 0;
        if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
            memcpy(&value, CMSG_DATA(c), sizeof value);
            d.segment = value > 0 ? (size_t)value : d.n;
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) {
            d.marked = (*CMSG_DATA(c) & 3) == NF_ECN_CE;
        } else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) {
            memcpy(&value, CMSG_DATA(c), sizeof value);
            d.from.ttl = (int16_t)value;
        }
    }
    return d;
}

int nf_udp_receive(nf_udp *u, nf_datagram got[NF_UDP_BATCH]) {
    struct mmsghdr messages[NF_UDP_BATCH];
    struct iovec iov[NF_UDP_BATCH];
    struct sockaddr_in from[NF_UDP_BATCH];
    union {
        char space[3 * CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control[NF_UDP_BATCH];
    for (int i = 0; i < NF_UDP_BATCH; i++) {
        iov[i] = (struct iovec){u->buffers[i], DATAGRAM};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i],
                                              .msg_iovlen = 1,
                                              .msg_control = &control[i],
                                              .msg_controllen = sizeof control[i].space,
                                              .msg_name = &from[i],
                                              .msg_namelen = sizeof from[i]};
    }
    int n = recvmmsg(u->receiver, messages, NF_UDP_BATCH, MSG_DONTWAIT, NULL);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNREFUSED ? 0 : -errno;
    for (int i = 0; i < n; i++) got[i] = describe(&messages[i], u->buffers[i], &from[i]);
    return n;
}
