/* SPDX-License-Identifier: Apache-2.0
 *
 * What libibverbs has of one rank: its device, and for each stream two queue pairs of the type RC and their memory.
 *
 *   out   from the rank's own address to the fold address of its successor: sends contributions
 *   in    from the rank's own fold address; takes results, and acknowledges them to its predecessor
 *
 * Functions that can fail return false and leave a line in `why` that says what failed, and with which errno.
 */
#ifndef NF_VERBS_PAIRS_H
#define NF_VERBS_PAIRS_H
#include "roce.h"

#include <infiniband/verbs.h>

#define NF_VERBS_OUTSTANDING 4 /* work requests that a queue may hold: two messages, and room while they complete */
#define NF_VERBS_PIECES 2      /* of a message's memory, which may wrap around the end of a ring */
#define NF_VERBS_TIMEOUT 14    /* 4.096 us * 2^14 = 67 ms until a NIC sends again what nobody acknowledged */
#define NF_VERBS_RETRIES 7     /* time-outs before a queue pair breaks; rdma_rxe takes 7 for infinity */
#define NF_VERBS_RNR_RETRIES 7 /* InfiniBand's code for infinity: a switch makes NICs wait for a late rank */
#define NF_VERBS_WHY 320

typedef struct {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    struct ibv_cq *completions;
    uint8_t port;
    int own_gid, fold_gid; /* their places in the port's table of GIDs */
    enum ibv_mtu path_mtu;
    char why[NF_VERBS_WHY];
} nf_verbs_device;

typedef struct {
    struct ibv_qp *out, *in;
} nf_verbs_ends;

typedef struct {                     /* host.verbs.native.Neighbour */
    uint32_t peer, peer_qp;          /* fold address of the successor, its `in` */
    uint32_t predecessor, before_qp; /* address of the predecessor, its `out` */
    uint32_t psn;                    /* of the next packet in both directions */
} nf_verbs_neighbour;

/* Opens a device by name, with room for the completions of `streams` streams.  longest: bytes of a message. */
bool nf_verbs_device_open(nf_verbs_device *, const char *name, uint8_t port, int own_gid, int fold_gid,
                          uint32_t path_mtu, uint32_t streams, uint64_t longest);
void nf_verbs_device_close(nf_verbs_device *);

/* Registers memory that the NIC reads, or writes to where `writes`. */
struct ibv_mr *nf_verbs_register(nf_verbs_device *, void *, size_t bytes, bool writes);

/* Makes the two queue pairs of a stream, which get their numbers here. */
bool nf_verbs_ends_make(nf_verbs_device *, nf_verbs_ends *);
/* Connects them: from now on `in` can receive and `out` can send. */
bool nf_verbs_ends_connect(nf_verbs_device *, const nf_verbs_ends *, const nf_verbs_neighbour *);
void nf_verbs_ends_destroy(nf_verbs_ends *);

/* Takes the events that the device has reported besides completions; false where one says that it, or a queue pair, can
 * go on no more. */
bool nf_verbs_device_events(nf_verbs_device *);
/* Leaves in `why` what failed, and the errno in words. */
void nf_verbs_say(nf_verbs_device *, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));
#endif
