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
#define NOBODY  0xfffc
#define ASKER   0xfffe      // the child that it came from
#define ALL     0xfffd      // every child

// The outcomes that are counted; controller/operations/status.py shows them
#define FIRST       3w0     // news: a contribution or result that the slot lacked
#define ANSWERED    3w1     // a repeat, answered from this slot
#define ASKED       3w2     // a repeat, passed on to the parent
#define WAITED      3w3     // a repeat, while contributions of others are missing
#define LATE        3w4     // a contribution to an older PSN
#define REPEATED    3w5     // a result that was here already
#define OUTCOMES    6

struct verdict_t {
    bit<2>              lanes;
    bit<1>              done;           // the slot then holds the result
    child_t             to;
}

// What becomes of the packet and its slot?
control Verdict(in tree_t tree, in slot_t found, inout verdict_t decided) {
    counter(OUTCOMES, CounterType.packets) outcomes;        // what `netfold status` shows

    action then(bit<2> lanes, bit<1> done, child_t to, bit<3> outcome) {
        decided.lanes = lanes;
        decided.done = done;
        decided.to = to;
        outcomes.count((bit<32>)outcome);
    }

    // What happens to a contribution or result that finds its slot like this?
    table verdict {
        key = {
            tree.direction: ternary @name("direction");
            found.age:      ternary @name("age");
            found.done:     ternary @name("done");
            found.seen:     ternary @name("seen");
            found.complete: ternary @name("complete");
            found.fills:    ternary @name("fills");
            tree.root:      ternary @name("root");
        }
        actions = { then; }
        const default_action = then(KEEP, NO, NOBODY, LATE);
        const entries = {
            //direction age  done seen complete fills root
            (UP,   NEWER, _,   _,   _,   NO,  _):   then(STORE, NO,  NOBODY, FIRST);        // opens the slot
            (UP,   NEWER, _,   _,   _,   YES, NO):  then(STORE, NO,  PARENT, FIRST);        // an only child
            (UP,   NEWER, _,   _,   _,   YES, YES): then(STORE, YES, ALL,    FIRST);
            (UP,   OLDER, _,   _,   _,   _,   _):   then(KEEP,  NO,  NOBODY, LATE);         // stale
            (UP,   SAME,  YES, _,   _,   _,   _):   then(LOAD,  YES, ASKER,  ANSWERED);     // its result was lost
            (UP,   SAME,  NO,  YES, YES, _,   _):   then(LOAD,  NO,  PARENT, ASKED);        // lost above: ask again
            (UP,   SAME,  NO,  YES, NO,  _,   _):   then(KEEP,  NO,  NOBODY, WAITED);       // for the others
            (UP,   SAME,  NO,  NO,  _,   NO,  _):   then(ADD,   NO,  NOBODY, FIRST);
            (UP,   SAME,  NO,  NO,  _,   YES, NO):  then(ADD,   NO,  PARENT, FIRST);
            (UP,   SAME,  NO,  NO,  _,   YES, YES): then(ADD,   YES, ALL,    FIRST);
            (DOWN, SAME,  NO,  _,   YES, _,   _):   then(STORE, YES, ALL,    FIRST);
            (DOWN, _,     _,   _,   _,   _,   _):   then(KEEP,  NO,  NOBODY, REPEATED);     // or another slot's
        }
    }
    apply {
        verdict.apply();
    }
}
#endif
