/* SPDX-License-Identifier: Apache-2.0
 *
 * A learning Ethernet switch: what it has not seen yet it floods, and tells the controller by a digest.
 */
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48>  dst;
    bit<48>  src;
    bit<16>  type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t {
}

struct seen_t {
    bit<48> mac;
    bit<9>  port;
}

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action learn() {
        digest<seen_t>(1, { hdr.ethernet.src, standard.ingress_port });
    }

    action known() { }

    action forward(bit<9> port) {
        standard.egress_spec = port;
    }

    action flood() {
        standard.mcast_grp = 1;
    }

    table sources {
        key = { hdr.ethernet.src: exact; standard.ingress_port: exact; }
        actions = { known; learn; }
        default_action = learn();
        size = 4096;
    }

    table destinations {
        key = { hdr.ethernet.dst: exact; }
        actions = { forward; flood; }
        default_action = flood();
        size = 4096;
    }

    apply {
        sources.apply();
        destinations.apply();
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (standard.mcast_grp != 0 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

control UpdateNothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(SwitchParser(), VerifyNothing(), SwitchIngress(), SwitchEgress(), UpdateNothing(), SwitchDeparser()) main;
