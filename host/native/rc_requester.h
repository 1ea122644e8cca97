/* SPDX-License-Identifier: Apache-2.0
 *
 * The side that writes: window, timer, and what goes again.
 *
 * A NAK names a lost packet.  Where no NAK comes (the end of a message was lost, or the answers were) the timer (rtt.h)
 * sends the oldest packet again, as a probe; as long as answers then show no more than what was repeated, each sends
 * twice as many.  A spurious time-out, of a timer that was too short, shows in the answers that come next: they tell of
 * packets that were not repeated, or come sooner after a repetition than the one before did, or than round trips take
 * (as in F-RTO, RFC 5682; answers without news prove nothing, packets behind a hole bring them as well).  Then
 * nothing more goes again.  Which paths live is another clock's business (rc_paths.h).
 */
#ifndef NF_RC_REQUESTER_H
#define NF_RC_REQUESTER_H
#include "rc_state.h"

/* Of the congestion windows of all queue pairs with this window. */
nf_congestion_rules nf_requester_rules(uint32_t window);
void nf_requester_open(const nf_rc *, nf_requester *);
/* Takes on a write; false: no memory. */
bool nf_requester_post(nf_rc *, nf_qp *, nf_write);
/* How many packets may leave now: lost ones and new ones together. */
uint32_t nf_requester_sendable(const nf_rc *, const nf_requester *);
/* The next one: lost ones first.  Only after nf_requester_sendable() > 0. */
uint64_t nf_requester_peek(const nf_rc *, const nf_requester *);
/* The write that a posted, unacknowledged packet belongs to. */
const nf_write *nf_requester_write(const nf_requester *, uint64_t seq);
/* Packet `seq` leaves. */
void nf_requester_send(const nf_rc *, nf_requester *, uint64_t seq, int64_t now);
/* The kernel did not take it: it is to be sent again. */
void nf_requester_unsent(const nf_rc *, nf_requester *, uint64_t seq);
/* An ACK or NAK came. */
void nf_requester_take_answer(nf_rc *, nf_qp *, uint32_t psn, uint8_t syndrome, bool marked, int64_t now);
/* True where the timer ran out. */
bool nf_requester_tick(const nf_rc *, nf_requester *, int64_t now);
/* The oldest packet goes again, and what answers it tells about the others in flight. */
void nf_requester_probe(const nf_rc *, nf_requester *, int64_t now);
/* Packets take another path from here on.  lost: what is in flight was on a dead one. */
void nf_requester_moved(const nf_rc *, nf_requester *, bool lost, int64_t now);
#endif
