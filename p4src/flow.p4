// SPDX-License-Identifier: Apache-2.0
// The flow of packets from one sender, a child or the parent: is this the one that comes next?
//
//   windowed   A packet says which one left before it (order.p4).  Where that is not the one that came before it, something
//              was lost between the two: its sender is told, and asked for that alone; the packet itself is as good as any.
//   RC         A NIC's packets count in order alone, and it goes back to the first one that is missing.  Whatever it is
//              told acknowledges all PSNs below, so it is told nothing above the lowest that its successor lacks.
#ifndef FLOW_P4
#define FLOW_P4
#include "headers.p4"
#include "connection.p4"
#include "order.p4"

// The fields of a flow's state, which a register can only hold as one number.  Epoch 0 is never used.
#define FLOW_STATE_BITS         96
#define FLOW_EPOCH(state)       state[95:64]
#define FLOW_NEXT(state)        state[63:40]        // the PSN after the highest that came
#define FLOW_LOWEST(state)      state[39:16]        // RC: the lowest PSN that the successor has not acknowledged
#define FLOW_LAST(state)        state[39:16]        // windowed: the PSN that came last
#define FLOW_TOLD(state)        state[0:0]          // RC: the NIC has been told of the gap before the next PSN
#define FLOW_OF(epoch, next, lowest, told)  epoch ++ next ++ lowest ++ 15w0 ++ told

// Where does this packet stand in its flow?  Moves the flow on.
//
// untold  a gap that this packet shows cannot be told of now: the flow stays where it is, so that the next packet shows it
control Flow(in headers_t hdr, in bit<1> untold, inout meta_t meta) {
    register<bit<FLOW_STATE_BITS>>(FLOWS) flow_state;
    bit<FLOW_STATE_BITS> state;

    action move_on() {
        flow_state.read(state, (bit<32>)meta.tree.flow);
        if (meta.tree.packet <= DOWN) {
            meta.order.lowest = PREVIOUS(hdr.bth);
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
#endif
