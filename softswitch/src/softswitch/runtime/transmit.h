/* SPDX-License-Identifier: Apache-2.0
 *
 * Sending what waits at a port.
 */
#ifndef SS_TRANSMIT_H
#define SS_TRANSMIT_H
#include "port.h"

/* Lets at most `pps` frames a second leave from now on, evenly spaced; 0: as many as the link takes. */
void ss_port_set_rate(ss_port *, uint64_t pps);
/* Sends what waits, until the kernel takes no more; p->tx then says what to wait for. */
void ss_port_flush(ss_port *);
#endif
