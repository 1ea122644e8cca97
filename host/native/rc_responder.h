/* SPDX-License-Identifier: Apache-2.0
 *
 * The side that is written to: any order in, whole messages out in order.
 *
 *            expected            reported          top
 *   all in      |  in, holes, in ...  |  in, holes  |
 *   ------------+---------------------+-------------+---->  sequence number
 *
 * A MIDDLE or LAST that comes before its FIRST has a PSN but no address yet: its payload waits in the stash.
 */
#ifndef NF_RC_RESPONDER_H
#define NF_RC_RESPONDER_H
#include "rc_state.h"

/* The next packet came by this source port, over which it is to be answered: so are those before it that came by
 * another one. */
void nf_responder_came_by(nf_responder *, uint16_t port);
/* A packet of a write came, with this payload. */
void nf_responder_take(nf_rc *, nf_qp *, const nf_rc_header *, const uint8_t *payload, uint32_t length, bool marked);
/* After a batch of packets: the holes that are too old to be mere reordering are to be reported, each by a NAK. */
void nf_responder_find_holes(const nf_rc *, nf_qp *);
#endif
