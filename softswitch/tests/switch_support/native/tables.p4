// SPDX-License-Identifier: Apache-2.0
//
// One table of each kind, looked up one after another; each writes its verdict into the header that leaves.
#include <core.p4>
#include <v1model.p4>

header ask_t {
    bit<12> small;
    bit<4> nibble;
    bit<32> address;
    bit<48> wide;
    bit<8> flags;
}

header told_t {
    bit<32> exact_;
    bit<32> lpm_;
    bit<32> ternary_;
    bit<32> range_;
    bit<32> optional_;
    bit<32> mixed_;
    bit<32> select_;
}

struct headers_t {
    ask_t ask;
    told_t told;
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

#define VERDICT(name, field, number) \
    action name(bit<32> value) { \
        hdr.told.field = value; \
    } \
    action name##_miss() { \
        hdr.told.field = number; \
    }

control I(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    VERDICT(say_exact, exact_, 0xe0000001)
    VERDICT(say_lpm, lpm_, 0xe0000002)
    VERDICT(say_ternary, ternary_, 0xe0000003)
    VERDICT(say_range, range_, 0xe0000004)
    VERDICT(say_optional, optional_, 0xe0000005)
    VERDICT(say_mixed, mixed_, 0xe0000006)
    action say_select(bit<32> value) {
        hdr.told.select_ = value;
    }

    table exact_t {
        key = { hdr.ask.small: exact; hdr.ask.nibble: exact; }
        actions = { say_exact; say_exact_miss; }
        default_action = say_exact_miss();
    }
    table lpm_t {
        key = { hdr.ask.nibble: exact; hdr.ask.address: lpm; }
        actions = { say_lpm; say_lpm_miss; }
        default_action = say_lpm_miss();
    }
    table ternary_t {
        key = { hdr.ask.wide: ternary; hdr.ask.small: ternary; hdr.ask.nibble: exact; }
        actions = { say_ternary; say_ternary_miss; }
        default_action = say_ternary_miss();
    }
    table range_t {
        key = { hdr.ask.small: range; hdr.ask.address: ternary; hdr.ask.flags: range; }
        actions = { say_range; say_range_miss; }
        default_action = say_range_miss();
    }
    table optional_t {
        key = { hdr.ask.flags: optional; hdr.ask.small: optional; }
        actions = { say_optional; say_optional_miss; }
        default_action = say_optional_miss();
    }
    table mixed_t {
        key = { hdr.ask.address: lpm; hdr.ask.flags: ternary; hdr.ask.nibble: exact; }
        actions = { say_mixed; say_mixed_miss; }
        default_action = say_mixed_miss();
    }
    action_selector(HashAlgorithm.crc16, 32w64, 32w16) spread;
    table select_t {
        key = { hdr.ask.flags: exact; hdr.ask.address: selector; hdr.ask.small: selector; }
        actions = { say_select; NoAction; }
        default_action = NoAction();        // p4c takes no other one for BMv2 where there is an implementation
        implementation = spread;
    }
    apply {
        hdr.told.setValid();
        hdr.told.select_ = 0xe0000007;
        exact_t.apply();
        lpm_t.apply();
        ternary_t.apply();
        range_t.apply();
        optional_t.apply();
        mixed_t.apply();
        select_t.apply();
        std.egress_spec = 1;
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
        packet.emit(hdr);
    }
}

V1Switch(P(), Verify(), I(), E(), Compute(), D()) main;
