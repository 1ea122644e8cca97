/* SPDX-License-Identifier: Apache-2.0 */
/* Aggregators of a switch are shared by all jobs, each packet has one by a hash.  A packet whose aggregator another one
 * has goes on to the parameter server, which has the job use another aggregator from then on.  The server adds what
 * reaches it, and sends each result to all workers; on its way the result frees aggregators.  A worker's repeat takes
 * what aggregators hold to the server.
 *
 * A packet says whose contributions are in its sum: children of one switch (`echo`, counted from its tree's root), by
 * their places (`destination`).  `answer` has its flags, `nack` which aggregator of its turn in the window it takes.
 *
 * Left out on purpose: the server's processor takes no time; sums do not overflow.
 *
 * NSDI 2021.  "Code" is that of its authors, in-ATP/ATP at commit ddca27f0; "paper" is what public notes quote, since
 * its text was not at hand.  sim/engines/atp.py has the sizes.  Aggregators and collisions: code,
 * /p4src/includes/common.p4 and /server/ParameterServer.cc. */
#include "atp.h"

#include "trees.h"
#include "verdict.h"

enum { RESEND = 1, COLLIDED = 2 }; /* flags of a packet */
enum { GOT = 1, AGAIN = 2 };       /* flags of a worker's packets: has the result; is to be sent again */
/* Results behind a missing one after which a worker repeats its packet.  Paper, "Reliability"; the code repeats after
 * the first (/client/p4ml_manager.cc, pendingQueue). */
#define OUT_OF_ORDER 3
/* Bytes that a window without ECN marks adds to the next.  Paper, "Congestion control", and code,
 * /common/CC_manager.h; both halve a window that has marks. */
#define MORE_BYTES 1500

struct aggregator {
    uint32_t root, seq; /* whose sum; root: 1 + the root of the job's tree, 0: free */
    uint32_t bitmap, sum;
    uint8_t marked;
};

struct atp_worker {
    uint8_t *flags; /* of each packet */
    uint8_t *turns; /* which aggregator each packet of a window takes */
    double window;
    uint32_t una, next, round; /* lowest without a result; lowest never sent; where the window's marks are looked at */
    uint32_t again;            /* packets that are to be sent again */
    uint8_t behind, repaired, marked;
    uint64_t progress, timer;
};

struct atp_packet {
    uint32_t sum;
    uint8_t marked, collided, done, turn;
};

struct atp_server {
    struct atp_packet *packets;
    uint32_t *bits; /* [packet][node of its tree]: children whose contributions are in the sum */
    uint32_t nodes;
};

struct atp {
    struct aggregator *aggregators; /* [switch][..] */
    struct atp_worker *workers;     /* of each channel */
    struct atp_server *servers;     /* of each node that is a root */
};

static const struct fold_channel *a_channel(const struct sim *s, uint32_t node) {
    const struct folds *f = s->folds;
    uint32_t edge = f->node[node].first;
    while (f->edge[edge].node != FOLD_HOST) edge = f->node[f->edge[edge].node].first;
    return &f->channel[channel_of(s, edge)];
}

static int atp_open(struct sim *s) {
    const struct folds *f = s->folds;
    struct atp *a = s->atp = calloc(1, sizeof *a);
    uint32_t switches = 0;
    if (!a) return 0;
    for (uint32_t i = 0; i < f->nodes; i++)
        if (f->node[i].place >= switches) switches = f->node[i].place + 1;
    a->aggregators = calloc((size_t)switches * s->c->fold_slots + 1, sizeof *a->aggregators);
    a->workers = calloc((size_t)f->channels + 1, sizeof *a->workers);
    a->servers = calloc((size_t)f->nodes + 1, sizeof *a->servers);
    if (!a->aggregators || !a->workers || !a->servers) return 0;
    for (uint32_t i = 0; i < f->nodes; i++) {
        if (f->node[i].up != FOLD_HOST) continue;
        struct atp_server *server = &a->servers[i];
        uint64_t packets = a_channel(s, i)->packets;
        do server->nodes++;
        while (i + server->nodes < f->nodes && f->node[i + server->nodes].up != FOLD_HOST);
        server->packets = calloc(packets, sizeof *server->packets);
        server->bits = calloc(packets * server->nodes, sizeof *server->bits);
        if (!server->packets || !server->bits) return 0;
    }
    return 1;
}

static void atp_close(struct sim *s) {
    struct atp *a = s->atp;
    if (!a) return;
    for (uint32_t i = 0; a->workers && i < s->folds->channels; i++) free(a->workers[i].flags);
    for (uint32_t i = 0; a->servers && i < s->folds->nodes; i++) {
        free(a->servers[i].packets);
        free(a->servers[i].bits);
    }
    free(a->aggregators);
    free(a->workers);
    free(a->servers);
    free(a);
}

/* The aggregator of a packet at a switch: those in flight of one job take turns, and each turn has another one after a
 * collision. */
static struct aggregator *aggregator_of(const struct sim *s, uint32_t node, uint32_t root, uint32_t seq, uint8_t turn) {
    uint64_t z = (uint64_t)root << 40 | (uint64_t)(seq % s->c->fold_window) << 8 | turn;
    z = (z + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return &s->atp->aggregators[(size_t)s->folds->node[node].place * s->c->fold_slots + (z >> 32) % s->c->fold_slots];
}

/* ---- workers ---- */

static int may_send(const struct sim *s, uint32_t number) {
    const struct atp_worker *w = &s->atp->workers[number];
    return w->again || (w->next < s->folds->channel[number].packets && w->next < w->una + (uint32_t)w->window);
}

static void atp_start(struct sim *s, uint32_t number) {
    struct atp_worker *w = &s->atp->workers[number];
    w->flags = calloc(s->folds->channel[number].packets + s->c->fold_window, 1);
    if (!w->flags) {
        s->events.no_memory = 1;
        return;
    }
    w->turns = w->flags + s->folds->channel[number].packets;
    w->window = s->c->fold_window;
    w->round = s->c->fold_window;
    w->timer = NEVER;
    take_turn(s, number);
}

static void arm(struct sim *s, uint32_t number) {
    struct atp_worker *w = &s->atp->workers[number];
    if (w->timer != NEVER || w->una == s->folds->channel[number].packets) return;
    w->timer = w->progress + s->c->fold_rto;
    set_timer(&s->events, w->timer, FOLD_TIMER, number);
}

static int atp_send(struct sim *s, uint32_t number) {
    struct atp_worker *w = &s->atp->workers[number];
    if (!may_send(s, number)) return 0;
    uint32_t edge = s->folds->channel[number].edge, seq = w->next, repeats = w->again > 0;
    const struct fold_edge *e = &s->folds->edge[edge];
    if (repeats) {
        for (seq = w->una; !(w->flags[seq] & AGAIN);) seq++;
        w->flags[seq] &= (uint8_t)~AGAIN;
        w->again--;
    } else {
        if (w->next == w->una) w->progress = s->events.now;
        w->next++;
    }
    struct packet p = {.piece = edge, .seq = seq, .destination = UINT32_C(1) << e->place, .fold = UP};
    p.sum = contribution_of(s, number, seq);
    p.bytes = wire_bytes(s, edge, seq);
    p.answer = repeats ? RESEND : 0;
    p.echo = (uint8_t)(e->parent - root_of(s, edge));
    p.nack = w->turns[seq % s->c->fold_window];
    s->r.fold_sent++;
    s->r.fold_resent += repeats;
    forward(s, &p);
    arm(s, number);
    if (may_send(s, number)) take_turn(s, number);
    return 1;
}

static void repeat(struct atp_worker *w, uint32_t seq) {
    if (w->flags[seq]) return;
    w->flags[seq] = AGAIN;
    w->again++;
}

static void atp_timer(struct sim *s, uint32_t number) {
    struct atp_worker *w = &s->atp->workers[number];
    w->timer = NEVER;
    if (w->una == s->folds->channel[number].packets) return;
    if (w->progress + s->c->fold_rto <= s->events.now && w->una < w->next) {
        s->r.fold_timeouts++;
        w->progress = s->events.now;
        for (uint32_t seq = w->una; seq < w->next && !(w->flags[seq] & GOT); seq++) repeat(w, seq);
        take_turn(s, number);
    }
    arm(s, number);
}

/* Halves the window by ECN, or adds to it, once a window. */
static void control(struct sim *s, struct atp_worker *w, int marked) {
    w->marked |= (uint8_t)marked;
    if (w->una < w->round) return;
    double more = (double)MORE_BYTES / (s->c->fold_mtu + s->c->fold_header), most = s->c->fold_window;
    w->window = w->marked ? w->window / 2 : w->window + more;
    if (w->window < 1) w->window = 1;
    if (w->window > most) w->window = most;
    w->marked = 0;
    w->round = w->next;
}

static uint32_t at_worker(struct sim *s, const struct packet *p) {
    uint32_t number = channel_of(s, p->piece);
    struct atp_worker *w = &s->atp->workers[number];
    if (w->flags[p->seq] & GOT) {
        s->r.fold_duplicates++;
        return NONE;
    }
    s->r.fold_results++;
    s->r.fold_wrong += p->sum != total_of(s, number, p->seq);
    s->r.marked += p->marked;
    if (w->flags[p->seq] & AGAIN) w->again--;
    w->flags[p->seq] = GOT;
    w->turns[p->seq % s->c->fold_window] = p->nack;
    w->progress = s->events.now;
    if (p->seq == w->una) {
        while (w->una < s->folds->channel[number].packets && w->flags[w->una] & GOT) w->una++;
        w->behind = w->repaired = 0;
    } else if (!w->repaired && ++w->behind == OUT_OF_ORDER) {
        w->repaired = 1;
        s->r.fold_asks++;
        repeat(w, w->una);
    }
    control(s, w, p->marked);
    if (w->una == s->folds->channel[number].packets) return channel_done(s, number);
    if (may_send(s, number)) take_turn(s, number);
    return NONE;
}

/* ---- switches ---- */

static void send_down(struct sim *s, uint32_t node, const struct packet *p) {
    const struct fold_node *n = &s->folds->node[node];
    struct packet copy = *p;
    copy.hop = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        copy.piece = n->first + i;
        forward(s, &copy);
    }
}

static void send_up(struct sim *s, uint32_t node, const struct packet *p) {
    struct packet copy = *p;
    copy.piece = s->folds->node[node].up;
    copy.hop = 0;
    forward(s, &copy);
}

/* Sends what is summed of a switch's children up: where it is of all, as one child of the next switch. */
static void send_sum(struct sim *s, uint32_t node, uint32_t root, const struct packet *p, const struct aggregator *a) {
    const struct fold_node *n = &s->folds->node[node];
    const struct fold_edge *up = &s->folds->edge[n->up];
    uint32_t all = n->count == 32 ? UINT32_MAX : (UINT32_C(1) << n->count) - 1;
    struct packet sum = *p;
    sum.sum = a->sum;
    sum.marked = a->marked;
    sum.destination = a->bitmap == all ? UINT32_C(1) << up->place : a->bitmap;
    sum.echo = (uint8_t)((a->bitmap == all ? up->parent : node) - root);
    sum.bytes = wire_bytes(s, n->first, p->seq);
    send_up(s, node, &sum);
}

static void at_switch(struct sim *s, uint32_t node, const struct packet *p) {
    const struct fold_node *n = &s->folds->node[node];
    uint32_t root = root_of(s, p->piece), all = n->count == 32 ? UINT32_MAX : (UINT32_C(1) << n->count) - 1;
    struct aggregator *a = aggregator_of(s, node, root, p->seq, p->nack);
    int held = a->root == root + 1 && a->seq == p->seq, resend = p->answer & RESEND;
    if (p->echo != node - root) { /* a part of a rack's, or one that met another: on its way to the server */
        send_up(s, node, p);
        return;
    }
    if (a->root && !held && !resend) {
        struct packet on = *p;
        on.answer |= COLLIDED;
        s->r.fold_collided++;
        send_up(s, node, &on);
        return;
    }
    if (held && a->bitmap & p->destination && !resend) {
        s->r.fold_repeated++;
        return;
    }
    struct aggregator sum = {root + 1, p->seq, p->destination, p->sum, p->marked};
    if (held) {
        sum.marked |= a->marked;
        sum.sum = a->bitmap & p->destination ? a->sum : a->sum + p->sum;
        sum.bitmap |= a->bitmap;
    }
    s->r.fold_first++;
    if (!resend)
        *a = sum;
    else if (held)
        a->root = 0;
    if (resend || sum.bitmap == all) send_sum(s, node, root, p, &sum);
}

static void result_at_switch(struct sim *s, uint32_t node, const struct packet *p) {
    uint32_t root = root_of(s, p->piece);
    uint8_t turn = (uint8_t)(p->nack - (p->answer & COLLIDED ? 1 : 0)); /* that of the packets it is the result of */
    struct aggregator *a = aggregator_of(s, node, root, p->seq, turn);
    if (a->root == root + 1 && a->seq == p->seq) a->root = 0;
    send_down(s, node, p);
}

/* ---- parameter servers ---- */

static int any_below(const struct sim *s, const uint32_t *bits, uint32_t root, uint32_t node) {
    const struct fold_node *n = &s->folds->node[node];
    if (bits[node - root]) return 1;
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t below = s->folds->edge[n->first + i].node;
        if (below != FOLD_HOST && any_below(s, bits, root, below)) return 1;
    }
    return 0;
}

static int whole(const struct sim *s, const uint32_t *bits, uint32_t root, uint32_t node) {
    const struct fold_node *n = &s->folds->node[node];
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t below = s->folds->edge[n->first + i].node;
        if (bits[node - root] >> i & 1) continue;
        if (below == FOLD_HOST || !whole(s, bits, root, below)) return 0;
    }
    return 1;
}

/* Is any contribution of a packet in the server's sum already? */
static int overlaps(const struct sim *s, const uint32_t *bits, uint32_t root, const struct packet *p) {
    const struct fold_node *n = &s->folds->node[root + p->echo];
    if (bits[p->echo] & p->destination) return 1;
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t below = s->folds->edge[n->first + i].node;
        if (p->destination >> i & 1 && below != FOLD_HOST && any_below(s, bits, root, below)) return 1;
    }
    for (; n->up != FOLD_HOST; n = &s->folds->node[s->folds->edge[n->up].parent])
        if (bits[s->folds->edge[n->up].parent - root] >> s->folds->edge[n->up].place & 1) return 1;
    return 0;
}

static void at_server(struct sim *s, uint32_t root, const struct packet *p) {
    struct atp_server *server = &s->atp->servers[root];
    struct atp_packet *own = &server->packets[p->seq];
    uint32_t *bits = &server->bits[(size_t)p->seq * server->nodes];
    s->r.fold_server++;
    s->r.fold_partial += p->echo != 0; /* else its sum is of the root's only child, so of all */
    if (!own->done) {
        own->collided |= (p->answer & COLLIDED) != 0;
        own->marked |= p->marked;
        if (!p->echo) {
            own->sum = p->sum;
            bits[0] = p->destination;
        } else if (overlaps(s, bits, root, p)) {
            s->r.fold_late++;
        } else {
            own->sum += p->sum;
            bits[p->echo] |= p->destination;
        }
        if (!whole(s, bits, root, root)) return;
        own->done = 1;
        s->r.fold_completed++;
        if (p->seq >= s->c->fold_window) own->turn = server->packets[p->seq - s->c->fold_window].turn;
        own->turn = (uint8_t)(own->turn + own->collided);
    } else if (!(p->answer & RESEND)) {
        s->r.fold_late++;
        return;
    } else {
        s->r.fold_answered++;
    }
    struct packet result = {.seq = p->seq, .fold = DOWN, .marked = own->marked, .nack = own->turn};
    result.answer = own->collided ? COLLIDED : 0;
    result.sum = own->sum;
    result.bytes = wire_bytes(s, s->folds->node[root].first, p->seq);
    send_down(s, root, &result);
}

static uint32_t atp_packet(struct sim *s, const struct packet *p) {
    const struct fold_edge *e = &s->folds->edge[p->piece];
    if (p->fold == DOWN && e->node == FOLD_HOST) return at_worker(s, p);
    if (p->fold == DOWN)
        result_at_switch(s, e->node, p);
    else if (s->folds->node[e->parent].up == FOLD_HOST)
        at_server(s, e->parent, p);
    else
        at_switch(s, e->parent, p);
    return NONE;
}

const struct fold_rules atp_rules = {atp_open, atp_close, atp_start, atp_send, atp_packet, atp_timer};
