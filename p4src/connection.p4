// SPDX-License-Identifier: Apache-2.0
// The connection: which tree does a packet belong to, and which of the tree's children or its parent does it come from?
#ifndef CONNECTION_P4
#define CONNECTION_P4
#include "headers.p4"

#define UP      1w0         // a contribution, from a child to this switch
#define DOWN    1w1         // a result, from the parent to this switch

// What this switch knows of a packet's tree
struct tree_t {
    bit<1>              direction;
    children_t          children;       // one bit for each child
    epoch_t             epoch;          // of the job; a slot of another epoch is free
    bit<32>             base;           // the tree's slots are base + (PSN & mask)
    psn_t               mask;
    bit<1>              root;           // sums become results here
    bit<1>              check;          // first hop: the ICRC must hold
    port_t              parent_port;
}

// Which tree, and which child or parent?
control Connection(in headers_t hdr, inout meta_t meta, inout tree_t tree) {
    action contribution(bit<16> group, child_t child, children_t children, epoch_t epoch, bit<32> base, psn_t mask,
                        bit<1> root, bit<1> check, port_t parent_port) {
        meta.folded = 1;
        meta.group = group;
        meta.child = child;
        tree.direction = UP;
        tree.children = children;
        tree.epoch = epoch;
        tree.base = base;
        tree.mask = mask;
        tree.root = root;
        tree.check = check;
        tree.parent_port = parent_port;
    }
    action result(bit<16> group, children_t children, epoch_t epoch, bit<32> base, psn_t mask) {
        meta.folded = 1;
        meta.group = group;
        meta.child = PARENT;
        tree.direction = DOWN;
        tree.children = children;
        tree.epoch = epoch;
        tree.base = base;
        tree.mask = mask;
    }
    direct_counter(CounterType.packets_and_bytes) connection_packets;

    // Is this packet folded here, and in which tree?  The queue pair says it, for a neighbour at this port alone, which
    // sends from this address, and from a UDP port that no other user of its machine can have while a rank holds it.  An
    // entry for each child of each tree, and one for the parent; what hits none is routed.
    table connection {
        key = {
            meta.port:          exact @name("ingress_port");
            hdr.ipv4.src:       exact @name("src");
            hdr.ipv4.dst:       exact @name("dst");
            hdr.udp.sport:      exact @name("sport");
            hdr.bth.connection: exact @name("connection");
        }
        actions = { contribution; result; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = connection_packets;
        size = CONNECTIONS;
    }
    apply {
        connection.apply();
    }
}
#endif
