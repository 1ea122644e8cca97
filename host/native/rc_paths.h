/* SPDX-License-Identifier: Apache-2.0
 *
 * Which paths answer.  A path is what all packets share that leave by one source port for one group of peers (those
 * under one leaf): if any of them is answered over it, it is not dead, however long the others wait.
 *
 *      alive --- nothing answered for long, although repeated: STALLED ---> blamed
 *        ^                                                                    |
 *        '------------ an answer came over it after all: ANSWERED ------------'
 *
 * Silence is the path's, or the peer's process does not run.  To tell which, the oldest packet goes again over this
 * path and over another one at the same moment: where the other one is answered, and this one is not within as long as
 * it usually takes, this path is to blame.  Where no other one answers either, only much longer silence says so.
 *
 * Answers come back by the port that the question left by (rc.h), so an answer's port says which path it speaks for:
 * one that is late, after its queue pair has moved on, still clears the path that it came over, and is no sign of life
 * of the one that the queue pair is on by then.
 */
#ifndef NF_RC_PATHS_H
#define NF_RC_PATHS_H
#include "rc_state.h"

/* Assigns the queue pair to the path that its UDP source port and group make up.  Returns false where memory is short.
 */
bool nf_path_set(nf_rc *, nf_qp *, uint32_t group, uint16_t port);
/* Records that an answer for the queue pair came by this source port at `now` (nanoseconds); if that path was blamed,
 * it is so no longer, and an event says so.  Returns whether it speaks for the path that the queue pair is on: false
 * where the port is that of another one. */
bool nf_path_answered(nf_rc *, nf_qp *, uint16_t port, int64_t now);
/* Asks over another path, or blames the queue pair's path, by an event, where it has been silent for too long by `now`.
 */
void nf_path_watch(nf_rc *, nf_qp *, int64_t now);
#endif
