// SPDX-License-Identifier: Apache-2.0
// The order of the packets of one flow: each says which one left before it to the same neighbour.  So its receiver sees what
// was lost on the link between the two (flow.p4), a repeat as well as any; and what a switch has not sent yet, because it
// lacks a contribution itself, nobody takes for lost.
//
// It stands in bits that InfiniBand reserves, of packets between windowed neighbours alone: how far the PSN below a packet's
// own is from the one that left before it, as a two's complement.  A packet that follows the one below it says 0.
#ifndef ORDER_P4
#define ORDER_P4
#include "headers.p4"

#define ORDER_MOST      0xfff
#define ORDER_UNSAID    ((bit<ORDER_BITS>)0x1000)       // the one before is too far away to be named
#define ORDER(bth)      (bth.fecn_becn[5:0] ++ bth.ack_req[6:0])
#define PREVIOUS(bth)   (bth.psn + ORDER_MOST - ((11w0 ++ ORDER(bth)) ^ (11w0 ++ ORDER_UNSAID)))

// What left last, as one number.  Epoch 0 is never used.
#define SENT_BITS       56
#define SENT_EPOCH(sent)    sent[55:24]
#define SENT_PSN(sent)      sent[23:0]

// Which packet left before this one?
control Order(inout headers_t hdr, inout meta_t meta) {
    register<bit<SENT_BITS>>(FLOWS) last_sent;
    bit<SENT_BITS> sent;
    psn_t          order;

    action say() {
        order = 0;
        last_sent.read(sent, (bit<32>)meta.tree.flow);
        last_sent.write((bit<32>)meta.tree.flow, meta.tree.epoch ++ hdr.bth.psn);
        if (SENT_EPOCH(sent) == meta.tree.epoch) {
            order = hdr.bth.psn - 1 - SENT_PSN(sent);
        }
        if (order != 0) {
            if (order + ORDER_MOST > 2 * ORDER_MOST) {
                order = 11w0 ++ ORDER_UNSAID;
            }
            hdr.bth.fecn_becn = 2w0 ++ order[12:7];
            hdr.bth.ack_req = hdr.bth.ack_req | (1w0 ++ order[6:0]);
            meta.made = 0;          // its ICRC is not that of the others
        }
    }
    apply {
        say();
    }
}
#endif
