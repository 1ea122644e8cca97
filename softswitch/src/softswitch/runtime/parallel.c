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
#include <unistd.h>

#define ONE_PIECE (1u << 16)
#define LOOKS 2000u /* at `left` before the caller sleeps: some microseconds, as other pieces are about to end, too */

static struct {
    _Atomic uint64_t claim; /* job << 32 | next piece << 16 | number of pieces */
    _Atomic uint32_t jobs;  /* so far; helpers sleep until it changes */
    _Atomic uint32_t left;  /* pieces that are not done; at the start, helpers that do not run yet */
    void (*piece)(void *, uint32_t);
    void *arg;
    unsigned helpers;
} the;

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, unsigned most) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, NULL, NULL, 0);
}

static void done(void) {
    if (atomic_fetch_sub(&the.left, 1) == 1) wake(&the.left, 1);
}

static bool do_a_piece(bool helper) {
    uint64_t claim = atomic_load(&the.claim);
    while ((uint16_t)(claim >> 16) < (uint16_t)claim) {
        if (!atomic_compare_exchange_weak(&the.claim, &claim, claim + ONE_PIECE)) continue;
        the.piece(the.arg, (uint16_t)(claim >> 16));
        helper ? done() : (void)atomic_fetch_sub(&the.left, 1); /* the caller does not sleep */
        return true;
    }
    return false;
}

static void *help(void *unused) {
    (void)unused;
    /* As the event loop while there is work for helpers (io.c): who sends to the switch is not interrupted. */
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    done();
    for (;;) {
        uint32_t jobs = atomic_load(&the.jobs);
        while (do_a_piece(true)) {
        }
        sleep_while(&the.jobs, jobs);
    }
    return NULL;
}

static void wait_for_all(void) {
    for (uint32_t left; (left = atomic_load(&the.left));) sleep_while(&the.left, left);
}

unsigned ss_parallel_start(unsigned helpers) {
    pthread_t thread;
    while (the.helpers < helpers) {
        atomic_fetch_add(&the.left, 1);
        if (pthread_create(&thread, NULL, help, NULL)) {
            atomic_fetch_sub(&the.left, 1);
            break;
        }
        pthread_detach(thread);
        the.helpers++;
    }
    wait_for_all(); /* a thread's first system calls are not the event loop's (confine.h) */
    return the.helpers;
}

void ss_parallel(void (*piece)(void *, uint32_t), void *arg, uint32_t n) {
    if (!the.helpers || n < 2) {
        for (uint32_t i = 0; i < n; i++) piece(arg, i);
        return;
    }
    the.piece = piece, the.arg = arg;
    atomic_store(&the.left, n);
    atomic_store(&the.claim, ((atomic_load(&the.claim) >> 32) + 1) << 32 | n);
    atomic_fetch_add(&the.jobs, 1);
    wake(&the.jobs, n - 1 < the.helpers ? n - 1 : the.helpers);
    while (do_a_piece(false)) {
    }
    for (unsigned i = 0; i < LOOKS && atomic_load(&the.left); i++) {
    }
    wait_for_all();
}
