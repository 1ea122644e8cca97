// SPDX-License-Identifier: Apache-2.0
// The Internet checksums: IPv4's is checked on the way in and made on the way out; UDP's is made for what was folded and
// goes to a windowed receiver, if it is a full packet or presence.
#ifndef CHECKSUMS_P4
#define CHECKSUMS_P4
#include "headers.p4"
#include "icrc.p4"

#define IPV4_FIELDS                                                                                         \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,           \
    hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst

#define UDP_BEFORE_PAYLOAD                                                                                  \
    hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length,                                     \
    hdr.udp.sport, hdr.udp.dport, hdr.udp.length,                                                           \
    hdr.bth.opcode, hdr.bth.flags, hdr.bth.pkey, hdr.bth.fecn_becn, hdr.bth.connection, hdr.bth.operation,  \
    hdr.bth.ack_req, hdr.bth.psn

// Is the IPv4 header whole?
control CheckIpv4(inout headers_t hdr, inout meta_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { IPV4_FIELDS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

// What are the checksums of a packet that leaves?
control MakeChecksums(inout headers_t hdr, inout meta_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            { IPV4_FIELDS }, hdr.ipv4.checksum, HashAlgorithm.csum16);
#if UDP_CHECKSUMS
        // RoCEv2 allows a UDP checksum of zero; a right one lets kernels and NICs carry runs as super-packets.
        update_checksum(meta.checksummed == 1 && hdr.reth.isValid() && hdr.lanes[0].isValid(),
            { UDP_BEFORE_PAYLOAD, hdr.reth.address, hdr.reth.rkey, hdr.reth.length, ICRC_PAYLOAD, hdr.icrc.crc },
            hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.checksummed == 1 && !hdr.reth.isValid(),
            { UDP_BEFORE_PAYLOAD, ICRC_PAYLOAD, hdr.icrc.crc }, hdr.udp.checksum, HashAlgorithm.csum16);
        update_checksum(meta.checksummed == 1 && hdr.reth.isValid() && !hdr.lanes[0].isValid(),
            { UDP_BEFORE_PAYLOAD, hdr.reth.address, hdr.reth.rkey, hdr.reth.length, hdr.icrc.crc },
            hdr.udp.checksum, HashAlgorithm.csum16);
#endif
    }
}

#endif
