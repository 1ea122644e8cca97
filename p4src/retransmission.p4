// SPDX-License-Identifier: Apache-2.0
// A retransmission: the packet that a neighbour asks for, made anew from what its slot holds.
#ifndef RETRANSMISSION_P4
#define RETRANSMISSION_P4
#include "headers.p4"
#include "slot.p4"

#define WITH_WORD(i)    if (meta.payload[15:8] > i) { hdr.lanes[i].setValid(); }

// Turns a question, an acknowledgement, into the packet that it asks for, and presence into what it completes.  lanes.p4
// loads the lanes; addresses and ICRC follow (replica.p4).
control Retransmission(inout headers_t hdr, inout meta_t meta) {
    action make() {
        hdr.aeth.setInvalid();
        hdr.icrc.setValid();
        hdr.ipv4.total_len = HEADERS_UDP_LENGTH(meta.found.headers) + IPV4_BYTES;
        hdr.udp.length = HEADERS_UDP_LENGTH(meta.found.headers);
        hdr.bth.opcode = HEADERS_OPCODE(meta.found.headers);
        hdr.bth.flags = 2w0 ++ HEADERS_PAD(meta.found.headers) ++ 4w0;
        hdr.bth.operation = STATE_OPERATION(meta.found.state);
        meta.tree.operation = STATE_OPERATION(meta.found.state);
        meta.payload = HEADERS_UDP_LENGTH(meta.found.headers) - UDP_LEN_PLAIN;
        if (hdr.bth.opcode == WRITE_FIRST || hdr.bth.opcode == WRITE_ONLY) {
            hdr.reth.setValid();
            hdr.reth.address = HEADERS_ADDRESS(meta.found.headers);
            hdr.reth.length = HEADERS_LENGTH(meta.found.headers);
            meta.payload = meta.payload - RETH_BYTES;
        } else {
            hdr.reth.setInvalid();
        }
        if (meta.payload == PATH_MTU) {
            meta.full = 1;
        }
        EACH_WORD(WITH_WORD)
        meta.rest = 8w0 ++ meta.payload[7:0];
        if (meta.payload[7:7] == 1) {
            hdr.tail32.setValid();
        }
        if (meta.payload[6:6] == 1) {
            hdr.tail16.setValid();
        }
        if (meta.payload[5:5] == 1) {
            hdr.tail8.setValid();
        }
        if (meta.payload[4:4] == 1) {
            hdr.tail4.setValid();
        }
        if (meta.payload[3:3] == 1) {
            hdr.tail2.setValid();
        }
        if (meta.payload[2:2] == 1) {
            hdr.tail1.setValid();
        }
    }
    apply {
        make();
    }
}
#endif
