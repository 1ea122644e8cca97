// SPDX-License-Identifier: Apache-2.0
// A folded packet gets the addresses and the queue pair of whom it is for: rank r+1 sees a packet of rank r, as if the
// switch were not there; a switch sees one of its neighbour.  Then the ICRC is made anew.
#ifndef REPLICA_P4
#define REPLICA_P4
#include "headers.p4"
#include "icrc.p4"

// Whose address, queue pair and checksums does a folded packet leave with?
control Replica(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action rewrite(mac_t src_mac, mac_t dst_mac, ipv4_addr_t src, ipv4_addr_t dst, bit<16> sport,
                   connection_t connection, bit<32> rkey) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src;
        hdr.ipv4.dst = dst;
        hdr.ipv4.ttl = RESULT_TTL;
        // IDs that count with the PSN let a sender's NIC or kernel cut a run of these packets from one super-packet
        hdr.ipv4.id = hdr.bth.psn[15:0];
        hdr.udp.sport = sport;
        hdr.bth.connection = connection;        // the operation stays
        hdr.bth.fecn_becn = 0;
        hdr.reth.rkey = rkey;
    }
    action lost() {
        mark_to_drop(sm);
    }
    direct_counter(CounterType.packets_and_bytes) replica_packets;

    // Who is this copy for?  An entry for each child of each tree, and one for the parent.
    table replica {
        key = {
            meta.group: exact @name("group");
            meta.child: exact @name("child");
        }
        actions = { rewrite; @defaultonly lost; }
        const default_action = lost();
        counters = replica_packets;
        size = REPLICAS;
    }

    Icrc()  icrc_new;
    bit<32> icrc = 0;
    apply {
        if (sm.instance_type == REPLICATED) {
            meta.child = sm.egress_rid;
        }
        if (replica.apply().hit) {
            // not into hdr.icrc.crc at once: p4c would copy all headers first, since the call reads and writes `hdr`
            icrc_new.apply(hdr, icrc);
            hdr.icrc.crc = icrc;
        }
    }
}
#endif
