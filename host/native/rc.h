/* SPDX-License-Identifier: Apache-2.0
 *
 * Reliable connected queue pairs in software: RDMA WRITE over RoCEv2, packets in, packets out, next deadline.
 *
 *   endpoint  (rc_endpoint.c)    all queue pairs of one address; sends (rc_send.c): who is next, headers, ICRC
 *   paths     (rc_paths.c)       which paths answer, and which one is to blame
 *   requester (rc_requester.c)   writes posted -> FIRST, MIDDLE..., LAST or ONLY; window, timer, what to send again
 *   responder (rc_responder.c)   packets in any order -> memory that was registered; ACK, NAK; messages whole, in order
 *   pairs     (rc_pairs.c)       which queue pairs there are, and which wait to be sent for
 *   contexts  (rc_contexts.c)    which queue pairs hold memory for a window, and which give it up
 *   events    (rc_events.c)      what the owner is told
 *   regions   (rc_regions.c)     memory that peers may write to
 *   reps.c                       which source port the next packet takes, where paths are not planned
 *   rc_io.c                      an endpoint over UDP sockets
 *
 * rc_state.h is what they share; each calls only those that stand below it.
 *
 * A packet's place follows from its PSN, so packets may arrive in any order.  An ACK is cumulative (InfiniBand 9.7.5);
 * its BECN bit says that packets since the last one came with a congestion mark.  A NAK "PSN sequence error" names one
 * packet that is missing and acknowledges nothing: several at once repair several holes in one round trip, where the
 * specification's single NAK would have the requester go back and send everything again.
 */
#ifndef NF_RC_H
#define NF_RC_H
#include "roce.h"
#include "rtt.h"

#define NF_RC_ACKNOWLEDGE 0x11
#define NF_RC_AETH_BYTES 4
#define NF_RC_RUN 60 /* packets of one super-packet at most */
/* Nanoseconds without an answer over a path until its oldest packet goes by another path as well, and until the verdict
 * where that one was answered (rc_paths.h): where round trips are long, one and a half of them, and one. */
#define NF_RC_ASK 25000000ll
/* Nanoseconds without an answer after which a path is blamed where no other path has shown that the peer's process
 * runs: where anything else came from the peer just now, and where nothing did.  Where queues are long, two round
 * trips, but no more than MOST. */
#define NF_RC_STALL 70000000ll
#define NF_RC_STALL_ALONE 110000000ll
#define NF_RC_STALL_MOST 150000000ll
#define NF_RC_MESSAGE (1u << 30) /* longest message, bytes; the specification allows twice that */

typedef struct nf_rc nf_rc;

typedef struct {                /* one end of a connection; the other end has the same with the sides exchanged */
    uint32_t peer, peer_qp, qp; /* IPv4 address in host byte order; queue pair numbers, 24 bits */
    uint32_t peer_port;         /* UDP port at which the peer receives */
    uint32_t source_port;       /* UDP source port of all that leaves: the flow's entropy */
    uint32_t psn, peer_psn;     /* first PSN that leaves, that arrives */
} nf_rc_plan;

typedef enum { NF_RC_SENT = 1, NF_RC_ARRIVED = 2, NF_RC_BROKEN = 3, NF_RC_STALLED = 4, NF_RC_ANSWERED = 5 } nf_rc_what;

typedef struct {
    uint32_t what, qp; /* nf_rc_what; index of the queue pair */
    uint64_t id;       /* SENT: of the write, acknowledged as a whole: its memory is the caller's again */
    uint64_t offset;   /* ARRIVED: a whole message lies in region `key` at `offset`; */
                       /* of one to be filled, all of it does, and `offset` and `length` are 0 */
    uint32_t key, length;
    uint32_t syndrome, by_peer; /* BROKEN: the AETH syndrome, and whether the peer sent it or we did */
    uint32_t source_port;       /* STALLED: nothing was answered over this path for long, although repeated */
                                /* ANSWERED: a path that had STALLED answers; maybe not this queue pair's now */
} nf_rc_event;

typedef struct { /* packets that leave as one: all `segment` bytes long, the last maybe shorter */
    const uint8_t *bytes;
    uint32_t length, segment, packets;
    nf_route route;
    uint32_t qp;
    uint32_t answers; /* these are ACKs and NAKs */
    uint64_t seqs[NF_RC_RUN];
} nf_rc_run;

typedef struct {                         /* of one queue pair since it was connected; sequence numbers count packets */
    uint64_t posted, next, acknowledged; /* packets posted, sent at least once, acknowledged */
    uint64_t sent, retransmitted, timeouts, naks, marks;
    uint64_t expected, received, duplicates, refused;
    int64_t rto, srtt; /* nanoseconds */
    double allowed;    /* packets that may be in flight */
    int64_t stalled;   /* nanoseconds, the longest: something in flight, and nothing acknowledged */
    uint64_t open;     /* 1 where it is (rc_contexts.c) */
} nf_rc_pair_state;

/* address, port: where packets arrive.  path_mtu: 256, 512, 1024, 2048 or 4096 bytes.  window: packets in flight on a
 * queue pair, a power of two, the same at both ends.  max_run: 1 .. NF_RC_RUN.  reorder: packets sent later that may
 * overtake before one counts as lost. NULL: a bad argument, or no memory. */
nf_rc *nf_rc_open(uint32_t address, uint16_t port, uint32_t path_mtu, uint32_t window, uint32_t max_run,
                  uint32_t reorder);
void nf_rc_close(nf_rc *);

#define NF_RC_BAD_NUMBERS (-1) /* a number taken already or out of range */
#define NF_RC_NO_MEMORY (-2)
/* Index of a new queue pair, or one of the two above.  It is closed until its first
 * write or packet (rc_contexts.c), so those that are never used cost next to nothing. */
int32_t nf_rc_connect(nf_rc *, const nf_rc_plan *);
/* So many queue pairs, 1 or more, are open at once: where another one opens, those idle for longest close.  More only
 * while all of them are busy: nobody waits.  At first there is no bound. */
void nf_rc_limit_open(nf_rc *, uint32_t most);
uint32_t nf_rc_open_now(const nf_rc *);
uint32_t nf_rc_open_most(const nf_rc *); /* since the endpoint was opened */
/* From now on packets leave by this source port: the flow moves to another path.  `lost`: the one before is dead, and
 * the peer is asked at once what it has of what is in flight.  False: no such queue pair, or no memory. */
bool nf_rc_move(nf_rc *, uint32_t qp, uint16_t source_port, bool lost, int64_t now);
/* Peers of one group are reached over the same paths: what answers one of them speaks for all.  At first each peer is a
 * group of its own, named by its address; to those of group 0 leads one path alone, whatever the port.  False: no such
 * queue pair, or no memory. */
bool nf_rc_set_group(nf_rc *, uint32_t qp, uint32_t group);
/* Source ports that packets can leave by.  Answers leave by the one of them that the question came from, and so over
 * the same path: then a path is blamed for what happens on it alone.  False: no memory, or n < 1. */
bool nf_rc_ports(nf_rc *, const uint16_t *ports, uint32_t n);
/* From now on each data packet takes the port that REPS (reps.h) says.  False: no memory, or no ports. */
bool nf_rc_use_reps(nf_rc *, uint32_t qp, uint64_t seed);

/* Lets peers write here; returns the key that they need, -1 where there is no memory.  The first keys are 0, 1, 2...
 * fill: there is one event ARRIVED, when messages that cover the region once have arrived, and the region ends with it;
 * messages that overlap break the queue pair.  Else each message has its own event. */
int64_t nf_rc_register(nf_rc *, void *base, uint64_t length, bool fill);
void nf_rc_deregister(nf_rc *, uint32_t key);
/* Returns how many bytes a region to be filled still lacks; 0 for any other. */
uint64_t nf_rc_unfilled(const nf_rc *, uint32_t key);

#define NF_RC_UNTOLD UINT64_MAX /* id of a write that has no event SENT */
/* Posts a write of `length` bytes, 1 .. NF_RC_MESSAGE, to offset `offset` of the peer's region `key`.  The memory stays
 * in use until the event SENT.  False: no memory, bad length, or the queue pair is broken. */
bool nf_rc_write(nf_rc *, uint32_t qp, const void *data, uint32_t length, uint32_t key, uint64_t offset, uint64_t id);

/* Writes the next packets to send into the run, answers before data; their bytes are good until the next call.  Returns
 * false where nothing may leave now.  Times, here and below, are nanoseconds. */
bool nf_rc_send(nf_rc *, int64_t now, nf_rc_run *);
/* Takes a run back that the kernel did not take: its packets are to be sent again, and its ACKs are owed again. */
void nf_rc_unsent(nf_rc *, const nf_rc_run *);
/* From here on each run has one packet: the kernel takes no super-packets. */
void nf_rc_no_runs(nf_rc *);

/* Takes UDP payloads that came to our port `from` there, cut every `segment` bytes. */
void nf_rc_receive(nf_rc *, const uint8_t *bytes, size_t n, size_t segment, const nf_origin *from, bool marked,
                   int64_t now);
/* Does what is due by `now`: retransmission timers, and the watch over paths. */
void nf_rc_tick(nf_rc *, int64_t now);
/* Returns when nf_rc_tick is due; NF_NEVER where nothing is waited for. */
int64_t nf_rc_deadline(const nf_rc *);

/* Takes the oldest event for the owner off the queue.  Returns false where there is none. */
bool nf_rc_event_next(nf_rc *, nf_rc_event *);
/* Returns whether there are events that are not quiet: of none of these kinds. */
bool nf_rc_has_events(const nf_rc *, uint32_t quiet);
#define NF_RC_QUIET_SENT 1u    /* SENT */
#define NF_RC_QUIET_ARRIVED 2u /* ARRIVED of one message in a region, not of a region that is full */
/* Returns a count that grows with every packet that was new to us and every one of ours that was acknowledged. */
uint64_t nf_rc_progress(const nf_rc *);
/* Returns how many packets came that are for no queue pair of ours, or that its peer cannot have sent. */
uint64_t nf_rc_foreign(const nf_rc *);
/* Returns how many packets came to queue pairs of ours from another address than the peer's; *last: where the last one
 * came from. */
uint64_t nf_rc_refused(const nf_rc *, nf_origin *last);
/* Returns how many packets from peers were dropped since their ICRC is wrong: they changed on the way. */
uint64_t nf_rc_corrupt(const nf_rc *);
/* Forgets the longest stalls so far, of all queue pairs. */
void nf_rc_reset_stalls(nf_rc *);
/* Writes the state of a queue pair.  Returns false where there is no such queue pair. */
bool nf_rc_state_of(const nf_rc *, uint32_t qp, nf_rc_pair_state *);
#endif
