/* SPDX-License-Identifier: Apache-2.0 */
/* Packet-level simulation of a folded Clos fabric: set-up, the event loop, results. */
#include "atp.h"
#include "fabric.h"
#include "folds.h"
#include "paths.h"
#include "switchml.h"
#include "tasks.h"
#include "transport.h"
#include "trees.h"

#define ACK_BYTES 64

static int hosts_open(struct sim *s) {
    const struct config *c = s->c;
    s->hosts = calloc(s->size, sizeof *s->hosts);
    for (uint32_t i = 0; s->hosts && i < s->size; i++)
        s->hosts[i].head = s->hosts[i].tail = s->hosts[i].fold_head = s->hosts[i].fold_tail = NONE;
    s->ack_delay[0] = 2 * (c->delay + (uint64_t)(ACK_BYTES * c->host_rate));
    s->ack_delay[1] = s->ack_delay[0] + 2 * (c->delay + (uint64_t)(ACK_BYTES * c->leaf_rate));
    s->ack_delay[2] = s->ack_delay[1] + 2 * (c->delay + (uint64_t)(ACK_BYTES * c->core_rate));
    return s->hosts != NULL;
}

/* A fault at time 0 is there before any flow starts, also one that starts at 0. */
static void set_faults(struct sim *s, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        const struct fault *f = &s->faults[i];
        if (f->time)
            set_timer(&s->events, f->time, FAULT, i);
        else
            fault(s, f);
        if (f->announced)
            set_timer(&s->events, f->announced, ANNOUNCE, i);
        else
            announce(s, f);
    }
}

/* What a packet means to the host that it has reached: data, or an ACK that queued like data. */
static void deliver(struct sim *s, const struct packet *p) {
    if (p->fold) {
        uint32_t task = fold_packet(s, p);
        if (task != NONE) {
            piece_arrived(s, task);
            piece_acknowledged(s, task);
        }
    } else if (p->answer) {
        const struct ack a = {0, p->piece, p->seq, p->agg, p->core, p->echo, p->nack};
        s->r.answered++;
        uint32_t task = acknowledge(s, &a);
        if (task != NONE) piece_acknowledged(s, task);
    } else {
        uint32_t task = arrive(s, p);
        if (task != NONE) piece_arrived(s, task);
    }
}

static void element_event(struct sim *s, uint32_t element) {
    if (element < s->link_count) {
        struct packet arrived;
        if (link_event(s, element, &arrived)) deliver(s, &arrived);
    } else if (element < s->link_count + s->size) {
        card_free(s, element - s->link_count);
    } else {
        uint32_t task = ack_event(s, element - s->link_count - s->size);
        if (task != NONE) piece_acknowledged(s, task);
    }
}

static void timer_event(struct sim *s, struct timer t) {
    switch ((enum timer_kind)t.kind) {
    case START: start_task(s, t.what); break;
    case TIMEOUT: timeout(s, t.what); break;
    case FAULT: fault(s, &s->faults[t.what]); break;
    case ANNOUNCE: announce(s, &s->faults[t.what]); break;
    case FOLD_TIMER: s->rules->timer(s, t.what); break;
    }
}

static enum outcome loop(struct sim *s) {
    struct events *e = &s->events;
    while (s->left) {
        uint64_t event = e->heap_count ? e->heap[0].time : NEVER;
        uint64_t timer = e->timer_count ? e->timers[0].time : NEVER;
        uint64_t time = timer <= event ? timer : event;
        if (e->no_memory) return NO_MEMORY;
        if (time > s->c->deadline) return DEADLINE;
        e->now = time;
        if (timer <= event)
            timer_event(s, pop_timer(e));
        else
            element_event(s, e->heap[0].element);
    }
    return FINISHED;
}

uint64_t sim_abi(void) {
    return sizeof(struct config) << 40 | sizeof(struct task) << 30 | sizeof(struct piece) << 20 |
           sizeof(struct fault) << 10 | sizeof(struct link_count);
}

/* The same of folds. */
uint64_t sim_fold_abi(void) {
    return sizeof(struct fold_edge) << 40 | sizeof(struct fold_node) << 30 | sizeof(struct fold_channel) << 20 |
           sizeof(struct drop) << 10 | sizeof(struct result);
}

/* Runs to the end.  started, finished: a time for each task, UINT64_MAX where it never came to that. */
int sim_run(const struct config *config, uint32_t task_count, const struct task *tasks, const uint32_t *next,
            const struct piece *pieces, const double *rates, const struct folds *folds, uint32_t fault_count,
            const struct fault *faults, uint64_t *started, uint64_t *finished, struct link_count *counts,
            struct result *result) {
    struct sim s = {.c = config,
                    .tasks = tasks,
                    .next = next,
                    .pieces = pieces,
                    .rates = rates,
                    .folds = folds,
                    .faults = faults,
                    .random = config->seed,
                    .started = started,
                    .finished = finished,
                    .size = config->hosts * config->leaves * config->pods};
    static const struct fold_rules *const rules[FOLD_PROTOCOLS] = {&netfold_rules, &switchml_rules, &atp_rules};
    enum outcome outcome = NO_MEMORY;
    s.rules = rules[config->fold_protocol];
    if (fabric_open(&s) && hosts_open(&s) && paths_open(&s) && events_open(&s.events, s.link_count + s.size + 3) &&
        trees_open(&s) && s.rules->open(&s) && tasks_open(&s, task_count)) {
        set_faults(&s, fault_count);
        outcome = loop(&s);
        for (uint32_t i = 0; i < s.link_count; i++) {
            counts[i] = s.links[i].count;
            counts[i].deepest = (uint64_t)((double)s.links[i].deepest / s.links[i].rate);
        }
    }
    s.r.end = outcome == DEADLINE ? config->deadline : s.events.now;
    s.r.unfinished = s.left;
    s.r.pieces = s.sender_count;
    s.rules->close(&s);
    trees_close(&s);
    fabric_close(&s);
    paths_close(&s);
    transport_close(&s);
    tasks_close(&s);
    events_close(&s.events);
    free(s.hosts);
    *result = s.r;
    return outcome;
}
