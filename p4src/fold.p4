// SPDX-License-Identifier: Apache-2.0
// The fold: gradient packets of every child meet in a slot, and one packet goes on.
//
//      child 0 --\                          slot = base + (PSN & mask)
//      child 1 ---> [ epoch PSN | bitmap | done | words ] --sum--> parent      (this switch is no root)
//      child 2 --/                                        <-sum--- parent
//                 <------------- multicast --------------'   or, at the root, at once
//
// A result is the acknowledgement of one's own contribution.  A child repeats a packet until it has the result, and
// whatever is complete nearest to it answers: the slot's stored result, or the stored partial sum sent up once more.
//
//      connection   whose packet is it?     verdict   what happens?
//      slot         what does it find?      lanes     the arithmetic
#ifndef FOLD_P4
#define FOLD_P4
#include "headers.p4"
#include "icrc.p4"
#include "connection.p4"
#include "slot.p4"
#include "verdict.p4"
#include "lanes.p4"

// Is a full-size RDMA WRITE one of ours, and where does it go?  Answers the controller's questions about slots as well.
control Fold(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<slot_state_t>(SLOTS) slot_state;
    counter(1, CounterType.packets_and_bytes) corrupt;      // ICRC wrong at the first hop

    Connection() connection;
    Icrc()       icrc_check;
    Slot()       slot;
    Verdict()    verdict;
    Lanes()      lanes;

    tree_t       tree = { UP, 0, 0, 0, 0, NO, NO, 0 };
    slot_t       found = { SAME, NO, NO, NO, NO, NO, 0 };
    verdict_t    decided = { KEEP, NO, NOBODY };
    slot_state_t state = 0;
    bit<32>      index = 0;
    bit<32>      icrc = 0;

    apply {
        if (hdr.probe.isValid()) {
            slot_state.read(hdr.probe.state, hdr.probe.slot);
            sm.egress_spec = CPU_PORT;
        } else if (hdr.bth.operation > OP_LAST) {
            // none of ours: routed to its receiver, who will say so
        } else {
            connection.apply(hdr, meta, tree);
            if (meta.folded == 1) {
                mark_to_drop(sm);
                if (tree.check == YES) {
                    icrc_check.apply(hdr, icrc);
                } else {
                    icrc = hdr.icrc.crc;
                }
                if (icrc != hdr.icrc.crc) {
                    corrupt.count(0);
                } else {
                    index = tree.base + (bit<32>)(hdr.bth.psn & tree.mask);
                    slot_state.read(state, index);
                    slot.apply(hdr, meta, tree, state, found);
                    verdict.apply(tree, found, decided);
                    lanes.apply(hdr, decided.lanes, index);
                    if (decided.lanes == STORE || decided.lanes == ADD) {
                        slot_state.write(index, STATE_OF(tree.epoch, hdr.bth.psn, decided.done, found.marked,
                                                         hdr.bth.operation, found.bitmap));
                    }
                    if (found.marked == YES) {
                        hdr.ipv4.ecn = ECN_CE;      // a mark on any contribution reaches every rank
                    }
                    if (decided.to == PARENT) {
                        meta.child = PARENT;
                        sm.egress_spec = tree.parent_port;
                    } else if (decided.to == ASKER) {
                        sm.egress_spec = meta.port;
                    } else if (decided.to == ALL) {
                        sm.mcast_grp = meta.group;
                    }
                }
            }
        }
    }
}
#endif
