# SPDX-License-Identifier: Apache-2.0
"""A small P4 program for tests that need a real one, with variations."""

from __future__ import annotations

BASIC = """
#include <core.p4>
#include <v1model.p4>

header ethernet_t { bit<48> dst; bit<48> src; bit<16> type; }
@controller_header("packet_in")  header packet_in_t  { bit<9> ingress_port; bit<7> reason; }
@controller_header("packet_out") header packet_out_t { bit<9> egress_port; bit<7> pad; }
struct headers_t { packet_in_t packet_in; packet_out_t packet_out; ethernet_t ethernet; }
struct meta_t { }

parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start {
        transition select(s.ingress_port) { 510: from_controller; default: ethernet; }
    }
    state from_controller { p.extract(h.packet_out); transition ethernet; }
    state ethernet { p.extract(h.ethernet); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply { } }
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    direct_counter(CounterType.packets_and_bytes) hits;
    counter(16, CounterType.packets_and_bytes) ports;
    register<bit<32>>(8) seen;
    action forward(bit<9> port) { hits.count(); s.egress_spec = port; }
    action flood(bit<16> group) { hits.count(); s.mcast_grp = group; }
    action punt(bit<7> reason) {
        hits.count();
        h.packet_in.setValid();
        h.packet_in.ingress_port = s.ingress_port;
        h.packet_in.reason = reason;
        s.egress_spec = 510;
    }
    action drop() { hits.count(); mark_to_drop(s); }
    table dmac {
        key = { h.ethernet.dst : EXACT; }
        actions = { forward; flood; punt; drop; }
        default_action = drop();
        counters = hits;
        size = 4096;
    }
    apply {
        ports.count((bit<32>) s.ingress_port);
        if (h.packet_out.isValid()) {
            s.egress_spec = h.packet_out.egress_port;
            if (h.packet_out.egress_port == 510) {        // an echo
                h.packet_in.setValid();
                h.packet_in.ingress_port = s.ingress_port;
                h.packet_in.reason = h.packet_out.pad;
            }
            h.packet_out.setInvalid();
        } else {
            dmac.apply();
            bit<32> n;
            seen.read(n, 0);
            seen.write(0, n + 1);
        }
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { EGRESS } }
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.packet_in); p.emit(h.ethernet); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


def basic(*, key: str = "exact", egress: str = "") -> str:
    """The program with another kind of match, or with statements in egress."""
    return BASIC.replace("EXACT", key).replace("EGRESS", egress)
