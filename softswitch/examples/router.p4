/* SPDX-License-Identifier: Apache-2.0
 *
 * An IPv4 router: longest prefix, TTL, checksum; and an ARP responder, so that hosts need no static entries.
 */
#include <core.p4>
#include <v1model.p4>

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;

header ethernet_t {
    mac_t    dst;
    mac_t    src;
    bit<16>  type;
}

header arp_t {
    bit<16>  hardware;
    bit<16>  protocol;
    bit<8>   hardware_bytes;
    bit<8>   protocol_bytes;
    bit<16>  operation;
    mac_t    sender_mac;
    ipv4_t   sender;
    mac_t    target_mac;
    ipv4_t   target;
}

header ipv4_header_t {
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
    ipv4_t   src;
    ipv4_t   dst;
}

struct headers_t {
    ethernet_t    ethernet;
    arp_t         arp;
    ipv4_header_t ipv4;
}

struct metadata_t {
}

parser RouterParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            0x0806: arp;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }
}

control VerifyIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.tos, hdr.ipv4.bytes, hdr.ipv4.id,
            hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) routed;

    action drop() {
        mark_to_drop(standard);
    }

    action route(bit<9> port, mac_t mac, mac_t next_hop) {
        standard.egress_spec = port;
        hdr.ethernet.src = mac;
        hdr.ethernet.dst = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        routed.count();
    }

    action reply(mac_t mac) {
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.sender_mac = mac;
        ipv4_t asked = hdr.arp.target;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender = asked;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        standard.egress_spec = standard.ingress_port;
    }

    table routes {
        key = { hdr.ipv4.dst: lpm; }
        actions = { route; drop; }
        default_action = drop();
        counters = routed;
        size = 1024;
    }

    table own_addresses {
        key = { hdr.arp.target: exact; }
        actions = { reply; drop; }
        default_action = drop();
        size = 64;
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.operation == 1) {
            own_addresses.apply();
        } else if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1 && standard.checksum_error == 0) {
            routes.apply();
        } else {
            drop();
        }
    }
}

control RouterEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control UpdateIpv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.tos, hdr.ipv4.bytes, hdr.ipv4.id,
            hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control RouterDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(RouterParser(), VerifyIpv4(), RouterIngress(), RouterEgress(), UpdateIpv4(), RouterDeparser()) main;
