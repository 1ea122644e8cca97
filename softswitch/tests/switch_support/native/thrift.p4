// SPDX-License-Identifier: Apache-2.0
// Every kind of object that BMv2's Thrift services name, for tests of these.
#include <core.p4>
#include <v1model.p4>
header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
header ipv4_t { bit<32> src; bit<32> dst; bit<9> odd; bit<7> rest; }
struct headers_t { ethernet_t eth; ipv4_t ip; }
struct meta_t { bit<14> hash; bit<32> color; }
parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(4) types;
    state start { p.extract(h.eth); transition select(h.eth.type) { types: more; default: accept; } }
    state more { p.extract(h.ip); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply { } }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<32>>(MeterType.bytes) rates;
    counter(16, CounterType.packets_and_bytes) ports;
    meter(4, MeterType.packets) pm;
    register<bit<32>>(8) seen;
    register<bit<9>>(3) narrow;
    register<bit<32>>(2) crcs;
    register<bit<32>>(1) color;
    action forward(bit<9> port, bit<48> dst) { s.egress_spec = port; h.eth.dst = dst; }
    action forward_metered(bit<9> port) { s.egress_spec = port; rates.read(m.color); }
    action drop() { mark_to_drop(s); }
    action say(bit<32> x) { m.color = x; }
    table exact_t {
        key = { h.eth.dst : exact; s.ingress_port : exact; }
        actions = { forward; drop; NoAction; }
        counters = hits;
        size = 4;
        default_action = drop();
        support_timeout = true;
    }
    table lpm_t {
        key = { h.ip.dst : lpm; }
        actions = { forward; forward_metered; drop; }
        meters = rates;
        default_action = drop();
    }
    table tern_t {
        key = { h.eth.type : ternary; h.ip.odd : exact; }
        actions = { say; NoAction; }
        const default_action = NoAction();
    }
    table range_t {
        key = { h.eth.type : range; h.ip.src : ternary; h.ip.isValid(): exact; }
        actions = { say; NoAction; }
    }
    table const_t {
        key = { h.eth.type : ternary; }
        actions = { say; NoAction; }
        const entries = { 0x800: say(1); 0x8000 &&& 0xf000: say(2); _: NoAction(); }
    }
    action_profile(8) prof;
    action_selector(HashAlgorithm.crc16, 8, 14) sel;
    table ind_t {
        key = { h.eth.src : exact; }
        actions = { forward; say; NoAction; }
        implementation = prof;
    }
    table sel_t {
        key = { h.eth.src : exact; m.hash: selector; }
        actions = { forward; say; NoAction; }
        implementation = sel;
    }
    apply {
        ports.count((bit<32>) s.ingress_port);
        bit<32> c; pm.execute_meter((bit<32>)s.ingress_port & 3, c);
        color.write(0, c);
        exact_t.apply();
        lpm_t.apply();
        tern_t.apply();
        range_t.apply();
        const_t.apply();
        ind_t.apply();
        sel_t.apply();
        bit<32> crc16;
        bit<32> crc32;
        hash(crc16, HashAlgorithm.crc16_custom, (bit<16>) 0, { h.eth.dst, h.eth.src }, (bit<64>) 0x10000);
        hash(crc32, HashAlgorithm.crc32_custom, (bit<16>) 0, { h.eth.dst, h.eth.src }, (bit<64>) 0x100000000);
        crcs.write(0, crc16);
        crcs.write(1, crc32);
        bit<32> n; seen.read(n, 0); seen.write(0, n + 1);
        bit<9> k; narrow.read(k, 0); narrow.write(0, k + 1);
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
