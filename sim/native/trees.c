/* SPDX-License-Identifier: Apache-2.0 */
#include "trees.h"

#include "fabric.h"
#include "verdict.h"

struct channel_turn {
    uint32_t after; /* in the list of its host */
    uint8_t listed;
};

struct trees {
    struct channel_turn *turns;
    uint32_t *left;    /* of each channel that is its task's first: channels of the task that lack results */
    uint32_t *first;   /* of each channel: its task's first */
    uint32_t *of_edge; /* of each edge to a host: its channel */
    uint32_t *total;   /* of each root: the sum of its channels' factors */
};

/* What a channel's contribution is a multiple of: no two sets of channels have, but by chance, the same sum. */
static uint32_t factor(uint32_t channel) {
    uint64_t z = (channel + UINT64_C(1)) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(z >> 32);
}

static uint32_t odd(uint32_t psn) { return psn * 0x9e3779b1u * 2 + 1; }

uint32_t root_of(const struct sim *s, uint32_t edge) {
    uint32_t node = s->folds->edge[edge].parent;
    while (s->folds->node[node].up != FOLD_HOST) node = s->folds->edge[s->folds->node[node].up].parent;
    return node;
}

uint32_t contribution_of(const struct sim *s, uint32_t channel, uint32_t psn) {
    (void)s;
    return factor(channel) * odd(psn);
}

uint32_t total_of(const struct sim *s, uint32_t channel, uint32_t psn) {
    return s->trees->total[root_of(s, s->folds->channel[channel].edge)] * odd(psn);
}

int trees_open(struct sim *s) {
    const struct folds *f = s->folds;
    struct trees *t = s->trees = calloc(1, sizeof *t);
    if (!t) return 0;
    t->turns = calloc((size_t)f->channels + 1, sizeof *t->turns);
    t->left = calloc((size_t)f->channels + 1, sizeof *t->left);
    t->first = calloc((size_t)f->channels + 1, sizeof *t->first);
    t->of_edge = calloc((size_t)f->edges + 1, sizeof *t->of_edge);
    t->total = calloc((size_t)f->nodes + 1, sizeof *t->total);
    if (!t->turns || !t->left || !t->first || !t->of_edge || !t->total) return 0;
    for (uint32_t i = 0; i < f->channels; i++) {
        t->first[i] = i && f->channel[i - 1].task == f->channel[i].task ? t->first[i - 1] : i;
        t->left[t->first[i]]++;
        t->of_edge[f->channel[i].edge] = i;
        t->total[root_of(s, f->channel[i].edge)] += factor(i);
    }
    return 1;
}

void trees_close(struct sim *s) {
    struct trees *t = s->trees;
    if (!t) return;
    free(t->turns);
    free(t->left);
    free(t->first);
    free(t->of_edge);
    free(t->total);
    free(t);
}

uint32_t channel_of(const struct sim *s, uint32_t edge) { return s->trees->of_edge[edge]; }

uint32_t host_of(const struct sim *s, uint32_t channel) { return s->tasks[s->folds->channel[channel].task].source; }

uint16_t wire_bytes(const struct sim *s, uint32_t edge, uint32_t psn) {
    /* all ranks of a tree send equally many bytes of a PSN, so any channel below tells them */
    const struct folds *f = s->folds;
    while (f->edge[edge].node != FOLD_HOST) edge = f->node[f->edge[edge].node].first;
    const struct fold_channel *c = &f->channel[s->trees->of_edge[edge]];
    return (uint16_t)((psn + 1 == c->packets ? c->last_bytes : s->c->fold_mtu) + s->c->fold_header);
}

static int climbs(const struct packet *p) { return p->fold == UP || p->fold == ASK_UP; }

void forward(struct sim *s, const struct packet *p) {
    const struct fold_edge *e = &s->folds->edge[p->piece];
    transmit(s, s->folds->links[e->first + (climbs(p) ? 0 : e->count) + p->hop], p);
}

void take_turn(struct sim *s, uint32_t channel) {
    struct channel_turn *turns = s->trees->turns;
    uint32_t host = host_of(s, channel);
    struct host *h = &s->hosts[host];
    if (turns[channel].listed) return;
    turns[channel] = (struct channel_turn){NONE, 1};
    if (h->fold_head == NONE)
        h->fold_head = channel;
    else
        turns[h->fold_tail].after = channel;
    h->fold_tail = channel;
    wake_card(s, host);
}

int fold_send(struct sim *s, uint32_t host) {
    struct host *h = &s->hosts[host];
    while (h->fold_head != NONE) {
        uint32_t channel = h->fold_head;
        struct channel_turn *turn = &s->trees->turns[channel];
        h->fold_head = turn->after;
        turn->listed = 0;
        if (s->rules->send(s, channel)) return 1;
    }
    return 0;
}

uint32_t fold_packet(struct sim *s, const struct packet *arrived) {
    struct packet p = *arrived;
    p.late = 0;
    if (++p.hop < s->folds->edge[p.piece].count) {
        forward(s, &p);
        return NONE;
    }
    return s->rules->packet(s, &p);
}

uint32_t channel_done(struct sim *s, uint32_t channel) {
    return --s->trees->left[s->trees->first[channel]] ? NONE : s->folds->channel[channel].task;
}
