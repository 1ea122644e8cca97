// SPDX-License-Identifier: Apache-2.0
// NetFold's one program, for every switch of the fabric: leaf or spine is a matter of table entries.
//
//   ingress   from the CPU? -> folded? -> guarded, routed
//   egress    marked, where the queue is long -> turned into an answer, if it is one -> rewritten for its receiver, if
//             folded
//
// Where faults are injected (FAULTS), they come first on the way in and last on the way out.  A copy that a fault on the way
// in makes goes round: clone to egress, from there to ingress again.  So does a question for several packets, once for each.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"
#include "parser.p4"
#include "checksums.p4"
#if FAULTS
#include "fault.p4"
#endif
#include "congestion.p4"
#include "answer.p4"
#include "fold.p4"
#include "guard.p4"
#include "replica.p4"
#include "route.p4"

// Where does a packet go that comes in?
control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Fold()  fold;
    Guard() guard;
    Route() route;
    counter(PORTS, CounterType.packets_and_bytes) port_in;
#if FAULTS
    Fault() fault_in;
    bit<2>  copy = COPY_NONE;
    bit<1>  again = 0;
#endif
    bit<1>  lost = 0;
    bit<1>  cloned = 0;
    bit<1>  next = 0;           // the question for the next one of several packets

    action arrive() {
        mark_to_drop(sm);
        if (hdr.packet_out.isValid()) {
            if (hdr.packet_out.kind == CPU_NEIGHBOURS) {
                meta.group = PROBE_GROUP;
                meta.folded = 1;        // replica.p4 signs each copy
                sm.mcast_grp = PROBE_GROUP;
            } else if (hdr.packet_out.kind == CPU_HEARD) {
                meta.routed = 1;        // route.p4 answers
            } else {
                sm.egress_spec = hdr.packet_out.egress_port;
            }
            hdr.packet_out.setInvalid();
        } else if (sm.instance_type == RECIRCULATED) {
#if FAULTS
            again = 1;
#endif
            if (meta.clone == ASK_NEXT) {
                next = 1;
            }
            meta.clone = NO_ANSWER;
            meta.checksummed = 0;
        } else {
            meta.port = sm.ingress_port;
            port_in.count((bit<32>)sm.ingress_port);
        }
    }
// IPv4 from a link, whole
#define TRAFFIC (sm.ingress_port != CPU_PORT && hdr.ipv4.isValid() && sm.checksum_error == 0 && lost == 0)
    apply {
        arrive();
#if FAULTS
        if (sm.ingress_port != CPU_PORT) {
            fault_in.apply(hdr, meta, sm, meta.port, again, lost, copy);
            if (copy != COPY_NONE) {
                cloned = 1;
                clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
            }
        }
#endif
        if (hdr.probe.isValid() || (TRAFFIC && (hdr.icrc.isValid() || hdr.aeth.isValid()))) {
            fold.apply(hdr, meta, sm, cloned, next);
        }
        if (meta.folded == 0 && TRAFFIC) {
            guard.apply(hdr, meta);
        }
        if (meta.routed == 1) {
            route.apply(hdr, meta, sm);
        }
    }
}

// What does a packet look like that goes out?
control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Congestion() congestion;
    Answer()     answer;
    Replica()    replica;
    counter(PORTS, CounterType.packets_and_bytes) port_out;
#if FAULTS
    Fault()   fault_out;
    bit<2>    copy = COPY_NONE;
    bit<1>    again = 0;
#define GOES_ROUND  (meta.clone == ASK_NEXT || meta.copy != COPY_NONE)
#else
#define GOES_ROUND  (meta.clone == ASK_NEXT)
#endif
    bit<1>    lost = 0;

    action go_round() {
#if FAULTS
        if (meta.copy == COPY_NONE) {
            hdr.bth.psn = hdr.bth.psn + 1;
        }
#else
        hdr.bth.psn = hdr.bth.psn + 1;
#endif
        recirculate_preserving_field_list(COPIES);
    }
    action become_answer() {
        meta.folded = 1;
        meta.child = meta.clone_child;
        meta.answer = meta.clone;
    }
    action to_cpu() {
        hdr.packet_in.setValid();
        hdr.packet_in.ingress_port = meta.port;
        if (hdr.probe.isValid()) {
            hdr.packet_in.kind = CPU_PROBE;
        } else if (hdr.heard.isValid()) {
            hdr.packet_in.kind = CPU_HEARD;
        }
    }
    action leave() {
        if (hdr.aeth.isValid()) {
            truncate(ANSWER_BYTES);
        }
        if (lost == 0) {
            port_out.count((bit<32>)sm.egress_port);
        }
    }
    apply {
        if (sm.instance_type == INGRESS_CLONE && GOES_ROUND) {
            go_round();
        } else if (sm.egress_port == CPU_PORT) {
            to_cpu();
        } else {
#if FAULTS
            if (sm.instance_type == EGRESS_CLONE) {
                again = 1;
            } else
#endif
            {
                if (sm.instance_type == INGRESS_CLONE) {
                    become_answer();
                }
                congestion.apply(hdr, sm);
                if (meta.answer != NO_ANSWER) {
                    answer.apply(hdr, meta);
                }
                if (meta.folded == 1) {
                    replica.apply(hdr, meta, sm);
                }
            }
#if FAULTS
            fault_out.apply(hdr, meta, sm, sm.egress_port, again, lost, copy);
            if (copy != COPY_NONE) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>)sm.egress_port, COPIES);
            }
#endif
            leave();
        }
    }
}

V1Switch(Parse(), CheckIpv4(), SwitchIngress(), SwitchEgress(), MakeChecksums(), Deparse()) main;
