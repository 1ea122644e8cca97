/* SPDX-License-Identifier: Apache-2.0 */
/* Which path a packet takes, and what hosts believe of paths.  A path is an agg, and a core where it leaves the pod. */
#ifndef SIM_PATHS_H
#define SIM_PATHS_H
#include "sim.h"

int paths_open(struct sim *s); /* 0 without memory */
void paths_close(struct sim *s);
/* The agg and core of a path by its number. */
void take_path(const struct sim *s, const struct sender *t, uint32_t path, uint16_t *agg, uint16_t *core);
/* Did this path time out a while ago, or does all routing know it to be down? */
int suspect(const struct sim *s, const struct sender *t, uint32_t agg, uint32_t core);
int any_suspect(const struct sim *s, const struct sender *t);
void suspect_path(struct sim *s, const struct sender *t); /* the one that it is on */
/* A random path that nobody suspects; any, where all are suspect. */
void random_path(struct sim *s, const struct sender *t, uint16_t *agg, uint16_t *core);
/* REPS: a sender joins its connection; the path of its next packet; what an ACK tells; after a time-out. */
void reps_open(struct sim *s, struct sender *t);
void reps_path(struct sim *s, struct sender *t, uint16_t *agg, uint16_t *core);
void reps_keep(struct sim *s, struct reps *r, const struct ack *a);
void reps_freeze(struct sim *s, struct reps *r);
#endif
