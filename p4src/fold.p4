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
//      flow         what was lost before it?    presence         the same without lanes
//      slot         what does it find?          lanes            the arithmetic
//                                               retransmission   a packet made anew from its slot
//                                               result           what all receivers of a packet get
#ifndef FOLD_P4
#define FOLD_P4
#include "headers.p4"
#include "icrc.p4"
#include "connection.p4"
#include "flow.p4"
#include "slot.p4"
#include "verdict.p4"
#include "presence.p4"
#include "lanes.p4"
#include "answer.p4"
#include "retransmission.p4"
#include "result.p4"

// Is a packet with lanes, or an acknowledgement, one of ours, and where does it go?  Answers the controller's questions about
// slots as well.
//
// cloned  a copy of the packet is to be made already, for a fault
// again   the packet is a copy that asks for the next of several missing ones: its ICRC is of the one before
control Fold(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm, in bit<1> cloned, in bit<1> again) {
    register<slot_state_t>(SLOTS) slot_state;
    register<slot_headers_t>(SLOTS) slot_headers;
    register<children_t>(SLOTS) slot_content;               // for whom the acknowledgement is enough
    counter(1, CounterType.packets_and_bytes) corrupt;      // ICRC wrong at the first hop
    counter(PORTS, CounterType.packets) gaps;               // that were told of, by the port of the sender

    Connection()     connection;
    Icrc()           icrc_check;
    Flow()           flow;
    Slot()           slot;
    Verdict()        verdict;
    Presence()       presence;
    Lanes()          lanes;
    Retransmission() retransmission;
    Result()         result;

    // What BMv2 takes least time for is few steps of many lines: an `if` in an action is a jump, one outside of it a node of
    // its own, and what stands between two of these nodes a table.

    // What does the controller ask for?
    action answer_probe() {
        slot_state.read(hdr.probe.state, hdr.probe.slot);
        slot_headers.read(hdr.probe.headers, hdr.probe.slot);
        sm.egress_spec = CPU_PORT;
    }
    // Is the ICRC, made anew, the packet's own?
    action check_icrc() {
        if (hdr.aeth.isValid()) {
            if (hdr.aeth.icrc != ON_WIRE(meta.icrc)) {
                corrupt.count(0);
                meta.tree.packet = FOREIGN;
            }
        } else if (hdr.icrc.crc != ON_WIRE(meta.icrc)) {
            corrupt.count(0);
            meta.tree.packet = FOREIGN;
        }
    }
    // A question for packets that are missing: of several, this is for the first, and a clone asks for the next
    action ask() {
        meta.order.lowest = hdr.bth.psn;
        if (hdr.aeth.syndrome != SYNDROME_NAK) {
            meta.tree.packet = FOREIGN;
        } else if (hdr.aeth.msn - hdr.bth.psn > 1 && hdr.aeth.msn - hdr.bth.psn <= ASKED_AT_ONCE) {
#if FAULTS
            meta.copy = 0;                          // this clone goes before a fault's
#endif
            meta.clone = ASK_NEXT;
            clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
        }
    }
    action find_slot() {
        meta.found.index = meta.tree.base + (bit<32>)(hdr.bth.psn & meta.tree.mask);
        slot_state.read(meta.found.state, meta.found.index);
        slot_headers.read(meta.found.headers, meta.found.index);
        if (STATE_CONTENT(meta.found.state) == YES) {
            slot_content.read(meta.found.content, meta.found.index);
        }
    }
    // The slot's new state, and where the packet goes: at its receivers' ports it is rewritten (replica.p4)
    action settle() {
        if (meta.decided.outcome == FIRST) {
            if (meta.found.content != 0) {
                meta.found.some = YES;
                slot_content.write(meta.found.index, meta.found.content);
            }
            slot_state.write(meta.found.index, STATE_OF(meta.tree.epoch, hdr.bth.psn, meta.decided.done, meta.found.marked,
                                                        meta.tree.operation, meta.found.ack_req, meta.found.empty,
                                                        meta.found.some, meta.found.bitmap));
            if (meta.found.age == NEWER) {
                if (hdr.reth.isValid()) {
                    slot_headers.write(meta.found.index,
                                       HEADERS_OF(hdr.bth.opcode, PAD_OF(hdr.bth.flags), hdr.udp.length,
                                                  (hdr.reth.address - meta.tree.region), hdr.reth.length));
                } else {
                    slot_headers.write(meta.found.index,
                                       HEADERS_OF(hdr.bth.opcode, PAD_OF(hdr.bth.flags), hdr.udp.length, 64w0, 32w0));
                }
            }
        }
        if (meta.order.gap == YES) {
            // is the one before this here after all?  It came out of turn, or again
            slot_state.read(meta.found.state, meta.tree.base + (bit<32>)(meta.order.lowest & meta.tree.mask));
            if (STATE_EPOCH(meta.found.state) == meta.tree.epoch && meta.order.end - meta.order.lowest == 1 &&
                STATE_PSN(meta.found.state) - meta.order.lowest < PSN_HALF &&
                (STATE_PSN(meta.found.state) != meta.order.lowest || STATE_DONE(meta.found.state) == YES ||
                 (meta.tree.packet == UP &&
                  (STATE_BITMAP(meta.found.state) & ((children_t)1 << (bit<8>)meta.child)) != 0))) {
                meta.order.gap = NO;
            }
        }
        if (meta.order.gap == YES || meta.tree.packet == RC_GAP) {
            gaps.count((bit<32>)meta.port);
        }
        if (meta.order.gap == YES) {
            meta.clone_child = meta.child;
            meta.answer_psn = meta.order.lowest;
            meta.answer_msn = meta.order.end;
            meta.clone = ANSWER_NAK;
            clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
        }
        if (meta.decided.to != NOBODY) {
            if (meta.found.marked == YES) {
                hdr.ipv4.ecn = ECN_CE;              // a mark on any contribution reaches every rank
            }
            if (meta.decided.to == ONWARD) {
                meta.routed = 1;
            } else {
                if (meta.tree.packet >= RC) {
                    hdr.bth.operation = meta.tree.operation;
                    if (hdr.reth.isValid()) {
                        hdr.reth.address = hdr.reth.address - meta.tree.region;
                    }
                    if (meta.decided.turns != ITSELF) {
                        meta.clone_child = meta.child + ANSWERS;
                        meta.answer_psn = meta.order.lowest;
                        if (meta.decided.turns == AND_RNR) {
                            if (cloned == 0) {
                                meta.clone = ANSWER_RNR;
                                clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
                            }
                        } else {
                            meta.child = meta.clone_child;
                            if (meta.decided.turns == ACK) {
                                meta.answer = ANSWER_ACK;
                                meta.answer_psn = meta.order.lowest - 1;
                            } else if (meta.decided.turns == RNR) {
                                meta.answer = ANSWER_RNR;
                            } else {
                                meta.answer = ANSWER_NAK;
                            }
                        }
                    }
                } else if (meta.decided.turns == NAK) {
                    meta.answer_psn = hdr.bth.psn;
                    meta.answer_msn = hdr.bth.psn + 1;
                    meta.answer = ANSWER_NAK;
                } else if (meta.found.content == meta.tree.children &&
                           (meta.decided.to == PARENT || meta.tree.packet == ASK_DOWN)) {
                    meta.content = 1;
                }
                hdr.bth.ack_req = meta.found.ack_req ++ 7w0;
                if (meta.decided.to == PARENT) {
                    meta.child = PARENT;
                    sm.egress_spec = meta.tree.parent_port;
                } else if (meta.decided.to == ASKER) {
                    sm.egress_spec = meta.port;
                } else {
                    sm.mcast_grp = meta.group;
                }
            }
        }
    }
    apply {
        if (hdr.probe.isValid()) {
            answer_probe();
        } else {
            connection.apply(hdr, meta);
            if (meta.tree.packet != FOREIGN) {
                if (meta.tree.check == YES && again == 0) {
                    icrc_check.apply(hdr, meta);
                    check_icrc();
                }
                if (meta.tree.packet == ASK_UP || meta.tree.packet == ASK_DOWN) {
                    ask();
                } else if (meta.tree.packet != FOREIGN) {
                    flow.apply(hdr, cloned, meta);
                }
                if (meta.folded == 1 && meta.tree.packet != FOREIGN) {
                    find_slot();
                    slot.apply(hdr, meta);
                    verdict.apply(meta);
                    if (meta.decided.lanes != KEEP && (meta.present == YES || meta.found.empty == YES)) {
                        presence.apply(hdr, meta);
                    }
                    if (meta.decided.turns == RETRANSMIT) {
                        retransmission.apply(hdr, meta);
                    }
                    if (meta.decided.lanes != KEEP) {
                        lanes.apply(hdr, meta);
                    }
                    settle();
                    result.apply(hdr, meta);
                }
            }
        }
    }
}
#endif
