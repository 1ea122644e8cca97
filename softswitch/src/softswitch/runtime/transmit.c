/* SPDX-License-Identifier: Apache-2.0
 *
 * What leaves a port: neighbours are joined (segment.h), and the batch is sent from where its pieces lie.
 *
 * PACKET_QDISC_BYPASS and AF_XDP would be faster on paper and are not used: both skip the shaping of the link.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/socket.h>
#include "transmit.h"
#include "queue.h"

#define RETRY_US 500u /* after "interface queue full": a 64 KB super-packet takes that long at 1 Gb/s */
#define TX_BATCH 64u
#define TX_FRAMES 256u                    /* looked at together */
#define TX_PIECES (2u + 3u * SS_JOIN_MAX) /* of one message at most */

typedef struct { /* what one call of sendmmsg is made of */
    struct mmsghdr messages[TX_BATCH];
    struct iovec pieces[2 * TX_PIECES];
    ss_super supers[TX_BATCH];
    uint32_t frames[TX_BATCH];
} batch;

static void add(struct msghdr *m, const void *bytes, size_t n) {
    if (!n) return;
    struct iovec *last = m->msg_iovlen ? &m->msg_iov[m->msg_iovlen - 1] : NULL;
    if (last && (const uint8_t *)last->iov_base + last->iov_len == (const uint8_t *)bytes)
        last->iov_len += n;
    else
        m->msg_iov[m->msg_iovlen++] = (struct iovec){(void *)bytes, n};
}

static ss_frame frame_of(const ss_queue *q, const struct ss_slot *slot) {
    const uint8_t *head = q->arena + slot->at, *behind = head + slot->head;
    return (ss_frame){.head = head,
                      .ref = slot->ref ? slot->ref : behind,
                      .tail = slot->ref ? behind : behind + slot->ref_len,
                      .head_len = slot->head,
                      .ref_len = slot->ref_len,
                      .tail_len = slot->tail,
                      .sum = slot->sum};
}

static uint32_t prepare(const ss_port *p, batch *b, uint32_t end) { /* of the frames slots[first..end) */
    static const ss_vnet plain;
    static _Thread_local ss_frame frames[TX_FRAMES];
    const ss_queue *q = p->leaving;
    uint32_t n = end - q->first < TX_FRAMES ? end - q->first : TX_FRAMES, at = 0, count = 0;
    for (uint32_t i = 0; i < n; i++) frames[i] = frame_of(q, &q->slots[q->first + i]);
    struct iovec *piece = b->pieces, *last = b->pieces + sizeof b->pieces / sizeof *b->pieces - TX_PIECES;
    while (count < TX_BATCH && at < n && piece <= last) {
        ss_super *super = &b->supers[count];
        struct msghdr *m = &b->messages[count].msg_hdr;
        bool join = p->join && at >= q->singles;
        uint32_t taken = join ? ss_join(frames + at, n - at, p->mtu, super) : 1, header = 0;
        *m = (struct msghdr){.msg_iov = piece};
        if (p->vnet) add(m, taken > 1 ? &super->vnet : &plain, sizeof plain);
        if (taken > 1) add(m, super->header, header = super->header_len);
        for (uint32_t i = 0; i < taken; i++) {
            const ss_frame *frame = &frames[at + i];
            add(m, frame->head + header, frame->head_len - header);
            add(m, frame->ref, frame->ref_len);
            add(m, frame->tail, frame->tail_len);
        }
        piece += m->msg_iovlen;
        b->frames[count++] = taken;
        at += taken;
    }
    return count;
}

static void account(ss_port *p, uint32_t frames) {
    ss_queue *q = p->leaving;
    p->next_ns += frames * p->gap_ns;
    for (uint32_t i = 0; i < frames; i++) p->sent.bytes += ss_slot_length(&q->slots[q->first + i]);
    p->sent.frames += frames;
    p->sent.super_packets += frames > 1;
    q->first += frames;
    q->singles -= q->singles < frames ? q->singles : frames;
}

/* One past the last frame whose time has come. */
static uint32_t due_end(const ss_port *p) {
    const ss_queue *q = p->leaving;
    if (!p->gap_ns) return q->n;
    uint64_t now = *p->now_us * 1000;
    uint64_t due = now < p->next_ns ? 0 : 1 + (now - p->next_ns) / p->gap_ns;
    return due < q->n - q->first ? q->first + (uint32_t)due : q->n;
}

void ss_port_set_rate(ss_port *p, uint64_t pps) {
    p->gap_ns = !pps ? 0 : pps > 1000000000u ? 1 : 1000000000u / pps;
    p->next_ns = *p->now_us * 1000;
    if (p->tx == SS_TX_WAIT_RATE) p->tx = SS_TX_IDLE;
}

void ss_port_send(ss_port *p) {
    static _Thread_local batch b;
    ss_queue *q = p->leaving;
    p->sent = (ss_sent){.tx = SS_TX_IDLE};
    while (q->first < q->n) {
        if (p->fd < 0) {
            p->sent.lost += q->n - q->first;
            q->first = q->n;
            break;
        }
        uint32_t end = due_end(p);
        if (end == q->first) {
            p->sent.tx = SS_TX_WAIT_RATE;
            return;
        }
        uint32_t count = prepare(p, &b, end);
        int sent = sendmmsg(p->fd, b.messages, count, MSG_DONTWAIT);
        for (int i = 0; i < sent; i++) account(p, b.frames[i]);
        if (sent > 0) continue;
        switch (errno) {
        case EINTR: continue;
        case EAGAIN: p->sent.tx = SS_TX_WAIT_WRITABLE; return; /* our share of the kernel's queue is full */
        case ENOBUFS:
        case ENOMEM: p->sent.tx = SS_TX_WAIT_TIMER; return; /* the interface's queue is; nobody will tell us */
        case ENETDOWN:
        case ENXIO:
        case ENODEV: p->sent.lost++, q->first++; continue; /* netlink tells of it */
        default:
            /* A super-packet that this interface refuses goes out frame by frame; a frame that it refuses is lost. */
            if (b.frames[0] > 1)
                q->singles = b.frames[0];
            else
                p->sent.lost++, q->first++;
        }
    }
}

void ss_port_sent(ss_port *p) {
    p->tx = p->sent.tx;
    p->writable = false;
    if (p->tx == SS_TX_WAIT_TIMER) p->retry_us = *p->now_us + RETRY_US;
    p->stats.sent += p->sent.frames;
    p->stats.sent_bytes += p->sent.bytes;
    p->stats.super_packets_out += p->sent.super_packets;
    p->stats.dropped_down += p->sent.lost;
    p->sent = (ss_sent){.tx = p->tx};
    if (!ss_port_waiting(p)) ss_port_empty(p);
    if (p->pcap_out) ss_pcap_flush(p->pcap_out);
}
