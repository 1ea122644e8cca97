// SPDX-License-Identifier: Apache-2.0
// Presence: a packet without lanes, an RDMA WRITE of no bytes.  Upwards it says that its sender is there and adds nothing;
// downwards it is the acknowledgement alone: for whom that is enough, and where nobody has contributed lanes.
//
// The verdict is the same as for packets with lanes.  What is different where lanes meet no lanes follows from who has some:
//
//                 the slot has lanes                         it has none
//   packet has    (lanes.p4)                                 they are the first: stored, with their headers
//   packet has    the slot's go on with it, if it goes on    it goes on as it is
//   none
//
// A result without lanes is taken by a slot that has none, or all of whose children want none (slot.p4): it changes none.
#ifndef PRESENCE_P4
#define PRESENCE_P4
#include "headers.p4"
#include "connection.p4"
#include "slot.p4"
#include "verdict.p4"

// What happens to the lanes, where the packet or its slot has none?
control Presence(in headers_t hdr, inout meta_t meta) {
    action meet() {
        if (meta.present == YES) {
            if (meta.found.age == NEWER || meta.found.empty == YES) {
                meta.found.empty = YES;
                meta.decided.lanes = KEEP;
            } else if (meta.tree.packet == DOWN || meta.decided.to == NOBODY) {
                meta.tree.operation = STATE_OPERATION(meta.found.state);
                meta.decided.lanes = KEEP;
            } else {
                meta.present = NO;
                meta.decided.lanes = LOAD;
                meta.decided.turns = RETRANSMIT;
            }
        } else if (hdr.aeth.isValid()) {
            meta.present = YES;                 // what is asked for has no lanes either
            meta.decided.lanes = KEEP;
        } else {
            meta.found.empty = NO;
            meta.found.age = NEWER;
            meta.decided.lanes = STORE;
        }
    }
    apply {
        meet();
    }
}
#endif
