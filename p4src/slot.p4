// SPDX-License-Identifier: Apache-2.0
// A slot is where the contributions to one PSN of a tree meet.  Here are the fields of its state, and what they mean
// for the packet at hand: is it early, late or a repeat, does it go with what is there, and does it complete the slot?
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
#define STATE_FIELD(state, high, low) state[(MAX_CHILDREN + high):(MAX_CHILDREN + low)]
#define STATE_EPOCH(state)      STATE_FIELD(state, 63, 32)
#define STATE_PSN(state)        STATE_FIELD(state, 31, 8)
#define STATE_DONE(state)       STATE_FIELD(state, 7, 7)    // the words are the result
#define STATE_MARKED(state)     STATE_FIELD(state, 6, 6)    // a contribution met congestion (ECN)
#define STATE_OPERATION(state)  STATE_FIELD(state, 5, 3)
#define STATE_ACK_REQ(state)    STATE_FIELD(state, 2, 2)    // a contribution asks for an acknowledgement
#define STATE_EMPTY(state)      STATE_FIELD(state, 1, 1)    // all that came is presence: the words are of an older PSN
#define STATE_CONTENT(state)    STATE_FIELD(state, 0, 0)    // the acknowledgement is enough for some children (slot_content)
#define STATE_BITMAP(state)     state[(MAX_CHILDREN - 1):0] // the children whose contributions are in the words
#define STATE_OF(epoch, psn, done, marked, operation, ack_req, empty, content, bitmap) \
    epoch ++ psn ++ done ++ marked ++ operation ++ ack_req ++ empty ++ content ++ bitmap

// The headers that contributions with lanes share, as the first one had them; where there are no lanes, those of presence
#define HEADERS_OPCODE(headers)     headers[127:120]
#define HEADERS_PAD(headers)        headers[119:118]    // pad count
#define HEADERS_UDP_LENGTH(headers) headers[111:96]
#define HEADERS_ADDRESS(headers)    headers[95:32]      // of the RETH, in its sender's successor's region
#define HEADERS_LENGTH(headers)     headers[31:0]       // of the RETH
#define HEADERS_OF(opcode, pad, udp_length, address, length) \
    opcode ++ pad ++ 6w0 ++ udp_length ++ address ++ length
#define HEADERS_IMMEDIATE(headers)                                                              \
    (HEADERS_OPCODE(headers) == SEND_LAST_IMM || HEADERS_OPCODE(headers) == SEND_ONLY_IMM ||    \
     HEADERS_OPCODE(headers) == WRITE_LAST_IMM || HEADERS_OPCODE(headers) == WRITE_ONLY_IMM)
#define PAD_OF(flags)               flags[5:4]          // in the flags of a BTH
#define CONTENT_OF(flags)           flags[7:7]          // solicited event; of windowed children: the acknowledgement is enough

#define SAME    2w0         // the slot holds the packet's PSN
#define NEWER   2w1         // the slot holds an older PSN than the packet's, or another epoch's
#define OLDER   2w2         // the slot holds a newer PSN: the packet is late
#define OTHER   2w3         // the slot holds the packet's PSN, but with another opcode, length, pad or, of a NIC, address;
                            // or one of the two has lanes, and they may not meet
#define NO      1w0
#define YES     1w1

// How does this packet find its slot?
control Slot(in headers_t hdr, inout meta_t meta) {
    action compare() {
        if (hdr.ipv4.ecn == ECN_CE) {
            meta.found.marked = YES;
        }
        if (hdr.bth.ack_req[7:7] == YES) {
            meta.found.ack_req = YES;
        }
        if (STATE_EPOCH(meta.found.state) != meta.tree.epoch) {
            meta.found.age = NEWER;
            meta.found.content = 0;
        } else if (STATE_PSN(meta.found.state) == hdr.bth.psn) {
            meta.found.bitmap = STATE_BITMAP(meta.found.state);
            if (meta.found.bitmap == meta.tree.children) {
                meta.found.complete = YES;
            }
            if (STATE_DONE(meta.found.state) == YES) {
                meta.found.done = YES;
            }
            if (STATE_MARKED(meta.found.state) == YES) {
                meta.found.marked = YES;
            }
            if (STATE_ACK_REQ(meta.found.state) == YES) {
                meta.found.ack_req = YES;
            }
            if (STATE_EMPTY(meta.found.state) == YES) {
                meta.found.empty = YES;
            }
            if (hdr.aeth.isValid()) {
#if ROOM_TO_GROW
                if (!HEADERS_IMMEDIATE(meta.found.headers)) {
                    meta.found.bare = YES;
                }
#endif
            } else if (meta.present == YES) {
                // into lanes: a result only where nobody is to get them, a contribution only where they can go on with it
                if (meta.found.empty == NO) {
                    if (meta.tree.packet == DOWN) {
                        if (meta.found.content != meta.tree.children) {
                            meta.found.age = OTHER;
                        }
#if ROOM_TO_GROW
                    } else if (HEADERS_IMMEDIATE(meta.found.headers)) {
                        meta.found.age = OTHER;
                    }
#else
                    } else {
                        meta.found.age = OTHER;
                    }
#endif
                }
            } else if (meta.found.empty == YES) {
                // lanes, of a child that has said that it has none, or where no lanes may meet none
#if ROOM_TO_GROW
                if (meta.tree.packet != DOWN &&
                    (meta.found.bitmap & ((children_t)1 << (bit<8>)meta.child)) != 0) {
                    meta.found.age = OTHER;
                }
#else
                if (meta.tree.packet != DOWN) {
                    meta.found.age = OTHER;
                }
#endif
            } else if (HEADERS_OPCODE(meta.found.headers) != hdr.bth.opcode ||
                       HEADERS_UDP_LENGTH(meta.found.headers) != hdr.udp.length ||
                       HEADERS_PAD(meta.found.headers) != PAD_OF(hdr.bth.flags)) {
                meta.found.age = OTHER;
            } else if (meta.tree.packet >= RC) {
                if (hdr.reth.isValid() && HEADERS_ADDRESS(meta.found.headers) != hdr.reth.address - meta.tree.region) {
                    meta.found.age = OTHER;
                }
            }
        } else if (hdr.bth.psn - STATE_PSN(meta.found.state) < PSN_HALF) {
            meta.found.age = NEWER;
            meta.found.content = 0;
        } else {
            meta.found.age = OLDER;
        }
        if (meta.tree.packet != DOWN && meta.tree.packet != ASK_DOWN) {
            if ((meta.found.bitmap & ((children_t)1 << (bit<8>)meta.child)) != 0) {
                meta.found.seen = YES;
            } else if (meta.tree.packet == UP && CONTENT_OF(hdr.bth.flags) == YES) {
                meta.found.content = meta.found.content | ((children_t)1 << (bit<8>)meta.child);
            }
            meta.found.bitmap = meta.found.bitmap | ((children_t)1 << (bit<8>)meta.child);
        }
        if (meta.found.bitmap == meta.tree.children) {
            meta.found.fills = YES;
        }
    }
    apply {
        compare();
    }
}
#endif
