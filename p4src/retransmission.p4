// SPDX-License-Identifier: Apache-2.0
// A retransmission: the packet that a neighbour asks for, made anew from what its slot holds.
#ifndef RETRANSMISSION_P4
#define RETRANSMISSION_P4
#include "headers.p4"
#include "slot.p4"

#define WITH_WORD(i)    if (rest[15:8] > i) { hdr.lanes[i].setValid(); }

// Turns a question, an acknowledgement, into the packet with lanes that it asks for.  lanes.p4 loads them; addresses and
// ICRC follow (replica.p4).
control Retransmission(inout headers_t hdr, inout meta_t meta, in slot_state_t state, in slot_headers_t headers) {
    bit<16> rest = 0;       // bytes of the payload

    apply {
        hdr.aeth.setInvalid();
        hdr.icrc.setValid();
        hdr.ipv4.total_len = HEADERS_UDP_LENGTH(headers) + IPV4_BYTES;
        hdr.udp.length = HEADERS_UDP_LENGTH(headers);
        hdr.bth.opcode = HEADERS_OPCODE(headers);
        hdr.bth.flags = 2w0 ++ HEADERS_PAD(headers) ++ 4w0;
        hdr.bth.operation = STATE_OPERATION(state);
        rest = hdr.udp.length - UDP_LEN_PLAIN;
        if (hdr.bth.opcode == WRITE_FIRST || hdr.bth.opcode == WRITE_ONLY) {
            hdr.reth.setValid();
            hdr.reth.address = HEADERS_ADDRESS(headers);
            hdr.reth.length = HEADERS_LENGTH(headers);
            rest = rest - RETH_BYTES;
        }
        if (rest == PATH_MTU) {
            meta.full = 1;
        }
        EACH_WORD(WITH_WORD)
        meta.payload = rest;
        meta.rest = 8w0 ++ rest[7:0];
        if (rest[7:7] == 1) {
            hdr.tail32.setValid();
        }
        if (rest[6:6] == 1) {
            hdr.tail16.setValid();
        }
        if (rest[5:5] == 1) {
            hdr.tail8.setValid();
        }
        if (rest[4:4] == 1) {
            hdr.tail4.setValid();
        }
        if (rest[3:3] == 1) {
            hdr.tail2.setValid();
        }
        if (rest[2:2] == 1) {
            hdr.tail1.setValid();
        }
    }
}
#endif
