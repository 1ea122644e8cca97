// SPDX-License-Identifier: Apache-2.0
// An answer: what a packet turns into that is acknowledged, put off or asked for others, on its way back to its sender.
#ifndef ANSWER_P4
#define ANSWER_P4
#include "headers.p4"

// meta.answer, and meta.clone for what is cloned
#define NO_ANSWER       2w0
#define ANSWER_NAK      2w1         // packets are missing from the answer's PSN on; below it, all are acknowledged to a NIC
#define ANSWER_ACK      2w2         // all up to the answer's PSN are acknowledged
#define ANSWER_RNR      2w3         // all below the answer's PSN are acknowledged; it is to come again later
#define ASK_NEXT        2w2         // meta.clone: no answer, but the same question for the PSN after

// The whole frame of an acknowledgement
#define ANSWER_BYTES    (ETHERNET_BYTES + IPV4_BYTES + UDP_LEN_ACK)

// Turns a packet with lanes, or an acknowledgement, into the acknowledgement that is its answer.  Addresses and ICRC
// follow (replica.p4).  The other headers stand behind the acknowledgement, and are cut off (netfold.p4).
control Answer(inout headers_t hdr, inout meta_t meta) {
    action make() {
        hdr.aeth.setValid();
        hdr.aeth.syndrome = SYNDROME_NAK;
        if (meta.answer == ANSWER_ACK) {
            hdr.aeth.syndrome = SYNDROME_ACK;
        } else if (meta.answer == ANSWER_RNR) {
            hdr.aeth.syndrome = SYNDROME_RNR;
        }
        hdr.aeth.msn = meta.answer_msn;
        hdr.ipv4.total_len = IPV4_BYTES + UDP_LEN_ACK;
        hdr.udp.length = UDP_LEN_ACK;
        hdr.bth.opcode = ACKNOWLEDGE;
        hdr.bth.flags = 0;
        hdr.bth.ack_req = 0;
        hdr.bth.psn = meta.answer_psn;
        meta.full = 0;
        meta.present = 0;
        meta.made = 0;
    }
    apply {
        make();
    }
}
#endif
