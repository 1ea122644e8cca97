// SPDX-License-Identifier: Apache-2.0
//
// Asks the traffic manager for everything it can do, and writes down what each pass sees: every egress pass puts a `seen`
// header behind `op`.  Run on BMv2 and on softswitch, the frames must be equal (test_bmv2_differential.py).
#include <core.p4>
#include <v1model.p4>

header op_t {
    bit<8> op;
    bit<8> a;
    bit<16> b;
    bit<32> c;
}

header seen_t {
    bit<8> instance_type;
    bit<8> instance_type_in_ingress;
    bit<16> ingress_port;
    bit<16> rid;
    bit<16> tag;
    bit<16> other;
    bit<16> error_seen;
    bit<32> length;
    bit<32> length_in_ingress;
}

header pad_t {
    bit<80> bits;
}

struct headers_t {
    op_t op;
    seen_t seen;
    pad_t pad;
}

struct metadata_t {
    @field_list(1)
    bit<16> tag;
    bit<16> other;
    bit<8> instance_type;
    bit<32> length;
    @field_list(1, 2)
    bit<8> rounds;
    @field_list(3)
    bit<8> unused;
}

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.op);
        meta.other = 0x7777;
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        meta.instance_type = (bit<8>)std.instance_type;
        meta.length = std.packet_length;
        if (!hdr.op.isValid()) {
            std.egress_spec = 3;
            exit;
        }
        bool again = std.instance_type != 0;
        bit<9> port = (bit<9>)hdr.op.b;
        if (hdr.op.op == 0) {
            std.egress_spec = port;
        } else if (hdr.op.op == 1) {
            std.mcast_grp = hdr.op.b;
        } else if (hdr.op.op == 2) {
            mark_to_drop(std);
        } else if (hdr.op.op == 3 || hdr.op.op == 4) {
            meta.tag = 0x1111;
            if (hdr.op.op == 3) {
                clone(CloneType.I2E, (bit<32>)hdr.op.b);
            } else {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.op.b, 1);
            }
            meta.tag = 0x2222;
            std.egress_spec = (bit<9>)hdr.op.c;
            hdr.op.c = 0xdead;
            if (hdr.op.a == 1) {
                mark_to_drop(std);
            }
        } else if (hdr.op.op == 5) {
            std.egress_spec = port;
            if (!again) {
                meta.tag = 0x3333;
                meta.rounds = 5;
                hdr.op.c = 0xdead;
                if (hdr.op.a == 1) {
                    resubmit_preserving_field_list(1);
                } else {
                    resubmit_preserving_field_list(3);
                }
            }
        } else if (hdr.op.op == 6) {
            std.egress_spec = port;
        } else if (hdr.op.op == 7) {
            truncate(hdr.op.c);
            if (hdr.op.a != 0) {
                truncate((bit<32>)hdr.op.a);
            }
            std.egress_spec = port;
        } else if (hdr.op.op == 8) {
            truncate(hdr.op.c);
            std.mcast_grp = hdr.op.b;
        } else if (hdr.op.op == 9) {
            std.egress_spec = port;
        } else if (hdr.op.op == 10) {
            if (!again) {
                clone(CloneType.I2E, 2);
                resubmit_preserving_field_list(1);
                std.mcast_grp = 1;
            } else {
                std.egress_spec = port;
            }
        } else if (hdr.op.op == 11) {
            hdr.pad.setValid();
            hdr.pad.bits = 0x0102030405060708090a;
            std.egress_spec = port;
            std.mcast_grp = (bit<16>)hdr.op.a;
        } else if (hdr.op.op == 12) {
            std.egress_spec = port;
            std.mcast_grp = 1;
            mark_to_drop(std);
            std.egress_spec = port;
        } else if (hdr.op.op == 13) {
            std.egress_spec = port;
            if (hdr.op.a == 0) { hash(hdr.op.c, HashAlgorithm.crc32, 32w0, { hdr.op.b, hdr.op.c, hdr.op.a }, 33w0x100000000); }
            if (hdr.op.a == 1) { hash(hdr.op.c, HashAlgorithm.crc16, 32w0, { hdr.op.b, hdr.op.c, hdr.op.a }, 33w0x100000000); }
            if (hdr.op.a == 2) { hash(hdr.op.c, HashAlgorithm.csum16, 32w5, { hdr.op.b, hdr.op.c, hdr.op.a }, 32w1000); }
            if (hdr.op.a == 3) { hash(hdr.op.c, HashAlgorithm.xor16, 32w0, { hdr.op.b, hdr.op.c, hdr.op.a }, 33w0x100000000); }
            if (hdr.op.a == 4) { hash(hdr.op.c, HashAlgorithm.identity, 32w7, { hdr.op.b, hdr.op.c }, 32w0xfff0); }
            if (hdr.op.a == 5) { hash(hdr.op.c, HashAlgorithm.crc32_custom, 32w0, { hdr.op.b, 3w5, hdr.op.c }, 33w0x100000000); }
            if (hdr.op.a == 6) { hash(hdr.op.c, HashAlgorithm.crc16_custom, 32w0, { hdr.op.c }, 32w0); }
        } else {
            mark_to_drop(std);
        }
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        // BMv2 leaves old values in invalid headers: whoever reads them sees another packet's.
        if (hdr.op.isValid()) {
            if (hdr.op.op == 6 && std.instance_type == 0 && meta.rounds < (bit<8>)hdr.op.c) {
                meta.tag = 0x4444;
                meta.rounds = meta.rounds + 1;
                if (hdr.op.a == 1) {
                    truncate(12);
                }
                recirculate_preserving_field_list(2);
            }
            if (hdr.op.op == 9 && std.instance_type == 0) {
                meta.tag = 0x5555;
                clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.op.a, 1);
                if (hdr.op.c == 1) {
                    mark_to_drop(std);
                }
            }
            if (hdr.op.op == 1 && std.egress_rid == (bit<16>)hdr.op.a) {
                mark_to_drop(std);
                exit;
            }
        }
        hdr.seen.setValid();
        hdr.seen.instance_type = (bit<8>)std.instance_type;
        hdr.seen.instance_type_in_ingress = meta.instance_type;
        hdr.seen.ingress_port = (bit<16>)std.ingress_port;
        hdr.seen.rid = std.egress_rid;
        hdr.seen.tag = meta.tag;
        hdr.seen.other = meta.other;
        hdr.seen.error_seen = std.parser_error == error.NoError ? 16w0 : 16w1;
        hdr.seen.length = std.packet_length;
        hdr.seen.length_in_ingress = meta.length;
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(P(), Verify(), I(), E(), Compute(), D()) main;
