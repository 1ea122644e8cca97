/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames that wait at a port.
 */
#ifndef SS_QUEUE_H
#define SS_QUEUE_H
#include "port.h"

uint8_t *ss_port_reserve(ss_port *, uint32_t cap); /* NULL: full or down, counted */
void ss_port_commit(ss_port *, const ss_outgoing *);
void ss_port_settle(ss_port *); /* from now on nothing that waits refers to other memory */
/* From now on another thread may send what waits, while frames are put elsewhere. */
void ss_port_part(ss_port *);
/* That thread is done: what it did not send refers to nothing any more, and what came meanwhile waits behind it. */
void ss_port_unite(ss_port *);
void ss_port_empty(ss_port *);
static inline uint32_t ss_port_waiting(const ss_port *p) { return p->queue->n - p->queue->first + p->flying; }
static inline bool ss_port_crowded(const ss_port *p) { /* more waits than should until the end of a batch */
    uint32_t n = p->queue->n - p->queue->first;
    return p->tx == SS_TX_IDLE && (n >= SS_TX_FRAMES || (p->gap_ns && n));
}
#endif
