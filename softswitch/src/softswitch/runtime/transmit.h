/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending what waits at a port.
 */
#ifndef SS_TRANSMIT_H
#define SS_TRANSMIT_H
#include "port.h"

/* Lets at most `pps` frames a second leave from now on, evenly spaced; 0: as many as the link takes. */
void ss_port_set_rate(ss_port *, uint64_t pps);
/* Sends what waits, until the kernel takes no more. Where the port is parted (queue.h) another thread may do it. */
void ss_port_send(ss_port *);
/* Takes over what ss_port_send did; p->tx then says what to wait for. */
void ss_port_sent(ss_port *);
#endif
