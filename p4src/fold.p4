// SPDX-License-Identifier: Apache-2.0
//
// The fold: gradient packets of every child meet in a slot, and one packet goes on.
//
//      child 0 --\                          slot = base + (PSN & mask)
//      child 1 ---> [ epoch PSN | bitmap | done | words ] --sum--> parent      (this switch is no root)
//      child 2 --/                                        <-sum--- parent
//                 <------------- multicast --------------'   or, at the root, at once
//
// A result is the acknowledgement of one's own contribution.  A child repeats a packet until it has the result, and
// whatever is complete nearest to it answers: the slot's stored result, or the stored partial sum sent up once more.
// Slots are never cleared (BMv2's registers cannot be, over P4Runtime): a newer PSN or another epoch takes a slot over.
// That is safe because hosts send PSN p only while p < (lowest result they miss) + window, and a slot range holds two
// windows: when p + slots arrives, every host has the result of p.
#ifndef FOLD_P4
#define FOLD_P4
#include "headers.p4"
#include "icrc.p4"
#include "lanes.p4"

// the columns of the verdict table
#define UP      1w0         // a contribution from a child
#define DOWN    1w1         // a result from the parent
#define SAME    2w0         // the slot holds this very PSN
#define NEWER   2w1         // the slot holds an older one, or another epoch's
#define OLDER   2w2         // the packet is late
#define NO      1w0
#define YES     1w1

#define KEEP    2w0         // words: neither read nor written
#define STORE   2w1         // the packet's words into the slot
#define ADD     2w2         // slot and packet together, into both
#define LOAD    2w3         // the slot's words into the packet

#define NOBODY  2w0         // send: drop
#define PARENT_ 2w1
#define ASKER   2w2         // the child that this packet came from
#define ALL     2w3         // every child

// The outcomes that are counted; controller/operations/status.py shows them
#define FIRST       3w0     // news: a contribution or result that the slot lacked
#define ANSWERED    3w1     // a repeat, answered from this slot
#define ASKED       3w2     // a repeat, passed on to the parent
#define WAITED      3w3     // a repeat, while others are missing
#define LATE        3w4     // a contribution to an older PSN
#define REPEATED    3w5     // a result that was here
#define OUTCOMES    6

control Fold(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    // epoch 16 | PSN 24 | done 1 | ECN 1 | operation 3 | 0 19 | bitmap 64.  Epoch 0 is never used: a slot of zeros is
    // free.
    register<bit<128>>(SLOTS)   slot_state;
#define SLOT_WORD(i)        register<word_t>(SLOTS) slot_word##i;
    EACH_WORD(SLOT_WORD)

    bit<1>      direction = UP;
    bit<16>     epoch = 0;
    bit<64>     full = 0;               // one bit for each child
    bit<32>     base = 0;
    bit<24>     mask = 0;
    bit<1>      root = NO;
    bit<1>      check = NO;             // first hop: the ICRC must hold
    port_t      parent_port = 0;

    bit<2>      words = KEEP;
    bit<1>      done = NO;
    bit<2>      send = NOBODY;

    // ---- which tree, which child: the queue pair says it -----------------------------------------------------------
    action contribution(bit<16> group, child_t child, bit<64> children, bit<16> epoch_, bit<32> base_, bit<24> mask_,
                        bit<1> root_, bit<1> check_, port_t parent_port_) {
        direction = UP;
        meta.group = group;
        meta.child = child;
        full = children;
        epoch = epoch_;
        base = base_;
        mask = mask_;
        root = root_;
        check = check_;
        parent_port = parent_port_;
    }
    action result(bit<16> group, bit<64> children, bit<16> epoch_, bit<32> base_, bit<24> mask_) {
        direction = DOWN;
        meta.group = group;
        meta.child = PARENT;
        full = children;
        epoch = epoch_;
        base = base_;
        mask = mask_;
    }
    direct_counter(CounterType.packets_and_bytes) connection_packets;
    table connection {
        key = {
            meta.port:          exact @name("ingress_port");
            hdr.ipv4.dst:       exact @name("dst");
            hdr.bth.connection: exact @name("connection");
        }
        actions = { contribution; result; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = connection_packets;
        size = 4096;
    }

    // ---- what happens: the truth table of docs/protocol.md ----------------------------------------------------------
    bit<2>  age = SAME;
    bit<1>  was_done = NO;
    bit<1>  seen = NO;          // this child is in the bitmap
    bit<1>  complete = NO;      // all children are in the bitmap
    bit<1>  fills = NO;         // ... with this packet

    counter(OUTCOMES, CounterType.packets) outcomes;        // what `netfold status` shows
    action then(bit<2> words_, bit<1> done_, bit<2> send_, bit<3> outcome) {
        words = words_;
        done = done_;
        send = send_;
        outcomes.count((bit<32>)outcome);
    }
    table verdict {
        key = {
            direction:  ternary @name("direction");
            age:        ternary @name("age");
            was_done:   ternary @name("done");
            seen:       ternary @name("seen");
            complete:   ternary @name("complete");
            fills:      ternary @name("fills");
            root:       ternary @name("root");
        }
        actions = { then; }
        const default_action = then(KEEP, NO, NOBODY, LATE);
        const entries = {
            //direction age  done seen complete fills root
            (UP,   NEWER, _,   _,   _,   NO,  _):   then(STORE, NO,  NOBODY,  FIRST);       // opens the slot
            (UP,   NEWER, _,   _,   _,   YES, NO):  then(STORE, NO,  PARENT_, FIRST);       // an only child
            (UP,   NEWER, _,   _,   _,   YES, YES): then(STORE, YES, ALL,     FIRST);
            (UP,   OLDER, _,   _,   _,   _,   _):   then(KEEP,  NO,  NOBODY,  LATE);        // stale
            (UP,   SAME,  YES, _,   _,   _,   _):   then(LOAD,  YES, ASKER,   ANSWERED);    // its result was lost
            (UP,   SAME,  NO,  YES, YES, _,   _):   then(LOAD,  NO,  PARENT_, ASKED);       // lost above: ask again
            (UP,   SAME,  NO,  YES, NO,  _,   _):   then(KEEP,  NO,  NOBODY,  WAITED);      // for the others
            (UP,   SAME,  NO,  NO,  _,   NO,  _):   then(ADD,   NO,  NOBODY,  FIRST);
            (UP,   SAME,  NO,  NO,  _,   YES, NO):  then(ADD,   NO,  PARENT_, FIRST);
            (UP,   SAME,  NO,  NO,  _,   YES, YES): then(ADD,   YES, ALL,     FIRST);
            (DOWN, SAME,  NO,  _,   YES, _,   _):   then(STORE, YES, ALL,     FIRST);
            (DOWN, _,     _,   _,   _,   _,   _):   then(KEEP,  NO,  NOBODY,  REPEATED);    // or another slot's
        }
    }

    // ---- words -----------------------------------------------------------------------------------------------------
    bit<32> slot = 0;
    word_t  w = 0;
    word_t  top = 0;
    word_t  sum = 0;
    word_t  sign = 0;       // of the end that a lane stands at, or runs over

#define STORE_WORD(i)   slot_word##i.write(slot, hdr.lanes[i].w);
#define LOAD_WORD(i)    slot_word##i.read(hdr.lanes[i].w, slot);
#define ADD_SUM(i, T)                                                                       \
        slot_word##i.read(w, slot);                                                         \
        hdr.lanes[i].w = SUM(w, hdr.lanes[i].w, T);                                         \
        slot_word##i.write(slot, hdr.lanes[i].w);
#define MAX32(i)                                                                            \
        slot_word##i.read(w, slot);                                                         \
        top = NOT_LESS32(w, hdr.lanes[i].w);                                                \
        top = SPREAD32(top);                                                                \
        hdr.lanes[i].w = SELECT(top, w, hdr.lanes[i].w);                                    \
        slot_word##i.write(slot, hdr.lanes[i].w);
#define SAT32(i)                                                                            \
        slot_word##i.read(w, slot);                                                         \
        sum = SUM(w, hdr.lanes[i].w, TOP32);                                                \
        /* who is at an end stays there; where a sum overflows, both have its sign */       \
        sign = (AT_END32(w) & w) | (~AT_END32(w) & hdr.lanes[i].w);                         \
        sign = sign & TOP32;                                                                \
        top = (AT_END32(w) | AT_END32(hdr.lanes[i].w) | OVERFLOW32(w, hdr.lanes[i].w, sum)) & TOP32; \
        top = SPREAD32(top);                                                                \
        hdr.lanes[i].w = SELECT(top, END32(sign), sum);                                     \
        slot_word##i.write(slot, hdr.lanes[i].w);
#define SUM32(i)        ADD_SUM(i, TOP32)
#define SUM16(i)        ADD_SUM(i, TOP16)
#define SUM8(i)         ADD_SUM(i, TOP8)
    action store_words() { EACH_WORD(STORE_WORD) }
    action load_words()  { EACH_WORD(LOAD_WORD) }
    action sum32()       { EACH_WORD(SUM32) }
    action max32()       { EACH_WORD(MAX32) }
    action sum16()       { EACH_WORD(SUM16) }
    action sum8()        { EACH_WORD(SUM8) }
    action sat32()       { EACH_WORD(SAT32) }

    counter(1, CounterType.packets_and_bytes) corrupt;      // ICRC wrong at the first hop
    Icrc() icrc_check;
    bit<32>  icrc = 0;
    bit<128> state = 0;
    bit<24>  ahead = 0;
    bit<64>  bitmap = 0;
    bit<64>  me = 0;
    bit<1>   ecn = NO;

    apply {
        if (hdr.probe.isValid()) {
            slot_state.read(hdr.probe.state, hdr.probe.slot);
            sm.egress_spec = CPU_PORT;
        } else if (hdr.bth.operation > OP_LAST) {
            // none of ours: routed to its receiver, who will say so
        } else if (connection.apply().hit) {
            mark_to_drop(sm);
            meta.folded = 1;
            if (check == YES) {
                icrc_check.apply(hdr, icrc);
            } else {
                icrc = hdr.icrc.crc;
            }
            if (icrc != hdr.icrc.crc) {
                corrupt.count(0);
            } else {
                slot = base + (bit<32>)(hdr.bth.psn & mask);
                slot_state.read(state, slot);
                if (hdr.ipv4.ecn == ECN_CE) {
                    ecn = YES;
                }
                ahead = hdr.bth.psn - state[111:88];
                if (state[127:112] != epoch) {
                    age = NEWER;
                } else if (ahead == 0) {
                    age = SAME;
                    was_done = state[87:87];
                    ecn = ecn | state[86:86];
                    bitmap = state[63:0];
                } else if (ahead[23:23] == 0) {
                    age = NEWER;
                } else {
                    age = OLDER;
                }
                if (bitmap == full) {
                    complete = YES;
                }
                if (direction == UP) {
                    me = 64w1 << meta.child[7:0];
                    if ((bitmap & me) != 0) {
                        seen = YES;
                    }
                    bitmap = bitmap | me;
                }
                if (bitmap == full) {
                    fills = YES;
                }
                verdict.apply();

                if (words == STORE) {
                    store_words();
                } else if (words == LOAD) {
                    load_words();
                } else if (words == ADD) {
                    if (hdr.bth.operation == OP_SUM32) {
                        sum32();
                    } else if (hdr.bth.operation == OP_MAX32) {
                        max32();
                    } else if (hdr.bth.operation == OP_SUM16) {
                        sum16();
                    } else if (hdr.bth.operation == OP_SUM8) {
                        sum8();
                    } else {
                        sat32();
                    }
                }
                if (words == STORE || words == ADD) {
                    slot_state.write(slot, epoch ++ hdr.bth.psn ++ done ++ ecn ++ hdr.bth.operation ++ 19w0 ++ bitmap);
                }

                if (ecn == YES) {
                    hdr.ipv4.ecn = ECN_CE;      // a mark on any contribution reaches every rank
                }
                if (send == PARENT_) {
                    meta.child = PARENT;
                    sm.egress_spec = parent_port;
                } else if (send == ASKER) {
                    sm.egress_spec = meta.port;
                } else if (send == ALL) {
                    sm.mcast_grp = meta.group;
                }
            }
        }
    }
}
#endif
