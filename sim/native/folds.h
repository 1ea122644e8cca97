/* SPDX-License-Identifier: Apache-2.0 */
/* Folds: what ranks send over aggregation trees, and the slots of switches.
 *
 * A rank's windows, repeats, questions and timers are those of the host library, whose stream.c and congestion.c are
 * compiled in; what switches do is verdict.c. */
#ifndef SIM_FOLDS_H
#define SIM_FOLDS_H
#include "sim.h"

int folds_open(struct sim *s); /* 0 without memory */
void folds_close(struct sim *s);
void fold_start(struct sim *s, uint32_t channel);
/* Sends one packet of a fold, if one may leave this host; 0 where none may. */
int fold_send(struct sim *s, uint32_t host);
/* A packet of a fold is at the end of a link.  Returns the task that has all its results by it, or NONE. */
uint32_t fold_packet(struct sim *s, const struct packet *p);
void fold_timer(struct sim *s, uint32_t channel);
#endif
