// SPDX-License-Identifier: Apache-2.0
// Every size and number of the program.  wire/roce.py has the same ones; tests/wire/test_formats.py compares them.
#ifndef SIZES_P4
#define SIZES_P4

// Payload bytes of every data packet of this fabric: 1024 or 4096 (-D PATH_MTU=4096).
#ifndef PATH_MTU
#define PATH_MTU    1024
#endif

// A word is p4c's widest type: 64 lanes of 32 bits.  A payload is WORDS of them.  Registers and headers are things of
// their own for each word, so EACH_WORD writes what is done with one word, X(i), for all.
#define WORD_BITS   2048
#define WORD_BYTES  256
#define LANE_BYTES  4
#if PATH_MTU == 1024
#define WORDS       4
#define EACH_WORD(X)    X(0) X(1) X(2) X(3)
#define ALL_WORDS(X)    X(0), X(1), X(2), X(3)
#elif PATH_MTU == 4096
#define WORDS       16
#define EACH_WORD(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define ALL_WORDS(X)    X(0), X(1), X(2), X(3), X(4), X(5), X(6), X(7), X(8), X(9), X(10), X(11), X(12), X(13), X(14), \
                        X(15)
#else
#error "PATH_MTU: expected 1024 or 4096"
#endif

// ---- what a switch has room for -------------------------------------------------------------------------------------

// One slot holds the words of one packet: 16384 of them are 16 MiB, or 64.  Jobs get disjoint, power-of-two ranges.
#define SLOTS           16384
// Children of a switch in one tree at most: a bit for each in a slot's state, beside 64 bits of everything else.  256
// (-D MAX_CHILDREN=256) where some switch of the fabric has more than 64 neighbours: wide numbers take more time.
#ifndef MAX_CHILDREN
#define MAX_CHILDREN    64
#endif
// Children and parents of all trees through a switch: 1024 trees of 16, or 64 of 256.  Each is sent rewritten packets, and
// a NIC has an entry more, for what answers it.  Each has a flow; a tree's are next to each other.
#define CONNECTIONS     16384
#define FLOWS           CONNECTIONS
#define REPLICAS        (2 * CONNECTIONS)
// Routes: one for each host of the switch itself, and one for each leaf whose packets do not go the default way up.
#define ROUTES          4096
// Switches that hosts hang on.
#define LEAVES          4096
// Ports in all groups of next hops on equally short paths together.
#define UPLINKS         8192
// Paths by number at a switch, for all destination leaves alike, as many as UDP's ports can name.
#define PINS            2048
// Exceptions: paths that a switch sends elsewhere for some destination leaf.
#define BENT            32768

// BMv2's ports are numbers of 9 bits; what is counted by port has a cell for each number.
#define PORT_BITS       9
#define PORTS           (1 << PORT_BITS)
#define CPU_PORT        510
#define NO_PORT         511

// Packets in a queue, as v1model counts them; no queue is as long as the greatest number.
#define QUEUE_DEPTH_BITS 19
#define QUEUE_ENDLESS   0x7ffff

// Whether a question can become the full packet that it asks for, and presence what it completes.  Not on BMv2, which keeps
// 512 bytes free before each packet and writes beyond them without a word: there who asks is asked to repeat, and gets the
// packet for that, and no contribution with lanes meets one without.
#ifndef ROOM_TO_GROW
#define ROOM_TO_GROW    1
#endif

// Whether a windowed result leaves with a right UDP checksum, by which kernels and NICs carry runs as super-packets, rather
// than with 0, which RoCEv2 allows.  Not on BMv2, which knows no super-packets.
#ifndef UDP_CHECKSUMS
#define UDP_CHECKSUMS   1
#endif

// Whether faults can be injected (fault.p4): -D FAULTS=1 for fabrics of which a link is to have some, and for tests.
#ifndef FAULTS
#define FAULTS          0
#endif

// ---- packets --------------------------------------------------------------------------------------------------------

#define ETHERTYPE_IPV4  0x0800
#define PROTO_TCP       6
#define PROTO_UDP       17
// UDP source ports from here up, and TCP ports from TCP_PATH_PORT up, have the number of the packet's path in their lowest
// bits; number 0 is no path.  Two TCP ports that differ in this bit alone name the same one, but for the first such pair:
// TCP_PATH_PORT itself is sprayed, as PATH_PORT is, and the other one has the number TCP_SAME_PATH.
#define PATH_PORT       0xf000
#define TCP_PATH_PORT   0xf800
#define TCP_SAME_PATH   0x0400
// UDP destination ports of RoCEv2: its own, which a host's first rank has and NICs and switches use, and a range for all
// further ranks of a host, 18432..19455, below the ports that kernels choose by themselves.
#define ROCE_PORT       4791
#define ROCE_PORTS      0x4800
#define ROCE_PORTS_MASK 0xfc00
#define ECN_CE          3
// The partition key of our own end points' packets and of those between switches: a full member of partition 1.  NICs use
// the default partition's, 0xffff.
#define PKEY_WINDOWED   0x8001
#define PKEY_DEFAULT    0xffff
// 198.18.0.0/15 (RFC 2544): addresses that NICs send contributions to.  A fabric's own addresses lie elsewhere.
#define FOLD_NETWORK    0xc6120000
#define FOLD_NETMASK    0xfffe0000
// Time to live of a packet that comes from the very other end of a link; what was routed even once has less.
#define ONE_HOP_TTL     255
// Probes of links have this UDP source port, and the number of the port that they leave by in its lowest bits.
#define PROBE_PORT      0xc000
// Their multicast group.  Jobs have the groups below.
#define PROBE_GROUP     4095
// Time to live of what a switch has folded: so nothing that was routed passes for a result, whatever time to live its
// sender gave it (RFC 5082, the generalised TTL security mechanism).
#define RESULT_TTL      ONE_HOP_TTL

// BTH opcodes, reliable connection (InfiniBand spec, table 38)
#define SEND_FIRST      0x00
#define SEND_MIDDLE     0x01
#define SEND_LAST       0x02
#define SEND_LAST_IMM   0x03
#define SEND_ONLY       0x04
#define SEND_ONLY_IMM   0x05
#define WRITE_FIRST     0x06
#define WRITE_MIDDLE    0x07
#define WRITE_LAST      0x08
#define WRITE_LAST_IMM  0x09
#define WRITE_ONLY      0x0a
#define WRITE_ONLY_IMM  0x0b
#define ACKNOWLEDGE     0x11

// Syndromes of an acknowledgement (InfiniBand spec, table 45)
#define SYNDROME_ACK    0x1f            // without a number of credits
#define SYNDROME_RNR    0x2e            // receiver not ready, again after 1.28 ms (code 14 of table 46)
#define SYNDROME_NAK    0x60            // PSN sequence error: packets are missing from the PSN on that it carries

#define UDP_BYTES       8
#define BTH_BYTES       12
#define RETH_BYTES      16
#define IMMEDIATE_BYTES 4
#define AETH_BYTES      4
#define ETHERNET_BYTES  14
#define ICRC_BYTES      4
#define IPV4_BYTES      20
// UDP length of a packet that carries an acknowledgement
#define UDP_LEN_ACK     (UDP_BYTES + BTH_BYTES + AETH_BYTES + ICRC_BYTES)
// and of presence, a WRITE ONLY of no bytes
#define UDP_LEN_PRESENCE (UDP_BYTES + BTH_BYTES + RETH_BYTES + ICRC_BYTES)
// UDP lengths of a data packet without its payload: with nothing but BTH and ICRC, with more headers
#define UDP_LEN_PLAIN   (UDP_BYTES + BTH_BYTES + ICRC_BYTES)
// UDP lengths of a full data packet, without and with the RDMA extended header
#define UDP_LEN_DATA    (UDP_BYTES + BTH_BYTES + PATH_MTU + ICRC_BYTES)
#define UDP_LEN_RETH    (UDP_BYTES + BTH_BYTES + RETH_BYTES + PATH_MTU + ICRC_BYTES)

#define PSN_BITS        24
// A PSN less than this far ahead of another one, modulo 2^24, is the newer of the two (InfiniBand spec, 9.7.2).
#define PSN_HALF        (1 << (PSN_BITS - 1))
// What a packet says of the one that left before it (order.p4)
#define ORDER_BITS      13
#define QUEUE_PAIR_BITS 24

// What becomes of a slot's and a packet's lanes where they meet: the lowest bits of a windowed packet's destination queue
// pair, and for NICs' packets a parameter of their entry
#define OPERATION_BITS  3
#define OP_SUM32        0                 // wraps
#define OP_MAX32        1                 // signed
#define OP_SUM16        2
#define OP_SUM8         3
#define OP_SAT32        4                 // signed; what once reached an end, 2^31 - 1 or -2^31, stays there
#define OP_LAST         OP_SAT32

// ---- inside the switch ----------------------------------------------------------------------------------------------

// Kinds of packets from and to the CPU
#define CPU_FRAME       0                 // a frame to send, or one for the controller
#define CPU_PROBE       1                 // what does this slot hold?  (probe_t)
#define CPU_NEIGHBOURS  2                 // a frame to send to all switches at the other ends of links, once to each
#define CPU_HEARD       3                 // from which of these has such a frame come since the last question?  (heard_t)
#define PARENT          0xffff            // in the place of a child's number: the next switch up the tree
#define ANSWERS         0x4000            // added to a NIC's number: what answers it, not a result
// Packets of one gap that a switch is asked for at most by one negative acknowledgement; others wait for a timer
#define ASKED_AT_ONCE   64

// standard_metadata.instance_type, as BMv2 numbers it
#define INGRESS_CLONE   1
#define EGRESS_CLONE    2
#define RECIRCULATED    4
#define REPLICATED      5

// The colour of a packet that is within its meter's rate, as v1model numbers it
#define METER_GREEN     0

#define COPIES          1                 // field list: metadata that a fault's copies keep

#endif
