// SPDX-License-Identifier: Apache-2.0
// What a parser leaves behind: errors, header validity and values after every way for parsing to end.
// The outputs in parser_errors.stf were recorded from BMv2's simple_switch.
#include <core.p4>
#include <v1model.p4>

header pair_t {
    bit<8> k;
    bit<8> v;
}
header variable_t {
    bit<8>     n;
    varbit<32> data;
}
header report_t {
    bit<8> error_;
    bit<8> x;
    bit<8> y;
    bit<8> uninitialised;
    bit<8> valid;
    bit<8> n;
    bit<8> second;
    bit<8> indexed;
}
struct headers_t {
    report_t   report;
    pair_t     first;
    pair_t[3]  stack;
    variable_t variable;
}
struct meta_t {
    bit<8> x;
    bit<8> y;
}

parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        p.extract(h.first);
        transition select(h.first.k) {      // no default: other values end parsing
            1: look;
            2: overflow;
            4: check;
            5: variable;
            6: skip;
            7: loop;
            8: reject;
            9: random_access;
            10: keys;
            255: accept;
        }
    }
    state look {
        m.x = p.lookahead<bit<16>>()[7:0];
        transition accept;
    }
    state overflow {
        p.extract(h.stack.next);
        p.extract(h.stack.next);
        p.extract(h.stack.next);
        p.extract(h.stack.next);
        transition accept;
    }
    state check {
        verify(h.first.v == 0, error.HeaderTooShort);
        m.y = 9;
        transition accept;
    }
    state variable {
        p.extract(h.variable, (bit<32>)h.first.v);
        transition accept;
    }
    state skip {
        p.advance((bit<32>)h.first.v);
        transition accept;
    }
    state loop {
        p.extract(h.stack.next);
        transition select(h.stack.last.k) {
            0: accept;
            default: loop;
        }
    }
    state random_access {
        m.x = (bit<8>)s.packet_length;
        p.extract(h.stack[1]);
        transition accept;
    }
    state keys {
        transition select(h.first.v) {
            5 .. 9: look;
            0x10 &&& 0xf0: overflow;
            _: random_access;
        }
    }
}

control NoCheck(inout headers_t h, inout meta_t m) {
    apply { }
}

control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    bit<8> never_set;
    apply {
        s.egress_spec = 1;
        h.report.setValid();
        if (s.parser_error == error.NoError) {
            h.report.error_ = 0;
        } else if (s.parser_error == error.PacketTooShort) {
            h.report.error_ = 1;
        } else if (s.parser_error == error.NoMatch) {
            h.report.error_ = 2;
        } else if (s.parser_error == error.StackOutOfBounds) {
            h.report.error_ = 3;
        } else if (s.parser_error == error.HeaderTooShort) {
            h.report.error_ = 4;
        } else if (s.parser_error == error.ParserInvalidArgument) {
            h.report.error_ = 6;
        } else {
            h.report.error_ = 9;
        }
        h.report.x = m.x;
        h.report.y = m.y;
        h.report.uninitialised = never_set;
        never_set = h.first.k;
        if (h.stack[0].isValid()) {
            h.report.valid = h.report.valid | 1;
        }
        if (h.stack[1].isValid()) {
            h.report.valid = h.report.valid | 2;
        }
        if (h.stack[2].isValid()) {
            h.report.valid = h.report.valid | 4;
        }
        if (h.variable.isValid()) {
            h.report.valid = h.report.valid | 8;
            h.report.n = h.variable.n;
        }
        h.report.second = h.stack[1].v;
        bit<2> i = (bit<2>)h.first.v;
        if (i < 3) {
            h.stack[i].k = 0xaa;
            h.report.indexed = h.stack[i].v;
        }
    }
}
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    apply { }
}
control Write(packet_out p, in headers_t h) {
    apply { p.emit(h); }
}
V1Switch(Parse(), NoCheck(), Work(), NoEgress(), NoCheck(), Write()) main;
