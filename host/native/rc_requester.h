/* SPDX-License-Identifier: Apache-2.0
 *
 * The side that writes: window, timer, and what goes again.
 *
 * A NAK names a lost packet.  Where no NAK comes (the end of a message was lost, or the answers were) the timer (rtt.h)
 * sends the oldest packet again, as a probe; each answer then sends twice as many of those that were in flight.  A
 * spurious time-out, of a timer that was too short, shows in the answers that come next: they come sooner after a
 * repetition than the one before did, or than round trips take.  Then nothing more goes again.  That they tell of more
 * than was repeated proves nothing, other than in F-RTO (RFC 5682): what had arrived behind a hole is acknowledged with
 * it.  For the same reason packets that were acknowledged with a repeated one do not measure the round trip.  Which
 * paths live is another clock's business (rc_paths.h).
 */
#ifndef NF_RC_REQUESTER_H
#define NF_RC_REQUESTER_H
#include "rc_state.h"

/* Returns the rules for the congestion windows of all queue pairs that have at most `window` packets in flight. */
nf_congestion_rules nf_requester_rules(uint32_t window);
/* Sets a new requester up, with nothing posted and the congestion window at its start. */
void nf_requester_open(const nf_rc *, nf_requester *);
/* Takes on a write, behind those posted before.  Returns false where memory is short. */
bool nf_requester_post(nf_rc *, nf_qp *, nf_write);
/* Returns how many packets may leave now, lost ones and new ones together. */
uint32_t nf_requester_sendable(const nf_rc *, const nf_requester *);
/* Returns the sequence number of the packet to send next: the lowest lost one, or else the first one never sent.  To be
 * called only where nf_requester_sendable() > 0. */
uint64_t nf_requester_peek(const nf_rc *, const nf_requester *);
/* Returns the write that a posted, unacknowledged packet belongs to. */
const nf_write *nf_requester_write(const nf_requester *, uint64_t seq);
/* Records that packet `seq` leaves at `now` (nanoseconds, as everywhere here), and starts the timer if it rests. */
void nf_requester_send(const nf_rc *, nf_requester *, uint64_t seq, int64_t now);
/* Marks packet `seq`, which the kernel did not take, as one to send again. */
void nf_requester_unsent(const nf_rc *, nf_requester *, uint64_t seq);
/* Records that a copy of the oldest packet left by another path than this queue pair's. */
void nf_requester_copied(const nf_rc *, nf_requester *);
/* Takes in an ACK or NAK, whose `psn` and `syndrome` are the BTH's and AETH's; marked: it met congestion (ECN); own: it
 * came over the path that the queue pair is on. */
void nf_requester_take_answer(nf_rc *, nf_qp *, uint32_t psn, uint8_t syndrome, bool marked, bool own, int64_t now);
/* Does what is due where the timer ran out: the oldest packet goes again.  Returns whether it ran out. */
bool nf_requester_tick(const nf_rc *, nf_requester *, int64_t now);
/* Marks the oldest packet as one to send again; what answers it tells about the others in flight. */
void nf_requester_probe(const nf_rc *, nf_requester *, int64_t now);
/* Tells that packets take another path from here on, where round trips take `trip`.  lost: what is in flight was on one
 * that does not answer, and a probe asks the peer at once what it has of it.  proven: that path is dead, and the peer
 * is not, so the probe's answer lets a window of the rest go again; else, and where no round trip is known, few. */
void nf_requester_moved(const nf_rc *, nf_requester *, nf_rtt trip, bool lost, bool proven, int64_t now);
#endif
