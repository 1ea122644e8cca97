// SPDX-License-Identifier: Apache-2.0
// Calls and the order of things: functions, actions, sub-parsers, sub-controls with constructor parameters, copy-in
// and copy-out, short circuits; structs, unions, stacks, enums, tuples, generics.
// The outputs in calls.stf were recorded from BMv2's simple_switch.
#include <core.p4>
#include <v1model.p4>

header in_t {
    bit<8>  k;
    bit<8>  v;
    bit<16> w;
}
header byte_t {
    bit<8> a;
}
header short_t {
    bit<16> b;
}
header_union either_t {
    byte_t  a;
    short_t b;
}
header out_t {
    bit<8>  order;
    bit<8>  action_;
    bit<8>  circuit;
    bit<8>  after;
    bit<32> slices;
    bit<32> cases;
    bit<16> types;
}
struct headers_t {
    out_t       o;
    in_t        i;
    in_t        j;
    in_t[3]     stack;
    either_t    either;
    either_t[2] eithers;
}
struct pair_t {
    bit<8>  p;
    bit<16> q;
}
struct meta_t {
    bit<8> x;
}
enum bit<8> Kind { A = 1, B = 2, C = 9 }
enum Colour { red, green, blue }

bit<8> next(inout bit<8> x) {
    x = x + 1;
    return x;
}
bit<8> pick(in bool c, inout bit<8> x) {
    if (c) {
        return x;
    }
    x = x + 3;
    return x;
}
T same<T>(in T v) {
    return v;
}

parser Sub(packet_in p, out in_t h, inout bit<8> n) {
    state start {
        p.extract(h);
        n = n + h.k;
        transition select(h.k) {
            7: more;
            default: accept;
        }
    }
    state more {
        n = n + 100;
        transition accept;
    }
}
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    Sub() sub;
    Sub() sub2;
    state start {
        sub.apply(p, h.i, m.x);
        transition select(h.i.v) {
            1: two;
            3: union_byte;
            4: union_short;
            5: union_stack;
            default: accept;
        }
    }
    state two {
        sub2.apply(p, h.j, m.x);
        transition accept;
    }
    state union_byte {
        p.extract(h.either.a);
        transition accept;
    }
    state union_short {
        p.extract(h.either.b);
        transition accept;
    }
    state union_stack {
        p.extract(h.eithers.next.a);
        p.extract(h.eithers.next.b);
        transition accept;
    }
}

control NoCheck(inout headers_t h, inout meta_t m) {
    apply { }
}
control Inner(inout bit<8> a, in bit<8> b, out bit<8> c)(bit<8> K) {
    apply {
        a = a + b + K;
        c = a;
        if (b == 9) {
            return;
        }
        a = a + 1;
        c = 0x77;
    }
}
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    Inner(5) inner5;
    Inner(6) inner6;
    bit<8> t = 3;
    action act(inout bit<8> x, bit<8> y) {
        t = t + 1;
        x = x + y;
        if (y > 3) {
            return;
        }
        x = x + 16;
    }
    apply {
        s.egress_spec = 1;
        h.o = { 1, 2, 3, 4, 5, 6, 7 };
        h.o.order = next(t) + t + next(t);
        act(t, h.i.k);                          // t is written by the action, and copied out over it
        h.o.action_ = t;
        bool r = h.i.k > 2 && next(t) > 3 || next(t) == 9;
        if (r) {
            h.o.circuit = 0xcc;
        }
        h.o.after = t;
        h.o.slices = (bit<32>)(bit<8>)(int<8>)(h.i.k) == 0 ? 32w1 : 2;
        h.o.slices[15:8] = h.i.v;
        h.o.slices[31:24] = pick(h.i.k == 1, h.o.slices[15:8]);
        Kind k = (Kind)h.i.k;
        switch (k) {
            Kind.A: { h.o.cases = 11; }
            Kind.B:
            Kind.C: { h.o.cases = 22; }
            default: { h.o.cases = 33; }
        }
        Colour c = h.i.v == 0 ? Colour.red : Colour.blue;
        if (c == Colour.blue) {
            h.o.types = 0xb;
        }
        pair_t a = { 1, 2 };
        pair_t b = { q = 2, p = (bit<8>)1 };
        if (a == b) {
            h.o.types = h.o.types + 0x100;
        }
        b.p = 9;
        a = same(b);
        h.o.types = h.o.types + (bit<16>)a.p;
        if (h.either.isValid()) {
            h.o.types = h.o.types + 0x1000;
        }
        tuple<bit<8>, bit<16>> both = { 4, 5 };
        h.o.types = h.o.types + both[1];
        h.stack.push_front(2);
        h.stack[0].setValid();
        h.stack[0].k = 0x50;
        h.stack[1] = h.i;
        h.stack.push_front(1);
        h.stack.pop_front(1);
        in_t copy = h.i;
        copy.k = copy.k |+| 0xf0;
        copy.w = copy.w |-| 5;
        h.stack[2] = copy;
        inner5.apply(h.o.order, h.i.v, h.o.action_);
        inner6.apply(m.x, h.i.k, h.o.circuit);
        h.o.after = m.x;
        if (h.j == h.i) {
            h.o.cases = h.o.cases + 0x10000;
        }
        log_msg("k {} v {}", { h.i.k, h.i.v });
    }
}
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { }
}
control Write(packet_out p, in headers_t h) {
    apply { p.emit(h); }
}
V1Switch(Parse(), NoCheck(), Work(), NoEgress(), NoCheck(), Write()) main;
