/* SPDX-License-Identifier: Apache-2.0
 *
 * A stateful firewall between port 1 (inside) and port 2 (outside): UDP comes in only as an answer to what went out.  The
 * flows that went out are bits of a Bloom filter in two registers.
 */
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48>  dst;
    bit<48>  src;
    bit<16>  type;
}

header ipv4_t {
    bit<4>   version;
    bit<4>   words;
    bit<8>   tos;
    bit<16>  bytes;
    bit<16>  id;
    bit<3>   flags;
    bit<13>  offset;
    bit<8>   ttl;
    bit<8>   protocol;
    bit<16>  checksum;
    bit<32>  src;
    bit<32>  dst;
}

header udp_t {
    bit<16>  src;
    bit<16>  dst;
    bit<16>  bytes;
    bit<16>  checksum;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
}

struct metadata_t {
}

const bit<9> INSIDE = 1;
const bit<9> OUTSIDE = 2;

parser FirewallParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.words, hdr.ipv4.offset, hdr.ipv4.protocol) {
            (5, 0, 17): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition accept;
    }
}

control VerifyNothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control FirewallIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<1>>(4096) first;
    register<bit<1>>(4096) second;

    apply {
        if (!hdr.udp.isValid() || (standard.ingress_port != INSIDE && standard.ingress_port != OUTSIDE)) {
            mark_to_drop(standard);
            return;
        }
        bool goes_out = standard.ingress_port == INSIDE;
        bit<32> here = goes_out ? hdr.ipv4.src : hdr.ipv4.dst;
        bit<32> there = goes_out ? hdr.ipv4.dst : hdr.ipv4.src;
        bit<16> own_port = goes_out ? hdr.udp.src : hdr.udp.dst;
        bit<16> other_port = goes_out ? hdr.udp.dst : hdr.udp.src;
        bit<32> at;
        bit<32> also_at;
        hash(at, HashAlgorithm.crc32, 32w0, { here, there, own_port, other_port }, 32w4096);
        hash(also_at, HashAlgorithm.crc16, 32w0, { other_port, own_port, there, here }, 32w4096);
        if (goes_out) {
            first.write(at, 1);
            second.write(also_at, 1);
            standard.egress_spec = OUTSIDE;
        } else {
            bit<1> one;
            bit<1> two;
            first.read(one, at);
            second.read(two, also_at);
            if (one == 1 && two == 1) {
                standard.egress_spec = INSIDE;
            } else {
                mark_to_drop(standard);
            }
        }
    }
}

control FirewallEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control UpdateNothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control FirewallDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
    }
}

V1Switch(FirewallParser(), VerifyNothing(), FirewallIngress(), FirewallEgress(), UpdateNothing(), FirewallDeparser()) main;
