/* SPDX-License-Identifier: Apache-2.0
 * What the parts of rc.h share.  Sequence numbers are PSNs without their wrap, from 0. */
#ifndef NF_RC_INSIDE_H
#define NF_RC_INSIDE_H
#include "congestion.h"
#include "rc.h"
#include "reps.h"

#define NF_AETH_ACK 0x1f               /* acknowledged; credits are not used (InfiniBand 9.7.7.2.5, table 46) */
#define NF_AETH_SEQUENCE 0x60          /* NAK: PSN sequence error */
#define NF_AETH_INVALID 0x61           /* NAK: invalid request */
#define NF_AETH_ACCESS 0x62            /* NAK: remote access error */
#define NF_BECN 0x40                   /* in the byte before the destination QP */
#define NF_NAKS 64                     /* reported in one go */

typedef struct {
    uint8_t opcode;
    uint32_t psn;
    uint64_t address;                  /* RETH, on FIRST and ONLY */
    uint32_t key, length;
} nf_rc_header;

typedef struct {                       /* one WRITE */
    const uint8_t *data;
    uint64_t first, offset, id;        /* first: its first packet */
    uint32_t length, key;
} nf_write;

typedef struct {
    int64_t at;                        /* when it was sent last */
    bool lost, again;                  /* to be sent again; sent more than once (Karn) */
} nf_flight;

typedef struct {
    nf_write *writes;                  /* ring of `room` (a power of two) from `head`, `count` of them */
    uint32_t head, count, room;
    uint64_t una, next, limit;         /* lowest not acknowledged; lowest never sent; end of what was posted */
    uint64_t recover;                  /* a time-out happened: everything below was sent before it */
    uint32_t burst;                    /* packets that go again when the first of them are acknowledged */
    uint64_t repeated;                 /* since the last time-out: everything below */
    int64_t asked, answer;             /* first repetition in this silence; how long one took to be answered, or 0 */
    bool doubted;                      /* srtt: a time-out was vain by it, or the path is new; no sample came since */
    uint64_t lost_from;                /* none is lost below */
    uint32_t n_lost;
    nf_flight *flights;                /* by sequence number modulo window */
    nf_rtt rtt;
    nf_timer timer;
    int64_t look;                      /* when rc_paths.c looks at the path again */
    uint32_t silent;                   /* repetitions since anything was acknowledged */
    int64_t since, longest;            /* last acknowledgement, or first packet after idling; longest wait for one */
    int64_t blamed;                    /* the same, or when a path was blamed last */
    nf_congestion congestion;
    uint64_t sent, retransmitted, timeouts, naks, marks;
} nf_requester;

typedef struct {                       /* a message of which the FIRST or ONLY packet is here */
    uint64_t first, end, offset;
    uint32_t key, length;
} nf_message;

typedef struct {
    uint64_t expected, top;            /* all below are in; above the highest that is in */
    uint64_t asked;                    /* holes below were reported */
    uint64_t report;                   /* holes in expected .. report are to be reported, from report_from */
    uint64_t report_from;
    uint8_t *in;                       /* by sequence number modulo window: 0 missing, 1 in place, 2 in the stash */
    nf_message *messages;              /* sorted; not whole yet */
    uint32_t n_messages;
    uint8_t *stash;                    /* payloads that came before their message's first packet; made on first use */
    uint16_t *stashed;                 /* their lengths */
    uint32_t msn;                      /* messages that are whole */
    bool due, marked;                  /* an ACK is due; with BECN */
    uint8_t refusal;                   /* syndrome of a NAK that ended the connection; said again to who asks again */
    bool refusal_due;
    uint64_t refused_at;
    uint16_t from;                     /* source port of what came last */
    uint64_t received, duplicates, refused;
} nf_responder;

typedef struct {                       /* what leaves by this port for peers of this group */
    uint32_t group;
    uint16_t port;
    bool blamed;                       /* since anything was answered over it */
    int64_t answered;                  /* when anything was answered over it last; 0: never */
} nf_path;

typedef struct {
    nf_rc_plan plan;
    uint32_t group, path;              /* of its peer; index into rc->paths */
    nf_requester out;
    nf_responder in;
    nf_reps *reps;                     /* NULL: all packets leave by plan.source_port */
    int64_t heard;                     /* when anything came last */
    bool broken;
    bool listed, answering, open;      /* in rc->active, rc->answers, rc->open */
    uint64_t used;                     /* rc->uses when it was written to, or a new packet came, last */
} nf_qp;

typedef struct {
    uint8_t *base;
    uint64_t length;
    uint16_t generation;
    bool used;
} nf_region;

struct nf_rc {
    uint32_t address, path_mtu, window, max_run, reorder;
    nf_congestion_rules rules;         /* of all queue pairs */
    nf_qp *qps;
    uint32_t n_qps, room_qps;
    uint32_t *by_number, n_buckets;    /* open addressing; index + 1, 0: empty */
    uint32_t *active, n_active, turn;  /* queue pairs with writes */
    uint32_t *answers, n_answers;      /* queue pairs that owe an ACK or NAK */
    uint32_t *open, n_open;            /* queue pairs that have memory for a window */
    uint32_t open_bound, open_most;
    uint64_t uses;
    nf_region *regions;
    uint32_t n_regions, room_regions, free_from;
    nf_rc_event *events;
    uint32_t event_head, event_count, event_room;
    uint32_t owed;                     /* events that may come without a packet: of writes, and of queue pairs breaking */
    uint64_t progress, foreign;
    uint8_t *buffer;                   /* one run */
    nf_path *paths;
    uint32_t n_paths, room_paths;
    uint16_t *ports;                   /* source ports that we can send from */
    uint32_t n_ports;
};

/* rc.c */
void nf_rc_activate(nf_rc *, nf_qp *);
void nf_rc_answer(nf_rc *, nf_qp *);
void nf_rc_break(nf_rc *, nf_qp *, uint8_t syndrome, bool by_peer);

/* rc_owner.c */
bool nf_rc_reserve_events(nf_rc *, uint32_t more);
void nf_rc_emit(nf_rc *, const nf_rc_event *);
uint8_t *nf_rc_region(nf_rc *, uint32_t key, uint64_t offset, uint64_t length);

static inline uint32_t nf_rc_index(const nf_rc *rc, const nf_qp *qp) { return (uint32_t)(qp - rc->qps); }
static inline uint32_t nf_rc_psn(uint32_t first, uint64_t seq) { return (first + (uint32_t)seq) & NF_PSN_MASK; }
/* The sequence number nearest to `near` that has this PSN; negative: before the first packet. */
static inline int64_t nf_rc_seq(uint32_t first, uint32_t psn, uint64_t near)
{
    int32_t ahead = (int32_t)((psn - first - (uint32_t)near) << 8) >> 8;
    return (int64_t)near + ahead;
}
static inline uint64_t nf_rc_packets(const nf_rc *rc, uint32_t length)
{
    return length ? (length + (uint64_t)rc->path_mtu - 1) / rc->path_mtu : 1;
}

/* rc_contexts.c */
void nf_context_use(nf_rc *, nf_qp *);

/* rc_requester.c */
nf_congestion_rules nf_requester_rules(uint32_t window);
void nf_requester_open(nf_rc *, nf_requester *);
void nf_requester_close(nf_requester *);
bool nf_requester_post(nf_rc *, nf_qp *, nf_write);
uint32_t nf_requester_sendable(const nf_rc *, const nf_requester *);
uint64_t nf_requester_peek(const nf_rc *, const nf_requester *);
const nf_write *nf_requester_write(const nf_requester *, uint64_t seq);
void nf_requester_send(nf_rc *, nf_requester *, uint64_t seq, int64_t now);
void nf_requester_unsent(nf_rc *, nf_requester *, uint64_t seq);
void nf_requester_answer(nf_rc *, nf_qp *, uint32_t psn, uint8_t syndrome, bool marked, int64_t now);
bool nf_requester_tick(nf_rc *, nf_requester *, int64_t now);      /* true where the timer ran out */
void nf_requester_ask(nf_rc *, nf_requester *, int64_t now);
void nf_requester_moved(nf_rc *, nf_requester *, bool lost, int64_t now);

/* rc_paths.c */
bool nf_path_take(nf_rc *, nf_qp *, uint32_t group, uint16_t port);        /* false: no memory */
void nf_path_answered(nf_rc *, const nf_qp *, uint16_t port, int64_t now);
void nf_path_watch(nf_rc *, nf_qp *, int64_t now);                 /* is the path to blame? */

/* rc_responder.c */
void nf_responder_close(nf_responder *);
void nf_responder_take(nf_rc *, nf_qp *, const nf_rc_header *, const uint8_t *payload, uint32_t length, bool marked);
void nf_responder_settle(nf_rc *, nf_qp *);
#endif
