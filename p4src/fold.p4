// SPDX-License-Identifier: Apache-2.0
// The fold: gradient packets of every child meet in a slot, and one packet goes on.
//
//      child 0 --\                          slot = base + (PSN & mask)
//      child 1 ---> [ epoch PSN | bitmap | done | words ] --sum--> parent      (this switch is no root)
//      child 2 --/                                        <-sum--- parent
//                 <------------- multicast --------------'   or, at the root, at once
//
// Windowed children (connection.p4): a result is the acknowledgement of one's own contribution.  Who sees a gap in what its
// neighbour sends, asks the neighbour for what is missing, hop by hop, by a negative acknowledgement; whatever is complete
// nearest to the asker answers.
// NICs: their successors' acknowledgements pass through.  A repeat goes on to the successor with the stored result; what
// must not be repeated yet is put off; what the successor has acknowledged already is acknowledged for it.
//
//      connection   whose packet is it?         verdict          what happens?
//      flow         is it the next one?         lanes            the arithmetic
//      slot         what does it find?          retransmission   a packet made anew from its slot
#ifndef FOLD_P4
#define FOLD_P4
#include "headers.p4"
#include "icrc.p4"
#include "connection.p4"
#include "flow.p4"
#include "slot.p4"
#include "verdict.p4"
#include "lanes.p4"
#include "answer.p4"
#include "retransmission.p4"

// Is a packet with lanes, or an acknowledgement, one of ours, and where does it go?  Answers the controller's questions about
// slots as well.
//
// cloned  a copy of the packet is to be made already, for a fault
// again   the packet is a copy that asks for the next of several missing ones: its ICRC is of the one before
control Fold(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm, in bit<1> cloned, in bit<1> again) {
    register<slot_state_t>(SLOTS) slot_state;
    register<slot_headers_t>(SLOTS) slot_headers;
    counter(1, CounterType.packets_and_bytes) corrupt;      // ICRC wrong at the first hop

    Connection()     connection;
    Icrc()           icrc_check;
    Flow()           flow;
    Slot()           slot;
    Verdict()        verdict;
    Lanes()          lanes;
    Retransmission() retransmission;

    tree_t           tree = { FOREIGN, 0, 0, 0, 0, 0, NO, NO, 0, 0, 0, 0 };
    order_t          order = { NO, 0 };
    slot_t           found = { SAME, NO, NO, NO, NO, NO, NO, NO, 0 };
    verdict_t        decided = { KEEP, NO, NOBODY, ITSELF };
    slot_state_t     state = 0;
    slot_headers_t   headers = 0;
    bit<32>          index = 0;
    bit<32>          icrc = 0;
    bit<32>          carried = 0;       // the packet's own ICRC
    bit<64>          address = 0;       // of a RETH, in the region
    bit<32>          length = 0;
    psn_t            missing = 0;       // how many packets the asker lacks, from this PSN on

    // The clone that asks this packet's sender, or puts it off
    action answer_by_clone(bit<2> answer) {
        meta.clone = answer;
        clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
    }
    apply {
        if (hdr.probe.isValid()) {
            slot_state.read(hdr.probe.state, hdr.probe.slot);
            slot_headers.read(hdr.probe.headers, hdr.probe.slot);
            sm.egress_spec = CPU_PORT;
        } else {
            connection.apply(hdr, meta, tree);
            if (tree.packet != FOREIGN) {
                if (meta.folded == 1) {
                    mark_to_drop(sm);
                }
                if (tree.check == YES && again == 0) {
                    icrc_check.apply(hdr, meta, icrc);
                    carried = hdr.icrc.crc;
                    if (hdr.aeth.isValid()) {
                        carried = hdr.aeth.icrc;
                    }
                    if (icrc != carried) {
                        corrupt.count(0);
                        tree.packet = FOREIGN;
                    }
                }
            }
            if (tree.packet == ASK_UP || tree.packet == ASK_DOWN) {
                order.lowest = hdr.bth.psn;
                missing = hdr.aeth.msn - hdr.bth.psn;
                if (hdr.aeth.syndrome != SYNDROME_NAK) {
                    tree.packet = FOREIGN;
                } else if (missing > 1 && missing <= ASKED_AT_ONCE) {
#if FAULTS
                    meta.copy = 0;                  // this clone goes before a fault's
#endif
                    answer_by_clone(ASK_NEXT);
                }
            } else if (tree.packet != FOREIGN) {
                flow.apply(hdr, meta.port, cloned, tree, order);
            }
            if (meta.folded == 1 && tree.packet != FOREIGN) {
                if (tree.packet < RC) {
                    tree.operation = hdr.bth.operation;
                }
                if (hdr.reth.isValid()) {
                    address = hdr.reth.address - tree.region;
                    length = hdr.reth.length;
                }
                index = tree.base + (bit<32>)(hdr.bth.psn & tree.mask);
                slot_state.read(state, index);
                slot_headers.read(headers, index);
                slot.apply(hdr, meta, tree, state, headers, address, found);
                verdict.apply(tree, found, decided);
                if (decided.turns == RETRANSMIT) {
                    tree.operation = STATE_OPERATION(state);
                    retransmission.apply(hdr, meta, state, headers);
                }
                lanes.apply(hdr, meta.rest != 0, decided.lanes, tree.operation, index);
                if (decided.lanes == STORE || decided.lanes == ADD) {
                    slot_state.write(index, STATE_OF(tree.epoch, hdr.bth.psn, decided.done, found.marked,
                                                     tree.operation, found.ack_req, found.bitmap));
                    if (found.age == NEWER) {
                        slot_headers.write(index, HEADERS_OF(hdr.bth.opcode, PAD_OF(hdr.bth.flags), hdr.udp.length,
                                                             address, length));
                    }
                }
                if (found.marked == YES) {
                    hdr.ipv4.ecn = ECN_CE;          // a mark on any contribution reaches every rank
                }
                if (order.gap == YES) {
                    meta.clone_child = meta.child;
                    meta.answer_psn = order.lowest;
                    meta.answer_msn = hdr.bth.psn;
                    answer_by_clone(ANSWER_NAK);
                }
                if (decided.to == ONWARD) {
                    meta.onward = 1;
                } else if (decided.to != NOBODY) {
                    if (tree.packet >= RC) {
                        hdr.bth.operation = tree.operation;
                        if (hdr.reth.isValid()) {
                            hdr.reth.address = address;
                        }
                        if (decided.turns != ITSELF) {
                            meta.clone_child = meta.child + ANSWERS;
                            meta.answer_psn = order.lowest;
                        }
                    } else if (decided.turns == NAK) {
                        meta.answer_psn = hdr.bth.psn;
                        meta.answer_msn = hdr.bth.psn + 1;
                    }
                    if (found.ack_req == YES) {
                        hdr.bth.ack_req = 0x80;
                    }
                    if (decided.turns == AND_RNR) {
                        if (cloned == 0) {
                            answer_by_clone(ANSWER_RNR);
                        }
                    } else if (decided.turns == ACK) {
                        meta.answer = ANSWER_ACK;
                        meta.answer_psn = order.lowest - 1;
                        meta.child = meta.clone_child;
                    } else if (decided.turns == RNR) {
                        meta.answer = ANSWER_RNR;
                        meta.child = meta.clone_child;
                    } else if (decided.turns == NAK) {
                        meta.answer = ANSWER_NAK;
                        if (tree.packet >= RC) {
                            meta.child = meta.clone_child;
                        }
                    }
                    if (decided.to == PARENT) {
                        meta.child = PARENT;
                        sm.egress_spec = tree.parent_port;
                    } else if (decided.to == ASKER) {
                        sm.egress_spec = meta.port;
                    } else {
                        sm.mcast_grp = meta.group;
                    }
                }
            }
        }
    }
}
#endif
