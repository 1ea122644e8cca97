/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of an endpoint, which the parts of rc.h share.  Sequence numbers are PSNs without their wrap, from 0.
 * Each part calls only those below it:
 *
 *   rc_endpoint.c                 queue pairs connected; what arrives; time
 *   rc_send.c    rc_paths.c       what leaves; which paths answer
 *   rc_requester.c  rc_responder.c
 *   rc_pairs.c   rc_contexts.c    which queue pairs there are; which hold memory
 *   rc_events.c  rc_regions.c     what the owner is told; the memory that peers may write to
 */
#ifndef NF_RC_STATE_H
#define NF_RC_STATE_H
#include "congestion.h"
#include "rc.h"
#include "reps.h"

#define NF_AETH_KIND(syndrome) ((syndrome) >> 5)
#define NF_AETH_KIND_ACK 0
#define NF_AETH_KIND_NAK 3
#define NF_AETH_ACK 0x1f      /* acknowledged; credits are not used (InfiniBand 9.7.7.2.5, table 46) */
#define NF_AETH_SEQUENCE 0x60 /* NAK: PSN sequence error */
#define NF_AETH_INVALID 0x61  /* NAK: invalid request */
#define NF_AETH_ACCESS 0x62   /* NAK: remote access error */
#define NF_BECN 0x40          /* in the byte before the destination QP */

typedef struct {
    uint8_t opcode;
    uint32_t psn;
    uint64_t address; /* RETH, on FIRST and ONLY */
    uint32_t key, length;
} nf_rc_header;

typedef struct { /* one WRITE */
    const uint8_t *data;
    uint64_t first, offset, id; /* first: its first packet */
    uint32_t length, key;
} nf_write;

typedef struct {
    int64_t at;       /* when it was sent last */
    bool lost, again; /* to be sent again; sent more than once (Karn) */
} nf_flight;

typedef struct {
    nf_write *writes; /* ring of `room` (a power of two) from `head`, `count` of them */
    uint32_t head, count, room;
    uint64_t una, next, limit;    /* lowest not acknowledged; lowest never sent; end of what was posted */
    uint64_t recover;             /* a time-out happened: everything below was sent before it */
    uint32_t burst;               /* packets that go again when the first of them are acknowledged */
    uint64_t repeated_below;      /* since the last time-out: everything below was sent again */
    int64_t probed_at, probe_rtt; /* first probe in this silence; how long one took to be answered, or 0 */
    bool srtt_doubtful;           /* a time-out by it was spurious, or the path is new; no sample came since */
    bool left_path;               /* what is below `recover` went by a path that is proven dead */
    uint64_t lost_from;           /* none is lost below */
    uint32_t n_lost;
    nf_flight *flights; /* by sequence number modulo window */
    nf_rtt rtt;
    nf_timer timer;
    int64_t path_check;      /* when rc_paths.c looks at the path again */
    uint32_t unanswered;     /* probes since anything was acknowledged */
    int64_t acknowledged_at; /* last acknowledgement, or first packet after idling */
    int64_t longest_stall;   /* longest wait for an acknowledgement */
    int64_t silent_since;    /* first packet after idling, or when it came to its path, or when that was blamed last */
    nf_congestion congestion;
    uint64_t sent, retransmitted, timeouts, naks, marks;
} nf_requester;

typedef struct { /* a message of which the FIRST or ONLY packet is here */
    uint64_t first, end, offset;
    uint32_t key, length;
} nf_message;

typedef enum { NF_MISSING, NF_PLACED, NF_STASHED } nf_arrival;

typedef struct {
    uint64_t expected, top;     /* all below are in; above the highest that is in */
    uint64_t reported;          /* holes below were reported */
    uint64_t nak_from, nak_end; /* holes from nak_from up to here, without it, are to be reported */
    uint8_t *arrived;           /* nf_arrival, by sequence number modulo window */
    nf_message *messages;       /* sorted; not whole yet */
    uint32_t n_messages;
    uint8_t *stash;    /* payloads that came before their message's first packet; made on first use */
    uint16_t *stashed; /* their lengths */
    uint32_t msn;      /* messages that are whole */
    bool due, marked;  /* an ACK is due; with BECN */
    uint8_t refusal;   /* syndrome of a NAK that ended the connection; said again to who asks again */
    bool refusal_due;
    uint64_t refused_at;
    uint16_t source_port; /* of what came last */
    uint16_t before_port; /* what came by this port, before that, has not been answered over it; 0: all has */
    uint64_t received, duplicates, refused;
} nf_responder;

typedef struct { /* what leaves by this port for peers of this group */
    uint32_t group;
    uint16_t port;
    bool blamed;      /* since anything was answered over it */
    bool proven;      /* it was blamed, and meanwhile a peer answered over another path what it was asked over both */
    int64_t answered; /* when anything was answered over it last; 0: never */
    int64_t silent;   /* where it is blamed: since when it had been silent by then */
    nf_rtt rtt;       /* of all queue pairs' packets */
} nf_path;

typedef struct {      /* the oldest packet of a silent queue pair goes by another path as well (rc_paths.h) */
    uint16_t port;    /* that path's source port; 0: there is none */
    bool due;         /* it is to leave */
    int64_t at;       /* when that began, in this silence; 0: it has not */
    int64_t answered; /* when an answer came by that path; 0: none yet */
} nf_inquiry;

typedef struct {
    nf_rc_plan plan;
    uint32_t group, path; /* of its peer; index into rc->paths */
    nf_requester out;
    nf_responder in;
    nf_inquiry inquiry;
    nf_reps *reps;      /* NULL: all packets leave by plan.source_port */
    int64_t arrived_at; /* when anything came last */
    uint16_t likely_id; /* IPv4 ID of the next packet that comes, if it left in one super-packet with the last one */
    bool broken;
    bool active, owes_answer, open; /* in rc->active, rc->answers, rc->open */
    uint64_t last_use;              /* rc->uses when it was written to, or a new packet came, last */
} nf_qp;

typedef struct {
    uint8_t *base;
    uint64_t length, unfilled; /* unfilled: bytes that have not arrived, where it is to be filled */
    uint64_t edges;            /* rc_regions.c: which ends of messages in it meet no beginning */
    uint16_t generation;
    bool used, fill;
} nf_region;

struct nf_rc {
    uint32_t address, path_mtu, window, max_run, reorder;
    uint16_t port;
    nf_congestion_rules rules; /* of all queue pairs */
    nf_qp *qps;
    uint32_t n_qps, room_qps;
    uint32_t *by_number, n_buckets;   /* open addressing; index + 1, 0: empty */
    uint32_t *active, n_active, turn; /* queue pairs with writes */
    uint32_t *answers, n_answers;     /* queue pairs that owe an ACK or NAK */
    uint32_t *open, n_open;           /* queue pairs that have memory for a window */
    uint32_t open_bound, open_most;
    uint64_t uses;
    nf_region *regions;
    uint32_t n_regions, room_regions, first_free;
    nf_rc_event *events;
    uint32_t event_head, event_count, event_room;
    uint32_t events_sent, events_arrived; /* those of them of the kinds that may be quiet */
    uint32_t reserved_events;             /* that may come without a packet: of writes, and of queue pairs that break */
    uint64_t progress, foreign, refused, corrupt;
    nf_origin refused_from; /* the last of `refused` */
    uint8_t *buffer;        /* one run */
    nf_path *paths;
    uint32_t n_paths, room_paths;
    int64_t silences[2], silences_from; /* rc_paths.c: the longest ones that ended; since when [0] counts */
    uint16_t *ports;                    /* source ports that we can send from */
    uint32_t n_ports;
};

static inline uint32_t nf_rc_index(const nf_rc *rc, const nf_qp *qp) { return (uint32_t)(qp - rc->qps); }
static inline uint32_t nf_rc_psn(uint32_t first, uint64_t seq) { return (first + (uint32_t)seq) & NF_PSN_MASK; }
/* The sequence number nearest to `near` that has this PSN; negative: before the first packet. */
static inline int64_t nf_rc_seq(uint32_t first, uint32_t psn, uint64_t near) {
    int32_t ahead = (int32_t)((psn - first - (uint32_t)near) << 8) >> 8;
    return (int64_t)near + ahead;
}
static inline uint64_t nf_rc_packets(const nf_rc *rc, uint32_t length) {
    return length ? (length + (uint64_t)rc->path_mtu - 1) / rc->path_mtu : 1;
}

#endif
