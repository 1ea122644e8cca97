// SPDX-License-Identifier: Apache-2.0
// Plain RoCEv2: Ethernet / IPv4 / UDP 4791 / BTH / [RETH] / payload / ICRC.  No header of our own on any link.
#ifndef HEADERS_P4
#define HEADERS_P4
#include "sizes.p4"

typedef bit<48>         mac_t;
typedef bit<32>         ipv4_addr_t;
typedef bit<PORT_BITS>  port_t;
typedef bit<QUEUE_DEPTH_BITS> queue_depth_t;
typedef bit<WORD_BITS>  word_t;
typedef bit<PSN_BITS>   psn_t;
typedef bit<(QUEUE_PAIR_BITS - OPERATION_BITS)> connection_t;
typedef bit<16>         child_t;        // a child's number in its tree, or PARENT
typedef bit<MAX_CHILDREN>  children_t;  // one bit for each child
typedef bit<16>         epoch_t;
typedef bit<128>        slot_state_t;   // slot.p4 names its fields

header ethernet_t {
    mac_t   dst;
    mac_t   src;
    bit<16> type;
}

header ipv4_t {
    bit<4>      version;
    bit<4>      ihl;
    bit<6>      dscp;
    bit<2>      ecn;
    bit<16>     total_len;
    bit<16>     id;
    bit<3>      flags;
    bit<13>     frag_offset;
    bit<8>      ttl;
    bit<8>      protocol;
    bit<16>     checksum;
    ipv4_addr_t src;
    ipv4_addr_t dst;
}

header udp_t {
    bit<16> sport;          // the flow's entropy: it pins the path
    bit<16> dport;
    bit<16> length;
    bit<16> checksum;
}

header bth_t {
    bit<8>  opcode;
    bit<8>  flags;          // solicited event, migration, pad count, transport version
    bit<16> pkey;
    bit<8>  fecn_becn;      // FECN, BECN, reserved: masked in the ICRC
    // The destination queue pair: which tree, which child; and in its lowest bits, what becomes of the lanes.  So all
    // operations on one tree share its slots, its PSNs and its table entries.
    connection_t            connection;
    bit<OPERATION_BITS>     operation;
    bit<8>  ack_req;
    psn_t   psn;            // says which slot
}

header reth_t {
    bit<64> address;
    bit<32> rkey;
    bit<32> length;
}

header lanes_t {
    word_t  w;
}

header icrc_t {
    bit<32> crc;            // little endian on the wire
}

@controller_header("packet_out")
header packet_out_t {
    port_t                  egress_port;
    bit<(16 - PORT_BITS)>   kind;
}

@controller_header("packet_in")
header packet_in_t {
    port_t                  ingress_port;
    bit<(16 - PORT_BITS)>   kind;
}

// The controller's question about a slot, and the answer: registers cannot be read over P4Runtime on BMv2.
header probe_t {
    bit<32>         slot;
    slot_state_t    state;
}

struct headers_t {
    packet_out_t    packet_out;
    packet_in_t     packet_in;
    probe_t         probe;
    ethernet_t      ethernet;
    ipv4_t          ipv4;
    udp_t           udp;
    bth_t           bth;
    reth_t          reth;
    lanes_t[WORDS]  lanes;
    icrc_t          icrc;
}

// What is known of a packet; the connection table (connection.p4) says most of it
struct meta_t {
    @field_list(COPIES)
    bit<1>      folded;     // this packet leaves rewritten (replica.p4)
    bit<16>     group;      // multicast group of the tree = its number on this switch
    child_t     child;      // who the packet came from, then who it is for
    @field_list(COPIES)
    bit<2>      copy;       // fault.p4: what a copy stands for
    @field_list(COPIES)
    port_t      port;       // where it came in; copies made by faults forget that
}
#endif
