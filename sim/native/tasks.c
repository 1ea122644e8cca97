/* SPDX-License-Identifier: Apache-2.0 */
/* The workload's graph: a task starts when all that it waits for has finished, and cuts its flow by one of two plans. */
#include "sim.h"

static void start_at(struct sim *s, uint32_t task, uint64_t time)
{
    uint64_t late = s->c->jitter && s->tasks[task].size ? draw(s) % s->c->jitter : 0;
    set_timer(&s->events, time + s->tasks[task].gap + late, START, task);
}

int tasks_open(struct sim *s, uint32_t count)
{
    s->left = count;
    s->waits = malloc((count + 1) * sizeof *s->waits);
    s->pieces_left = calloc(count + 1, sizeof *s->pieces_left);
    if (!s->waits || !s->pieces_left)
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        s->started[i] = s->finished[i] = NEVER;
        s->waits[i] = s->tasks[i].waits;
        if (!s->waits[i])
            start_at(s, i, 0);
    }
    return 1;
}

void tasks_close(struct sim *s)
{
    free(s->waits);
    free(s->pieces_left);
}

void start_task(struct sim *s, uint32_t task)
{
    const struct task *k = &s->tasks[task];
    s->started[task] = s->events.now;
    if (!k->size) {
        finish_task(s, task);
        return;
    }
    struct sender probe = {.source = k->source, .source_leaf = leaf_of(s, k->source),
                           .destination_leaf = leaf_of(s, k->destination)};
    probe.distance = distance(s, probe.source_leaf, probe.destination_leaf);
    int plan = s->c->move && probe.distance && any_suspect(s, &probe);
    s->pieces_left[task] = k->pieces[plan];
    for (uint32_t i = 0; i < k->pieces[plan] && !s->events.no_memory; i++)
        start_piece(s, task, &s->pieces[k->first_piece[plan] + i]);
}

void finish_task(struct sim *s, uint32_t task)
{
    const struct task *k = &s->tasks[task];
    s->finished[task] = s->events.now;
    s->left--;
    for (const uint32_t *n = &s->next[k->first_next], *end = n + k->nexts; n != end; n++)
        if (--s->waits[*n] == 0)
            start_at(s, *n, s->events.now);
}
