/* SPDX-License-Identifier: Apache-2.0
 *
 * Recycled entropies (REPS, arXiv 2407.21625): which of a host's source ports the next packet takes.
 *
 *   first packets          one port after the other
 *   then                   the oldest port that an unmarked ACK named and that was not used since; else any
 *   after a time-out       frozen: only the last ports that ACKs named, in a circle; then it explores anew
 *
 * Each packet that arrives is answered by an ACK of its own, marked if it was: InfiniBand's ACK has no field for an
 * entropy, but a source port, and leaves by that of the packet.
 *
 * A port here is its place among those of the endpoint.  The paper's switch hashes the port (p4src/paths.p4, ecmp).
 */
#ifndef NF_REPS_H
#define NF_REPS_H
#include <stdbool.h>
#include <stdint.h>

#define NF_REPS_CACHE 8
#define NF_REPS_ECHOES 128         /* packets that wait for their answers at most: a batch of what was received */
#define NF_REPS_FREEZE 100000000ll /* nanoseconds; the paper's 10 ms are some hundred round trips, as these are */

typedef struct {
    uint16_t port;
    bool marked;
} nf_echo;

typedef struct {
    nf_echo echoes[NF_REPS_ECHOES]; /* of what arrived and is not answered; oldest first */
    uint32_t n_echoes, echoed;      /* echoed: those before it are answered */
    uint32_t cache[NF_REPS_CACHE];  /* a ring; `head` is the next to be overwritten, and so the oldest */
    bool fresh[NF_REPS_CACHE];      /* named by an ACK, and not used since */
    uint32_t head, known, turn;     /* known: entries that were ever written; turn: the next one while frozen */
    uint32_t explore, window;       /* packets that go on exploring */
    uint32_t next;                  /* the next port of the first packets */
    int64_t frozen_until;           /* 0: not frozen */
    uint64_t random;
} nf_reps;

void nf_reps_open(nf_reps *, uint64_t seed, uint32_t ports, uint32_t window);
/* 0 .. ports - 1, for a packet that leaves now. */
uint32_t nf_reps_next(nf_reps *, uint32_t ports, int64_t now);
/* A packet that took this port was acknowledged, and not marked. */
void nf_reps_recycle(nf_reps *, uint32_t port);
/* A packet came by this port, and is to be answered.  False: too many are waiting, one ACK answers for them all. */
bool nf_reps_echo(nf_reps *, uint16_t port, bool marked);
void nf_reps_freeze(nf_reps *, int64_t now);
#endif
