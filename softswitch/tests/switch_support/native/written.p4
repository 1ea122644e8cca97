// SPDX-License-Identifier: Apache-2.0
//
// What a P4Runtime client writes and reads back: a selector, counters of each unit, an entry that ages.
#include <core.p4>
#include <v1model.p4>

header ask_t {
    bit<8> key;
    bit<8> hashed;
}

struct headers_t {
    ask_t ask;
}

struct metadata_t { }

parser P(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ask);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(4, CounterType.packets) packets;
    counter(4, CounterType.bytes) octets;
    counter(4, CounterType.packets_and_bytes) both;
    direct_counter(CounterType.bytes) direct;

    action forward(bit<9> port) {
        std.egress_spec = port;
    }
    action counted(bit<9> port) {
        std.egress_spec = port;
        direct.count();
    }
    @max_group_size(16)
    action_selector(HashAlgorithm.crc16, 32w64, 32w16) spread;
    table select_t {
        key = { hdr.ask.key: exact; hdr.ask.hashed: selector; }
        actions = { forward; NoAction; }
        default_action = NoAction();
        implementation = spread;
    }
    table aging_t {
        key = { hdr.ask.key: exact; }
        actions = { counted; NoAction; }
        default_action = NoAction();
        counters = direct;
        support_timeout = true;
    }
    apply {
        packets.count(0);
        octets.count(0);
        both.count(0);
        select_t.apply();
        aging_t.apply();
    }
}

control E(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply { }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control D(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ask);
    }
}

V1Switch(P(), Verify(), I(), E(), Compute(), D()) main;
