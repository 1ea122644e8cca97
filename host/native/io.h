/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop between a fold and the kernel's UDP sockets: everything that nf_fold does not know of.
 */
#ifndef NF_IO_H
#define NF_IO_H
#include "fold.h"
#include "udp.h"

typedef struct nf_io nf_io;

typedef enum {
    NF_RUN_DONE = 0,
    NF_RUN_AGAIN = 1,
    NF_RUN_FAILED = 2,
    NF_RUN_OS_ERROR = 3,
    NF_RUN_REFUSED = 4 /* of nf_io_fold alone: the operation did not begin */
} nf_run_status;

/* receiver: socket bound to (our address, our port).  All sockets are non-blocking and stay the caller's.  NULL: no
 * memory. */
nf_io *nf_io_open(nf_fold *, int receiver, uint32_t n_senders, const nf_sender *);
void nf_io_close(nf_io *);

/* Runs the current operation until it is done, until CLOCK_MONOTONIC is `until`, or a signal came (NF_RUN_AGAIN), until
 * it failed (see nf_fold_failure), or until the kernel refused something for good (NF_RUN_OS_ERROR, *error = errno). */
nf_run_status nf_io_run(nf_io *, int64_t until, int32_t *error);

/* Begins an operation and runs it, as nf_fold_start and nf_io_run do: one call for a short tensor, beside which each
 * counts. */
nf_run_status nf_io_fold(nf_io *, const nf_operation *, const char **why, int32_t *error, int64_t now, int64_t until);

/* Times the kernel had no room or no way for a packet just then, and the last such errno. */
void nf_io_transient_errors(const nf_io *, uint64_t *count, int32_t *error);

typedef enum { NF_QUANTISE, NF_SEND, NF_RETRANSMIT, NF_RECEIVE, NF_DEQUANTISE, NF_WAIT, NF_ASK } nf_span_kind;

typedef struct { /* what the loop did from begin to end, CLOCK_MONOTONIC nanoseconds */
    int64_t begin, end;
    uint32_t kind, packets; /* nf_span_kind; how many packets it was about */
} nf_span;

/* Writes down what the loop does, for a timeline: `spans` has `room`, and stays the caller's; NULL: no more of it. */
void nf_io_trace(nf_io *, nf_span *spans, uint64_t room);
/* How many spans there are since the last call; the next one is written at the start again.  *lost: those without
 * room. */
uint64_t nf_io_traced(nf_io *, uint64_t *lost);

/* While this file descriptor is readable nf_io_run returns NF_RUN_AGAIN at once.  -1: none. */
void nf_io_interrupt_by(nf_io *, int fd);
/* Drops the run that waits to be sent: what it has for trees that stay leaves again. */
void nf_io_discard(nf_io *);
#endif
