/* SPDX-License-Identifier: Apache-2.0
 *
 * Closed-loop traffic through a switch: never more than `window` packets on their way, so that nothing is lost that the
 * switch does not lose.  One thread sends and receives on sockets that bench/scripts/switch.py made (packet sockets for
 * single packets, UDP sockets with UDP_SEGMENT and UDP_GRO for super-packets).
 *
 * RoCE packets are numbered: PSN and ICRC are written into each.  A CRC is affine in the bytes that it covers, so
 * that the ICRC of PSN p in segment i is icrc[i] ^ psn_part[0][p & 255] ^ ..., with tables that the caller made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define BATCH 32u
#define ROOM 65536u
#define QUIET_MS 200 /* what has not come by then is lost */

typedef struct {
    int fd;                /* receives */
    int sender;            /* sends; where both have one UDP port, the same socket */
    uint32_t sends;        /* 0: only receives */
    const uint8_t *packet; /* as written to the socket */
    uint32_t bytes;        /* of one packet, in either direction */
    uint32_t segments;     /* packets a message (UDP_SEGMENT); 1 for packet sockets */
    uint32_t psn_at;       /* offset of the PSN's three bytes, 0: not numbered; the ICRC is the last 4 bytes */
    uint32_t psn;          /* next; kept between calls */
    uint32_t icrc[64], psn_part[3][256];
    struct sockaddr_in to; /* of UDP sockets; port 0: none */
} host;

typedef struct {
    uint64_t sent, received, lost, nanoseconds;
} outcome;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void number(host *h, uint8_t *message) {
    for (uint32_t i = 0; h->psn_at && i < h->segments; i++, h->psn = (h->psn + 1) & 0xffffff) {
        uint8_t *packet = message + (size_t)i * h->bytes;
        uint32_t p = h->psn,
                 crc = h->icrc[i] ^ h->psn_part[0][p & 255] ^ h->psn_part[1][p >> 8 & 255] ^ h->psn_part[2][p >> 16];
        packet[h->psn_at] = (uint8_t)(p >> 16), packet[h->psn_at + 1] = (uint8_t)(p >> 8);
        packet[h->psn_at + 2] = (uint8_t)p;
        memcpy(packet + h->bytes - 4, &crc, 4);
    }
}

/* Sends up to `n` messages; how many the kernel took.  0 where it has no room, -1 on an error. */
static int send_messages(host *h, uint8_t *room, uint32_t n) {
    struct mmsghdr messages[BATCH] = {0};
    struct iovec pieces[BATCH];
    uint32_t before = h->psn;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *message = room + (size_t)i * ROOM;
        number(h, message);
        pieces[i] = (struct iovec){message, (size_t)h->bytes * h->segments};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
        if (h->to.sin_port) messages[i].msg_hdr.msg_name = &h->to, messages[i].msg_hdr.msg_namelen = sizeof h->to;
    }
    int sent = sendmmsg(h->sender, messages, n, MSG_DONTWAIT);
    if (sent < 0) sent = errno == EAGAIN || errno == ENOBUFS ? 0 : -1;
    h->psn = (before + (sent > 0 ? (uint32_t)sent : 0) * h->segments) & 0xffffff;
    return sent;
}

/* Packets that came.  Other frames (a kernel's own) have other lengths. */
static uint64_t receive_messages(const host *h) {
    static uint8_t room[BATCH][ROOM];
    struct mmsghdr messages[BATCH] = {0};
    struct iovec pieces[BATCH];
    uint64_t came = 0;
    for (uint32_t i = 0; i < BATCH; i++) {
        pieces[i] = (struct iovec){room[i], ROOM};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    int n = recvmmsg(h->fd, messages, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++)
        if (messages[i].msg_len % h->bytes == 0) came += messages[i].msg_len / h->bytes;
    return came;
}

/* Traffic for `nanoseconds`, then until all came back or nothing more comes.  0, or the errno of a failed send. */
int traffic(host *hosts, uint32_t n, uint32_t window, uint64_t nanoseconds, outcome *out) {
    uint8_t *rooms[8] = {0};
    struct pollfd polled[8];
    uint32_t senders = 0, per_turn = 0;
    int failed = 0;
    if (n > 8) return EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        polled[i] = (struct pollfd){.fd = hosts[i].fd, .events = POLLIN};
        if (!hosts[i].sends) continue;
        if (hosts[i].segments > 64 || (uint64_t)hosts[i].bytes * hosts[i].segments > ROOM) failed = EINVAL;
        senders++, per_turn += hosts[i].segments;
        if (failed || !(rooms[i] = malloc((size_t)BATCH * ROOM))) {
            failed = failed ? failed : ENOMEM;
            break;
        }
        for (uint32_t m = 0; m < BATCH; m++)
            for (uint32_t s = 0; s < hosts[i].segments; s++)
                memcpy(rooms[i] + (size_t)m * ROOM + (size_t)s * hosts[i].bytes, hosts[i].packet, hosts[i].bytes);
    }
    if (!senders || window < per_turn) failed = failed ? failed : EINVAL;
    *out = (outcome){0};
    uint64_t begin = now(), end = begin + nanoseconds, ended = begin;
    while (!failed) {
        uint64_t on_way = out->sent - out->received - out->lost;
        bool sending = now() < end;
        if (!sending && !on_way) break;
        uint32_t turns = sending ? (uint32_t)((window - on_way) / per_turn) : 0;
        if (turns > BATCH) turns = BATCH;
        for (uint32_t i = 0; turns && i < n; i++) {
            /* Every sender must send as much as the others, or a fold waits for ever: what has no room is tried
             * again. */
            for (uint32_t done = 0; rooms[i] && done < turns && !failed;) {
                int sent = send_messages(&hosts[i], rooms[i], turns - done);
                if (sent < 0)
                    failed = errno ? errno : EIO;
                else if (sent == 0 && now() > end + 1000000000u)
                    failed = ETIMEDOUT;
                else
                    done += (uint32_t)sent, out->sent += (uint64_t)sent * hosts[i].segments;
            }
        }
        int ready = poll(polled, n, QUIET_MS);
        if (ready < 0 && errno != EINTR) failed = errno;
        if (ready == 0) out->lost += out->sent - out->received - out->lost;
        uint64_t before = out->received;
        for (uint32_t i = 0; i < n; i++)
            if (polled[i].revents) out->received += receive_messages(&hosts[i]);
        if (out->received != before) ended = now();
        if (out->received + out->lost > out->sent) out->lost = out->sent - out->received; /* late, not lost */
        if (out->received > out->sent) failed = EPROTO;                                   /* somebody else's packets */
    }
    out->nanoseconds = ended - begin;
    for (uint32_t i = 0; i < n; i++) free(rooms[i]);
    return failed;
}
