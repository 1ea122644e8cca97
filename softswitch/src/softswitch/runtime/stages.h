/* SPDX-License-Identifier: Apache-2.0
 *
 * The three stages of packets: received at ports, handled by the program, sent from ports' queues.
 *
 *   in one thread   received 1, handled 1, received 2, handled 2, ..., sent 1 and 2
 *   overlapping     received 3 | handled 2 | sent 1        side by side, then the next batch: 4 | 3 | 2
 *
 * Where stages overlap, other threads receive and send, which mostly is the kernel's work; the event loop handles all
 * packets, so that a program's state has one user.
 */
#ifndef SS_STAGES_H
#define SS_STAGES_H
#include "io.h"

/* A batch of each of these ports is received, handled and sent before the call returns. */
void ss_stages_turn(ss_io *, ss_port **ports, uint32_t n);
/* A batch of each of these ports is received; those of the last call are handled, and sent after it. */
void ss_stages_overlap(ss_io *, ss_port **ports, uint32_t n);
static inline bool ss_stages_busy(const ss_io *io) { return io->n_arrived || io->n_sending; }
/* Ends what goes on: all that was received is handled, and other threads use no port. */
void ss_stages_drain(ss_io *);
/* Sends or puts aside all that waits, so that it refers to nothing. Nothing goes on. */
void ss_stages_settle(ss_io *);
#endif
