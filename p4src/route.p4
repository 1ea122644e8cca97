// SPDX-License-Identifier: Apache-2.0
// Shortest routes for everything that is not folded: longest prefix, then one uplink of a group.
#ifndef ROUTE_P4
#define ROUTE_P4
#include "headers.p4"

control Route(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    bit<16> group = 0;
    bit<16> member = 0;

    action forward(port_t port, mac_t src_mac, mac_t dst_mac) {
        sm.egress_spec = port;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action spread(bit<16> group_, bit<16> members) {
        group = group_;
        hash(member, HashAlgorithm.crc32, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, hdr.udp.sport, hdr.udp.dport }, members);
    }
    action unreachable() {
        mark_to_drop(sm);
    }
    table route {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { forward; spread; unreachable; }
        const default_action = unreachable();
        size = 4096;
    }
    table uplink {
        key = {
            group:  exact @name("group");
            member: exact @name("member");
        }
        actions = { forward; unreachable; }
        const default_action = unreachable();
        size = 1024;
    }
    apply {
        if (hdr.ipv4.ttl <= 1) {
            unreachable();
        } else {
            switch (route.apply().action_run) {
                spread: { uplink.apply(); }
                default: {}
            }
        }
    }
}
#endif
