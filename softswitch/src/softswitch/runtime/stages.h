/* SPDX-License-Identifier: Apache-2.0
 *
 * The three stages of packets: received at ports, handled by the program, sent from ports' queues.
 *
 *   in one thread   received 1, handled 1, received 2, handled 2, ..., sent 1 and 2
 *   overlapping     received 3 | handled 2 | sent 1        side by side, then the next batch: 4 | 3 | 2
 *
 * The caller's thread handles all packets in both cases, so that a program's state has one user.  Other threads receive
 * and send if stages overlap, which mostly is the kernel's work.
 */
#ifndef SS_STAGES_H
#define SS_STAGES_H
#include "port.h"
#include "receive.h"
#include "switch.h"

#define SS_MAX_PORTS 511u /* v1model: 9 bits, the last one means "drop" */

typedef struct {
    ss_switch *sw;
    ss_port *ports[SS_MAX_PORTS];
    uint32_t numbers[SS_MAX_PORTS], n_ports; /* port numbers in use */
    uint64_t now_us;
    bool crowded; /* a port has more frames than should wait for the end of a batch */
    ss_batch *coming[SS_BATCHES], *arrived[SS_BATCHES]; /* being received; to be handled */
    uint32_t n_arrived;
    ss_port *sending[SS_MAX_PORTS]; /* from which other threads send */
    uint32_t n_sending;
    /* for crash reports: the frame in the pipeline */
    volatile uint32_t last_port, last_len;
    const uint8_t *volatile last_frame;
} ss_stages;

/* A batch of each of these ports is received, handled and sent before the call returns. */
void ss_stages_turn(ss_stages *, ss_port **ports, uint32_t n);
/* A batch of each of these ports is received; those of the last call are handled, and sent after it. */
void ss_stages_overlap(ss_stages *, ss_port **ports, uint32_t n);
static inline bool ss_stages_busy(const ss_stages *s) { return s->n_arrived || s->n_sending; }
/* Ends what goes on: all that was received is handled, and other threads use no port. */
void ss_stages_drain(ss_stages *);
/* Sends or puts aside all that waits, so that it refers to nothing. Nothing goes on. */
void ss_stages_settle(ss_stages *);
#endif
