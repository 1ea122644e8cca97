/* SPDX-License-Identifier: Apache-2.0
 *
 * Which queue pairs are open: those that have memory for a window, as an adapter has a context for each.
 *
 *            the first write, the first new packet
 *   closed ----------------------------------------> open
 *      ^                                               |
 *      '-- idle for longest, and another one opens ----'
 *
 * A closed one keeps its numbers: where both directions stand, the round trip, the congestion window, its path.  So
 * each end closes by itself, and there is nothing to agree on or to negotiate anew: PSNs go on where they were, the
 * other end cannot tell, and what is late is known to be old and answered with an ACK, without opening anything.
 */
#ifndef NF_RC_CONTEXTS_H
#define NF_RC_CONTEXTS_H
#include "rc_state.h"

/* Before memory for a window is needed: the queue pair is open from here on. */
void nf_context_open(nf_rc *, nf_qp *);
/* Frees what both directions need while the queue pair is open. */
void nf_context_release(nf_qp *);
#endif
