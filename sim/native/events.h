/* SPDX-License-Identifier: Apache-2.0 */
/* Simulated time: what happens next.  Two heaps, since most events are of one kind.
 *
 * Elements are numbered things with at most one next event each (a link, a network card, a delay line).  Only the first
 * of the heap ever changes, so it holds about a thousand entries where a heap of packets would hold a million.  Timers
 * are what is rare.  Ties go to the lower element or the earlier timer: runs repeat exactly. */
#ifndef SIM_EVENTS_H
#define SIM_EVENTS_H
#include <stdint.h>
#include <stdlib.h>

#define NEVER UINT64_MAX
#define NONE UINT32_MAX

enum timer_kind { START, TIMEOUT, FAULT, ANNOUNCE, FOLD_TIMER };

struct timer {
    uint64_t time, order;
    uint32_t what, kind; /* number of the task, sender or fault; enum timer_kind */
};

struct event {
    uint64_t time;
    uint32_t element;
};

struct events {
    uint64_t now; /* ps */
    struct event *heap;
    uint32_t heap_count;
    struct timer *timers;
    uint32_t timer_count, timer_room;
    uint64_t timer_order;
    int no_memory; /* set by whoever was refused some; the loop ends then */
};

int events_open(struct events *e, uint32_t elements); /* 0 without memory */
void events_close(struct events *e);

void schedule(struct events *e, uint32_t element, uint64_t time); /* an element that is not in the heap */
void retime_first(struct events *e, uint64_t time);
void remove_first(struct events *e);

void set_timer(struct events *e, uint64_t time, enum timer_kind kind, uint32_t what);
struct timer pop_timer(struct events *e);

/* ---- what waits behind an element's next event: a growing ring of items in the order of their times ---- */

struct fifo {
    void *items;
    uint32_t head, count, room; /* room is a power of two */
};

int fifo_grow(struct fifo *f, size_t item); /* 0 without memory */

static inline void *push(struct events *e, struct fifo *f, size_t item) {
    if (f->count == f->room && !fifo_grow(f, item)) {
        e->no_memory = 1;
        return NULL;
    }
    return (char *)f->items + ((f->head + f->count++) & (f->room - 1)) * item;
}

static inline void *front(const struct fifo *f, size_t item) { return (char *)f->items + f->head * item; }

static inline void pop(struct fifo *f) {
    f->head = (f->head + 1) & (f->room - 1);
    f->count--;
}
#endif
