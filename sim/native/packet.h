/* SPDX-License-Identifier: Apache-2.0 */
/* What sim/packet.py hands to run.c; the ctypes structures there mirror these, and sim_abi() is checked.
 *
 * Times are picoseconds, sizes bytes, rates picoseconds a byte.  Arrays belong to the caller. */
#ifndef SIM_PACKET_H
#define SIM_PACKET_H
#include <stdint.h>

enum mode { PINNED, SPRAY, REPS }; /* how a flow's packets choose paths */
enum outcome { FINISHED, DEADLINE, NO_MEMORY, BAD_INPUT };

struct config {
    /* fabric (sim/topology.py has the numbering) */
    uint32_t hosts, leaves, aggs, pods, cores; /* hosts a leaf, leaves a pod, aggs a pod, pods, cores an agg */
    double host_rate, leaf_rate, core_rate;    /* ps a byte */
    uint64_t delay;                            /* of each link */
    uint64_t ecn_bytes, buffer_bytes;          /* mark above this in a queue; drop above this in a switch */
    /* end points */
    uint32_t mode;                         /* enum mode */
    uint32_t mtu, header;                  /* bytes of payload of a full packet; bytes around a payload */
    uint32_t ack_bytes;                    /* of an ACK that queues like data; 0: it takes no bandwidth */
    uint32_t tolerant;                     /* receivers take packets in any order; else go-back-N */
    uint32_t move;                         /* PINNED: a time-out moves the piece and marks the path */
    double window, max_window, min_window; /* packets: at the start, at most, at least */
    double gain;                           /* DCTCP's g */
    uint64_t rto;
    uint64_t mark_time;   /* how long (host, destination leaf, path) stays suspect */
    uint64_t freeze_time; /* REPS: how long it recycles what it had before a time-out */
    uint64_t jitter;      /* flows start up to this late */
    uint64_t deadline;    /* simulated time at which to give up */
    uint64_t seed;
};

/* A flow, or (with no bytes) a pause.  It starts `gap` after the last of its predecessors is done: has arrived, or,
 * where both have one source, has been acknowledged. */
struct task {
    uint64_t size, gap;
    uint32_t source, destination;
    uint32_t waits;      /* number of predecessors */
    uint32_t first_next; /* its successors: next[first_next ..][0 .. nexts) */
    uint32_t nexts;
    uint32_t first_piece[2], pieces[2]; /* plans: [0] as if all were well, [1] around known failures */
};

struct piece {
    uint64_t size;
    uint32_t path;
    float share; /* scales the window: 1, or its part of the flow's bytes */
};

/* At `time` both directions of a cable go down or come up; at `announced` everybody knows. */
struct fault {
    uint64_t time, announced;
    uint32_t links[2];
    uint32_t up;
};

struct link_count {
    uint64_t packets, bytes, marked, dropped, deepest; /* bytes and packets that left; deepest backlog in bytes */
};

struct result {
    uint64_t end; /* when the last task finished, or the deadline */
    uint64_t hops, sent, resent, delivered, discarded, dropped, in_flight, marked, timeouts, lost_acks;
    uint64_t answers, answered; /* ACKs that queued: sent, arrived */
    uint64_t unfinished;        /* tasks */
    uint64_t pieces, moved;
};
#endif
