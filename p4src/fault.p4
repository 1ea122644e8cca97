// SPDX-License-Identifier: Apache-2.0
// Injected faults, for tests: what happens to packet n of a port is drawn from a seed and n, so that the same seed does
// the same to the same packets on every engine, and to single segments of a super-packet.  The draw is MurmurHash3's
// finaliser on a Weyl sequence: a CRC is linear, and would spread the faults evenly, never two in a row.
//
//      draw    0 .. lose | .. flip       | .. twice      | .. late               | .. 2^32
//              lost      | one bit of its | sent, and    | held back until `by`  | unharmed
//                        | payload flips  | once more    | further packets went  |
//
// A packet can be held only in registers: those of a port hold one whole data packet.  It leaves in the place of a copy
// of a later packet; until then no other packet of the port is held.
#ifndef FAULT_P4
#define FAULT_P4
#include "headers.p4"

// What the caller clones: `copy`
#define COPY_NONE   2w0
#define COPY_SAME   2w1         // this packet once more
#define COPY_HELD   2w2         // the packet that is held

// fault_due: 0 if no packet is held | the number of the packet with which it is to leave | LEAVING + the number of the
// packet until which to wait for the copy, which a full queue may have dropped
#define LEAVING     0x80000000
#define LEAVE_TIME  64

#define WEYL_STEP   0x9e3779b9  // 2^32 / golden ratio, odd
#define MURMUR_1    0x85ebca6b  // the factors of MurmurHash3's fmix32
#define MURMUR_2    0xc2b2ae35

// Headers of a held packet as one number: folded 1 | has RETH 1 | Ethernet to RETH 560 | ICRC 32.  hold_packet makes it
// and restore_packet takes it apart.
#define HELD_HEADERS_BITS 594

// Limits of the draw, each at least the one before it
struct limits_t {
    bit<32> lose;
    bit<32> flip;
    bit<32> twice;
    bit<32> late;
}

// Is something done to this packet, and what?  On the way in and on the way out, an instance each.
control Fault(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm, in port_t port,
              in bit<1> again, out bit<1> lost, out bit<2> copy) {
    register<bit<32>>(PORTS)  fault_number;       // packets seen on each port
    register<bit<32>>(PORTS)  fault_due;
    register<bit<HELD_HEADERS_BITS>>(PORTS) fault_head;
#define HELD_WORD(i)        register<word_t>(PORTS) fault_word##i;
    EACH_WORD(HELD_WORD)

    bit<32>  number = 0;
    bit<32>  draw = 0;
    limits_t limits = { 0, 0, 0, 0 };
    bit<32>  release = 0;                       // a packet that is held now comes back with this one
    bit<32>  due = 0;
    bit<HELD_HEADERS_BITS> head = 0;
    bit<1>   has_reth = 0;
    bit<1>   free = 0;                          // no packet is held

    action faulty(bit<32> seed, bit<32> lose, bit<32> flip, bit<32> twice, bit<32> late, bit<32> by) {
        fault_number.read(number, (bit<32>)port);
        fault_number.write((bit<32>)port, number + 1);
        draw = seed + number * WEYL_STEP;
        draw = (draw ^ (draw >> 16)) * MURMUR_1;
        draw = (draw ^ (draw >> 13)) * MURMUR_2;
        draw = draw ^ (draw >> 16);
        fault_due.read(due, (bit<32>)port);
        limits = { lose, flip, twice, late };
        release = number + by;
    }
    direct_counter(CounterType.packets) fault_packets;

    // How often does which fault hit the packets of this port?  Without an entry a port has none.
    table fault {
        key = { port: exact @name("port"); }
        actions = { faulty; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = fault_packets;
        size = PORTS;
    }
    counter(PORTS, CounterType.packets) fault_lost;
    counter(PORTS, CounterType.packets) fault_corrupted;
    counter(PORTS, CounterType.packets) fault_duplicated;
    counter(PORTS, CounterType.packets) fault_held;

#define HOLD_WORD(i)   fault_word##i.write((bit<32>)port, hdr.lanes[i].w);
#define RESTORE_WORD(i)     fault_word##i.read(hdr.lanes[i].w, (bit<32>)port);
    action hold_packet() {
        if (hdr.reth.isValid()) {
            has_reth = 1;
        }
        head = meta.folded ++ has_reth ++ hdr.ethernet.dst ++ hdr.ethernet.src ++ hdr.ethernet.type ++
            hdr.ipv4.version ++ hdr.ipv4.ihl ++ hdr.ipv4.dscp ++ hdr.ipv4.ecn ++ hdr.ipv4.total_len ++ hdr.ipv4.id ++
            hdr.ipv4.flags ++ hdr.ipv4.frag_offset ++ hdr.ipv4.ttl ++ hdr.ipv4.protocol ++ hdr.ipv4.checksum ++
            hdr.ipv4.src ++ hdr.ipv4.dst ++ hdr.udp.sport ++ hdr.udp.dport ++ hdr.udp.length ++ hdr.udp.checksum ++
            hdr.bth.opcode ++ hdr.bth.flags ++ hdr.bth.pkey ++ hdr.bth.fecn_becn ++ hdr.bth.connection ++
            hdr.bth.operation ++ hdr.bth.ack_req ++ hdr.bth.psn ++ hdr.reth.address ++ hdr.reth.rkey ++
            hdr.reth.length ++ hdr.icrc.crc;
        fault_head.write((bit<32>)port, head);
        EACH_WORD(HOLD_WORD)
    }
    action restore_packet() {
        fault_head.read(head, (bit<32>)port);
        meta.folded = head[593:593];
        has_reth = head[592:592];
        hdr.ethernet.dst = head[591:544];
        hdr.ethernet.src = head[543:496];
        hdr.ethernet.type = head[495:480];
        hdr.ipv4.version = head[479:476];
        hdr.ipv4.ihl = head[475:472];
        hdr.ipv4.dscp = head[471:466];
        hdr.ipv4.ecn = head[465:464];
        hdr.ipv4.total_len = head[463:448];
        hdr.ipv4.id = head[447:432];
        hdr.ipv4.flags = head[431:429];
        hdr.ipv4.frag_offset = head[428:416];
        hdr.ipv4.ttl = head[415:408];
        hdr.ipv4.protocol = head[407:400];
        hdr.ipv4.checksum = head[399:384];
        hdr.ipv4.src = head[383:352];
        hdr.ipv4.dst = head[351:320];
        hdr.udp.sport = head[319:304];
        hdr.udp.dport = head[303:288];
        hdr.udp.length = head[287:272];
        hdr.udp.checksum = head[271:256];
        hdr.bth.opcode = head[255:248];
        hdr.bth.flags = head[247:240];
        hdr.bth.pkey = head[239:224];
        hdr.bth.fecn_becn = head[223:216];
        hdr.bth.connection = head[215:192 + OPERATION_BITS];
        hdr.bth.operation = head[191 + OPERATION_BITS:192];
        hdr.bth.ack_req = head[191:184];
        hdr.bth.psn = head[183:160];
        hdr.icrc.crc = head[31:0];
        EACH_WORD(RESTORE_WORD)
        fault_due.write((bit<32>)port, 0);
    }
    apply {
        lost = 0;
        copy = COPY_NONE;
        if (again == 1) {                       // copies have no faults, or there might be no end of them
            if (meta.copy == COPY_HELD) {
                restore_packet();
                if (has_reth == 1) {
                    hdr.reth.setValid();
                    hdr.reth.address = head[159:96];
                    hdr.reth.rkey = head[95:64];
                    hdr.reth.length = head[63:32];
                } else {
                    hdr.reth.setInvalid();
                }
            }
        } else if (fault.apply().hit) {
            if (due == 0 || (due[31:31] == 1 && number > (bit<32>)due[30:0])) {
                free = 1;
            }
            if (draw < limits.lose) {
                lost = 1;
                fault_lost.count((bit<32>)port);
            } else if (draw < limits.flip) {
                if (hdr.icrc.isValid()) {
                    hdr.lanes[1].w = hdr.lanes[1].w ^ (word_t)1;
                    fault_corrupted.count((bit<32>)port);
                }
            } else if (draw < limits.twice) {
                copy = COPY_SAME;
                fault_duplicated.count((bit<32>)port);
            } else if (draw < limits.late && free == 1 && hdr.icrc.isValid() && sm.checksum_error == 0) {
                lost = 1;
                hold_packet();
                fault_due.write((bit<32>)port, release);
                fault_held.count((bit<32>)port);
            } else if (due != 0 && due[31:31] == 0 && number >= due && hdr.icrc.isValid()) {
                copy = COPY_HELD;
                fault_due.write((bit<32>)port, LEAVING + number + LEAVE_TIME);
            }
            meta.copy = copy;
            if (lost == 1) {
                mark_to_drop(sm);
            }
        }
    }
}
#endif
