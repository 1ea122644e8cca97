// SPDX-License-Identifier: Apache-2.0
// ECN: a packet that found its port's queue longer than the limit is marked, if its sender speaks ECN (RFC 3168).
// Marks on contributions are carried over into the result (fold.p4), so that every rank slows down.
#ifndef CONGESTION_P4
#define CONGESTION_P4
#include "headers.p4"

// Has this packet waited in too long a queue?
control Congestion(inout headers_t hdr, inout standard_metadata_t sm) {
    counter(PORTS, CounterType.packets) congestion_marked;

    action mark_above(queue_depth_t depth) {   // packets
        if (sm.enq_qdepth > depth && hdr.ipv4.isValid() && hdr.ipv4.ecn != 0) {
            hdr.ipv4.ecn = ECN_CE;
            congestion_marked.count((bit<32>)sm.egress_port);
        }
    }

    // How long may a queue grow before its packets are marked?  One default action for all ports.
    table congestion {
        actions = { mark_above; }
        default_action = mark_above(QUEUE_ENDLESS);     // off
    }
    apply {
        congestion.apply();
    }
}
#endif
