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

/* receiver: socket bound to (our address, our port).  All sockets are non-blocking and stay the caller's.
 * NULL: no memory, or no thread. */
nf_rc_io *nf_rc_io_open(nf_rc *, int receiver, uint32_t n_senders, const nf_sender *);
/* Ends the progress thread; the endpoint stays the caller's. */
void nf_rc_io_close(nf_rc_io *);

/* Everything that touches the endpoint happens between these two; they do not nest. */
void nf_rc_io_lock(nf_rc_io *);
void nf_rc_io_unlock(nf_rc_io *);

typedef struct {       /* what a call of nf_rc_io_run came to */
    uint64_t progress; /* nf_rc_progress at its end */
    uint32_t n_events; /* how many events it took off the queue */
    int32_t error;     /* an errno that will not pass, or 0 */
} nf_rc_outcome;

/* Moves packets until there is an event, one of `others` is ready (its revents say so), CLOCK_MONOTONIC is `until`, or
 * a signal came.  Answers are out before it returns.  Then it takes the oldest events off the queue, `room` at most.
 * quiet: events of these kinds (NF_RC_QUIET_...) do not end it, and wait for what does.  Takes the lock. */
void nf_rc_io_run(nf_rc_io *, int64_t until, struct pollfd *others, uint32_t n_others, uint32_t quiet,
                  nf_rc_event *events, uint32_t room, nf_rc_outcome *);
/* These are nf_rc_write and nf_rc_register, and take the lock. */
bool nf_rc_io_write(nf_rc_io *, uint32_t qp, const void *data, uint32_t length, uint32_t key, uint64_t offset,
                    uint64_t id);
int64_t nf_rc_io_register(nf_rc_io *, void *base, uint64_t length, bool fill);

/* Times the kernel had no way for a packet just then, and the last such errno. */
void nf_rc_io_transient_errors(const nf_rc_io *, uint64_t *count, int32_t *error);
uint32_t nf_rc_abi_size(uint32_t which); /* of nf_rc_plan, nf_rc_event, nf_rc_run, nf_rc_pair_state, nf_sender */
#endif
