/* SPDX-License-Identifier: Apache-2.0
 *
 * A program for the packet trace: every kind of step, and every way to lose a packet.
 */
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> length;
    bit<48> more;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header options_t {
    varbit<320> data;
}

header label_t {
    bit<7> label;
    bit<1> last;
}

struct headers_t {
    ethernet_t ethernet;
    ipv4_t ipv4;
    options_t options;
    label_t[2] labels;
}

struct metadata_t {
    bit<16> count;
    bit<200> wide;
    bit<100> middle;
}

parser TheParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x800: ipv4;
            0x801 &&& 0xfff: labels;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4, error.ParserInvalidArgument);
        transition select(hdr.ipv4.ihl) {
            5: accept;
            default: options;
        }
    }
    state options {
        packet.extract(hdr.options, ((bit<32>)hdr.ipv4.ihl - 5) * 32);
        transition accept;
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.count = meta.count + 1;
        transition select(hdr.labels.last.last) {
            0: labels;
        }
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length,
            hdr.ipv4.more, hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control TheIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<32>>(16) seen;
    counter(512, CounterType.packets) sent;

    action drop() {
        mark_to_drop(standard);
    }
    action forward(bit<9> port, bit<48> dst) {
        standard.egress_spec = port;
        hdr.ethernet.dst = dst;
        sent.count((bit<32>)port);
    }
    action group(bit<16> number) {
        standard.mcast_grp = number;
    }
    action copy(bit<32> session) {
        clone(CloneType.I2E, session);
        standard.egress_spec = 1;
    }
    action nothing() {
    }

    table routes {
        key = {
            hdr.ipv4.dst: lpm;
        }
        actions = {
            drop;
            forward;
            group;
            copy;
            nothing;
        }
        default_action = drop();
    }
    table filter {
        key = {
            hdr.ethernet.src: ternary @name("source");
            standard.ingress_port: range;
        }
        actions = {
            drop;
            NoAction;
        }
        const default_action = NoAction();
    }

    apply {
        if (hdr.ipv4.isValid()) {
            routes.apply();
        }
        switch (filter.apply().action_run) {
            drop: {
                exit;
            }
            default: {
                bit<32> before;
                seen.read(before, 3);
                seen.write(3, before + 1);
            }
        }
        if (hdr.ipv4.tos == 1) {
            standard.egress_spec = 511;
        }
        if (hdr.ipv4.tos == 2) {
            resubmit_preserving_field_list(0);
        }
        if (hdr.ipv4.tos == 3) {
            meta.wide = 200w0x123456789abcdef0123456789abcdef012345678;
            meta.middle = 100w0xfedcba9876543210f;
            hdr.ethernet.setInvalid();
            log_msg("tos {}", { hdr.ipv4.tos });
        }
    }
}

control TheEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.ipv4.tos == 4) {
            mark_to_drop(standard);
        }
        if (hdr.ipv4.tos == 5) {
            hdr.ipv4.tos = 0;
            recirculate_preserving_field_list(0);
        }
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length,
            hdr.ipv4.more, hdr.ipv4.src, hdr.ipv4.dst }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(TheParser(), Verify(), TheIngress(), TheEgress(), Compute(), Deparse()) main;
