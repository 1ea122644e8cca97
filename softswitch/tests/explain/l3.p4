// SPDX-License-Identifier: Apache-2.0
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}
header ipv4_t {
    bit<64> first;
    bit<8> ttl;
    bit<56> middle;
    bit<32> dst;
}
struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
}
struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control V(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }
    action forward(bit<48> to, bit<9> port) {
        hdr.ethernet.dst = to;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        standard.egress_spec = port;
    }
    action flood() {
        standard.mcast_grp = 7;
    }
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; flood; drop; }
        default_action = drop();
    }
    table blocked {
        key = { hdr.ethernet.src: ternary; standard.ingress_port: range; }
        actions = { drop; NoAction; }
        default_action = NoAction();
    }
    apply {
        if (!blocked.apply().hit && hdr.ipv4.isValid()) {
            routes.apply();
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control C(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(P(), V(), I(), E(), C(), D()) main;
