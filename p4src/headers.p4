// SPDX-License-Identifier: Apache-2.0
// Plain RoCEv2: Ethernet / IPv4 / UDP / BTH / [AETH] / [RETH] / [immediate] / payload / ICRC.  No header of our own on any link.
#ifndef HEADERS_P4
#define HEADERS_P4
#include "sizes.p4"

typedef bit<48>         mac_t;
typedef bit<32>         ipv4_addr_t;
typedef bit<PORT_BITS>  port_t;
typedef bit<(PORTS / 2)> ports_t;
typedef bit<QUEUE_DEPTH_BITS> queue_depth_t;
typedef bit<WORD_BITS>  word_t;
typedef bit<PSN_BITS>   psn_t;
typedef bit<(QUEUE_PAIR_BITS - OPERATION_BITS)> connection_t;
typedef bit<16>         child_t;        // a child's number in its tree, or PARENT
typedef bit<MAX_CHILDREN>  children_t;  // one bit for each child
typedef bit<32>         epoch_t;
typedef bit<16>         flow_t;         // a sender's place in flow.p4's register
typedef bit<(64 + MAX_CHILDREN)>   slot_state_t;   // slot.p4 names the fields of these two
typedef bit<128>        slot_headers_t;

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
    bit<16> sport;          // the flow's entropy: it names the path
    bit<16> dport;
    bit<16> length;
    bit<16> checksum;
}

// The rest of TCP is payload to a switch.
header tcp_t {
    bit<16> sport;
    bit<16> dport;
}

header bth_t {
    bit<8>  opcode;
    bit<8>  flags;          // solicited event, migration, pad count, transport version
    bit<16> pkey;
    bit<8>  fecn_becn;      // FECN, BECN, and upper bits of the order (order.p4): masked in the ICRC
    // The destination queue pair.  Windowed packets say with it which tree, which child; and in its lowest bits, what
    // becomes of the lanes.  So all operations on one tree share its slots, its PSNs and its table entries.
    connection_t            connection;
    bit<OPERATION_BITS>     operation;
    bit<8>  ack_req;        // asks for an acknowledgement; lower bits of the order (order.p4)
    psn_t   psn;            // says which slot
}

header reth_t {
    bit<64> address;
    bit<32> rkey;
    bit<32> length;
}

// An acknowledgement, positive or negative, and the ICRC that ends its packet
header aeth_t {
    bit<8>  syndrome;
    psn_t   msn;            // in a negative one of ours: the PSN up to which packets are missing
    bit<32> icrc;
}

header immediate_t {
    bit<32> data;
}

header lanes_t {
    word_t  w;
}

// What is left of a payload beyond whole words, 4 to 252 bytes, is some of these, the longest one first.
header lanes32_t {
    bit<1024> w;
}
header lanes16_t {
    bit<512> w;
}
header lanes8_t {
    bit<256> w;
}
header lanes4_t {
    bit<128> w;
}
header lanes2_t {
    bit<64> w;
}
header lanes1_t {
    bit<32> w;
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
    slot_headers_t  headers;
}

// The controller's question which neighbours were heard, and the answer: a bit for each port, in two halves, since BMv2
// shifts by less than 256 bits
header heard_t {
    ports_t         upper;
    ports_t         lower;
}

struct headers_t {
    packet_out_t    packet_out;
    packet_in_t     packet_in;
    probe_t         probe;
    heard_t         heard;
    ethernet_t      ethernet;
    ipv4_t          ipv4;
    udp_t           udp;
    tcp_t           tcp;
    bth_t           bth;
    aeth_t          aeth;
    reth_t          reth;
    immediate_t     immediate;
    lanes_t[WORDS]  lanes;
    lanes32_t       tail32;
    lanes16_t       tail16;
    lanes8_t        tail8;
    lanes4_t        tail4;
    lanes2_t        tail2;
    lanes1_t        tail1;
    icrc_t          icrc;
}

// What this switch knows of a packet's tree (connection.p4)
struct tree_t {
    bit<4>              packet;         // what it is to the tree
    children_t          children;       // one bit for each child
    epoch_t             epoch;          // of the job; a slot of another epoch is free
    bit<32>             base;           // the tree's slots are base + (PSN & mask)
    psn_t               mask;
    flow_t              flow;           // the sender's
    bit<1>              root;           // sums become results here
    bit<1>              check;          // first hop: the ICRC must hold
    port_t              parent_port;
    bit<OPERATION_BITS> operation;      // what becomes of the lanes
    // of NICs alone
    bit<64>             region;         // where the successor's region begins
    psn_t               first_psn;      // the first PSN of the stream
}

// What a packet says of its flow (flow.p4)
struct order_t {
    bit<1>  gap;        // windowed: packets are missing before this one, from `lowest` on
    psn_t   lowest;     // of what is missing; RC: that the successor has not acknowledged
    psn_t   end;        // after the last of what is missing
}

// A slot as the packet at hand finds it (slot.p4)
struct slot_t {
    bit<32>             index;
    slot_state_t        state;          // as it was
    slot_headers_t      headers;
    bit<2>              age;            // of the packet: SAME, NEWER, OLDER or OTHER
    bit<1>              done;           // the slot holds the result
    bit<1>              seen;           // this child is in the bitmap already
    bit<1>              empty;          // the slot holds this PSN, and all that came is presence: it has no lanes
    bit<1>              complete;       // all children are in the bitmap
    bit<1>              fills;          // all children are in it with this packet
    bit<1>              bare;           // the slot's packets can be made from what it holds: they have no immediate data
    bit<1>              marked;         // by congestion: this packet, or a contribution before it
    bit<1>              ack_req;        // this packet asks for an acknowledgement, or a contribution before it
    children_t          bitmap;         // with this packet's child
    children_t          content;        // for whom the acknowledgement is enough, with this packet's child
    bit<1>              some;           // there are any of these
}

// What becomes of a packet and its slot (verdict.p4)
struct verdict_t {
    bit<2>              lanes;
    bit<1>              done;           // the slot then holds the result
    child_t             to;
    bit<3>              turns;          // what the packet turns into
    bit<4>              outcome;
}

// What is known of a packet.  It is all zero when a packet comes in, and BMv2 takes its time for that, and again for every
// copy of a packet: for each field here, and for each local variable of any control.  So the steps of the fold leave here,
// for each other, what would be set to zero once more if it were local.
struct meta_t {
    tree_t      tree;
    order_t     order;
    slot_t      found;
    verdict_t   decided;
    bit<32>     icrc;       // as the engine makes it (icrc.p4)
    bit<1>      made;       // the ICRC is that of the result, but for addresses and queue pair
    bit<1>      folded;     // this packet leaves rewritten (replica.p4)
    bit<1>      full;       // a payload of a whole path MTU, without immediate data
    bit<1>      present;    // presence: there are no lanes (presence.p4)
    bit<1>      content;    // what goes up says that the acknowledgement is enough for all below
    bit<1>      immediate;  // there is immediate data
    bit<16>     payload;    // bytes of the payload, of a packet that is not full
    bit<16>     rest;       // parser: bytes of the payload that are still to be parsed; then those of its tail
    bit<1>      windowed;   // its receiver is: it is told which packet left before this one (order.p4)
    bit<1>      routed;     // goes on by its own addresses; of a folded packet: a NIC's, to its successor, with the slot's lanes
    child_t     child;      // who the packet came from, then who it is for
    bit<2>      answer;     // what the packet turns into on its way out (answer.p4)
    @field_list(COPIES)
    bit<1>      checksummed;    // the UDP checksum is made on the way out
    @field_list(COPIES)
    bit<16>     group;      // multicast group of the tree = its number on this switch
    @field_list(COPIES)
    bit<2>      clone;      // what its clone turns into, an answer too, or ASK_NEXT
    @field_list(COPIES)
    child_t     clone_child;    // whom the clone is for
    @field_list(COPIES)
    psn_t       answer_psn; // of the answer
    @field_list(COPIES)
    psn_t       answer_msn;
#if FAULTS
    @field_list(COPIES)
    bit<2>      copy;       // fault.p4: what a copy stands for
#endif
    @field_list(COPIES)
    port_t      port;       // where it came in; copies made by faults forget that
}
#endif
