/* SPDX-License-Identifier: Apache-2.0
 *
 * What the packets of a fold hold: signatures, scales, lanes.
 */
#ifndef NF_FOLD_PAYLOAD_H
#define NF_FOLD_PAYLOAD_H
#include "fold_state.h"

typedef struct { /* a run of packets that one RDMA operation carries */
    uint64_t first;
    uint32_t packets;
} nf_message;

/* The message that packet `i` of a channel's share of the operation is in.  The signature is one by itself: ranks that
 * are in different operations send it with the same opcode, as switches want of what they put into one slot. */
nf_message nf_payload_message(const nf_fold *, const nf_channel *, uint64_t i);
/* The header of packet `i` of a channel's share of the operation where it has lanes, but for peer and PSN, which are
 * the stream's: its place in its message, and what the switches do with its lanes. */
nf_header nf_payload_header(const nf_fold *, const nf_channel *, uint64_t i);
/* The same header as this rank sends it: presence where it contributes nothing, and content where it wants nothing. */
nf_header nf_payload_own_header(const nf_fold *, const nf_channel *, uint64_t i);
/* The payload of packet `i` of a channel's share of the operation, as this rank contributes it. */
void nf_payload_write(const nf_fold *, const nf_channel *, uint64_t i, uint8_t *payload);
/* Takes in the result of packet `i`, which this rank wants: agreed scales, or sums, which go to their place in the
 * output. */
void nf_payload_read(nf_fold *, const nf_channel *, uint64_t i, const uint8_t *payload);
/* After some results: other threads see the output as it is now. */
void nf_payload_all_read(const nf_fold *);
/* All scales of a sum of floats are agreed on, and so is what is summed: what a guess has got right goes to the output,
 * and the rest is to be sent once more. */
void nf_payload_settle(nf_fold *);
/* Whether all ranks began the same operation; else f->failure holds what differs. */
bool nf_payload_signatures(nf_fold *, const uint8_t *payload);
#endif
