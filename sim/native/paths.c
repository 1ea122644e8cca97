/* SPDX-License-Identifier: Apache-2.0 */
#include "paths.h"

#include <string.h>

#include "fabric.h"

int paths_open(struct sim *s) {
    if (s->c->mode != REPS) return 1;
    s->reps = calloc((size_t)s->size * s->size, sizeof *s->reps);
    return s->reps != NULL;
}

void paths_close(struct sim *s) {
    for (size_t i = 0; s->reps && i < (size_t)s->size * s->size; i++) free(s->reps[i]);
    free(s->reps);
    for (uint32_t i = 0; s->hosts && i < s->size; i++) free(s->hosts[i].marks);
}

static uint32_t path_count(const struct sim *s, const struct sender *t) {
    return t->distance == 0 ? 1 : t->distance == 1 ? s->c->aggs : s->c->aggs * s->c->cores;
}

void take_path(const struct sim *s, const struct sender *t, uint32_t path, uint16_t *agg, uint16_t *core) {
    *agg = (uint16_t)(t->distance == 2 ? path / s->c->cores : path);
    *core = (uint16_t)(t->distance == 2 ? path % s->c->cores : 0);
}

/* ---- suspicion: what timed out a while ago, and what all routing knows ---- */

int suspect(const struct sim *s, const struct sender *t, uint32_t agg, uint32_t core) {
    const struct host *h = &s->hosts[t->source];
    for (const struct mark *m = h->marks; m != h->marks + h->mark_count; m++)
        if (m->leaf == t->destination_leaf && m->agg == agg && m->core == core && m->until > s->events.now) return 1;
    return s->known_faults && blocked(s, t->source_leaf, t->destination_leaf, agg, core, 1);
}

int any_suspect(const struct sim *s, const struct sender *t) {
    const struct host *h = &s->hosts[t->source];
    for (const struct mark *m = h->marks; m != h->marks + h->mark_count; m++)
        if (m->leaf == t->destination_leaf && m->until > s->events.now) return 1;
    for (uint32_t p = 0, n = s->known_faults ? path_count(s, t) : 0; p < n; p++) {
        uint16_t agg, core;
        take_path(s, t, p, &agg, &core);
        if (blocked(s, t->source_leaf, t->destination_leaf, agg, core, 1)) return 1;
    }
    return 0;
}

void suspect_path(struct sim *s, const struct sender *t) {
    struct host *h = &s->hosts[t->source];
    uint32_t i = 0;
    while (i < h->mark_count && h->marks[i].until > s->events.now &&
           (h->marks[i].leaf != t->destination_leaf || h->marks[i].agg != t->agg || h->marks[i].core != t->core))
        i++;
    if (i == h->mark_room) {
        uint32_t room = h->mark_room ? 2 * h->mark_room : 8;
        struct mark *marks = realloc(h->marks, room * sizeof *marks);
        if (!marks) {
            s->events.no_memory = 1;
            return;
        }
        h->marks = marks;
        h->mark_room = room;
    }
    if (i == h->mark_count) h->mark_count++;
    h->marks[i] = (struct mark){t->destination_leaf, t->agg, t->core, s->events.now + s->c->mark_time};
}

void random_path(struct sim *s, const struct sender *t, uint16_t *agg, uint16_t *core) {
    uint32_t n = path_count(s, t), first = below(s, n);
    take_path(s, t, first, agg, core);
    if (!s->known_faults && !s->hosts[t->source].mark_count) return;
    for (int tries = 0; tries < 8; tries++) { /* unbiased while most paths are good */
        if (!suspect(s, t, *agg, *core)) return;
        take_path(s, t, below(s, n), agg, core);
    }
    for (uint32_t i = 0; i < n; i++) {
        take_path(s, t, (first + i) % n, agg, core);
        if (!suspect(s, t, *agg, *core)) return;
    }
    take_path(s, t, first, agg, core);
}

/* ---- REPS (arXiv 2407.21625): explore; then reuse the oldest entropy whose ACK was not marked; frozen after a
 * time-out, cycle what is held.  Here the entropy is the path itself. ---- */

/* A connection lives as long as the run: later flows find what earlier ones learnt. */
void reps_open(struct sim *s, struct sender *t) {
    struct reps **kept = &s->reps[(size_t)t->source * s->size + t->destination];
    if (!*kept && (*kept = calloc(1, sizeof **kept))) (*kept)->explore = (uint32_t)s->c->window;
    t->reps = *kept;
    s->events.no_memory |= !t->reps;
}

void reps_freeze(struct sim *s, struct reps *r) { r->frozen_until = s->events.now + s->c->freeze_time; }

void reps_path(struct sim *s, struct sender *t, uint16_t *agg, uint16_t *core) {
    struct reps *r = t->reps;
    int frozen = r->frozen_until > s->events.now;
    if (r->frozen_until && !frozen) {
        r->frozen_until = 0;
        memset(r->valid, 0, sizeof r->valid);
        r->held = 0;
        r->explore = (uint32_t)s->c->window;
    }
    if (!frozen && r->explore) {
        r->explore--;
        random_path(s, t, agg, core);
        return;
    }
    uint32_t oldest = (uint32_t)(r->head + REPS_CACHE - r->held);
    for (uint32_t i = 0; i < r->held; i++) {
        uint32_t k = (oldest + i) % REPS_CACHE;
        if (r->valid[k]) {
            r->valid[k] = 0;
            *agg = r->agg[k];
            *core = r->core[k];
            return;
        }
    }
    if (frozen && r->held) {
        uint32_t k = (oldest + r->cycle++ % r->held) % REPS_CACHE;
        *agg = r->agg[k];
        *core = r->core[k];
        return;
    }
    random_path(s, t, agg, core);
}

void reps_keep(struct sim *s, struct reps *r, const struct ack *a) {
    if (a->marked || r->frozen_until > s->events.now) return;
    r->agg[r->head] = a->agg;
    r->core[r->head] = a->core;
    r->valid[r->head] = 1;
    r->head = (uint8_t)((r->head + 1) % REPS_CACHE);
    if (r->held < REPS_CACHE) r->held++;
}
