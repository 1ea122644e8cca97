// SPDX-License-Identifier: Apache-2.0
// Const entries of every match kind, action data, registers, hashes, checksums, varbit, signed and odd widths, loops.
// The outputs in tables.stf were recorded from BMv2's simple_switch.
#include <core.p4>
#include <v1model.p4>

header in_t {
    bit<8>  k;
    bit<8>  v;
    bit<16> w;
    int<8>  s;
    bit<4>  hi;
    bit<4>  lo;
    bit<48> mac;
    bit<3>  a;
    bit<70> b;
    bit<7>  c;
}
header variable_t {
    bit<4>     x;
    bit<4>     n;
    varbit<64> data;
    bit<8>     tail;
}
header out_t {
    bit<32> crc32;
    bit<32> crc16;
    bit<32> identity;
    bit<32> csum16;
    bit<32> xor16;
    bit<16> signed_;
    bit<8>  hits;
    bit<8>  which;
    bit<8>  data;
    bit<32> counted;
    bit<70> wide;
    bit<2>  negative;
    bit<16> seen;
    bit<8>  looped;
}
struct headers_t {
    out_t      o;
    in_t       i;
    variable_t v;
    in_t       j;
}
struct meta_t { }

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.i);
        transition select(h.i.hi) {
            0xf: variable;
            default: accept;
        }
    }
    state variable {
        bit<8> l = p.lookahead<bit<8>>();
        p.extract(h.v, (bit<32>)l[3:0] << 3);
        transition accept;
    }
}
control Check(inout headers_t h, inout meta_t m) {
    apply {
        verify_checksum(h.i.isValid(), { h.i.k, h.i.v }, h.i.w, HashAlgorithm.csum16);
    }
}
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    register<bit<32>>(8) seen;
    register<bit<70>>(4) sums;
    counter(4, CounterType.packets) packets;
    action data8(bit<8> d) {
        h.o.data = d;
        h.o.which = 1;
    }
    action data70(bit<70> w, bit<8> d) {
        h.o.wide = w;
        h.o.data = d;
        h.o.which = 2;
    }
    action nothing() {
        h.o.which = 3;
    }
    action loop() {
        for (bit<8> q = 0; q < 6; q = q + 1) {
            if (q == 2) {
                continue;
            }
            if (q == 5) {
                break;
            }
            h.o.looped = h.o.looped + q;
        }
    }
    table exact_ {
        key = { h.i.k: exact; }
        actions = { data8; data70; nothing; NoAction; }
        const entries = {
            1: data8(0x11);
            2: data70(70w0x3f_0123_4567_89ab_cdef, 0x22);
            3: nothing();
        }
        const default_action = data8(0xdd);
    }
    table ternary_ {
        key = { h.i.v: ternary; h.i.w: range; }
        actions = { data8; nothing; @defaultonly NoAction; }
        const entries = {
            (0x10 &&& 0xf0, 0 .. 100): data8(0x41);
            (0x12, _): data8(0x42);
            (_, 5 .. 0xffff): nothing();
        }
    }
    table lpm_ {
        key = { h.i.mac: lpm; h.i.k: exact; }
        actions = { data8; NoAction; }
        const entries = {
            (48w0x010200000000 &&& 0xffff00000000, 1): data8(0x51);
            (48w0x010203000000 &&& 0xffffff000000, 1): data8(0x52);
            (_, 2): data8(0x53);
        }
        default_action = NoAction();
    }
    table optional_ {
        key = { h.i.lo: optional; h.i.hi: optional; }
        actions = { data8; NoAction; }
        const entries = {
            (1, _): data8(0x61);
            (_, 2): data8(0x62);
            (3, 4): data8(0x63);
        }
    }
    apply {
        s.egress_spec = 1;
        h.o.setValid();
        hash(h.o.crc32, HashAlgorithm.crc32, 32w0, { h.i.k, h.i.a, h.i.b, h.i.c, h.i.mac }, 64w0x100000000);
        hash(h.o.crc16, HashAlgorithm.crc16, 32w10, { h.i.k, h.i.hi, h.i.mac }, 32w1000);
        hash(h.o.identity, HashAlgorithm.identity, 16w0, { h.i.k, h.i.v, h.i.w }, 32w0xffffffff);
        hash(h.o.csum16, HashAlgorithm.csum16, 16w0, { h.i.k, h.i.v, h.i.w, h.i.mac }, 32w0x10000);
        hash(h.o.xor16, HashAlgorithm.xor16, 16w0, { h.i.k, h.i.v, h.i.w, h.i.mac }, 32w0x10000);
        if (exact_.apply().hit) {
            h.o.hits = h.o.hits + 1;
        }
        switch (ternary_.apply().action_run) {
            data8: { h.o.hits = h.o.hits + 0x10; }
            nothing: { h.o.hits = h.o.hits + 0x20; }
            default: { h.o.hits = h.o.hits + 0x30; }
        }
        if (lpm_.apply().miss) {
            h.o.hits = h.o.hits + 2;
        } else {
            h.o.seen[7:0] = h.o.data;
        }
        if (!optional_.apply().hit) {
            h.o.hits = h.o.hits + 4;
        } else {
            h.o.seen[15:8] = h.o.data;
        }
        bit<32> n;
        seen.read(n, (bit<32>)h.i.v[2:0]);
        seen.write((bit<32>)h.i.v[2:0], n + 1);
        h.o.counted = n;
        bit<70> sum;
        sums.read(sum, 1);
        sum = sum + 70w0x3_ffff_ffff_ffff_ffff;
        sums.write(1, sum);
        h.o.wide = h.o.wide ^ sum;
        packets.count(1);
        int<8> half = h.i.s |+| 100;
        half = half >> 1;
        int<8> minus = -h.i.s;
        h.o.signed_ = (bit<16>)(bit<8>)half ++ (bit<8>)minus == 24w0 ? 16w1 : (bit<16>)(int<16>)half;
        if (h.i.s < -3) {
            h.o.negative = 3;
        }
        if (s.checksum_error == 1) {
            h.o.hits = h.o.hits + 0x80;
        }
        loop();
        h.j = h.i;
        h.j.b = h.i.b << h.i.lo;
        h.j.a = h.i.b[69:67];
        h.j.c = ~h.i.c;
        h.j.mac = h.i.mac * 3;
    }
}
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { }
}
control Update(inout headers_t h, inout meta_t m) {
    apply {
        update_checksum(h.v.isValid(), { h.v.x, h.v.n, h.v.data, h.v.tail }, h.i.w, HashAlgorithm.csum16);
        update_checksum_with_payload(h.i.k == 1, { h.i.k, h.i.v }, h.j.w, HashAlgorithm.csum16);
    }
}
control Write(packet_out p, in headers_t h) {
    apply {
        p.emit(h.o);
        p.emit(h.i);
        p.emit(h.v);
        p.emit(h.j);
    }
}
V1Switch(Parse(), Check(), Work(), NoEgress(), Update(), Write()) main;
