// SPDX-License-Identifier: Apache-2.0
// NetFold's one program, for every switch of the fabric: leaf or spine is a matter of table entries.
//
//   ingress   faults on the way in -> from the CPU? -> folded? -> routed
//   egress    marked, where the queue is long -> rewritten for its receiver, if folded -> faults on the way out
//
// A copy that a fault on the way in makes goes round: clone to egress, from there to ingress again.
#include <core.p4>
#include <v1model.p4>
#include "headers.p4"
#include "parser.p4"
#include "fault.p4"
#include "congestion.p4"
#include "fold.p4"
#include "replica.p4"
#include "route.p4"

control SwitchIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Fault() fault_in;
    Fold()  fold;
    Route() routing;
    counter(512, CounterType.packets_and_bytes) port_in;
    bit<1>  lost = 0;
    bit<2>  copy = COPY_NONE;
    bit<1>  again = 0;
    bool    traffic = false;    // IPv4 from a link, whole

    apply {
        mark_to_drop(sm);
        if (hdr.packet_out.isValid()) {
            sm.egress_spec = hdr.packet_out.egress_port;
        } else {
            if (sm.instance_type == RECIRCULATED) {
                again = 1;
                meta.folded = 0;
            } else {
                meta.port = sm.ingress_port;
                port_in.count((bit<32>)meta.port);
            }
            fault_in.apply(hdr, meta, sm, meta.port, again, lost, copy);
            if (copy != COPY_NONE) {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.port, COPIES);
            }
            if (lost == 0 && hdr.ipv4.isValid() && sm.checksum_error == 0) {
                traffic = true;
            }
        }
        if (hdr.probe.isValid() || (traffic && hdr.icrc.isValid())) {
            fold.apply(hdr, meta, sm);
        }
        if (traffic && meta.folded == 0) {
            routing.apply(hdr, meta, sm);
        }
        hdr.packet_out.setInvalid();
    }
}

control SwitchEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    Congestion() queues;
    Replica()    replicas;
    Fault()      fault_out;
    counter(512, CounterType.packets_and_bytes) port_out;
    bit<1>    lost = 0;
    bit<2>    copy = COPY_NONE;
    bit<1>    again = 0;

    apply {
        if (sm.instance_type == INGRESS_CLONE) {
            recirculate_preserving_field_list(COPIES);
        } else if (sm.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.port;
            if (hdr.probe.isValid()) {
                hdr.packet_in.kind = CPU_PROBE;
            }
        } else {
            if (sm.instance_type == EGRESS_CLONE) {
                again = 1;
            } else {
                queues.apply(hdr, sm);
                if (meta.folded == 1) {
                    replicas.apply(hdr, meta, sm);
                }
            }
            fault_out.apply(hdr, meta, sm, sm.egress_port, again, lost, copy);
            if (copy != COPY_NONE) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>)sm.egress_port, COPIES);
            }
            if (lost == 0) {
                port_out.count((bit<32>)sm.egress_port);
            }
        }
    }
}

control CheckIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,
              hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

#define UDP_BEFORE_PAYLOAD                                                                                  \
    hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length,                                     \
    hdr.udp.sport, hdr.udp.dport, hdr.udp.length,                                                           \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, hdr.bth.fecn_becn, hdr.bth.connection, hdr.bth.operation,  \
    hdr.bth.ack_req, hdr.bth.psn

control MakeChecksums(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,
              hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
        // RoCEv2 allows a UDP checksum of zero; a right one lets kernels and NICs carry runs as super-packets.
        update_checksum(meta.folded == 1 && hdr.reth.isValid(),
            { UDP_BEFORE_PAYLOAD, ICRC_RETH, ICRC_PAYLOAD, hdr.icrc.crc }, hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.folded == 1 && !hdr.reth.isValid(),
            { UDP_BEFORE_PAYLOAD, ICRC_PAYLOAD, hdr.icrc.crc }, hdr.udp.checksum, HashAlgorithm.csum16);
    }
}

V1Switch(Parse(), CheckIpv4(), SwitchIngress(), SwitchEgress(), MakeChecksums(), Deparse()) main;
