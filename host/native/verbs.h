/* SPDX-License-Identifier: Apache-2.0
 *
 * A fold (fold.h) whose packets the NIC sends and receives, over queue pairs of the type RC (verbs_pairs.h).
 *
 * The NIC cuts messages into packets, repeats what was lost and acknowledges.  Here are whole messages alone: a
 * stream's share of an operation is cut every `message` packets, as the windowed ranks of the same job cut theirs, and
 * message i takes part in this order:
 *
 *   made          its lanes stand in the history, which is registered: the NIC sends them from there
 *   posted        a receive for its result, then the message itself; once the results of all below i - 1 are here and
 *                 their sends acknowledged, so that two are outstanding at most (NetReduce, section 4)
 *   acknowledged  the successor's NIC has the result, so the contribution need not be repeated
 *   arrived       the result is in the ring of results, which is registered as well
 *   taken         it is in the output
 *
 * One message more than is outstanding is made ahead.  The history holds twice the switches' slots: the rank that lacks
 * the most is two messages behind, and so much is sent again after a failure (nf_fold_resume).
 */
#ifndef NF_VERBS_H
#define NF_VERBS_H
#include "fold.h"
#include "io.h"
#include "verbs_pairs.h"

typedef struct nf_verbs nf_verbs;

typedef enum { /* nf_run_status, and one more */
               NF_VERBS_DONE = NF_RUN_DONE,
               NF_VERBS_AGAIN = NF_RUN_AGAIN,
               NF_VERBS_FAILED = NF_RUN_FAILED,
               NF_VERBS_BROKEN = NF_RUN_OS_ERROR, /* nf_verbs_why says how */
} nf_verbs_status;

typedef struct { /* the numbers of a stream's queue pairs, which the switches must know */
    uint32_t out_qp, in_qp;
} nf_verbs_numbers;

/* Opens the device for a fold and registers its memory.  own_gid, fold_gid: indices of the GIDs of the rank's own and
 * of its fold address.  Never NULL but where memory is short; nf_verbs_why tells whether it failed. */
nf_verbs *nf_verbs_open(nf_fold *, const char *device, uint32_t port, int32_t own_gid, int32_t fold_gid);
void nf_verbs_close(nf_verbs *);
/* What has failed last; empty where nothing has. */
const char *nf_verbs_why(const nf_verbs *);

/* Makes new queue pairs for all streams, in the order tree 0 data, tree 0 agreement, tree 1 data, ...; what there was
 * of old ones is gone.  False with nf_verbs_why. */
bool nf_verbs_make(nf_verbs *, nf_verbs_numbers *);
/* Connects them, in the same order, and begins where each stream of the fold stands.  False with nf_verbs_why. */
bool nf_verbs_connect(nf_verbs *, const nf_verbs_neighbour *);
/* Ends the queue pairs, since other means carry the fold from now on. */
void nf_verbs_unmake(nf_verbs *);

/* Runs the current operation, as nf_io_run does. */
nf_verbs_status nf_verbs_run(nf_verbs *, int64_t until);
/* While this file descriptor is readable, nf_verbs_run returns NF_VERBS_AGAIN at once. */
void nf_verbs_interrupt_by(nf_verbs *, int fd);
/* The descriptors by which this process has the device; of one that is open. */
void nf_verbs_descriptors(const nf_verbs *, int32_t numbers[3]);
/* Records what the loop does, as nf_io_trace and nf_io_traced do. */
void nf_verbs_trace(nf_verbs *, nf_span *spans, uint64_t room);
uint64_t nf_verbs_traced(nf_verbs *, uint64_t *lost);
uint32_t nf_verbs_abi_size(uint32_t which);
#endif
