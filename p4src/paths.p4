// SPDX-License-Identifier: Apache-2.0
// Which of the equally short uplinks a packet takes, chosen for each destination leaf at run time.
//
//   ecmp     by a hash of the flow: of its source port, above all.  A host that gives each packet another source
//            port (REPS) sprays by this mode as well
//   spray    at random for each packet.  Engines draw numbers of their own: the share of each uplink is the same on
//            all, the order is not
//   pinned   where `pin` says for the port that names the packet's path (Ethereal), or at random where it says so;
//            others by the hash, and counted
//
// RoCE packets are named by their UDP source port.  A TCP connection is, where one of its ports is from TCP_PATH_PORT up:
// the source port of who opened it, which is the destination port of what answers.  Whatever else there is keeps its
// hash: TCP takes reordering for loss.
#ifndef PATHS_P4
#define PATHS_P4
#include "headers.p4"

// Which member of its group of uplinks does a packet take?
control Paths(in headers_t hdr, in bit<16> leaf, in bit<16> members, inout bit<16> group, inout bit<16> member) {
    counter(LEAVES, CounterType.packets_and_bytes) unpinned;
    bit<16> sport = 0;
    bit<16> dport = 0;
    bit<16> name = 0;           // the port that names the path
    bit<1>  named = 0;

    action ecmp() {}
    action spray() {
        random(member, 16w0, members - 1);
    }
    action pinned() {}

    // How do packets to this leaf choose?
    table policy {
        key = { leaf: exact @name("leaf"); }
        actions = { ecmp; spray; pinned; }
        const default_action = ecmp();
        size = LEAVES;
    }
    // Not an uplink's place in a group, which changes whenever a link goes down: group 0 holds all ports by number.
    action use(port_t port) {
        group = 0;
        member = (bit<16>)port;
    }
    action stray() {
        unpinned.count((bit<32>)leaf);
    }

    // Which port is this name pinned to?
    table pin {
        key = {
            leaf: exact @name("leaf");
            name: exact @name("sport");
        }
        actions = { use; spray; stray; }
        const default_action = stray();
        size = PINS;
    }
    apply {
        if (hdr.udp.isValid()) {
            sport = hdr.udp.sport;
            dport = hdr.udp.dport;
            name = sport;
            if (hdr.bth.isValid()) {
                named = 1;
            }
        } else if (hdr.tcp.isValid()) {
            sport = hdr.tcp.sport;
            dport = hdr.tcp.dport;
            name = sport;
            if (name < TCP_PATH_PORT) {
                name = dport;
            }
            if (name >= TCP_PATH_PORT) {
                name = name & (0xffff - TCP_SAME_PATH);
                named = 1;
            }
        }
        hash(member, HashAlgorithm.crc32, 16w0, { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, sport, dport }, members);
        if (named == 1) {
            switch (policy.apply().action_run) {
                pinned: { pin.apply(); }
                default: {}
            }
        }
    }
}
#endif
