/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that help the event loop: a job has numbered pieces, and each is done once, by whichever thread is free.
 *
 * The caller works too, once it waits for a job.  So a job ends however late the others wake up, and costs little where
 * all cores are busy.
 */
#ifndef SS_PARALLEL_H
#define SS_PARALLEL_H
#include <stdint.h>

typedef enum { SS_RECEIVING, SS_SENDING, SS_JOBS } ss_job; /* what may go on at a time */

/* Starts helpers and returns how many run: fewer where the system refuses a thread. */
unsigned ss_parallel_start(unsigned helpers);
unsigned ss_parallel_helpers(void);
/* Has piece(arg, 0) to piece(arg, n - 1) done, several at a time; n is below 65536. */
void ss_parallel_begin(ss_job, void (*piece)(void *arg, uint32_t number), void *arg, uint32_t n);
/* Returns when all of them are done. */
void ss_parallel_end(ss_job);
#endif
