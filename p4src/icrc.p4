// SPDX-License-Identifier: Apache-2.0
// RoCEv2's invariant CRC: CRC-32 over 8 bytes of ones, the IPv4 header (TOS, TTL and checksum as ones), UDP (checksum
// as ones), BTH (FECN/BECN byte as ones) and all that follows; sent little endian.
#ifndef ICRC_P4
#define ICRC_P4
#include "headers.p4"

// p4c copies each thing that is hashed; the controller takes the copies of fields out again (bmv2_json/fields.py).
#define ICRC_HEADERS(src, dst, sport, dport, connection)                                        \
    64w0xffffffffffffffff, hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_len,          \
    hdr.ipv4.id, hdr.ipv4.flags, hdr.ipv4.frag_offset, 8w0xff, hdr.ipv4.protocol,               \
    16w0xffff, src, dst, sport, dport, hdr.udp.length, 16w0xffff,                               \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, 8w0xff, connection,                            \
    hdr.bth.operation, hdr.bth.ack_req, hdr.bth.psn
#define ICRC_BEFORE_PAYLOAD ICRC_HEADERS(hdr.ipv4.src, hdr.ipv4.dst, hdr.udp.sport, hdr.udp.dport, hdr.bth.connection)
#define ICRC_ADDRESSLESS    ICRC_HEADERS(32w0, 32w0, 16w0, 16w0, (connection_t)0)
#define CRC32_VALUES    64w0x100000000      // hash() counts them: 2^32
#define ICRC_RETH       hdr.reth.address, hdr.reth.rkey, hdr.reth.length
#define WORD(i)         hdr.lanes[i].w
#define ICRC_PAYLOAD    ALL_WORDS(WORD)

// A CRC as it stands on the wire
#define ON_WIRE(crc)    (crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24])

// What is this packet's invariant CRC?  That of a full packet is made at once, that of others piece by piece: a CRC goes on
// behind what it covers as a new one does whose first four bytes it has been added to, without carry.
control Icrc(in headers_t hdr, inout meta_t meta) {
    action full_with_reth() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, ICRC_RETH, ICRC_PAYLOAD }, CRC32_VALUES);
    }
    action full() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, ICRC_PAYLOAD }, CRC32_VALUES);
    }
    action acknowledgement() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, hdr.aeth.syndrome, hdr.aeth.msn },
             CRC32_VALUES);
    }
    action headers_with_reth() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, ICRC_RETH }, CRC32_VALUES);
    }
    action headers() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD }, CRC32_VALUES);
    }
#define GO_ON(name, w, bits)                                                                                \
    action name() {                                                                                         \
        hash(meta.icrc, HashAlgorithm.crc32, 32w0,                                                          \
             { w ^ (ON_WIRE(meta.icrc) ++ (bit<(bits - 32)>)0) }, CRC32_VALUES);                            \
    }
#define GO_ON_WORD(i)   GO_ON(word##i, hdr.lanes[i].w, WORD_BITS)
#define IF_WORD(i)      if (meta.payload[15:8] > i) { word##i(); }
    EACH_WORD(GO_ON_WORD)
    GO_ON(tail32, hdr.tail32.w, 1024)
    GO_ON(tail16, hdr.tail16.w, 512)
    GO_ON(tail8, hdr.tail8.w, 256)
    GO_ON(tail4, hdr.tail4.w, 128)
    GO_ON(tail2, hdr.tail2.w, 64)
    action tail1() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { hdr.tail1.w ^ ON_WIRE(meta.icrc) }, CRC32_VALUES);
    }
    action immediate() {
        hash(meta.icrc, HashAlgorithm.crc32, 32w0, { hdr.immediate.data ^ ON_WIRE(meta.icrc) }, CRC32_VALUES);
    }
    apply {
        if (hdr.aeth.isValid()) {
            acknowledgement();
        } else if (meta.full == 1) {
            if (hdr.reth.isValid()) {
                full_with_reth();
            } else {
                full();
            }
        } else {
            if (hdr.reth.isValid()) {
                headers_with_reth();
            } else {
                headers();
            }
            if (meta.immediate == 1) {
                immediate();
            }
            EACH_WORD(IF_WORD)
            if (meta.payload[7:7] == 1) {
                tail32();
            }
            if (meta.payload[6:6] == 1) {
                tail16();
            }
            if (meta.payload[5:5] == 1) {
                tail8();
            }
            if (meta.payload[4:4] == 1) {
                tail4();
            }
            if (meta.payload[3:3] == 1) {
                tail2();
            }
            if (meta.payload[2:2] == 1) {
                tail1();
            }
        }
    }
}
#endif
