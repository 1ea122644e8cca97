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
#define STATE_EPOCH(state)      state[127:112]
#define STATE_PSN(state)        state[111:88]
#define STATE_DONE(state)       state[87:87]        // the words are the result
#define STATE_MARKED(state)     state[86:86]        // a contribution met congestion (ECN)
#define STATE_OPERATION(state)  state[85:83]
#define STATE_BITMAP(state)     state[63:0]         // the children whose contributions are in the words
#define STATE_OF(epoch, psn, done, marked, operation, bitmap) \
    epoch ++ psn ++ done ++ marked ++ operation ++ 19w0 ++ bitmap

#define SAME    2w0         // the slot holds the packet's PSN
#define NEWER   2w1         // the slot holds an older PSN than the packet's, or another epoch's
#define OLDER   2w2         // the slot holds a newer PSN: the packet is late
#define NO      1w0
#define YES     1w1

// A slot as the packet at hand finds it
struct slot_t {
    bit<2>              age;            // of the packet: SAME, NEWER or OLDER
    bit<1>              done;           // the slot holds the result
    bit<1>              seen;           // this child is in the bitmap already
    bit<1>              complete;       // all children are in the bitmap
    bit<1>              fills;          // all children are in it with this packet
    bit<1>              marked;         // by congestion: this packet, or a contribution before it
    children_t          bitmap;         // with this packet's child
}

// How does this packet find its slot?
control Slot(in headers_t hdr, in meta_t meta, in tree_t tree, in slot_state_t state, inout slot_t found) {
    psn_t      ahead = 0;
    children_t child = 0;

    apply {
        if (hdr.ipv4.ecn == ECN_CE) {
            found.marked = YES;
        }
        ahead = hdr.bth.psn - STATE_PSN(state);
        if (STATE_EPOCH(state) != tree.epoch) {
            found.age = NEWER;
        } else if (ahead == 0) {
            found.age = SAME;
            found.done = STATE_DONE(state);
            found.marked = found.marked | STATE_MARKED(state);
            found.bitmap = STATE_BITMAP(state);
        } else if (ahead < PSN_HALF) {
            found.age = NEWER;
        } else {
            found.age = OLDER;
        }
        if (found.bitmap == tree.children) {
            found.complete = YES;
        }
        if (tree.direction == UP) {
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
