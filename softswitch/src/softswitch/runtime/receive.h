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

/* Receives one batch and hands on each frame; returns the number of packets taken from the socket.  What was received,
 * by whatever port, stays until ss_port_forget(), which must come first where there is no room for a batch. */
uint32_t ss_port_receive(ss_port *, const ss_port_user *);
bool ss_port_room(const ss_port *);
void ss_port_forget(void);
#endif
