// SPDX-License-Identifier: Apache-2.0
// RoCEv2's invariant CRC: CRC-32 over 8 bytes of ones, the IPv4 header (TOS, TTL and checksum as ones), UDP (checksum
// as ones), BTH (FECN/BECN byte as ones) and all that follows; sent little endian.
#ifndef ICRC_P4
#define ICRC_P4
#include "headers.p4"

#define ICRC_BEFORE_PAYLOAD                                                                     \
    64w0xffffffffffffffff,                                                                      \
    hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_len, hdr.ipv4.id, hdr.ipv4.flags,    \
    hdr.ipv4.frag_offset, 8w0xff, hdr.ipv4.protocol, 16w0xffff, hdr.ipv4.src, hdr.ipv4.dst,     \
    hdr.udp.sport, hdr.udp.dport, hdr.udp.length, 16w0xffff,                                    \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, 8w0xff, hdr.bth.connection, hdr.bth.operation, \
    hdr.bth.ack_req, hdr.bth.psn
#define CRC32_VALUES    64w0x100000000      // hash() counts them: 2^32
#define ICRC_RETH       hdr.reth.address, hdr.reth.rkey, hdr.reth.length
#define WORD(i)         hdr.lanes[i].w
#define ICRC_PAYLOAD    ALL_WORDS(WORD)
#define ICRC_TAIL       hdr.tail32.w, hdr.tail16.w, hdr.tail8.w, hdr.tail4.w, hdr.tail2.w, hdr.tail1.w

// What is this packet's invariant CRC, as it stands on the wire?
//
// full  the packet has a whole path MTU of lanes, without immediate data
control Icrc(in headers_t hdr, in bit<1> full, out bit<32> icrc) {
    bit<32> crc;

    action with_reth() {
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, ICRC_RETH, ICRC_PAYLOAD }, CRC32_VALUES);
    }
    action without_reth() {
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, ICRC_PAYLOAD }, CRC32_VALUES);
    }
    // Fields of headers that the packet does not have are left out, as BMv2 does.
    action other_with_reth() {
        hash(crc, HashAlgorithm.crc32, 32w0,
             { ICRC_BEFORE_PAYLOAD, ICRC_RETH, hdr.immediate.data, ICRC_PAYLOAD, ICRC_TAIL }, CRC32_VALUES);
    }
    action other_without_reth() {
        hash(crc, HashAlgorithm.crc32, 32w0,
             { ICRC_BEFORE_PAYLOAD, hdr.immediate.data, ICRC_PAYLOAD, ICRC_TAIL }, CRC32_VALUES);
    }
    action acknowledgement() {
        hash(crc, HashAlgorithm.crc32, 32w0, { ICRC_BEFORE_PAYLOAD, hdr.aeth.syndrome, hdr.aeth.msn }, CRC32_VALUES);
    }
    apply {
        if (hdr.aeth.isValid()) {
            acknowledgement();
        } else if (hdr.reth.isValid()) {
            if (full == 1) {
                with_reth();
            } else {
                other_with_reth();
            }
        } else if (full == 1) {
            without_reth();
        } else {
            other_without_reth();
        }
        icrc = crc[7:0] ++ crc[15:8] ++ crc[23:16] ++ crc[31:24];
    }
}
#endif
