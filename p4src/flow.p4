// SPDX-License-Identifier: Apache-2.0
// The flow of packets from one sender, a child or the parent: is this the one that comes next?
//
//   windowed   Each packet says which one left before it to the same neighbour (its order).  Where that is not the one that
//              came before it, something was lost on this link: its sender is told, and asked for that alone; the packet
//              itself is as good as any.  What has not been sent yet, because it was lost further back, is no gap.
//   RC         A NIC's packets count in order alone, and it goes back to the first one that is missing.  Whatever it is
//              told acknowledges all PSNs below, so it is told nothing above the lowest that its successor lacks.
#ifndef FLOW_P4
#define FLOW_P4
#include "headers.p4"
#include "connection.p4"

// The fields of a flow's state, which a register can only hold as one number.  Epoch 0 is never used.
#define FLOW_STATE_BITS         96
#define FLOW_EPOCH(state)       state[95:64]
#define FLOW_NEXT(state)        state[63:40]        // the PSN after the highest that came
#define FLOW_LOWEST(state)      state[39:16]        // RC: the lowest PSN that the successor has not acknowledged
#define FLOW_LAST(state)        state[39:16]        // windowed: the PSN that came last
#define FLOW_TOLD(state)        state[0:0]          // RC: the NIC has been told of the gap before the next PSN
#define FLOW_OF(epoch, next, lowest, told)  epoch ++ next ++ lowest ++ 15w0 ++ told

// A packet's order: how far the PSN below its own is from that which left before it, as a two's complement; 0 for a packet
// that follows the one below it.  It stands in bits that InfiniBand reserves, and that NICs neither get nor send.
#define ORDER_BITS              13
#define ORDER_MOST              0xfff
#define ORDER_UNSAID            (bit<ORDER_BITS>)0x1000     // too far to be said
#define ORDER(bth)              (bth.fecn_becn[5:0] ++ bth.ack_req[6:0])

// What left last to a neighbour, in a register of its own: here packets leave, and there they come in
#define SENT_STATE_BITS         56
#define SENT_EPOCH(state)       state[55:24]
#define SENT_LAST(state)        state[23:0]

// Where does this packet stand in its flow?  Moves the flow on.
//
// untold  a gap that this packet shows cannot be told of now: the next packet will show it again
control Flow(in headers_t hdr, in bit<1> untold, inout meta_t meta) {
    register<bit<FLOW_STATE_BITS>>(FLOWS) flow_state;
    bit<FLOW_STATE_BITS> state;

    action move_on() {
        flow_state.read(state, (bit<32>)meta.tree.flow);
        if (meta.tree.packet <= DOWN) {
            meta.order.lowest = hdr.bth.psn + ORDER_MOST - ((11w0 ++ ORDER(hdr.bth)) ^ (11w0 ++ ORDER_UNSAID));
            meta.order.end = hdr.bth.psn + 1;
            if (FLOW_EPOCH(state) == meta.tree.epoch) {
                if (meta.order.lowest != FLOW_LAST(state) && ORDER(hdr.bth) != ORDER_UNSAID) {
                    meta.order.gap = 1;
                }
                if (hdr.bth.psn - FLOW_NEXT(state) >= PSN_HALF) {
                    meta.order.end = FLOW_NEXT(state);      // this one comes out of turn
                }
            }
            if (meta.order.gap == 1 && untold == 1) {
                meta.order.gap = 0;
            } else {
                flow_state.write((bit<32>)meta.tree.flow, FLOW_OF(meta.tree.epoch, meta.order.end, hdr.bth.psn, 1w0));
            }
            // what is missing ends with the one that left before this one, and begins with the first that never came
            meta.order.end = meta.order.lowest + 1;
            if (meta.order.lowest - FLOW_NEXT(state) < PSN_HALF) {
                meta.order.lowest = FLOW_NEXT(state);
            }
        } else if (meta.tree.packet == RC) {
            if (FLOW_EPOCH(state) != meta.tree.epoch) {
                state = FLOW_OF(meta.tree.epoch, meta.tree.first_psn, meta.tree.first_psn, 1w0);
            }
            meta.order.lowest = FLOW_LOWEST(state);
            if (hdr.bth.psn == FLOW_NEXT(state)) {
                meta.tree.packet = RC_NEW;
                flow_state.write((bit<32>)meta.tree.flow,
                                 FLOW_OF(meta.tree.epoch, (hdr.bth.psn + 1), meta.order.lowest, 1w0));
            } else if (hdr.bth.psn - FLOW_NEXT(state) < PSN_HALF) {
                meta.tree.packet = RC_AHEAD;
                if (FLOW_TOLD(state) == 0) {
                    meta.tree.packet = RC_GAP;
                            flow_state.write((bit<32>)meta.tree.flow,
                                     FLOW_OF(meta.tree.epoch, FLOW_NEXT(state), meta.order.lowest, 1w1));
                }
            } else if (hdr.bth.psn == meta.order.lowest) {
                meta.tree.packet = RC_LOWEST;
            } else if (hdr.bth.psn - meta.order.lowest < PSN_HALF) {
                meta.tree.packet = RC_AGAIN;
                if (FLOW_TOLD(state) == 1) {
                    meta.tree.packet = RC_AHEAD;    // on its way to the gap that it was told of: nobody has asked for this
                }
            } else {
                meta.tree.packet = RC_OLD;
            }
        } else {
            // An acknowledgement says that its PSN is here, a negative one that those below its PSN are.  It moves the flow
            // forward alone, and to nothing that has not been sent.
            meta.order.lowest = hdr.bth.psn;
            if (hdr.aeth.syndrome < 0x20) {
                meta.order.lowest = hdr.bth.psn + 1;
            }
            if (FLOW_EPOCH(state) == meta.tree.epoch &&
                (hdr.aeth.syndrome < 0x40 || hdr.aeth.syndrome == SYNDROME_NAK) &&
                meta.order.lowest - FLOW_LOWEST(state) < PSN_HALF && FLOW_NEXT(state) - meta.order.lowest < PSN_HALF) {
                flow_state.write((bit<32>)meta.tree.flow,
                                 FLOW_OF(meta.tree.epoch, FLOW_NEXT(state), meta.order.lowest, FLOW_TOLD(state)));
            }
        }
    }
    apply {
        move_on();
    }
}
// Says of a packet that leaves to a windowed neighbour which one left before it.
control Order(inout headers_t hdr, inout meta_t meta) {
    register<bit<SENT_STATE_BITS>>(FLOWS) sent_state;
    bit<SENT_STATE_BITS> state;
    bit<24>              order;

    action say() {
        order = 0;
        sent_state.read(state, (bit<32>)meta.tree.flow);
        sent_state.write((bit<32>)meta.tree.flow, meta.tree.epoch ++ hdr.bth.psn);
        if (SENT_EPOCH(state) == meta.tree.epoch) {
            order = hdr.bth.psn - 1 - SENT_LAST(state);
        }
        if (order != 0) {
            if (order + ORDER_MOST > 2 * ORDER_MOST) {
                order = 11w0 ++ ORDER_UNSAID;
            }
            hdr.bth.fecn_becn = hdr.bth.fecn_becn | (2w0 ++ order[12:7]);
            hdr.bth.ack_req = hdr.bth.ack_req | (1w0 ++ order[6:0]);
            meta.made = 0;          // the ICRC covers it
        }
    }
    apply {
        say();
    }
}
#endif
