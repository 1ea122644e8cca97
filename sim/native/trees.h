/* SPDX-License-Identifier: Apache-2.0 */
/* The trees of folds, whoever's rules they follow: packets on edges, channels' turns at their hosts' cards, and when a
 * task has all its results. */
#ifndef SIM_TREES_H
#define SIM_TREES_H
#include "sim.h"

int trees_open(struct sim *s); /* 0 without memory */
void trees_close(struct sim *s);
/* The channel that an edge to a host has. */
uint32_t channel_of(const struct sim *s, uint32_t edge);
uint32_t host_of(const struct sim *s, uint32_t channel);
/* Bytes on the wire of a PSN's packet below or above an edge. */
uint16_t wire_bytes(const struct sim *s, uint32_t edge, uint32_t psn);
/* Puts a packet on the next link of its edge. */
void forward(struct sim *s, const struct packet *p);
/* A channel wants a turn at its host's card. */
void take_turn(struct sim *s, uint32_t channel);
/* Sends one packet of a fold, if one may leave this host; 0 where none may. */
int fold_send(struct sim *s, uint32_t host);
/* A packet of a fold is at the end of a link.  Returns the task that has all its results by it, or NONE. */
uint32_t fold_packet(struct sim *s, const struct packet *p);
/* A channel has all its results.  Returns its task if that has all, or NONE. */
uint32_t channel_done(struct sim *s, uint32_t channel);
/* What a channel contributes to the sum of a PSN, and what all of its tree do together, modulo 2^32. */
uint32_t contribution_of(const struct sim *s, uint32_t channel, uint32_t psn);
uint32_t total_of(const struct sim *s, uint32_t channel, uint32_t psn);
/* The root of the tree that an edge is of. */
uint32_t root_of(const struct sim *s, uint32_t edge);
#endif
