/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that help the event loop: a job has numbered pieces, and each is done once, by whichever thread is free.
 *
 * The caller works too.  So a job ends however late the others wake up, and costs little where all cores are busy.
 */
#ifndef SS_PARALLEL_H
#define SS_PARALLEL_H
#include <stdint.h>

/* Starts helpers and returns how many run: fewer where the system refuses a thread. */
unsigned ss_parallel_start(unsigned helpers);
/* Does piece(arg, 0) to piece(arg, n - 1), several at a time, and returns when all are done; n is below 65536. */
void ss_parallel(void (*piece)(void *arg, uint32_t number), void *arg, uint32_t n);
#endif
