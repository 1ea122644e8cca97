/* SPDX-License-Identifier: Apache-2.0 */
/* What sim/engines/packet.py hands to run.c; the ctypes structures there mirror these, and sim_abi() is checked.
 *
 * Times are picoseconds, sizes bytes, rates picoseconds a byte.  Arrays belong to the caller. */
#ifndef SIM_PACKET_H
#define SIM_PACKET_H
#include <stdint.h>

/* How a flow's packets get their paths: the flow's own, a random one, a recycled one; or each switch on the way up
 * gives them its uplinks in turn (SPRAY_TURN), or the one that is free soonest (SPRAY_LEAST). */
enum mode { PINNED, SPRAY, REPS, SPRAY_TURN, SPRAY_LEAST };
enum fold_protocol { NETFOLD, SWITCHML, ATP, FOLD_PROTOCOLS };
enum outcome { FINISHED, DEADLINE, NO_MEMORY, BAD_INPUT };

struct config {
    /* fabric (sim/engines/topology.py has the numbering) */
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
    /* every link loses this part of its packets, in 2^-32, at random by the seed */
    uint32_t loss;
    /* the part that a link carries twice, and that it puts behind what is queued there, once for each packet */
    uint32_t repeat, reorder;
    /* folds: whose rules; bytes of payload of a full packet, and around it; packets of a stream in flight at most;
     * slots of a stream at a switch; NetReduce's messages (folds.c) */
    uint32_t fold_protocol; /* enum fold_protocol */
    uint32_t fold_mtu, fold_header, fold_window, fold_slots, fold_message, fold_credits;
    uint64_t fold_rto; /* of SwitchML's workers and of ATP's */
};

/* A switch of a fold's tree, or what a rank sends over one tree (a channel), hangs below a switch by an edge: the links
 * to it are links[first ..][0 .. count), those back the next `count`. */
struct fold_edge {
    uint32_t parent, place; /* the switch above, by its number among fold nodes; which of its children this is */
    uint32_t node;          /* the switch below, or FOLD_HOST */
    uint32_t first, count;
};
#define FOLD_HOST UINT32_MAX

struct fold_node {
    uint32_t up;           /* its edge to its parent; FOLD_HOST at the root */
    uint32_t first, count; /* its children are edges [first ..][0 .. count) */
    uint32_t place;        /* ATP: the switch, whose memory all folds share */
};

struct fold_channel { /* those of one task are adjacent */
    uint32_t task, edge;
    uint64_t packets, last_bytes;
};

/* A packet that is lost, the `left` next times that it is on this link: for tests. */
struct drop {
    uint32_t link, kind, psn, left;
};

struct folds {
    uint32_t nodes, edges, channels, drops;
    const struct fold_node *node;
    const struct fold_edge *edge;
    const struct fold_channel *channel;
    const uint32_t *links;
    struct drop *drop;
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
    uint32_t first_channel, channels;   /* of a rank's part of a fold, which has no pieces */
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
    /* folds: packets that hosts sent and repeated, NAKs that they sent, time-outs; results; what switches did with
     * packets (enum fold_outcome); NAKs of theirs */
    uint64_t fold_sent, fold_resent, fold_asks, fold_timeouts, fold_results, fold_duplicates, fold_completed;
    uint64_t fold_first, fold_answered, fold_asked, fold_waited, fold_late, fold_repeated, fold_lacked, fold_naks;
    /* SwitchML and ATP: results whose sums were wrong; packets that met another packet's sum in their slot; ATP: that
     * found their aggregator taken; that reached the server, and those of them that were no whole sum */
    uint64_t fold_wrong, fold_aliased, fold_collided, fold_server, fold_partial;
};
#endif
