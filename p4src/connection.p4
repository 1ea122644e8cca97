// SPDX-License-Identifier: Apache-2.0
// The connection: which tree does a packet belong to, and which of the tree's children or its parent does it come from?
//
// A child is windowed (an end point of ours, or a lower switch: its numbers are ours, it sends in any order within a
// window, and the result is its acknowledgement) or a NIC with a reliable connection, which goes back to what was lost and
// is acknowledged by its successor, end to end.
#ifndef CONNECTION_P4
#define CONNECTION_P4
#include "headers.p4"

// What a packet is to its tree
#define FOREIGN         4w0     // none of its packets
#define UP              4w1     // a contribution, from a windowed child to this switch
#define DOWN            4w2     // a result, from the parent to this switch
#define ASK_UP          4w3     // a windowed child lacks a result
#define ASK_DOWN        4w4     // the parent lacks this switch's sum
#define ACKNOWLEDGED    4w5     // what a NIC's successor acknowledges
#define RC              4w6     // a contribution of a NIC, in the place of which flow.p4 puts one of these:
#define RC_NEW          4w7     //   the next one
#define RC_AGAIN        4w8     //   a repeat of one that its successor has not acknowledged yet
#define RC_LOWEST       4w9     //   a repeat, of the lowest such one
#define RC_OLD          4w10    //   a repeat of one that its successor has acknowledged
#define RC_GAP          4w11    //   ahead of one that is missing, the first to be
#define RC_AHEAD        4w12    //   as well, and the NIC has been told; or what it repeats on its way back to there

// Which tree, and which child or parent?
control Connection(in headers_t hdr, inout meta_t meta) {
    bit<QUEUE_PAIR_BITS> queue_pair;
    bit<16>              sport;

    action contribution(bit<16> group, child_t child, children_t children, epoch_t epoch, bit<32> base, psn_t mask,
                        flow_t flow, bit<1> root, bit<1> check, port_t parent_port) {
        meta.folded = 1;
        meta.group = group;
        meta.child = child;
        if (hdr.aeth.isValid()) {
            meta.tree.packet = ASK_UP;
        } else {
            meta.tree.packet = UP;
        }
        meta.tree.children = children;
        meta.tree.epoch = epoch;
        meta.tree.base = base;
        meta.tree.mask = mask;
        meta.tree.flow = flow;
        meta.tree.root = root;
        meta.tree.check = check;
        meta.tree.parent_port = parent_port;
        meta.tree.operation = hdr.bth.operation;
    }
    action contribution_rc(bit<16> group, child_t child, children_t children, epoch_t epoch, bit<32> base, psn_t mask,
                           flow_t flow, bit<1> root, port_t parent_port, bit<OPERATION_BITS> operation,
                           bit<64> region, psn_t first_psn) {
        meta.group = group;
        meta.child = child;
        if (meta.present == 0) {                // a NIC contributes lanes always
            meta.folded = 1;
            meta.tree.packet = RC;
        }
        meta.tree.children = children;
        meta.tree.epoch = epoch;
        meta.tree.base = base;
        meta.tree.mask = mask;
        meta.tree.flow = flow;
        meta.tree.root = root;
        meta.tree.check = 1;
        meta.tree.parent_port = parent_port;
        meta.tree.operation = operation;
        meta.tree.region = region;
        meta.tree.first_psn = first_psn;
    }
    action result(bit<16> group, children_t children, epoch_t epoch, bit<32> base, psn_t mask, flow_t flow) {
        meta.folded = 1;
        meta.group = group;
        meta.child = PARENT;
        if (hdr.aeth.isValid()) {
            meta.tree.packet = ASK_DOWN;
        } else {
            meta.tree.packet = DOWN;
        }
        meta.tree.children = children;
        meta.tree.epoch = epoch;
        meta.tree.base = base;
        meta.tree.mask = mask;
        meta.tree.flow = flow;
        meta.tree.parent_port = meta.port;
        meta.tree.operation = hdr.bth.operation;
    }
    direct_counter(CounterType.packets_and_bytes) connection_packets;

    // Is this packet folded here, and in which tree?  The queue pair says it, for a neighbour at this port alone, which
    // sends from this address; and a windowed one from a UDP port that no other user of its machine can have while a rank
    // holds it (a NIC draws its own: the key has 0).  An entry for each child of each tree, and one for the parent; what
    // hits none is routed.
    table connection {
        key = {
            meta.port:          exact @name("ingress_port");
            hdr.ipv4.src:       exact @name("src");
            hdr.ipv4.dst:       exact @name("dst");
            sport:              exact @name("sport");
            queue_pair:         exact @name("queue_pair");
        }
        actions = { contribution; contribution_rc; result; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = connection_packets;
        size = CONNECTIONS;
    }

    action acknowledges(flow_t flow, epoch_t epoch) {
        meta.tree.packet = ACKNOWLEDGED;
        meta.tree.flow = flow;
        meta.tree.epoch = epoch;
        meta.tree.check = 1;
    }

    // Does this acknowledgement tell what a NIC's successor has?  It passes the NIC's switch on its way to the NIC.  An
    // entry for each NIC that hangs on this switch, for the port of its successor, or for each port that leads to another
    // switch: what a host sends in the successor's name moves nothing.
    table acknowledgement {
        key = {
            meta.port:          exact @name("ingress_port");
            hdr.ipv4.src:       exact @name("src");
            hdr.ipv4.dst:       exact @name("dst");
            queue_pair:         exact @name("queue_pair");
        }
        actions = { acknowledges; @defaultonly NoAction; }
        const default_action = NoAction();
        size = CONNECTIONS;
    }
    // By which queue pair, and which source port, is this packet's entry found?
    action name_sender() {
        if (hdr.bth.pkey == PKEY_WINDOWED && hdr.bth.operation <= OP_LAST) {
            sport = hdr.udp.sport;
            queue_pair = hdr.bth.connection ++ (bit<OPERATION_BITS>)0;
        } else {
            sport = 0;
            queue_pair = hdr.bth.connection ++ hdr.bth.operation;
        }
    }
    apply {
        name_sender();
        if (hdr.aeth.isValid() && sport == 0) {
            acknowledgement.apply();
        } else {
            connection.apply();
        }
    }
}
#endif
