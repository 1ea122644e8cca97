// SPDX-License-Identifier: Apache-2.0
// A result, of all or of those below this switch: what is the same for all its receivers is made here, once, before it is
// replicated.  An ICRC is a CRC, linear but for constants, so that of a packet to one receiver and that of the same packet
// with zeros for addresses, UDP ports and queue pair differ by a number that its entry of `replica` has, whatever the packet carries.
#ifndef RESULT_P4
#define RESULT_P4
#include "headers.p4"
#include "icrc.p4"
#include "connection.p4"
#include "slot.p4"
#include "verdict.p4"

// What have all receivers of this packet in common?  Makes a full packet of a windowed sender that goes on as it is, with
// the slot's lanes, into what its receivers get, but for their addresses, UDP ports and queue pairs.
control Result(inout headers_t hdr, inout meta_t meta) {
    action make() {
        meta.made = 1;
        hdr.ipv4.ttl = RESULT_TTL;
        hdr.udp.checksum = 0;
        hdr.bth.fecn_becn = 0;
        // IDs that count with the PSN let a sender's NIC or kernel cut a run of these packets from one super-packet
        hdr.ipv4.id = hdr.bth.psn[15:0];
        hdr.bth.flags = meta.content ++ 1w0 ++ PAD_OF(hdr.bth.flags) ++ 4w0;
        if (hdr.reth.isValid()) {
            hdr.reth.rkey = 0;
        }
        if (hdr.reth.isValid()) {
            hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_ADDRESSLESS, ICRC_RETH, ICRC_PAYLOAD }, CRC32_VALUES);
        } else {
            hash(meta.icrc, HashAlgorithm.crc32, 32w0, { ICRC_ADDRESSLESS, ICRC_PAYLOAD }, CRC32_VALUES);
        }
        hdr.icrc.crc = ON_WIRE(meta.icrc);
    }
    apply {
        if (meta.decided.to != NOBODY && meta.tree.packet <= DOWN && meta.full == 1 && hdr.lanes[WORDS - 1].isValid()) {
            make();
        }
    }
}
#endif
