// SPDX-License-Identifier: Apache-2.0
// The guard: a host's port takes packets with that host's IPv4 source addresses alone, its own and its fold address, so that
// no host passes for another one, nor for a switch.  And it takes none to a fold address: NICs send contributions to these,
// and one that meets no folding entry must never reach a NIC, which would take it for a result.  That is so by the program
// alone, whatever tables hold.  What comes from a port without an entry is dropped: a switch without entries forwards nothing.
//
// Every packet of a link that is about to be routed passes here.  What is folded need not: the connection table's key
// (connection.p4) holds the port and the source address, and so says the same of the packets that hit it.
//
// Frames that are not IPv4 never leave a switch, whatever port they come from.  Fragments and packets with IP options are
// routed like others, by a source address that holds for them too.  A copy that a fault made keeps the port that its
// packet came from, and is judged by it.
#ifndef GUARD_P4
#define GUARD_P4
#include "headers.p4"

// May this packet be routed?  Says so in meta.routed.
control Guard(in headers_t hdr, inout meta_t meta) {
    counter(PORTS, CounterType.packets) spoofed;        // a host's, but not from its address
    counter(PORTS, CounterType.packets) unassigned;     // at a port without an entry
    counter(PORTS, CounterType.packets) unfolded;       // a host's, to a fold address

    // fold_address  0, if the host has none
    action host(ipv4_addr_t address, ipv4_addr_t fold_address) {
        if (hdr.ipv4.src != address && (fold_address == 0 || hdr.ipv4.src != fold_address)) {
            spoofed.count((bit<32>)meta.port);
        } else if (hdr.ipv4.dst & FOLD_NETMASK == FOLD_NETWORK) {
            unfolded.count((bit<32>)meta.port);
        } else {
            meta.routed = 1;
        }
    }
    action neighbour() {
        meta.routed = 1;
    }
    action nobody() {
        unassigned.count((bit<32>)meta.port);
    }

    // Is a host or a switch at the other end of this port's link?  An entry for each link.
    table guard {
        key = { meta.port: exact @name("port"); }
        actions = { host; neighbour; @defaultonly nobody; }
        const default_action = nobody();
        size = PORTS;
    }
    apply {
        guard.apply();
    }
}
#endif
