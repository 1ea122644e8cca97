/* SPDX-License-Identifier: Apache-2.0
 *
 * Receiving what arrives at a port.
 */
#ifndef SS_RECEIVE_H
#define SS_RECEIVE_H
#include "port.h"

typedef struct { /* who takes what arrives */
    void *arg;
    void (*each)(void *arg, const ss_segment *); /* a frame */
    void (*between)(void *arg);                  /* after each: bytes that frames refer to are as they were */
} ss_port_user;

/* Packets of one port, which are received together. */
typedef struct ss_batch ss_batch;

/* Reserves buffers for a batch; NULL where there is no room before they are forgotten, or where SS_BATCHES wait. */
ss_batch *ss_batch_begin(ss_port *);
/* Receives it; batches of several ports may be received side by side. */
void ss_batch_receive(ss_batch *);
/* Hands on each of its frames, which ends it.  What was received stays until it is forgotten. */
void ss_batch_hand_on(ss_batch *, const ss_port_user *);
uint32_t ss_batch_port(const ss_batch *);
/* Gives back the buffers of the batches that began last. */
void ss_port_forget(void);
/* Has the next batches begin where the oldest of three sets of batches was received; the other two sets stay. */
void ss_port_forget_oldest(void);
#define SS_BATCHES 4u /* of super-packets, what they hold fits the second cache */
#endif
