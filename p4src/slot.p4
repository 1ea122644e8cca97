// SPDX-License-Identifier: Apache-2.0
// A slot is where the contributions to one PSN of a tree meet.  Here are the fields of its state, and what they mean
// for the packet at hand: is it early, late or a repeat, and does it complete the slot?
//
// Slots are never cleared (BMv2's registers cannot be, over P4Runtime): a newer PSN or another epoch takes a slot over.
// That is safe because hosts send PSN p only while p < (lowest result they miss) + window, and a slot range holds two
// windows: when p + slots arrives, every host has the result of p.
#ifndef SLOT_P4
#define SLOT_P4
#include "headers.p4"
#include "connection.p4"

// The fields of slot_state_t, which a register can only hold as one number; controller/switch/probe.py reads them, too.
// Epoch 0 is never used: a slot of zeros is free.
#define STATE_EPOCH(state)      state[127:96]
#define STATE_PSN(state)        state[95:72]
#define STATE_DONE(state)       state[71:71]        // the words are the result
#define STATE_MARKED(state)     state[70:70]        // a contribution met congestion (ECN)
#define STATE_OPERATION(state)  state[69:67]
#define STATE_ACK_REQ(state)    state[66:66]        // a contribution asks for an acknowledgement
#define STATE_BITMAP(state)     state[63:0]         // the children whose contributions are in the words
#define STATE_OF(epoch, psn, done, marked, operation, ack_req, bitmap) \
    epoch ++ psn ++ done ++ marked ++ operation ++ ack_req ++ 2w0 ++ bitmap

// The headers that contributions share, as the first one had them; written only when a slot is opened
#define HEADERS_OPCODE(headers)     headers[127:120]
#define HEADERS_PAD(headers)        headers[119:118]    // pad count
#define HEADERS_UDP_LENGTH(headers) headers[111:96]
#define HEADERS_ADDRESS(headers)    headers[95:32]      // of the RETH, in its sender's successor's region
#define HEADERS_LENGTH(headers)     headers[31:0]       // of the RETH
#define HEADERS_OF(opcode, pad, udp_length, address, length) \
    opcode ++ pad ++ 6w0 ++ udp_length ++ address ++ length
#define PAD_OF(flags)               flags[5:4]          // in the flags of a BTH

#define SAME    2w0         // the slot holds the packet's PSN
#define NEWER   2w1         // the slot holds an older PSN than the packet's, or another epoch's
#define OLDER   2w2         // the slot holds a newer PSN: the packet is late
#define OTHER   2w3         // the slot holds the packet's PSN, but with another opcode, length, pad or, of a NIC, address
#define NO      1w0
#define YES     1w1

// A slot as the packet at hand finds it
struct slot_t {
    bit<2>              age;            // of the packet: SAME, NEWER, OLDER or OTHER
    bit<1>              done;           // the slot holds the result
    bit<1>              seen;           // this child is in the bitmap already
    bit<1>              complete;       // all children are in the bitmap
    bit<1>              fills;          // all children are in it with this packet
    bit<1>              bare;           // the slot's packets can be made from what it holds: they have no immediate data
    bit<1>              marked;         // by congestion: this packet, or a contribution before it
    bit<1>              ack_req;        // this packet asks for an acknowledgement, or a contribution before it
    children_t          bitmap;         // with this packet's child
}

// How does this packet find its slot?
control Slot(in headers_t hdr, in meta_t meta, in tree_t tree, in slot_state_t state, in slot_headers_t headers,
             in bit<64> address, inout slot_t found) {
    psn_t      ahead = 0;
    children_t child = 0;

    apply {
        if (hdr.ipv4.ecn == ECN_CE) {
            found.marked = YES;
        }
        found.ack_req = hdr.bth.ack_req[7:7];
        ahead = hdr.bth.psn - STATE_PSN(state);
        if (STATE_EPOCH(state) != tree.epoch) {
            found.age = NEWER;
        } else if (ahead == 0) {
            found.age = SAME;
            found.done = STATE_DONE(state);
            found.marked = found.marked | STATE_MARKED(state);
            found.ack_req = found.ack_req | STATE_ACK_REQ(state);
            found.bitmap = STATE_BITMAP(state);
            if (hdr.aeth.isValid()) {
#if ROOM_TO_GROW
                if (HEADERS_OPCODE(headers) != SEND_LAST_IMM && HEADERS_OPCODE(headers) != SEND_ONLY_IMM &&
                    HEADERS_OPCODE(headers) != WRITE_LAST_IMM && HEADERS_OPCODE(headers) != WRITE_ONLY_IMM) {
                    found.bare = YES;
                }
#endif
            } else if (HEADERS_OPCODE(headers) != hdr.bth.opcode || HEADERS_UDP_LENGTH(headers) != hdr.udp.length ||
                       HEADERS_PAD(headers) != PAD_OF(hdr.bth.flags)) {
                found.age = OTHER;
            } else if (tree.packet >= RC && HEADERS_ADDRESS(headers) != address) {
                found.age = OTHER;
            }
        } else if (ahead < PSN_HALF) {
            found.age = NEWER;
        } else {
            found.age = OLDER;
        }
        if (found.bitmap == tree.children) {
            found.complete = YES;
        }
        if (tree.packet != DOWN && tree.packet != ASK_DOWN) {
            child = (children_t)1 << (bit<8>)meta.child;
            if ((found.bitmap & child) != 0) {
                found.seen = YES;
            }
            found.bitmap = found.bitmap | child;
        }
        if (found.bitmap == tree.children) {
            found.fills = YES;
        }
    }
}
#endif
