// SPDX-License-Identifier: Apache-2.0
// Shortest routes for everything that is not folded: longest prefix, then one uplink of a group (paths.p4).
#ifndef ROUTE_P4
#define ROUTE_P4
#include "headers.p4"
#include "paths.p4"
#include "punt.p4"

// Where does a packet go that is not folded?
control Route(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Paths()     paths;
    Punt()      punt;
    next_hops_t next_hops = { 0, 0, 0, 0, 0 };
    bit<16>     member = 0;         // the next hop that is taken
    bit<1>      counted = 0;        // a probe that is counted here
    register<ports_t>(2) heard;     // a bit for each port at which one has come since the controller's last question

    action forward(port_t port, mac_t src_mac, mac_t dst_mac) {
        sm.egress_spec = port;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action spread(bit<16> leaf, bit<16> group, bit<16> first, bit<16> members, bit<16> names) {
        next_hops = { leaf, group, first, members, names };
    }
    action unreachable() {
        mark_to_drop(sm);
    }
    action to_cpu() {           // punt.p4 says whether it really goes there
        mark_to_drop(sm);
    }
    action note() {             // the packet ends here: its header is where the register's value is changed
        hdr.heard.setValid();
        heard.read(hdr.heard.lower, (bit<32>)meta.port[(PORT_BITS - 1):(PORT_BITS - 1)]);
        heard.write((bit<32>)meta.port[(PORT_BITS - 1):(PORT_BITS - 1)],
                    hdr.heard.lower | ((ports_t)1 << meta.port[(PORT_BITS - 2):0]));
    }
    action answer() {
        heard.read(hdr.heard.upper, 1);
        heard.read(hdr.heard.lower, 0);
        heard.write(1, 0);
        heard.write(0, 0);
        sm.egress_spec = CPU_PORT;
    }

    // Which port leads to this host, or which group of next hops on equally short paths?  Or is it for the switch itself?
    table route {
        key = { hdr.ipv4.dst: lpm @name("dst"); }
        actions = { forward; spread; to_cpu; unreachable; }
        const default_action = unreachable();
        size = ROUTES;
    }

    // Which port is this member of a group?
    table uplink {
        key = {
            next_hops.group: exact @name("group");
            member:          exact @name("member");
        }
        actions = { forward; unreachable; }
        const default_action = unreachable();
        size = UPLINKS;
    }
    apply {
        if (hdr.heard.isValid()) {
            answer();
        } else if (hdr.ipv4.ttl <= 1) {
            unreachable();
        } else {
            switch (route.apply().action_run) {
                spread: {
                    paths.apply(hdr, next_hops, member);
                    uplink.apply();
                }
                to_cpu: {
                    punt.apply(hdr, meta, sm, counted);
                    if (counted == 1) {
                        note();
                    }
                }
                default: {}
            }
        }
    }
}
#endif
