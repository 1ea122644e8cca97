// SPDX-License-Identifier: Apache-2.0
// An IPv4 router as small as it gets: longest prefix, TTL, checksum.  For bench/scripts/switch.py.
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t {
    bit<4> version; bit<4> ihl; bit<8> tos; bit<16> total_len; bit<16> id; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> src; bit<32> dst;
}
struct headers_t { ethernet_t ethernet; ipv4_t ipv4; }
struct meta_t {}

parser Parse(packet_in pkt, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        pkt.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        pkt.extract(hdr.ipv4);
        transition accept;
    }
}

#define FIELDS hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.flags, \
               hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst

control Verify(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { FIELDS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Route(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action forward(bit<9> port, bit<48> dst) {
        sm.egress_spec = port;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = dst;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { forward; drop; }
        const default_action = drop();
        const entries = {       // MAC addresses and prefixes of bench/scripts/switch.py's hosts, and some that are not met
            0x0a000101:                     forward(1, 0x02000a000101);
            0x0a000102:                     forward(2, 0x02000a000102);
            0x0a000100 &&& 0xffffff00:      drop();
            0x0a000000 &&& 0xffff0000:      forward(1, 0x020000000001);
            0x00000000 &&& 0x00000000:      drop();
        }
    }
    apply {
        if (hdr.ipv4.isValid() && sm.checksum_error == 0 && hdr.ipv4.ttl > 1) {
            routes.apply();
        } else {
            drop();
        }
    }
}

control Leave(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) { apply {} }

control Update(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { FIELDS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.ipv4);
    }
}

V1Switch(Parse(), Verify(), Route(), Leave(), Update(), Deparse()) main;
