// SPDX-License-Identifier: Apache-2.0
// The verdict: what becomes of a packet, and of its slot?  The whole protocol of the fold is one table of constants;
// docs/protocol.md has it in words.
#ifndef VERDICT_P4
#define VERDICT_P4
#include "headers.p4"
#include "connection.p4"
#include "slot.p4"

// What is done with the lanes of slot and packet
#define KEEP    2w0         // neither reads nor writes the slot
#define STORE   2w1         // the packet's lanes into the slot
#define ADD     2w2         // both together, into both
#define LOAD    2w3         // the slot's lanes into the packet

// Whom the packet goes on to: PARENT (sizes.p4), or one of these, which are no child's number either
#define ONWARD  0xfffb      // the successor of the NIC that it came from, by its own addresses
#define NOBODY  0xfffc
#define ALL     0xfffd      // every child
#define ASKER   0xfffe      // the neighbour that it came from

// What the packet turns into; answer.p4 makes answers
#define ITSELF  3w0
#define ACK     3w1         // acknowledges what the successor has acknowledged
#define NAK     3w2         // asks for packets that are missing
#define RNR     3w3         // asks a NIC to come again later, as often as need be
#define RETRANSMIT 3w4      // an asker's packet into the one that it asks for (retransmission.p4)
#define AND_RNR 3w5         // itself, and besides the NIC that it came from gets an RNR

// The outcomes that are counted; controller/operations/status.py shows them
#define FIRST       4w0     // news: a contribution or result that the slot lacked
#define ANSWERED    4w1     // a repeat or question, answered from this slot
#define ASKED       4w2     // a repeat or question, passed on to the parent
#define WAITED      4w3     // a repeat or question, while contributions of others are missing
#define LATE        4w4     // a contribution or question of an older PSN, or one that the successor has acknowledged
#define REPEATED    4w5     // a result that was here already
#define FORWARDED   4w6     // a NIC's repeat, sent on to its successor with the stored result
#define AHEAD       4w7     // a NIC's packet ahead of one that is missing
#define MISMATCHED  4w8     // other headers than those of the contributions before, or presence where it may not be
#define LACKED      4w9     // a question for what the asker itself has not contributed yet: it is asked in turn
#define OUTCOMES    10

// What becomes of the packet and its slot?
control Verdict(inout meta_t meta) {
    counter(OUTCOMES, CounterType.packets) outcomes;        // what `netfold status` shows

    action then(bit<2> lanes, bit<1> done, child_t to, bit<3> turns, bit<4> outcome) {
        meta.decided.lanes = lanes;
        meta.decided.done = done;
        meta.decided.to = to;
        meta.decided.turns = turns;
        meta.decided.outcome = outcome;
        outcomes.count((bit<32>)outcome);
    }

    // What happens to a packet that finds its slot like this?
    table verdict {
        key = {
            meta.tree.packet:    ternary @name("packet");
            meta.found.age:      ternary @name("age");
            meta.found.done:     ternary @name("done");
            meta.found.seen:     ternary @name("seen");
            meta.found.complete: ternary @name("complete");
            meta.found.fills:    ternary @name("fills");
            meta.found.bare:     ternary @name("bare");
            meta.tree.root:      ternary @name("root");
        }
        actions = { then; }
        const default_action = then(KEEP, NO, NOBODY, ITSELF, LATE);
        const entries = {
            // Contributions of windowed children
            //packet    age    done seen complete fills bare root
            (UP,        SAME,  NO,  NO,  _,   NO,  _,  _):   then(ADD,   NO,  NOBODY, ITSELF, FIRST);
            (UP,        SAME,  NO,  NO,  _,   YES, _,  NO):  then(ADD,   NO,  PARENT, ITSELF, FIRST);
            (UP,        SAME,  NO,  NO,  _,   YES, _,  YES): then(ADD,   YES, ALL,    ITSELF, FIRST);
            (UP,        NEWER, _,   _,   _,   NO,  _,  _):   then(STORE, NO,  NOBODY, ITSELF, FIRST);   // opens the slot
            (UP,        NEWER, _,   _,   _,   YES, _,  NO):  then(STORE, NO,  PARENT, ITSELF, FIRST);   // an only child
            (UP,        NEWER, _,   _,   _,   YES, _,  YES): then(STORE, YES, ALL,    ITSELF, FIRST);
            (UP,        SAME,  YES, _,   _,   _,   _,  _):   then(LOAD,  YES, ASKER,  ITSELF, ANSWERED);
            (UP,        SAME,  NO,  YES, YES, _,   _,  _):   then(LOAD,  NO,  PARENT, ITSELF, ASKED);   // lost above
            (UP,        SAME,  NO,  YES, NO,  _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, WAITED);  // for the others
            (UP,        OLDER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, LATE);
            // Results from the parent
            (DOWN,      SAME,  NO,  _,   YES, _,   _,  _):   then(STORE, YES, ALL,    ITSELF, FIRST);
            (DOWN,      OTHER, NO,  _,   YES, _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, MISMATCHED);
            (DOWN,      _,     _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, REPEATED);
            // Contributions of NICs: each is new once, in order
            (RC_NEW,    SAME,  NO,  NO,  _,   NO,  _,  _):   then(ADD,   NO,  NOBODY, ITSELF, FIRST);
            (RC_NEW,    SAME,  NO,  NO,  _,   YES, _,  NO):  then(ADD,   NO,  PARENT, ITSELF, FIRST);
            (RC_NEW,    SAME,  NO,  NO,  _,   YES, _,  YES): then(ADD,   YES, ALL,    ITSELF, FIRST);
            (RC_NEW,    NEWER, _,   _,   _,   NO,  _,  _):   then(STORE, NO,  NOBODY, ITSELF, FIRST);
            (RC_NEW,    NEWER, _,   _,   _,   YES, _,  NO):  then(STORE, NO,  PARENT, ITSELF, FIRST);
            (RC_NEW,    NEWER, _,   _,   _,   YES, _,  YES): then(STORE, YES, ALL,    ITSELF, FIRST);
            (RC_GAP,    _,     _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  NAK,    AHEAD);
            (RC_AHEAD,  _,     _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, AHEAD);
            (RC_OLD,    _,     _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  ACK,    LATE);
            (RC_LOWEST, SAME,  YES, _,   _,   _,   _,  _):   then(LOAD,  YES, ONWARD, ITSELF, FORWARDED);
            (RC_AGAIN,  SAME,  YES, _,   _,   _,   _,  _):   then(LOAD,  YES, ONWARD, ITSELF, FORWARDED);
            (RC_LOWEST, SAME,  NO,  YES, YES, _,   _,  _):   then(LOAD,  NO,  PARENT, AND_RNR, ASKED);
            (RC_AGAIN,  SAME,  NO,  YES, YES, _,   _,  _):   then(LOAD,  NO,  PARENT, ITSELF, ASKED);
            (RC_LOWEST, SAME,  NO,  YES, NO,  _,   _,  _):   then(KEEP,  NO,  ASKER,  RNR,    WAITED);
            (RC_AGAIN,  SAME,  NO,  YES, NO,  _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, WAITED);
            // Its slot has moved on, so its successor has said that it has the result, and the acknowledgement was lost
            (RC_LOWEST, OLDER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  ACK,    LATE);
            (RC_AGAIN,  OLDER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  ACK,    LATE);
            // Questions of windowed children for a result
            (ASK_UP,    SAME,  YES, _,   _,   _,   YES, _):  then(LOAD,  YES, ASKER,  RETRANSMIT, ANSWERED);
            (ASK_UP,    SAME,  YES, _,   _,   _,   NO, _):   then(KEEP,  NO,  ASKER,  NAK,    LACKED);
            // the parent may lack the sum, which cannot be made of this slot: the child's repeat brings it there again
            (ASK_UP,    SAME,  NO,  _,   YES, _,   NO, _):   then(KEEP,  NO,  ASKER,  NAK,    LACKED);
            (ASK_UP,    SAME,  NO,  _,   YES, _,   _,  _):   then(KEEP,  NO,  PARENT, NAK,    ASKED);
            (ASK_UP,    SAME,  NO,  YES, NO,  _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, WAITED);
            (ASK_UP,    SAME,  NO,  NO,  _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  NAK,    LACKED);
            (ASK_UP,    NEWER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  ASKER,  NAK,    LACKED);
            // and of the parent for a sum
            (ASK_DOWN,  SAME,  NO,  _,   YES, _,   YES, _):  then(LOAD,  NO,  ASKER,  RETRANSMIT, ANSWERED);
            (ASK_DOWN,  SAME,  NO,  _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, WAITED);
            (ASK_DOWN,  NEWER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, WAITED);
            // Contributions that do not go with those before
            (_,         OTHER, _,   _,   _,   _,   _,  _):   then(KEEP,  NO,  NOBODY, ITSELF, MISMATCHED);
        }
    }
    apply {
        verdict.apply();
    }
}
#endif
