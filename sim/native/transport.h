/* SPDX-License-Identifier: Apache-2.0 */
/* End points: DCTCP windows over go-back-N, or over receivers that take packets in any order; time-outs. */
#ifndef SIM_TRANSPORT_H
#define SIM_TRANSPORT_H
#include "sim.h"

void transport_close(struct sim *s);
void start_piece(struct sim *s, uint32_t task, const struct piece *piece);
/* The network card of a host is free: the next piece in turn sends one packet. */
void card_free(struct sim *s, uint32_t host);
/* Data is at its receiver, and is answered.  Returns the task of which a piece has arrived whole by it, or NONE. */
uint32_t arrive(struct sim *s, const struct packet *p);
/* An ACK is at its sender.  Returns the task of which a piece is acknowledged as a whole by it, or NONE. */
uint32_t acknowledge(struct sim *s, const struct ack *a);
/* The first ACK of a delay line is at its sender: there is one line for each distance between hosts.  Returns the
 * same. */
uint32_t ack_event(struct sim *s, uint32_t distance);
void timeout(struct sim *s, uint32_t sender);
#endif
