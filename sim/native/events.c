/* SPDX-License-Identifier: Apache-2.0 */
/* The two heaps: 4-ary for elements, binary for timers. */
#include "events.h"

#include <string.h>

int events_open(struct events *e, uint32_t elements) {
    e->heap = malloc(elements * sizeof *e->heap);
    return e->heap != NULL;
}

void events_close(struct events *e) {
    free(e->heap);
    free(e->timers);
}

/* ---- elements ---- */

static inline int earlier(const struct event *a, const struct event *b) {
    return a->time < b->time || (a->time == b->time && a->element < b->element);
}

void schedule(struct events *e, uint32_t element, uint64_t time) {
    struct event event = {time, element};
    uint32_t i = e->heap_count++;
    for (; i && earlier(&event, &e->heap[(i - 1) / 4]); i = (i - 1) / 4) e->heap[i] = e->heap[(i - 1) / 4];
    e->heap[i] = event;
}

static void sink_first(struct events *e, struct event event) {
    struct event *heap = e->heap;
    uint32_t i = 0;
    for (uint32_t child; (child = 4 * i + 1) < e->heap_count;) {
        uint32_t best = child, end = child + 4 < e->heap_count ? child + 4 : e->heap_count;
        while (++child < end)
            if (earlier(&heap[child], &heap[best])) best = child;
        if (!earlier(&heap[best], &event)) break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = event;
}

void retime_first(struct events *e, uint64_t time) { sink_first(e, (struct event){time, e->heap[0].element}); }

void remove_first(struct events *e) {
    if (--e->heap_count) sink_first(e, e->heap[e->heap_count]);
}

/* ---- timers, by (time, order of setting) ---- */

static int sooner(const struct timer *a, const struct timer *b) {
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

void set_timer(struct events *e, uint64_t time, enum timer_kind kind, uint32_t what) {
    if (e->timer_count == e->timer_room) {
        uint32_t room = e->timer_room ? 2 * e->timer_room : 1024;
        struct timer *timers = realloc(e->timers, room * sizeof *timers);
        if (!timers) {
            e->no_memory = 1;
            return;
        }
        e->timers = timers;
        e->timer_room = room;
    }
    struct timer t = {time, e->timer_order++, what, kind};
    uint32_t i = e->timer_count++;
    for (; i && sooner(&t, &e->timers[(i - 1) / 2]); i = (i - 1) / 2) e->timers[i] = e->timers[(i - 1) / 2];
    e->timers[i] = t;
}

struct timer pop_timer(struct events *e) {
    struct timer first = e->timers[0], last = e->timers[--e->timer_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < e->timer_count; i = child) {
        if (child + 1 < e->timer_count && sooner(&e->timers[child + 1], &e->timers[child])) child++;
        if (!sooner(&e->timers[child], &last)) break;
        e->timers[i] = e->timers[child];
    }
    if (e->timer_count) e->timers[i] = last;
    return first;
}

int fifo_grow(struct fifo *f, size_t item) {
    uint32_t room = f->room ? 2 * f->room : 16;
    char *items = malloc((size_t)room * item);
    if (!items) return 0;
    uint32_t first = f->room - f->head < f->count ? f->room - f->head : f->count;
    if (f->count) {
        memcpy(items, (char *)f->items + f->head * item, first * item);
        memcpy(items + first * item, f->items, (f->count - first) * item);
    }
    free(f->items);
    *f = (struct fifo){items, 0, f->count, room};
    return 1;
}
