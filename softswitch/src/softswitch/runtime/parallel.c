/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that help the event loop; see parallel.h.
 *
 * `claim` holds the job's number, its next piece and its end in one word, so that a thread takes a piece of the present
 * job or nothing: one that comes late finds no piece left, or another number.  What the job does is written before
 * `claim`, and stays until `left` is 0, which is after each piece that was taken.
 */
#define _GNU_SOURCE
#include "parallel.h"
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ONE_PIECE (1u << 16)
#define CALLER_LOOKS_NS 20000u  /* before it sleeps: the pieces of others are about to end, too */
#define HELPER_LOOKS_NS 200000u /* before it sleeps: the next job comes soon, and waking up takes longer than a job */

static struct {
    _Atomic uint64_t claim; /* the job's number << 32 | next piece << 16 | number of pieces */
    _Atomic uint32_t left;  /* pieces that are not done */
    void (*piece)(void *, uint32_t);
    void *arg;
} jobs[SS_JOBS];
static _Atomic uint32_t begun;    /* jobs so far; helpers sleep until it changes */
static _Atomic uint32_t starting; /* helpers that do not run yet */
static _Atomic int core_of_caller = -1;
static unsigned helpers;

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Returns when the word has changed or the time is over.  Others run meanwhile where they need the core. */
static void look_while(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    for (uint64_t until = now_ns() + ns; atomic_load(word) == value && now_ns() < until; sched_yield()) {
        for (uint32_t i = 0; i < 200 && atomic_load(word) == value; i++) {
        }
    }
}

static void wake(_Atomic uint32_t *word, unsigned most) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

static void count_down(_Atomic uint32_t *left) {
    if (atomic_fetch_sub(left, 1) == 1) wake(left, 1);
}

static void wait_for_none(_Atomic uint32_t *left) {
    for (uint32_t n; (n = atomic_load(left));) sleep_while(left, n);
}

static bool do_a_piece(ss_job j) {
    uint64_t claim = atomic_load(&jobs[j].claim);
    while ((uint16_t)(claim >> 16) < (uint16_t)claim) {
        if (!atomic_compare_exchange_weak(&jobs[j].claim, &claim, claim + ONE_PIECE)) continue;
        jobs[j].piece(jobs[j].arg, (uint16_t)(claim >> 16));
        return true;
    }
    return false;
}

/* The kernel wakes a thread where its waker runs if the other cores of a virtual machine sleep, and leaves it there. */
static void leave_core_of_caller(void) {
    int core = atomic_load(&core_of_caller);
    cpu_set_t all, others;
    if (sched_getcpu() != core || sched_getaffinity(0, sizeof all, &all)) return;
    others = all;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others)) sched_setaffinity(0, sizeof all, &all);
}

static void *help(void *unused) {
    (void)unused;
    /* As the event loop while there is work for helpers (io.c): who sends to the switch is not interrupted. */
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    count_down(&starting);
    for (;;) {
        uint32_t seen = atomic_load(&begun);
        leave_core_of_caller();
        for (ss_job j = 0; j < SS_JOBS; j++)
            while (do_a_piece(j)) count_down(&jobs[j].left);
        look_while(&begun, seen, HELPER_LOOKS_NS);
        sleep_while(&begun, seen);
    }
    return NULL;
}

unsigned ss_parallel_start(unsigned most) {
    pthread_t thread;
    while (helpers < most) {
        atomic_fetch_add(&starting, 1);
        if (pthread_create(&thread, NULL, help, NULL)) {
            atomic_fetch_sub(&starting, 1);
            break;
        }
        pthread_detach(thread);
        helpers++;
    }
    wait_for_none(&starting); /* a thread's first system calls are not the event loop's (confine.h) */
    return helpers;
}

unsigned ss_parallel_helpers(void) { return helpers; }

void ss_parallel_begin(ss_job j, void (*piece)(void *, uint32_t), void *arg, uint32_t n) {
    atomic_store(&core_of_caller, sched_getcpu());
    jobs[j].piece = piece, jobs[j].arg = arg;
    atomic_store(&jobs[j].left, n);
    atomic_store(&jobs[j].claim, ((atomic_load(&jobs[j].claim) >> 32) + 1) << 32 | n);
    atomic_fetch_add(&begun, 1);
    if (n) wake(&begun, n < helpers ? n : helpers);
}

void ss_parallel_end(ss_job j) {
    while (do_a_piece(j)) atomic_fetch_sub(&jobs[j].left, 1); /* the caller does not sleep */
    for (uint32_t left; (left = atomic_load(&jobs[j].left));) {
        look_while(&jobs[j].left, left, CALLER_LOOKS_NS);
        sleep_while(&jobs[j].left, left);
    }
}
