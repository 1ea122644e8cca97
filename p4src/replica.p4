// SPDX-License-Identifier: Apache-2.0
// A folded packet gets the addresses and the queue pair of whom it is for: rank r+1 sees a packet of rank r, as if the
// switch were not there; a switch sees one of its neighbour.  Then the ICRC is made anew.  A NIC's repeat that goes onward to
// its successor keeps its own.
#ifndef REPLICA_P4
#define REPLICA_P4
#include "headers.p4"
#include "icrc.p4"
#include "slot.p4"

// Whose address, queue pair and checksums does a folded packet leave with?
control Replica(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    bit<64> begin = 0;      // of the receiver's region: a NIC's; others have none
    bit<32> region_key = 0;

    action rewrite(mac_t src_mac, mac_t dst_mac, ipv4_addr_t src, ipv4_addr_t dst, bit<16> sport,
                   bit<QUEUE_PAIR_BITS> queue_pair) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src;
        hdr.ipv4.dst = dst;
        hdr.ipv4.ttl = RESULT_TTL;
        // IDs that count with the PSN let a sender's NIC or kernel cut a run of these packets from one super-packet
        hdr.ipv4.id = hdr.bth.psn[15:0];
        hdr.udp.sport = sport;
        hdr.udp.checksum = 0;
        hdr.bth.flags = 2w0 ++ PAD_OF(hdr.bth.flags) ++ 4w0;
        hdr.bth.pkey = PKEY_WINDOWED;
        hdr.bth.fecn_becn = 0;
        hdr.bth.connection = queue_pair[(QUEUE_PAIR_BITS - 1):OPERATION_BITS];      // the operation stays
        meta.checksummed = meta.full;
    }
    action rewrite_rc(mac_t src_mac, mac_t dst_mac, ipv4_addr_t src, ipv4_addr_t dst, bit<16> sport,
                      bit<QUEUE_PAIR_BITS> queue_pair, bit<64> region, bit<32> rkey) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src;
        hdr.ipv4.dst = dst;
        hdr.ipv4.ttl = RESULT_TTL;
        hdr.ipv4.id = hdr.bth.psn[15:0];
        hdr.udp.sport = sport;
        hdr.udp.checksum = 0;
        hdr.bth.pkey = PKEY_DEFAULT;
        hdr.bth.fecn_becn = 0;
        hdr.bth.connection = queue_pair[(QUEUE_PAIR_BITS - 1):OPERATION_BITS];
        hdr.bth.operation = queue_pair[(OPERATION_BITS - 1):0];
        begin = region;
        region_key = rkey;
    }
    action lost() {
        mark_to_drop(sm);
    }
    direct_counter(CounterType.packets_and_bytes) replica_packets;

    // Who is this copy for?  An entry for each child of each tree, and one for the parent;
    // and one more for each NIC, by which it is answered: in its successor's name, to its own queue pair.
    table replica {
        key = {
            meta.group: exact @name("group");
            meta.child: exact @name("child");
        }
        actions = { rewrite; rewrite_rc; @defaultonly lost; }
        const default_action = lost();
        counters = replica_packets;
        size = REPLICAS;
    }

    Icrc()  icrc_new;
    bit<32> icrc = 0;
    bool    whole = true;
    apply {
        if (sm.instance_type == REPLICATED) {
            meta.child = sm.egress_rid;
        }
        if (meta.onward == 1) {
            hdr.udp.checksum = 0;
        } else {
            whole = replica.apply().hit;
        }
        if (whole) {
            if (meta.onward == 0 && hdr.reth.isValid()) {
                hdr.reth.address = hdr.reth.address + begin;
                hdr.reth.rkey = region_key;
            }
            // not into hdr.icrc.crc at once: p4c would copy all headers first, since the call reads and writes `hdr`
            icrc_new.apply(hdr, meta, icrc);
            if (hdr.aeth.isValid()) {
                hdr.aeth.icrc = icrc;
            } else {
                hdr.icrc.crc = icrc;
            }
        }
    }
}
#endif
