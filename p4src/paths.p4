// SPDX-License-Identifier: Apache-2.0
// Which of the equally short uplinks a packet takes, chosen for each destination leaf at run time.
//
//   ecmp     by a hash of the flow: of its source port, above all.  A host that gives each packet another source
//            port (REPS) sprays by this mode as well
//   spray    at random for each packet.  Engines draw numbers of their own: the share of each uplink is the same on
//            all, the order is not
//   pinned   where `pin` says for the number of the packet's path (Ethereal), or at random for number 0; others by the
//            hash, and counted
//
// A path's number means the same towards all leaves, so `pin` has one entry for each path, or for those that have the same
// digit of the tier, as a route says.  Where a path does not lead to
// some leaf, as after a failure, `bent` has an entry for that leaf, which counts instead.
//
// RoCE packets have the number of their path in their UDP source port.  A TCP connection has it where one of its ports is
// from TCP_PATH_PORT up: the source port of who opened it, which is the destination port of what answers.  Whatever else
// there is keeps its hash: TCP takes reordering for loss.
#ifndef PATHS_P4
#define PATHS_P4
#include "headers.p4"

// The next hops on the shortest paths to a destination: equal-cost uplinks
struct next_hops_t {
    bit<16> leaf;       // the destination's, by its number; 0: one of those that nothing distinguishes
    bit<16> group;      // of uplinks
    bit<16> first;      // of the group's uplinks that lead there
    bit<16> members;    // how many do, one after the other
    bit<16> names;      // the bits of a path's number that `pin` and `bent` have
}

// Kinds of names: who says the number of a path
#define UNNAMED     0
#define ROCE        1
#define CONNECTION  2       // of TCP

// Which member of its group of uplinks does a packet take?
control Paths(in headers_t hdr, inout next_hops_t hops, inout bit<16> member) {
    counter(1, CounterType.packets_and_bytes) unpinned;
    bit<16> sport = 0;
    bit<16> dport = 0;
    bit<16> path = 0;           // its number
    bit<2>  named = UNNAMED;
    bit<1>  other = 0;          // packets to this leaf are an exception
    port_t  port = NO_PORT;     // the one that the packet is pinned to

    action ecmp() {}
    action spray() {
        random(member, hops.first, hops.first + hops.members - 1);
    }
    action pinned() {}

    // How do packets to this leaf choose?  Leaf 0 stands for all that nothing distinguishes.
    table policy {
        key = { hops.leaf: exact @name("leaf"); }
        actions = { ecmp; spray; pinned; }
        const default_action = pinned();
        size = LEAVES;
    }
    // NO_PORT: by the hash.  A connection cannot leave its name, as a queue pair can: where its path is gone, it has the
    // port of another one.
    action use(port_t roce, port_t connection) {
        port = roce;
        if (named == CONNECTION) {
            port = connection;
        }
    }

    // Where do packets to this leaf go, if not where those to others do?
    table bent {
        key = {
            hops.leaf: exact @name("leaf");
            path:      exact @name("path");
        }
        actions = { use; @defaultonly NoAction; }
        const default_action = NoAction();
        size = BENT;
    }
    // Which port is this path pinned to?
    table pin {
        key = { path: exact @name("path"); }
        actions = { use; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PINS;
    }
    // Not an uplink's place in a group, which changes whenever a link goes down: group 0 holds all ports by number.
    action follow() {
        hops.group = 0;
        member = (bit<16>)port;
    }
    action stray() {
        unpinned.count(0);
    }
    apply {
        if (hdr.udp.isValid()) {
            sport = hdr.udp.sport;
            dport = hdr.udp.dport;
            if (hdr.bth.isValid()) {
                path = sport - PATH_PORT;
                named = ROCE;
            }
        } else if (hdr.tcp.isValid()) {
            sport = hdr.tcp.sport;
            dport = hdr.tcp.dport;
            path = sport;
            if (path < TCP_PATH_PORT) {
                path = dport;
            }
            if (path >= TCP_PATH_PORT) {
                named = CONNECTION;
                if (path == TCP_PATH_PORT + TCP_SAME_PATH) {
                    path = TCP_SAME_PATH;
                } else {
                    path = path & (TCP_SAME_PATH - 1);
                }
            }
        }
        hash(member, HashAlgorithm.crc32, hops.first, { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, sport, dport },
             hops.members);
        if (named != UNNAMED) {
            switch (policy.apply().action_run) {
                pinned: {
                    if (path == 0) {
                        spray();
                    } else {
                        path = path & hops.names;
                        if (hops.leaf != 0 && bent.apply().hit) {
                            other = 1;
                        }
                        if (other == 0) {
                            pin.apply();
                        }
                        if (port == NO_PORT) {
                            stray();
                        } else {
                            follow();
                        }
                    }
                }
                default: {}
            }
        }
    }
}
#endif
