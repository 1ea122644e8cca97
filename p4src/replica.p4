// SPDX-License-Identifier: Apache-2.0
// A folded packet gets the addresses, UDP ports and queue pair of whom it is for: rank r+1 sees a packet of rank r, as if the
// switch were not there; a switch sees one of its neighbour.  The ICRC is made anew, or put right where it has been made for
// all receivers (result.p4).  Whom the acknowledgement is enough for gets no lanes.  A NIC's repeat that goes onward to its successor keeps its addresses.
#ifndef REPLICA_P4
#define REPLICA_P4
#include "headers.p4"
#include "answer.p4"
#include "order.p4"
#include "icrc.p4"
#include "slot.p4"

// Whose address, queue pair and checksums does a folded packet leave with?
control Replica(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    // dport the receiver's UDP port: a rank's own, one of several on its host
    // icrc  what these addresses, ports and queue pair change of the ICRC of a full packet without a RETH; of one with it
    // flow  of what leaves to this receiver
    action rewrite(mac_t src_mac, mac_t dst_mac, ipv4_addr_t src, ipv4_addr_t dst, bit<16> sport, bit<16> dport,
                   bit<QUEUE_PAIR_BITS> queue_pair, bit<32> icrc, bit<32> icrc_reth, flow_t flow) {
        meta.tree.flow = flow;
        meta.windowed = 1;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src;
        hdr.ipv4.dst = dst;
        hdr.udp.sport = sport;
        hdr.udp.dport = dport;
        hdr.bth.connection = queue_pair[(QUEUE_PAIR_BITS - 1):OPERATION_BITS];      // the operation stays
        if (meta.made == 0) {
            hdr.ipv4.ttl = RESULT_TTL;
            hdr.ipv4.id = hdr.bth.psn[15:0];
            hdr.udp.checksum = 0;
            hdr.bth.flags = meta.content ++ 1w0 ++ PAD_OF(hdr.bth.flags) ++ 4w0;
            hdr.bth.pkey = PKEY_WINDOWED;
            hdr.bth.fecn_becn = 0;
            if (hdr.reth.isValid()) {
                hdr.reth.rkey = 0;
            }
        } else if (hdr.reth.isValid()) {
            hdr.icrc.crc = hdr.icrc.crc ^ icrc_reth;
        } else {
            hdr.icrc.crc = hdr.icrc.crc ^ icrc;
        }
#if UDP_CHECKSUMS
        meta.checksummed = meta.full | meta.present;
#endif
    }
    // region, rkey  of the receiver, where its results are written
    action rewrite_rc(mac_t src_mac, mac_t dst_mac, ipv4_addr_t src, ipv4_addr_t dst, bit<16> sport,
                      bit<QUEUE_PAIR_BITS> queue_pair, bit<64> region, bit<32> rkey) {
        meta.made = 0;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src;
        hdr.ipv4.dst = dst;
        hdr.ipv4.ttl = RESULT_TTL;
        hdr.ipv4.id = hdr.bth.psn[15:0];
        hdr.udp.sport = sport;
        hdr.udp.dport = ROCE_PORT;
        hdr.udp.checksum = 0;
        hdr.bth.pkey = PKEY_DEFAULT;
        hdr.bth.fecn_becn = 0;
        hdr.bth.connection = queue_pair[(QUEUE_PAIR_BITS - 1):OPERATION_BITS];
        hdr.bth.operation = queue_pair[(OPERATION_BITS - 1):0];
        if (hdr.reth.isValid()) {
            hdr.reth.address = hdr.reth.address + region;
            hdr.reth.rkey = rkey;
        }
    }
    // Not folded, but a probe of links, which says by which port it leaves
    action probe() {
        hdr.udp.sport = PROBE_PORT + (bit<16>)sm.egress_port;
    }
    action lost() {
        mark_to_drop(sm);
        meta.made = 1;          // nobody needs its ICRC
    }
    direct_counter(CounterType.packets_and_bytes) replica_packets;

    // Who is this copy for?  An entry for each child of each tree, and one for the parent;
    // and one more for each NIC, by which it is answered: in its successor's name, to its own queue pair.  One for probes.
    table replica {
        key = {
            meta.group: exact @name("group");
            meta.child: exact @name("child");
        }
        actions = { rewrite; rewrite_rc; probe; @defaultonly lost; }
        const default_action = lost();
        counters = replica_packets;
        size = REPLICAS;
    }

#define WITHOUT_WORD(i) hdr.lanes[i].setInvalid();
    // Presence in the place of a result, for a child to which the acknowledgement is enough
    action acknowledge_alone() {
        if ((meta.found.content & ((children_t)1 << (bit<8>)meta.child)) != 0) {
            meta.present = YES;
            meta.full = 0;
            meta.made = 0;
            meta.payload = 0;
            meta.immediate = 0;
            hdr.ipv4.total_len = IPV4_BYTES + UDP_LEN_PRESENCE;
            hdr.udp.length = UDP_LEN_PRESENCE;
            hdr.bth.opcode = WRITE_ONLY;
            hdr.bth.flags = 0;
            if (!hdr.reth.isValid()) {
                hdr.reth.setValid();
                hdr.reth.address = 0;
            }
            hdr.reth.length = 0;
            hdr.immediate.setInvalid();
            EACH_WORD(WITHOUT_WORD)
            hdr.tail32.setInvalid();
            hdr.tail16.setInvalid();
            hdr.tail8.setInvalid();
            hdr.tail4.setInvalid();
            hdr.tail2.setInvalid();
            hdr.tail1.setInvalid();
        }
    }

    Order() order;
    Icrc()  icrc_new;

    action seal() {
        if (hdr.aeth.isValid()) {
            hdr.aeth.icrc = ON_WIRE(meta.icrc);
        } else {
            hdr.icrc.crc = ON_WIRE(meta.icrc);
        }
    }
    apply {
        if (sm.instance_type == REPLICATED) {
            meta.child = sm.egress_rid;
        }
        if (meta.found.content != 0 && meta.present == NO && meta.answer == NO_ANSWER && meta.child != PARENT) {
            acknowledge_alone();
        }
        if (meta.routed == 0) {
            replica.apply();
            if (meta.windowed == 1 && !hdr.aeth.isValid()) {
                order.apply(hdr, meta);
            }
        } else {
            hdr.udp.checksum = 0;
        }
        if (meta.made == 0) {
            icrc_new.apply(hdr, meta);
            seal();
        }
    }
}
#endif
