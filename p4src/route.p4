// SPDX-License-Identifier: Apache-2.0
// Shortest routes for everything that is not folded: longest prefix, then one uplink of a group (paths.p4).
#ifndef ROUTE_P4
#define ROUTE_P4
#include "headers.p4"
#include "paths.p4"

control Route(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Paths() paths;
    bit<16> leaf = 0;
    bit<16> group = 0;
    bit<16> members = 0;
    bit<16> member = 0;

    action forward(port_t port, mac_t src_mac, mac_t dst_mac) {
        sm.egress_spec = port;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action spread(bit<16> leaf_, bit<16> group_, bit<16> members_) {
        leaf = leaf_;
        group = group_;
        members = members_;
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
                spread: {
                    paths.apply(hdr, leaf, members, group, member);
                    uplink.apply();
                }
                default: {}
            }
        }
    }
}
#endif
