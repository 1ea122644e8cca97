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
void ss_port_empty(ss_port *);
static inline uint32_t ss_port_waiting(const ss_port *p) { return p->n - p->first; }
static inline bool ss_port_crowded(const ss_port *p) { /* more waits than should until the end of a batch */
    return p->tx == SS_TX_IDLE && (ss_port_waiting(p) >= SS_TX_FRAMES || (p->gap_ns && ss_port_waiting(p)));
}
#endif
