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

// Who sent a packet, as the port says that it came from
#define REFUSED     2w0         // nobody who may: the packet is dropped
#define HOST        2w1         // the host at this port
#define SWITCH      2w2         // a switch, on its own behalf or that of a host

// May this packet be routed, and who is at the other end of the link that it came from?
control Guard(in headers_t hdr, in port_t port, out bit<2> sender) {
    counter(PORTS, CounterType.packets) spoofed;        // a host's, but not from its address
    counter(PORTS, CounterType.packets) unassigned;     // at a port without an entry
    counter(PORTS, CounterType.packets) unfolded;       // a host's, to a fold address
    ipv4_addr_t allowed = 0;                            // of a host
    ipv4_addr_t fold = 0;                               // its fold address, or 0

    action host(ipv4_addr_t address, ipv4_addr_t fold_address) {
        sender = HOST;
        allowed = address;
        fold = fold_address;
    }
    action neighbour() {
        sender = SWITCH;
    }
    action nobody() {
        sender = REFUSED;
        unassigned.count((bit<32>)port);
    }

    // Is a host or a switch at the other end of this port's link?  An entry for each link.
    table guard {
        key = { port: exact @name("port"); }
        actions = { host; neighbour; @defaultonly nobody; }
        const default_action = nobody();
        size = PORTS;
    }
    apply {
        guard.apply();
        if (sender == HOST) {
            if (hdr.ipv4.src != allowed && (fold == 0 || hdr.ipv4.src != fold)) {
                sender = REFUSED;
                spoofed.count((bit<32>)port);
            } else if (hdr.ipv4.dst & FOLD_NETMASK == FOLD_NETWORK) {
                sender = REFUSED;
                unfolded.count((bit<32>)port);
            }
        }
    }
}
#endif
