// SPDX-License-Identifier: Apache-2.0
// Every number of the program, in one place.  wire/roce.py holds the same ones; tests/test_wire.py compares the two.
#ifndef SIZES_P4
#define SIZES_P4

// A word is p4c's widest type: 64 lanes of 32 bits.  A path MTU of payload is WORDS of them.
#define WORD_BITS   2048
#define WORDS       4                     // 4 * 256 bytes = path MTU 1024
#define PAYLOAD     1024

// One slot holds the words of one packet: 16384 of them are 16 MiB.  Jobs get disjoint, power-of-two ranges.
#define SLOTS       16384

#define LEAVES      1024                  // switches that hosts hang on

#define ETHERTYPE_IPV4  0x0800
#define PROTO_UDP       17
#define ROCE_PORT       4791

// BTH opcodes, reliable connection (InfiniBand spec, table 38)
#define WRITE_FIRST     0x06
#define WRITE_MIDDLE    0x07
#define WRITE_LAST      0x08
#define WRITE_ONLY      0x0a

// UDP lengths of a full data packet: UDP 8 + BTH 12 [+ RETH 16] + payload + ICRC 4
#define UDP_LEN_DATA    (8 + 12 + PAYLOAD + 4)
#define UDP_LEN_RETH    (8 + 12 + 16 + PAYLOAD + 4)

#define ECN_CE          3

// What becomes of a slot's and a packet's lanes where they meet: the lowest bits of the destination queue pair
#define OPERATION_BITS  3
#define OP_SUM32        0                 // wraps
#define OP_MAX32        1                 // signed
#define OP_SUM16        2
#define OP_SUM8         3
#define OP_SAT32        4                 // signed; what once reached an end, 2^31 - 1 or -2^31, stays there
#define OP_LAST         OP_SAT32

#define PORT_BITS       9
#define CPU_PORT        510
// Kinds of packets from and to the CPU
#define CPU_FRAME       0                 // a frame to send, or one for the controller
#define CPU_PROBE       1                 // what does this slot hold?  (probe_t)
#define PARENT          0xffff            // `child` of the rewriting entry that leads up the tree

// standard_metadata.instance_type, as BMv2 numbers it
#define INGRESS_CLONE   1
#define EGRESS_CLONE    2
#define RECIRCULATED    4
#define REPLICATED      5

#define COPIES          1                 // field list: metadata that a fault's copies keep

#endif
