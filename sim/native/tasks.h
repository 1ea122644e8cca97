/* SPDX-License-Identifier: Apache-2.0 */
/* The workload's graph: a task starts when all that it waits for is done, and cuts its flow by one of two plans. */
#ifndef SIM_TASKS_H
#define SIM_TASKS_H
#include "sim.h"

int tasks_open(struct sim *s, uint32_t count); /* 0 without memory */
void tasks_close(struct sim *s);
void start_task(struct sim *s, uint32_t task);
/* A piece of a task has arrived as a whole; is acknowledged as a whole. */
void piece_arrived(struct sim *s, uint32_t task);
void piece_acknowledged(struct sim *s, uint32_t task);
#endif
