/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a switch port on a Linux interface; see port.h.
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

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

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
    p->n_slots = 2 * options->queue + SS_TX_FRAMES;
    p->arena_size = (size_t)p->n_slots * 4096 + 16 * (SS_MAX_FRAME + SS_MAX_ADDED);
    p->queue = p->leaving = p->queues;
    bool room = true;
    for (ss_queue *q = p->queues; q < p->queues + 2; q++) {
        q->slots = reserve_memory(p->n_slots * sizeof *q->slots);
        q->arena = reserve_memory(p->arena_size);
        room = room && q->slots && q->arena;
    }
    p->vnet = options->vnet && kernel_knows_udp_segments();
    p->join = p->vnet && options->join;
    if (!room) goto fail;
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
    for (ss_queue *q = p->queues; q < p->queues + 2; q++) {
        if (q->slots) munmap(q->slots, p->n_slots * sizeof *q->slots);
        if (q->arena) munmap(q->arena, p->arena_size);
    }
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
