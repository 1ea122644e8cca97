/* SPDX-License-Identifier: Apache-2.0
 *
 * A switch port on a Linux interface: an AF_PACKET socket, and the queue of frames that wait to leave through it.
 *
 * In:   super-packets and single packets are received in batches, cut (segment.h) and handed on.
 * Out:  the pipeline builds frames right in the port's queue (reserve, commit); at the end of a turn of the event loop,
 *       or earlier where many wait, neighbours are joined and the batch is sent.  What the kernel does not take now
 *       stays queued, in order, up to `limit` frames; beyond, the newest are dropped and counted.
 *
 * The interface may go down, vanish and come back (by name): frames are dropped, counted, meanwhile.
 */
#ifndef SS_PORT_H
#define SS_PORT_H
#include <net/if.h>
#include "pcap.h"
#include "segment.h"
#include "switch.h"

#define SS_TX_FRAMES 256u /* frames that may wait for the end of a turn: they still are in the cache then */

typedef struct {
    uint64_t received, received_bytes;    /* frames, after cutting */
    uint64_t super_packets_in, malformed; /* malformed: super-packets that could not be cut, cut-off frames */
    uint64_t missed;                      /* lost before us: the socket's receive buffer was full */
    uint64_t sent, sent_bytes, super_packets_out;
    uint64_t dropped_full, dropped_down; /* queue full; interface down, gone, or frame longer than its MTU */
} ss_port_stats;

typedef enum { SS_TX_IDLE, SS_TX_WAIT_WRITABLE, SS_TX_WAIT_TIMER, SS_TX_WAIT_RATE } ss_tx_state;

struct ss_slot {        /* a frame that waits: head, ref, tail */
    size_t at;          /* of head in the port's memory; tail lies right behind */
    const uint8_t *ref; /* NULL: it lies there, too, between the two */
    uint32_t head, ref_len, tail;
    uint32_t sum; /* of ref, or SS_NO_SUM */
};
static inline uint32_t ss_slot_length(const struct ss_slot *s) { return s->head + s->ref_len + s->tail; }

typedef struct { /* frames that wait: slots[first..n), back to back in the arena, as queue.c has them */
    uint8_t *arena;
    size_t used, owed; /* of the arena; room for what slots[settled..n) refer to */
    struct ss_slot *slots;
    uint32_t first, settled, n, singles; /* singles: first ones not to join */
} ss_queue;

typedef struct { /* by one ss_port_send */
    ss_tx_state tx;
    uint64_t frames, bytes, super_packets, lost; /* lost: interface down, gone, or frame longer than its MTU */
} ss_sent;

typedef struct ss_port {
    uint32_t number;
    char name[IFNAMSIZ];
    int fd;    /* -1: the interface is not there */
    int index; /* of the interface, or 0 */
    uint32_t mtu;
    bool up, started;
    bool reported, reported_up; /* whether the control plane was told of the port, and its state then */
    bool like_bmv2;             /* as ss_port has it */
    bool vnet, join;            /* socket speaks virtio_net_hdr; neighbours are joined */
    bool bulky;                 /* super-packets came last */
    ss_tx_state tx;
    bool watched, writable; /* epoll is to tell when the kernel has room; and has told so */
    uint64_t gap_ns;        /* between two frames that leave; 0: as fast as the link takes them */
    uint64_t next_ns;       /* when the next frame may leave, where gap_ns is set */
    uint64_t retry_us;      /* when to try again, in SS_TX_WAIT_TIMER */
    const uint64_t *now_us; /* the event loop's clock */
    size_t arena_size;      /* of each queue, as n_slots */
    uint32_t n_slots, limit;
    ss_queue queues[2];
    ss_queue *queue, *leaving; /* where frames are put, and where they are sent from: one, or two where it is parted */
    uint32_t flying;           /* frames that waited in `leaving` when the port was parted */
    ss_sent sent;
    ss_port_stats stats;
    ss_pcap *pcap_in, *pcap_out;
} ss_port;

typedef struct {
    uint32_t queue;   /* frames */
    bool vnet, join;  /* false: do without, even where the kernel could */
    bool like_bmv2;   /* what others send out of the interface arrives too; the kernel queues as much as for BMv2 */
    const char *pcap; /* directory, or NULL */
} ss_port_options;

/* Opens port `number` on interface `name`, receiving nothing yet; NULL with *why set where that cannot be. */
ss_port *ss_port_open(uint32_t number, const char *name, const ss_port_options *, const char **why);
void ss_port_close(ss_port *);
bool ss_port_start(ss_port *, const char **why); /* from now on frames arrive */

/* Looks again whether the interface is there and up; true where `up` or `fd` changed. */
bool ss_port_refresh(ss_port *);

void ss_port_count_missed(ss_port *); /* brings stats.missed up to date */
#endif
