// SPDX-License-Identifier: Apache-2.0
// The flow of packets from one sender, a child or the parent: is this the one that comes next?
//
//   windowed   A packet ahead of the next one shows at once which ones are missing.  Its sender is told, and asked for
//              those alone; the packet itself is as good as any.
//   RC         A NIC's packets count in order alone, and it goes back to the first one that is missing.  Whatever it is
//              told acknowledges all PSNs below, so it is told nothing above the lowest that its successor lacks.
#ifndef FLOW_P4
#define FLOW_P4
#include "headers.p4"
#include "connection.p4"

// The fields of a flow's state, which a register can only hold as one number.  Epoch 0 is never used.
#define FLOW_STATE_BITS         96
#define FLOW_EPOCH(state)       state[95:64]
#define FLOW_NEXT(state)        state[63:40]        // the PSN that comes next
#define FLOW_LOWEST(state)      state[39:16]        // RC: the lowest PSN that the successor has not acknowledged
#define FLOW_TOLD(state)        state[0:0]          // RC: the NIC has been told of the gap before the next PSN
#define FLOW_OF(epoch, next, lowest, told)  epoch ++ next ++ lowest ++ 15w0 ++ told

// What a packet says of its flow
struct order_t {
    bit<1>  gap;        // windowed: packets are missing before this one, from `lowest` on
    psn_t   lowest;     // of what is missing; RC: that the successor has not acknowledged
}

// Where does this packet stand in its flow?  Moves the flow on.
//
// untold  a gap that this packet shows cannot be told of now: the next packet will show it again
control Flow(in headers_t hdr, in port_t port, in bit<1> untold, inout tree_t tree, inout order_t order) {
    register<bit<FLOW_STATE_BITS>>(FLOWS) flow_state;
    counter(PORTS, CounterType.packets) gaps;       // that were told of, by the port of the sender
    bit<FLOW_STATE_BITS> state = 0;
    bit<32> index = 0;
    psn_t   next = 0;
    psn_t   ahead = 0;
    bit<1>  told = 0;

    action windowed() {
        flow_state.write(index, FLOW_OF(tree.epoch, (hdr.bth.psn + 1), (psn_t)0, 1w0));
    }
    action rc() {
        flow_state.write(index, FLOW_OF(tree.epoch, next, order.lowest, told));
    }
    apply {
        index = (bit<32>)tree.flow;
        flow_state.read(state, index);
        next = FLOW_NEXT(state);
        if (tree.packet <= DOWN) {
            if (FLOW_EPOCH(state) != tree.epoch) {
                next = hdr.bth.psn;
            }
            ahead = hdr.bth.psn - next;
            if (ahead == 0) {
                windowed();
            } else if (ahead < PSN_HALF && untold == 0) {
                order.gap = 1;
                order.lowest = next;
                gaps.count((bit<32>)port);
                windowed();
            }
        } else if (tree.packet == RC) {
            order.lowest = FLOW_LOWEST(state);
            told = FLOW_TOLD(state);
            if (FLOW_EPOCH(state) != tree.epoch) {
                next = tree.first_psn;
                order.lowest = tree.first_psn;
                told = 0;
            }
            ahead = hdr.bth.psn - next;
            if (ahead == 0) {
                tree.packet = RC_NEW;
                next = next + 1;
                told = 0;
                rc();
            } else if (ahead < PSN_HALF) {
                tree.packet = RC_AHEAD;
                if (told == 0) {
                    tree.packet = RC_GAP;
                    gaps.count((bit<32>)port);
                    told = 1;
                    rc();
                }
            } else if (hdr.bth.psn == order.lowest) {
                tree.packet = RC_LOWEST;
            } else if (hdr.bth.psn - order.lowest < PSN_HALF) {
                tree.packet = RC_AGAIN;
                if (told == 1) {
                    tree.packet = RC_AHEAD;     // on its way to the gap that it was told of: nobody has asked for this
                }
            } else {
                tree.packet = RC_OLD;
            }
        } else {
            // An acknowledgement says that its PSN is here, a negative one that those below its PSN are.  It moves the flow
            // forward alone, and to nothing that has not been sent.
            order.lowest = hdr.bth.psn;
            if (hdr.aeth.syndrome < 0x20) {
                order.lowest = hdr.bth.psn + 1;
            }
            told = FLOW_TOLD(state);
            if (FLOW_EPOCH(state) == tree.epoch && (hdr.aeth.syndrome < 0x40 || hdr.aeth.syndrome == SYNDROME_NAK) &&
                order.lowest - FLOW_LOWEST(state) < PSN_HALF && next - order.lowest < PSN_HALF) {
                rc();
            }
        }
    }
}
#endif
