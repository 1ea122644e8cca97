/* SPDX-License-Identifier: Apache-2.0
 *
 * What the owner of an endpoint is told: a queue of events, as an adapter's completion queue.
 */
#ifndef NF_RC_EVENTS_H
#define NF_RC_EVENTS_H
#include "rc_state.h"

/* Makes room for so many events more, beside those that are promised already (rc->reserved_events): of each write
 * that is posted and of each queue pair that may break, since neither can wait for memory.  False: no memory, or more
 * than 2^31 events. */
bool nf_rc_reserve_events(nf_rc *, uint32_t more);
/* Appends an event for which there is room. */
void nf_rc_emit(nf_rc *, const nf_rc_event *);
#endif
