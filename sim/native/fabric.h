/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a folded Clos fabric: output queues with ECN, switches with shared buffers, what is down. */
#ifndef SIM_FABRIC_H
#define SIM_FABRIC_H
#include "sim.h"

int fabric_open(struct sim *s); /* 0 without memory */
void fabric_close(struct sim *s);
/* A packet enters the queue of a link, or is dropped. */
void transmit(struct sim *s, uint32_t link, const struct packet *p);
/* The first packet of a link is at its far end.  Returns 1 where that is a host, or a packet of a fold is
 * there, with the packet; a switch sends all others on. */
int link_event(struct sim *s, uint32_t link, struct packet *p);
void fault(struct sim *s, const struct fault *f);
void announce(struct sim *s, const struct fault *f);
/* Is a link on the way from leaf to leaf down (or, with known, announced to be down)? */
int blocked(const struct sim *s, uint32_t a, uint32_t b, uint32_t agg, uint32_t core, int known);
#endif
