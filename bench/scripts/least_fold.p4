// SPDX-License-Identifier: Apache-2.0
// The smallest program that folds correctly, for bench/scripts/bmv2_cost.py: one switch, two ranks, 1024 bytes a packet,
// sums of 32-bit lanes.  It checks the ICRC and the sender's port, counts each rank once for a PSN, answers a repeat with
// the sum, refuses old PSNs, and signs its sums.  It leaves out what a fabric needs besides: routes, trees, other
// operations and lengths, NAKs, presence, RDMA NICs, faults, congestion marks, probes.
#include <core.p4>
#include <v1model.p4>

#define SLOTS 64
#define EACH(F) F(0) F(1) F(2) F(3)
#define ALL 8w3

header start_t {        // Ethernet and the IPv4 header
    bit<112> ethernet; bit<8> version; bit<8> tos; bit<48> length; bit<8> ttl; bit<8> protocol; bit<16> checksum;
    bit<32> src; bit<32> dst;
}
header roce_t {         // UDP, BTH and RETH
    bit<16> sport; bit<16> dport; bit<16> length; bit<16> checksum;
    bit<32> operation; bit<8> marks; bit<24> qp; bit<8> ack; bit<24> psn; bit<128> reth;
}
header word_t { bit<2048> w; }
header icrc_t { bit<32> crc; }
struct headers_t { start_t ip; roce_t roce; word_t[4] lanes; icrc_t icrc; }
struct meta_t { bit<32> crc; bit<32> slot; bit<8> rank; bit<9> port; bit<32> state; bit<8> seen; bit<24> age; }

#define WORD(i) , hdr.lanes[i].w
#define HASH hash(meta.crc, HashAlgorithm.crc32, 32w0, { 64w0xffffffffffffffff, hdr.ip.version, 8w0xff, hdr.ip.length, \
    8w0xff, hdr.ip.protocol, 16w0xffff, hdr.ip.src, hdr.ip.dst, hdr.roce.sport, hdr.roce.dport, hdr.roce.length,      \
    16w0xffff, hdr.roce.operation, 8w0xff, hdr.roce.qp, hdr.roce.ack, hdr.roce.psn, hdr.roce.reth EACH(WORD) }, 64w0x100000000)
#define ON_WIRE(crc) (crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24])

parser Parse(packet_in pkt, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        pkt.extract(hdr.ip);
        transition select(hdr.ip.ethernet[15:0], hdr.ip.version, hdr.ip.length[47:32], hdr.ip.protocol) {
            (0x0800, 0x45, 1084, 17): roce;
            default: accept;
        }
    }
    state roce {
        pkt.extract(hdr.roce);
        transition select(hdr.roce.dport, hdr.roce.operation[31:24]) {
            (4791, 0x0a): lanes;
            default: accept;
        }
    }
    state lanes {
        pkt.extract(hdr.lanes[0]);
        pkt.extract(hdr.lanes[1]);
        pkt.extract(hdr.lanes[2]);
        pkt.extract(hdr.lanes[3]);
        pkt.extract(hdr.icrc);
        transition accept;
    }
}

control Nothing(inout headers_t hdr, inout meta_t meta) { apply { } }

// In an action of its own the hash reads the fields where they stand (bmv2_json/fields.py)
control Icrc(in headers_t hdr, inout meta_t meta) {
    action make() {
        HASH;
    }
    apply {
        make();
    }
}

control Fold(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    register<bit<32>>(SLOTS) states;    // PSN, and a bit for each rank
#define SUMS(i) register<bit<2048>>(SLOTS) sums##i;
    EACH(SUMS)
    bit<2048> sum;
    Icrc() icrc;

    action sender(bit<8> rank, bit<9> port) {
        meta.rank = rank;
        meta.port = port;
        meta.slot = (bit<32>)(hdr.roce.psn & (SLOTS - 1));
        states.read(meta.state, meta.slot);
        meta.seen = meta.state[7:0];
        meta.age = hdr.roce.psn - meta.state[31:8];
        mark_to_drop(sm);
    }
    action other() {
        mark_to_drop(sm);
    }
    table senders {
        key = { hdr.roce.qp: exact; }
        actions = { sender; other; }
        const default_action = other();
        const entries = {
            0x100: sender(1, 1);
            0x200: sender(2, 2);
        }
    }
    action first() {
#define STORE(i) sums##i.write(meta.slot, hdr.lanes[i].w);
        EACH(STORE)
        states.write(meta.slot, hdr.roce.psn ++ meta.rank);
    }
    // Adds lanes of 32 bits without a carry from one to the next: the uppermost bits apart
#define EIGHT 256w0x8000000080000000800000008000000080000000800000008000000080000000
#define TOPS (EIGHT ++ EIGHT ++ EIGHT ++ EIGHT ++ EIGHT ++ EIGHT ++ EIGHT ++ EIGHT)
#define ADD(i) sums##i.read(sum, meta.slot);                                                                \
        hdr.lanes[i].w = ((sum & ~TOPS) + (hdr.lanes[i].w & ~TOPS)) ^ ((sum ^ hdr.lanes[i].w) & TOPS);   \
        sums##i.write(meta.slot, hdr.lanes[i].w);
    action complete() {
        EACH(ADD)
        states.write(meta.slot, hdr.roce.psn ++ (meta.seen | meta.rank));
        sm.mcast_grp = 1;
    }
#define LOAD(i) sums##i.read(hdr.lanes[i].w, meta.slot);
    action again() {
        EACH(LOAD)
        sm.mcast_grp = (bit<16>)meta.rank + 1;
    }
    apply {
        if (hdr.icrc.isValid()) {
            icrc.apply(hdr, meta);
            senders.apply();
            if (meta.rank != 0 && meta.port == sm.ingress_port && ON_WIRE(meta.crc) == hdr.icrc.crc) {
                if (meta.age == 0 && meta.seen != 0) {
                    if (meta.seen == ALL) {
                        again();
                    } else if (meta.seen & meta.rank == 0) {
                        complete();
                    }
                } else if (meta.age < 0x800000) {
                    first();
                }
            }
        } else {
            other();
        }
    }
}

// One copy for each rank
control Sign(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action to(bit<32> src, bit<32> dst, bit<16> checksum, bit<24> qp) {
        hdr.ip.src = src;
        hdr.ip.dst = dst;
        hdr.ip.checksum = checksum;
        hdr.roce.qp = qp;
    }
    action sign() {
        hdr.icrc.crc = ON_WIRE(meta.crc);
    }
    table ranks {
        key = { sm.egress_rid: exact; }
        actions = { to; NoAction; }
        const default_action = NoAction();
        const entries = {
            1: to(0x0a000102, 0x0a000101, 0, 0x101);
            2: to(0x0a000101, 0x0a000102, 0, 0x201);
        }
    }
    Icrc() icrc;

    apply {
        ranks.apply();
        icrc.apply(hdr, meta);
        sign();
    }
}

control Deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.ip);
        pkt.emit(hdr.roce);
        pkt.emit(hdr.lanes);
        pkt.emit(hdr.icrc);
    }
}

V1Switch(Parse(), Nothing(), Fold(), Sign(), Nothing(), Deparse()) main;
