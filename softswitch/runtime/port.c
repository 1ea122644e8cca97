/* SPDX-License-Identifier: Apache-2.0
 *
 * A switch port on a Linux interface; see port.h.
 *
 * PACKET_QDISC_BYPASS and AF_XDP would be faster on paper and are not used: both skip the shaping of the link.
 */
#define _GNU_SOURCE
#include "port.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "softswitch.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef TP_STATUS_CSUMNOTREADY
#define TP_STATUS_CSUMNOTREADY (1 << 3)
#endif

#define RX_BATCH 16u
#define RX_BULKY 2u     /* super-packets: more of them would be out of the cache before their turn comes */
#define RX_HEADROOM 64u /* a VLAN tag goes back in here */
#define RX_FRAME (65536u + 256u)
#define TX_BATCH 64u
#define TX_PIECES (SS_JOIN_MAX + 2u)
#define TX_FLUSH_FRAMES 256u /* frames that may wait for the end of the turn: they still are in the cache then */

/* The kernel's share of the queue, of which it makes twice as much.  Small, so that most waiting frames wait here,
   where their number is known (ECN), but enough for some super-packets.  BMv2 leaves it the default, some 90 frames. */
#define TX_KERNEL_BYTES (256 * 1024)
#define TX_KERNEL_BYTES_BMV2 (104 * 1024)
#define RX_KERNEL_BYTES (16 * 1024 * 1024)

static bool set_int(int fd, int level, int option, int value) {
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

/* Before 6.2 AF_PACKET could not describe UDP super-packets and lost them (net/core: virtio_net_hdr_from_skb,
 * EINVAL). */
static bool kernel_knows_udp_segments(void) {
    struct utsname u;
    int major = 0, minor = 0;
    if (uname(&u) || sscanf(u.release, "%d.%d", &major, &minor) != 2) return false;
    return major > 6 || (major == 6 && minor >= 2);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static bool open_socket(ss_port *p, const char **why) {
    p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* protocol 0: nothing until bound */
    if (p->fd < 0) {
        *why = errno == EPERM ? "no permission for packet sockets: run as root, or in a user namespace (unshare -Urn)"
                              : strerror(errno);
        return false;
    }
    if (!p->like_bmv2) set_int(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    set_int(p->fd, SOL_PACKET, PACKET_AUXDATA, 1);
    if (p->vnet && !set_int(p->fd, SOL_PACKET, PACKET_VNET_HDR, 1)) p->vnet = p->join = false;
    if (!set_int(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, RX_KERNEL_BYTES))
        set_int(p->fd, SOL_SOCKET, SO_RCVBUF, RX_KERNEL_BYTES);
    int share = p->like_bmv2 ? TX_KERNEL_BYTES_BMV2 : TX_KERNEL_BYTES;
    if (!set_int(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, share)) set_int(p->fd, SOL_SOCKET, SO_SNDBUF, share);
    return true;
}

static bool attach(ss_port *p, const char **why) {
    struct packet_mreq promiscuous = {.mr_ifindex = p->index, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll here = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = p->index};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(p->fd, (struct sockaddr *)&here, sizeof here)) {
        *why = strerror(errno);
        return false;
    }
    return true;
}

static void detach(ss_port *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->index = 0;
    p->up = false;
}

static void *reserve_memory(size_t size) { /* touched only as far as a queue grows */
    void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return m == MAP_FAILED ? NULL : m;
}

ss_port *ss_port_open(uint32_t number, const char *name, const ss_port_options *options, const char **why) {
    ss_port *p = calloc(1, sizeof *p);
    *why = "out of memory";
    if (!p) return NULL;
    p->number = number;
    p->fd = -1;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->limit = options->queue;
    p->like_bmv2 = options->like_bmv2;
    p->n_slots = 2 * options->queue + TX_FLUSH_FRAMES;
    p->arena_size = (size_t)p->n_slots * 4096 + 16 * (SS_MAX_FRAME + SS_MAX_ADDED);
    p->slots = reserve_memory(p->n_slots * sizeof *p->slots);
    p->arena = reserve_memory(p->arena_size);
    p->vnet = options->vnet && kernel_knows_udp_segments();
    p->join = p->vnet && options->join;
    if (!p->slots || !p->arena) goto fail;
    if (options->pcap) {
        *why = "cannot create its capture files";
        if (!(p->pcap_in = ss_pcap_open(options->pcap, name, "in")) ||
            !(p->pcap_out = ss_pcap_open(options->pcap, name, "out")))
            goto fail;
    }
    *why = "no such interface";
    if (!(p->index = (int)if_nametoindex(name)) || !open_socket(p, why)) goto fail;
    ss_port_refresh(p);
    return p;
fail:
    ss_port_close(p);
    return NULL;
}

void ss_port_close(ss_port *p) {
    if (!p) return;
    if (p->fd >= 0) close(p->fd);
    if (p->slots) munmap(p->slots, p->n_slots * sizeof *p->slots);
    if (p->arena) munmap(p->arena, p->arena_size);
    ss_pcap_close(p->pcap_in);
    ss_pcap_close(p->pcap_out);
    free(p);
}

bool ss_port_start(ss_port *p, const char **why) {
    p->started = true;
    return p->fd < 0 || attach(p, why);
}

bool ss_port_refresh(ss_port *p) {
    int fd = p->fd, index = (int)if_nametoindex(p->name);
    bool up = p->up;
    if (index == 0 || (p->index && index != p->index)) detach(p); /* gone, or another one of the same name */
    if (index && p->fd < 0) {
        const char *why;
        if (!open_socket(p, &why)) return fd != p->fd;
        p->index = index;
        if (p->started && !attach(p, &why)) detach(p);
    }
    if (p->fd >= 0) {
        struct ifreq request;
        memset(&request, 0, sizeof request);
        memcpy(request.ifr_name, p->name, sizeof p->name);
        p->mtu = ioctl(p->fd, SIOCGIFMTU, &request) ? 1500 : (uint32_t)request.ifr_mtu;
        p->up =
            !ioctl(p->fd, SIOCGIFFLAGS, &request) && (request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_RUNNING);
    }
    return up != p->up || fd != p->fd;
}

void ss_port_count_missed(ss_port *p) {
    struct tpacket_stats since; /* since the last call: the kernel resets it */
    socklen_t size = sizeof since;
    if (p->fd >= 0 && !getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &since, &size))
        p->stats.missed += since.tp_drops;
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    ss_port *port;
    ss_segment_fn *each;
    void *arg;
} taking;

static void take(void *arg, const uint8_t *frame, uint32_t len) {
    taking *t = arg;
    t->port->stats.received++;
    t->port->stats.received_bytes += len;
    if (t->port->pcap_in) ss_pcap_write(t->port->pcap_in, frame, len);
    t->each(t->arg, frame, len);
}

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

uint32_t ss_port_receive(ss_port *p, ss_segment_fn *each, void *arg) {
    static uint8_t frames[RX_BATCH][RX_HEADROOM + RX_FRAME] __attribute__((aligned(64)));
    static ss_vnet vnets[RX_BATCH];
    static union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    } controls[RX_BATCH];
    struct iovec pieces[RX_BATCH][2];
    struct mmsghdr messages[RX_BATCH];
    if (p->fd < 0) return 0;
    uint32_t want = p->bulky ? RX_BULKY : RX_BATCH;
    for (uint32_t i = 0; i < want; i++) {
        pieces[i][0] = (struct iovec){&vnets[i], sizeof vnets[i]};
        /* 2: IP headers aligned to 4 bytes, as the kernel has them */
        pieces[i][1] = (struct iovec){frames[i] + RX_HEADROOM + 2, RX_FRAME - 2};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = pieces[i] + !p->vnet,
                                              .msg_iovlen = 1 + p->vnet,
                                              .msg_control = &controls[i],
                                              .msg_controllen = sizeof controls[i]};
        vnets[i] = (ss_vnet){0};
    }
    int n = recvmmsg(p->fd, messages, want, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (errno == EINVAL && p->vnet) p->stats.malformed++; /* a super-packet that the kernel could not describe */
        return 0;
    }
    taking to = {p, each, arg};
    for (int i = 0; i < n; i++) {
        uint8_t *frame = pieces[i][1].iov_base;
        ss_vnet *v = &vnets[i];
        uint32_t len = messages[i].msg_len, head = p->vnet ? sizeof *v : 0;
        const struct tpacket_auxdata *aux = auxdata(&messages[i].msg_hdr);
        const char *why;
        if (len < head + 14 || (messages[i].msg_hdr.msg_flags & MSG_TRUNC)) {
            p->stats.malformed++;
            continue;
        }
        len -= head;
        if (!p->vnet) {
            if (len > p->mtu + 22 + 4) {
                p->stats.malformed++;
                continue;
            } /* super-packet, segment size unknown */
            if (aux && (aux->tp_status & TP_STATUS_CSUMNOTREADY)) find_checksum(frame, len, v);
        }
        if (aux && (aux->tp_status & TP_STATUS_VLAN_VALID)) frame = put_tag_back(frame, &len, v, aux);
        uint32_t segments = ss_cut(frame, len, v, take, &to, &why);
        if (segments == 0)
            p->stats.malformed++;
        else if (segments > 1)
            p->stats.super_packets_in++;
        p->bulky = segments > 1;
    }
    if (p->pcap_in) ss_pcap_flush(p->pcap_in);
    return (uint32_t)n;
}

/* ---- out --------------------------------------------------------------------------------------------------------- */

static void empty(ss_port *p) { p->first = p->n = 0, p->used = 0, p->singles = 0; }

/* Moves what waits to the front; each byte moves seldom, because the memory is at least twice what may wait. */
static void compact(ss_port *p) {
    if (p->first == 0) return;
    if (p->first == p->n) {
        empty(p);
        return;
    }
    size_t from = p->slots[p->first].at;
    memmove(p->arena, p->arena + from, p->used - from);
    p->used -= from;
    p->n -= p->first;
    for (uint32_t i = 0; i < p->n; i++) {
        p->slots[i] = p->slots[p->first + i];
        p->slots[i].at -= from;
    }
    p->first = 0;
}

static bool has_room(const ss_port *p, uint32_t cap) { return p->n < p->n_slots && p->arena_size - p->used >= cap; }

uint8_t *ss_port_reserve(ss_port *p, uint32_t cap) {
    if (!p->up) {
        p->stats.dropped_down++;
        return NULL;
    }
    if (p->tx == SS_TX_IDLE && (ss_port_waiting(p) >= TX_FLUSH_FRAMES || p->gap_ns)) ss_port_flush(p);
    if (ss_port_waiting(p) >= p->limit && p->tx != SS_TX_IDLE) {
        p->stats.dropped_full++;
        return NULL;
    }
    if (!has_room(p, cap)) {
        if (p->tx == SS_TX_IDLE) ss_port_flush(p);
        compact(p);
        if (!has_room(p, cap)) {
            p->stats.dropped_full++;
            return NULL;
        }
    }
    return p->arena + p->used;
}

void ss_port_commit(ss_port *p, uint32_t len) {
    if (!len) return;
    if (p->gap_ns && p->first == p->n && p->next_ns < *p->now_us * 1000) p->next_ns = *p->now_us * 1000;
    if (p->pcap_out) ss_pcap_write(p->pcap_out, p->arena + p->used, len);
    p->slots[p->n++] = (struct ss_slot){p->used, len};
    p->used += (len + 63) & ~63u;
    if (p->used > p->arena_size) p->used = p->arena_size;
}

typedef struct { /* what one call of sendmmsg is made of */
    struct mmsghdr messages[TX_BATCH];
    struct iovec pieces[TX_BATCH][TX_PIECES];
    ss_super supers[TX_BATCH];
    uint32_t frames[TX_BATCH];
} batch;

static uint32_t prepare(ss_port *p, batch *b, uint32_t end) { /* of the frames slots[first..end) */
    static const ss_vnet plain;
    uint32_t at = p->first, count = 0;
    while (count < TX_BATCH && at < end) {
        ss_frame run[SS_JOIN_MAX];
        uint32_t n = 0;
        for (; n < SS_JOIN_MAX && at + n < end; n++)
            run[n] = (ss_frame){p->arena + p->slots[at + n].at, p->slots[at + n].len};
        bool join = p->join && at - p->first >= p->singles;
        uint32_t taken = join ? ss_join(run, n, p->mtu, &b->supers[count]) : 1, k = 0;
        struct iovec *piece = b->pieces[count];
        if (p->vnet)
            piece[k++] = (struct iovec){taken > 1 ? (void *)&b->supers[count].vnet : (void *)&plain, sizeof plain};
        if (taken == 1)
            piece[k++] = (struct iovec){(void *)run[0].bytes, run[0].len};
        else {
            uint32_t header = b->supers[count].header_len;
            piece[k++] = (struct iovec){b->supers[count].header, header};
            for (uint32_t i = 0; i < taken; i++)
                piece[k++] = (struct iovec){(void *)(run[i].bytes + header), run[i].len - header};
        }
        b->messages[count].msg_hdr = (struct msghdr){.msg_iov = piece, .msg_iovlen = k};
        b->frames[count++] = taken;
        at += taken;
    }
    return count;
}

static void account(ss_port *p, uint32_t frames) {
    p->next_ns += frames * p->gap_ns;
    for (uint32_t i = 0; i < frames; i++) p->stats.sent_bytes += p->slots[p->first + i].len;
    p->stats.sent += frames;
    p->stats.super_packets_out += frames > 1;
    p->first += frames;
    p->singles -= p->singles < frames ? p->singles : frames;
}

/* One past the last frame whose time has come. */
static uint32_t due_end(const ss_port *p) {
    if (!p->gap_ns) return p->n;
    uint64_t now = *p->now_us * 1000;
    uint64_t due = now < p->next_ns ? 0 : 1 + (now - p->next_ns) / p->gap_ns;
    return due < ss_port_waiting(p) ? p->first + (uint32_t)due : p->n;
}

void ss_port_set_rate(ss_port *p, uint64_t pps) {
    p->gap_ns = !pps ? 0 : pps > 1000000000u ? 1 : 1000000000u / pps;
    p->next_ns = *p->now_us * 1000;
    if (p->tx == SS_TX_WAIT_RATE) p->tx = SS_TX_IDLE;
}

void ss_port_flush(ss_port *p) {
    static batch b;
    p->tx = SS_TX_IDLE;
    while (p->first < p->n) {
        if (p->fd < 0) {
            p->stats.dropped_down += ss_port_waiting(p);
            break;
        }
        uint32_t end = due_end(p);
        if (end == p->first) {
            p->tx = SS_TX_WAIT_RATE;
            return;
        }
        uint32_t count = prepare(p, &b, end);
        int sent = sendmmsg(p->fd, b.messages, count, MSG_DONTWAIT);
        for (int i = 0; i < sent; i++) account(p, b.frames[i]);
        if (sent > 0) continue;
        switch (errno) {
        case EINTR: continue;
        case EAGAIN: p->tx = SS_TX_WAIT_WRITABLE; return; /* our share of the kernel's queue is full */
        case ENOBUFS:
        case ENOMEM: p->tx = SS_TX_WAIT_TIMER; return; /* the interface's queue is; nobody will tell us */
        case ENETDOWN:
        case ENXIO:
        case ENODEV:
            ss_port_refresh(p);
            p->stats.dropped_down++, p->first++;
            continue;
        default:
            /* A super-packet that this interface refuses goes out frame by frame; a frame that it refuses is lost. */
            if (b.frames[0] > 1)
                p->singles = b.frames[0];
            else
                p->stats.dropped_down++, p->first++;
        }
    }
    empty(p);
    if (p->pcap_out) ss_pcap_flush(p->pcap_out);
}
