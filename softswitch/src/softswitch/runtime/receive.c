/* SPDX-License-Identifier: Apache-2.0
 *
 * What arrives at a port: super-packets and single packets, received in batches, cut (segment.h) and handed on.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>
#include "receive.h"

#ifndef TP_STATUS_CSUMNOTREADY
#define TP_STATUS_CSUMNOTREADY (1 << 3)
#endif

#define RX_BATCH 16u
#define RX_BULKY 2u           /* super-packets: more of them would be out of the cache before their turn comes */
#define RX_BUFFERS 32u        /* of all ports in a turn */
#define RX_BYTES (512u << 10) /* in them, that the second cache has room for */
#define RX_HEADROOM 64u       /* a VLAN tag goes back in here */
#define RX_FRAME (65536u + 256u)

/* Without virtio_net_hdr a sender's unfinished checksum is only flagged; for UDP and TCP its place is known. */
static void find_checksum(const uint8_t *f, uint32_t len, ss_vnet *v) {
    uint32_t l3 = 14, l4;
    if (len < 34) return;
    if (f[12] == 0x08 && f[13] == 0x00)
        l4 = l3 + 4u * (f[l3] & 15);
    else if (f[12] == 0x86 && f[13] == 0xdd && len >= 54)
        l4 = l3 + 40;
    else
        return;
    uint8_t protocol = l4 == l3 + 40 && f[12] == 0x86 ? f[l3 + 6] : f[l3 + 9];
    if (protocol != 17 && protocol != 6) return;
    *v = (ss_vnet){.flags = SS_VNET_NEEDS_CSUM, .csum_start = (uint16_t)l4, .csum_offset = protocol == 17 ? 6 : 16};
}

/* The kernel takes the outer VLAN tag out of the frame and tells it aside; the wire had it in the frame. */
static uint8_t *put_tag_back(uint8_t *frame, uint32_t *len, ss_vnet *v, const struct tpacket_auxdata *aux) {
    uint16_t type = aux->tp_status & TP_STATUS_VLAN_TPID_VALID ? aux->tp_vlan_tpid : 0x8100;
    memmove(frame - 4, frame, 12);
    frame -= 4;
    frame[12] = (uint8_t)(type >> 8), frame[13] = (uint8_t)type;
    frame[14] = (uint8_t)(aux->tp_vlan_tci >> 8), frame[15] = (uint8_t)aux->tp_vlan_tci;
    *len += 4;
    if (v->flags & SS_VNET_NEEDS_CSUM) v->csum_start = (uint16_t)(v->csum_start + 4);
    return frame;
}

static const struct tpacket_auxdata *auxdata(struct msghdr *m) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA) return (const void *)CMSG_DATA(c);
    return NULL;
}

struct ss_batch {
    ss_port *port;
    struct set *set;
    uint32_t first, most, n; /* buffers of the batch; packets received */
    uint32_t malformed;      /* that the kernel could not describe */
    bool vnet;               /* packets begin with a virtio_net_hdr */
    struct mmsghdr messages[RX_BATCH];
    struct iovec pieces[RX_BATCH][2];
    ss_vnet vnets[RX_BATCH];
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    } controls[RX_BATCH];
};

/* Three: while one is received, frames of the one before are handed on, and those of the one before that sent. */
static struct set {
    uint32_t used, used_bytes;
    uint32_t begun; /* and not handed on */
    ss_batch batches[SS_BATCHES];
    uint8_t buffers[RX_BUFFERS][RX_HEADROOM + RX_FRAME] __attribute__((aligned(64)));
} sets[3];
static uint32_t present; /* the set in which batches begin */

void ss_port_forget(void) { sets[present].used = sets[present].used_bytes = 0; }

void ss_port_forget_oldest(void) {
    present = (present + 1) % 3;
    ss_port_forget();
}

ss_batch *ss_batch_begin(ss_port *p) {
    struct set *set = &sets[present];
    uint32_t most = p->bulky ? RX_BULKY : RX_BATCH;
    if (set->begun == SS_BATCHES || most > RX_BUFFERS - set->used || set->used_bytes >= RX_BYTES) return NULL;
    ss_batch *b = &set->batches[set->begun++];
    b->port = p, b->set = set, b->first = set->used, b->most = most, b->n = b->malformed = 0, b->vnet = p->vnet;
    set->used += most;
    return b;
}

uint32_t ss_batch_port(const ss_batch *b) { return b->port->number; }

static void hand_on(ss_port *p, ss_cut *cut, const ss_port_user *user) {
    ss_segment segment;
    while (ss_cut_next(cut, &segment)) {
        p->stats.received++;
        p->stats.received_bytes += segment.len;
        if (p->pcap_in) ss_pcap_write(p->pcap_in, segment.bytes, segment.len);
        user->each(user->arg, &segment);
        ss_cut_put_back(cut);
        user->between(user->arg);
    }
}

void ss_batch_receive(ss_batch *b) {
    ss_port *p = b->port;
    if (p->fd < 0) return;
    for (uint32_t i = 0; i < b->most; i++) {
        b->pieces[i][0] = (struct iovec){&b->vnets[i], sizeof b->vnets[i]};
        /* 2: IP headers aligned to 4 bytes, as the kernel has them */
        b->pieces[i][1] = (struct iovec){b->set->buffers[b->first + i] + RX_HEADROOM + 2, RX_FRAME - 2};
        b->messages[i].msg_hdr = (struct msghdr){.msg_iov = b->pieces[i] + !b->vnet,
                                                 .msg_iovlen = 1 + b->vnet,
                                                 .msg_control = &b->controls[i],
                                                 .msg_controllen = sizeof b->controls[i]};
        b->vnets[i] = (ss_vnet){0};
    }
    int n = recvmmsg(p->fd, b->messages, b->most, MSG_DONTWAIT, NULL);
    if (n > 0) b->n = (uint32_t)n;
    if (n < 0 && errno == EINVAL && b->vnet) b->malformed = 1;
}

void ss_batch_hand_on(ss_batch *b, const ss_port_user *user) {
    ss_port *p = b->port;
    struct set *set = b->set;
    set->begun--;
    if (set->used == b->first + b->most) set->used = b->first + b->n;
    p->stats.malformed += b->malformed;
    for (uint32_t i = 0; i < b->n; i++) {
        struct msghdr *m = &b->messages[i].msg_hdr;
        uint8_t *frame = b->pieces[i][1].iov_base;
        ss_vnet *v = &b->vnets[i];
        uint32_t len = b->messages[i].msg_len, head = b->vnet ? sizeof *v : 0;
        const struct tpacket_auxdata *aux = auxdata(m);
        const char *why;
        set->used_bytes += len;
        if (len < head + 14 || (m->msg_flags & MSG_TRUNC)) {
            p->stats.malformed++;
            continue;
        }
        len -= head;
        if (!b->vnet) {
            if (len > p->mtu + 22 + 4) {
                p->stats.malformed++;
                continue;
            } /* super-packet, segment size unknown */
            if (aux && (aux->tp_status & TP_STATUS_CSUMNOTREADY)) find_checksum(frame, len, v);
        }
        if (aux && (aux->tp_status & TP_STATUS_VLAN_VALID)) frame = put_tag_back(frame, &len, v, aux);
        ss_cut cut;
        uint32_t segments = ss_cut_begin(&cut, frame, len, v, &why);
        if (segments) hand_on(p, &cut, user);
        if (segments == 0)
            p->stats.malformed++;
        else if (segments > 1)
            p->stats.super_packets_in++;
        p->bulky = segments > 1;
    }
    if (p->pcap_in) ss_pcap_flush(p->pcap_in);
}
