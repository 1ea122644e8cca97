// SPDX-License-Identifier: Apache-2.0
// Which of the equally short uplinks a packet takes, chosen for each destination leaf at run time.
//
//   ecmp     by a hash of the flow: of its UDP source port, above all.  A host that gives each packet another source
//            port (REPS) sprays by this mode as well
//   spray    at random for each packet.  Engines draw numbers of their own: the share of each uplink is the same on
//            all, the order is not
//   pinned   RoCE packets where `pin` says for their source port (Ethereal); others by the hash, and counted
//
// Whatever is not RoCE keeps its hash: TCP takes reordering for loss.
#ifndef PATHS_P4
#define PATHS_P4
#include "headers.p4"

// Which member of its group of uplinks does a packet take?
control Paths(in headers_t hdr, in bit<16> leaf, in bit<16> members, inout bit<16> group, inout bit<16> member) {
    counter(LEAVES, CounterType.packets_and_bytes) unpinned;

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

    // Which port is this source port pinned to?
    table pin {
        key = {
            leaf:          exact @name("leaf");
            hdr.udp.sport: exact @name("sport");
        }
        actions = { use; stray; }
        const default_action = stray();
        size = PINS;
    }
    apply {
        hash(member, HashAlgorithm.crc32, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, hdr.udp.sport, hdr.udp.dport }, members);
        if (hdr.bth.isValid()) {
            switch (policy.apply().action_run) {
                pinned: { pin.apply(); }
                default: {}
            }
        }
    }
}
#endif
