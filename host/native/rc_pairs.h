/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queue pairs an endpoint has, and which of them wait to be sent for.
 */
#ifndef NF_RC_PAIRS_H
#define NF_RC_PAIRS_H
#include "rc_state.h"

/* The queue pair with this number, or NULL. */
nf_qp *nf_qp_find(const nf_rc *, uint32_t number);
/* Makes room for one queue pair more; false: no memory. */
bool nf_qp_reserve(nf_rc *);
/* Puts the queue pair with this index where nf_qp_find finds it. */
void nf_qp_enter(nf_rc *, uint32_t index);
/* It has packets to send. */
void nf_qp_activate(nf_rc *, nf_qp *);
/* It owes its peer an ACK or a NAK. */
void nf_qp_owe_answer(nf_rc *, nf_qp *);
/* The connection is over: nothing more is sent, and the owner is told why. */
void nf_qp_break(nf_rc *, nf_qp *, uint8_t syndrome, bool by_peer);
#endif
