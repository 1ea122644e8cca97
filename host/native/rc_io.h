/* SPDX-License-Identifier: Apache-2.0
 *
 * An endpoint over UDP sockets.  A thread of its own, the progress thread, looks in now and then while nobody is in
 * nf_rc_io_run: what a NIC would do by itself, answering and repeating, must not wait for the program's next call.
 */
#ifndef NF_RC_IO_H
#define NF_RC_IO_H
#include <poll.h>

#include "rc.h"
#include "udp.h"

typedef struct nf_rc_io nf_rc_io;

/* receiver: socket bound to (our address, 4791).  All sockets are non-blocking and stay the caller's.
 * NULL: no memory, or no thread. */
nf_rc_io *nf_rc_io_open(nf_rc *, int receiver, uint32_t n_senders, const nf_sender *);
/* Ends the progress thread; the endpoint stays the caller's. */
void nf_rc_io_close(nf_rc_io *);

/* Everything that touches the endpoint happens between these two; they do not nest. */
void nf_rc_io_lock(nf_rc_io *);
void nf_rc_io_unlock(nf_rc_io *);

/* Moves packets until there is an event, one of `others` is ready (its revents say so), CLOCK_MONOTONIC is `until`, or
 * a signal came.  Answers are out before it returns.  Returns an errno that will not pass, or 0.  Takes the lock. */
int32_t nf_rc_io_run(nf_rc_io *, int64_t until, struct pollfd *others, uint32_t n_others);

/* Times the kernel had no way for a packet just then, and the last such errno. */
void nf_rc_io_transient_errors(const nf_rc_io *, uint64_t *count, int32_t *error);
uint32_t nf_rc_abi_size(uint32_t which); /* of nf_rc_plan, nf_rc_event, nf_rc_run, nf_rc_pair_state, nf_sender */
#endif
