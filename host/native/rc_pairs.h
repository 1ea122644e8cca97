/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queue pairs an endpoint has, and which of them wait to be sent for.
 */
#ifndef NF_RC_PAIRS_H
#define NF_RC_PAIRS_H
#include "rc_state.h"

/* Returns the queue pair with this number, or NULL. */
nf_qp *nf_qp_find(const nf_rc *, uint32_t number);
/* Makes room for one queue pair more.  Returns false where memory is short. */
bool nf_qp_reserve(nf_rc *);
/* Enters the queue pair with this index into the hash table of nf_qp_find. */
void nf_qp_enter(nf_rc *, uint32_t index);
/* Puts a queue pair that has packets to send on the list of those that nf_rc_send serves in turn. */
void nf_qp_activate(nf_rc *, nf_qp *);
/* Puts a queue pair that owes its peer an ACK or a NAK on the list of those that answer. */
void nf_qp_owe_answer(nf_rc *, nf_qp *);
/* Ends the connection: nothing more is sent, and an event tells the owner why.  by_peer: the peer refused with this
 * `syndrome`; else this side did. */
void nf_qp_break(nf_rc *, nf_qp *, uint8_t syndrome, bool by_peer);
#endif
