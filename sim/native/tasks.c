/* SPDX-License-Identifier: Apache-2.0 */
#include "tasks.h"

#include "paths.h"
#include "transport.h"

static void start_at(struct sim *s, uint32_t task, uint64_t time) {
    uint64_t late = s->c->jitter && s->tasks[task].size ? draw(s) % s->c->jitter : 0;
    set_timer(&s->events, time + s->tasks[task].gap + late, START, task);
}

int tasks_open(struct sim *s, uint32_t count) {
    s->left = count;
    s->progress = calloc(count + 1, sizeof *s->progress);
    if (!s->progress) return 0;
    for (uint32_t i = 0; i < count; i++) {
        s->started[i] = s->finished[i] = NEVER;
        s->progress[i].waits = s->tasks[i].waits;
        if (!s->tasks[i].waits) start_at(s, i, 0);
    }
    return 1;
}

void tasks_close(struct sim *s) { free(s->progress); }

/* Starts the successors whose last predecessor this was: flows of the same sender (`own`), which learns of the arrival
 * by the acknowledgement, or all others. */
static void start_successors(struct sim *s, uint32_t task, int own) {
    const struct task *k = &s->tasks[task];
    for (const uint32_t *n = &s->next[k->first_next], *end = n + k->nexts; n != end; n++) {
        const struct task *next = &s->tasks[*n];
        int same = k->size && next->size && next->source == k->source;
        if (same == own && --s->progress[*n].waits == 0) start_at(s, *n, s->events.now);
    }
}

static void finish_task(struct sim *s, uint32_t task) {
    s->finished[task] = s->events.now;
    s->left--;
    start_successors(s, task, 0);
}

void piece_arrived(struct sim *s, uint32_t task) {
    if (!--s->progress[task].arriving) finish_task(s, task);
}

void piece_acknowledged(struct sim *s, uint32_t task) {
    if (!--s->progress[task].leaving) start_successors(s, task, 1);
}

void start_task(struct sim *s, uint32_t task) {
    const struct task *k = &s->tasks[task];
    s->started[task] = s->events.now;
    if (!k->size) {
        finish_task(s, task);
        return;
    }
    if (k->channels) {
        s->progress[task].arriving = s->progress[task].leaving = 1;
        for (uint32_t i = 0; i < k->channels; i++) s->rules->start(s, k->first_channel + i);
        return;
    }
    struct sender probe = {
        .source = k->source, .source_leaf = leaf_of(s, k->source), .destination_leaf = leaf_of(s, k->destination)};
    probe.distance = distance(s, probe.source_leaf, probe.destination_leaf);
    int plan = s->c->move && probe.distance && any_suspect(s, &probe);
    s->progress[task].arriving = s->progress[task].leaving = k->pieces[plan];
    for (uint32_t i = 0; i < k->pieces[plan] && !s->events.no_memory; i++)
        start_piece(s, task, &s->pieces[k->first_piece[plan] + i]);
}
