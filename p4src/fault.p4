// SPDX-License-Identifier: Apache-2.0
// Injected faults, for tests: what happens to packet n of a port is drawn from a seed and n, so that the same seed does
// the same to the same packets on every engine, and to single segments of a super-packet.  The draw is MurmurHash3's
// finaliser on a Weyl sequence: a CRC is linear, and would spread the faults evenly, never two in a row.
//
//      draw    0 .. lose | .. flip       | .. twice      | .. late               | .. 2^32
//              lost      | one bit of its | sent, and    | held back until `by`  | unharmed
//                        | payload or of  | once more    | further packets went  |
//                        | its ICRC flips |              |                       |
//
// A packet can be held only in registers: those of a port hold one full data packet, and others are not held.  It leaves in the place of a copy
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
#define DUE_LEAVING(due)    due[31:31]  // The copy is on its way that the held packet is to replace.
#define DUE_NUMBER(due)     due[30:0]   // The number of the packet until which the held packet waits.

#define WEYL_STEP   0x9e3779b9  // 2^32 / golden ratio, odd
#define MURMUR_1    0x85ebca6b  // the factors of MurmurHash3's fmix32
#define MURMUR_2    0xc2b2ae35

// The headers of a held packet are one number, as a register holds nothing else: hold_packet makes it, and these macros
// name its fields, which stand in the order of the headers.
#define HELD_HEADERS_BITS 594
#define HELD_CHECKSUMMED(head)        head[593:593]  // The UDP checksum is made, as meta.checksummed says.
#define HELD_HAS_RETH(head)           head[592:592]  // The packet has a RETH; without one, its fields mean nothing.
#define HELD_ETHERNET_DST(head)       head[591:544]  // The MAC address that the packet goes to.
#define HELD_ETHERNET_SRC(head)       head[543:496]  // The MAC address that the packet comes from.
#define HELD_ETHERNET_TYPE(head)      head[495:480]  // The EtherType.
#define HELD_IPV4_VERSION(head)       head[479:476]  // The version of IP.
#define HELD_IPV4_IHL(head)           head[475:472]  // The length of the IPv4 header, in words of 32 bits.
#define HELD_IPV4_DSCP(head)          head[471:466]  // The class of traffic (DSCP).
#define HELD_IPV4_ECN(head)           head[465:464]  // The codepoint of explicit congestion notification.
#define HELD_IPV4_TOTAL_LEN(head)     head[463:448]  // The length of the IPv4 packet, in bytes.
#define HELD_IPV4_ID(head)            head[447:432]  // The identification that IPv4 gives fragments.
#define HELD_IPV4_FLAGS(head)         head[431:429]  // The flags of IPv4's fragmentation.
#define HELD_IPV4_FRAG_OFFSET(head)   head[428:416]  // The offset of an IPv4 fragment, in units of 8 bytes.
#define HELD_IPV4_TTL(head)           head[415:408]  // The hops that the packet may still take.
#define HELD_IPV4_PROTOCOL(head)      head[407:400]  // The protocol that IPv4 carries.
#define HELD_IPV4_CHECKSUM(head)      head[399:384]  // The checksum of the IPv4 header.
#define HELD_IPV4_SRC(head)           head[383:352]  // The IPv4 address that the packet comes from.
#define HELD_IPV4_DST(head)           head[351:320]  // The IPv4 address that the packet goes to.
#define HELD_UDP_SPORT(head)          head[319:304]  // The UDP source port, which pins the path.
#define HELD_UDP_DPORT(head)          head[303:288]  // The UDP destination port.
#define HELD_UDP_LENGTH(head)         head[287:272]  // The length of the UDP datagram, in bytes.
#define HELD_UDP_CHECKSUM(head)       head[271:256]  // The checksum of the UDP datagram.
#define HELD_BTH_OPCODE(head)         head[255:248]  // The operation of RoCE.
#define HELD_BTH_FLAGS(head)          head[247:240]  // The flags of the BTH, with pad count and transport version.
#define HELD_BTH_PKEY(head)           head[239:224]  // The partition key.
#define HELD_BTH_FECN_BECN(head)      head[223:216]  // The notifications of congestion in the BTH.
#define HELD_BTH_CONNECTION(head)     head[215:192 + OPERATION_BITS]  // The destination queue pair, less the operation.
#define HELD_BTH_OPERATION(head)      head[191 + OPERATION_BITS:192]  // What becomes of the lanes.
#define HELD_BTH_ACK_REQ(head)        head[191:184]  // The byte that asks for an acknowledgement.
#define HELD_BTH_PSN(head)            head[183:160]  // The packet sequence number.
#define HELD_RETH_ADDRESS(head)       head[159:96]   // The address of the write in the peer's region.
#define HELD_RETH_RKEY(head)          head[95:64]    // The key of the peer's region.
#define HELD_RETH_LENGTH(head)        head[63:32]    // The length of the whole write, in bytes.
#define HELD_ICRC(head)               head[31:0]     // The ICRC, which closes the packet.

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
        head = meta.checksummed ++ has_reth ++ hdr.ethernet.dst ++ hdr.ethernet.src ++ hdr.ethernet.type ++
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
        meta.checksummed = HELD_CHECKSUMMED(head);
        has_reth = HELD_HAS_RETH(head);
        hdr.ethernet.dst = HELD_ETHERNET_DST(head);
        hdr.ethernet.src = HELD_ETHERNET_SRC(head);
        hdr.ethernet.type = HELD_ETHERNET_TYPE(head);
        hdr.ipv4.version = HELD_IPV4_VERSION(head);
        hdr.ipv4.ihl = HELD_IPV4_IHL(head);
        hdr.ipv4.dscp = HELD_IPV4_DSCP(head);
        hdr.ipv4.ecn = HELD_IPV4_ECN(head);
        hdr.ipv4.total_len = HELD_IPV4_TOTAL_LEN(head);
        hdr.ipv4.id = HELD_IPV4_ID(head);
        hdr.ipv4.flags = HELD_IPV4_FLAGS(head);
        hdr.ipv4.frag_offset = HELD_IPV4_FRAG_OFFSET(head);
        hdr.ipv4.ttl = HELD_IPV4_TTL(head);
        hdr.ipv4.protocol = HELD_IPV4_PROTOCOL(head);
        hdr.ipv4.checksum = HELD_IPV4_CHECKSUM(head);
        hdr.ipv4.src = HELD_IPV4_SRC(head);
        hdr.ipv4.dst = HELD_IPV4_DST(head);
        hdr.udp.sport = HELD_UDP_SPORT(head);
        hdr.udp.dport = HELD_UDP_DPORT(head);
        hdr.udp.length = HELD_UDP_LENGTH(head);
        hdr.udp.checksum = HELD_UDP_CHECKSUM(head);
        hdr.bth.opcode = HELD_BTH_OPCODE(head);
        hdr.bth.flags = HELD_BTH_FLAGS(head);
        hdr.bth.pkey = HELD_BTH_PKEY(head);
        hdr.bth.fecn_becn = HELD_BTH_FECN_BECN(head);
        hdr.bth.connection = HELD_BTH_CONNECTION(head);
        hdr.bth.operation = HELD_BTH_OPERATION(head);
        hdr.bth.ack_req = HELD_BTH_ACK_REQ(head);
        hdr.bth.psn = HELD_BTH_PSN(head);
        hdr.icrc.crc = HELD_ICRC(head);
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
                    hdr.reth.address = HELD_RETH_ADDRESS(head);
                    hdr.reth.rkey = HELD_RETH_RKEY(head);
                    hdr.reth.length = HELD_RETH_LENGTH(head);
                } else {
                    hdr.reth.setInvalid();
                }
            }
            meta.copy = COPY_NONE;              // nor is what is cloned from here on one: it would go round, and again
        } else if (fault.apply().hit) {
            if (due == 0 || (DUE_LEAVING(due) == 1 && number > (bit<32>)DUE_NUMBER(due))) {
                free = 1;
            }
            if (draw < limits.lose) {
                lost = 1;
                fault_lost.count((bit<32>)port);
            } else if (draw < limits.flip) {
                if (hdr.aeth.isValid()) {
                    hdr.aeth.icrc = hdr.aeth.icrc ^ 1;
                    fault_corrupted.count((bit<32>)port);
                } else if (hdr.icrc.isValid()) {
                    if (meta.full == 1) {
                        hdr.lanes[1].w = hdr.lanes[1].w ^ (word_t)1;
                    } else {
                        hdr.icrc.crc = hdr.icrc.crc ^ 1;
                    }
                    fault_corrupted.count((bit<32>)port);
                }
            } else if (draw < limits.twice) {
                copy = COPY_SAME;
                fault_duplicated.count((bit<32>)port);
            } else if (draw < limits.late && free == 1 && meta.full == 1 && sm.checksum_error == 0) {
                lost = 1;
                hold_packet();
                fault_due.write((bit<32>)port, release);
                fault_held.count((bit<32>)port);
            } else if (due != 0 && DUE_LEAVING(due) == 0 && number >= due && meta.full == 1) {
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
