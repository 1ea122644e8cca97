// SPDX-License-Identifier: Apache-2.0
// The lanes: what becomes of the numbers in a slot and in a packet?  Stored, loaded, or added lane by lane, inside wide
// words and without a carry that crosses a lane's border.
//
// T has the top bit of every lane.
//   sum       the low bits add freely (their carry lands in the free top bit), the top bits add by exclusive or
//   max       with a's top bit set and b's clear, a - b keeps the bit exactly where a's low bits are no less than b's;
//             where the signs differ, they decide
//   saturate  a lane overflows where a and b have one sign and their sum the other; it becomes the end on a's side
//
// Where a payload ends between two words, its last lanes stand in the last word: such a payload leaves that one free.
#ifndef LANES_P4
#define LANES_P4
#include "headers.p4"
#include "verdict.p4"

#define EIGHT(x)            x ++ x ++ x ++ x ++ x ++ x ++ x ++ x
#define WORD_OF(x)          (EIGHT((EIGHT(x))))
#define TOP32               WORD_OF(32w0x80000000)
#define ONE32               WORD_OF(32w1)
#define TOP16               WORD_OF(32w0x80008000)
#define TOP8                WORD_OF(32w0x80808080)

#define SUM(a, b, T)        (((a & ~T) + (b & ~T)) ^ ((a ^ b) & T))

// p4c puts the steps of an action into one expression, in which every use of a step is computed anew: so each step is
// used as rarely as can be.
// a >= b, in the lane's top bit
#define NOT_LESS32(a, b)    (((~(a ^ b) & ((a | TOP32) - (b & ~TOP32))) | (b & ~a)) & TOP32)
#define OVERFLOW32(a, b, s) (~(a ^ b) & (a ^ s))
// 2^31 - 1 or -2^31: low bits all ones under a sign of 0, all zeros under a sign of 1
#define AT_END32(a)         ((~a & ((a & ~TOP32) + ONE32)) | (a & (TOP32 - (a & ~TOP32))))
// the end on the side of a sign in the lane's top bit
#define END32(sign)         (~TOP32 + (sign >> 31))
// a lane's top bit to all its bits
#define SPREAD32(top)       ((top << 1) - (top >> 31))
#define SELECT(mask, a, b)  (b ^ ((a ^ b) & mask))

#define SLOT_WORD(i)    register<word_t>(SLOTS) slot_word##i;
#define STORE_WORD(i)   slot_word##i.write(meta.found.index, hdr.lanes[i].w);
#define LOAD_WORD(i)    slot_word##i.read(hdr.lanes[i].w, meta.found.index);
#define ADD_SUM(i, T)                                                                       \
        slot_word##i.read(w, meta.found.index);                                                         \
        hdr.lanes[i].w = SUM(w, hdr.lanes[i].w, T);                                         \
        slot_word##i.write(meta.found.index, hdr.lanes[i].w);
#define SUM32(i)        ADD_SUM(i, TOP32)
#define SUM16(i)        ADD_SUM(i, TOP16)
#define SUM8(i)         ADD_SUM(i, TOP8)
#define MAX32(i)                                                                            \
        slot_word##i.read(w, meta.found.index);                                                         \
        top = NOT_LESS32(w, hdr.lanes[i].w);                                                \
        top = SPREAD32(top);                                                                \
        hdr.lanes[i].w = SELECT(top, w, hdr.lanes[i].w);                                    \
        slot_word##i.write(meta.found.index, hdr.lanes[i].w);
#define SAT32(i)                                                                            \
        slot_word##i.read(w, meta.found.index);                                                         \
        sum = SUM(w, hdr.lanes[i].w, TOP32);                                                \
        /* who is at an end stays there; where a sum overflows, both have its sign */       \
        sign = (AT_END32(w) & w) | (~AT_END32(w) & hdr.lanes[i].w);                         \
        sign = sign & TOP32;                                                                \
        top = (AT_END32(w) | AT_END32(hdr.lanes[i].w) | OVERFLOW32(w, hdr.lanes[i].w, sum)) & TOP32; \
        top = SPREAD32(top);                                                                \
        hdr.lanes[i].w = SELECT(top, END32(sign), sum);                                     \
        slot_word##i.write(meta.found.index, hdr.lanes[i].w);

// What becomes of the lanes, as the verdict (STORE, ADD, LOAD) and the packet's operation say?
control Lanes(inout headers_t hdr, in meta_t meta) {
    EACH_WORD(SLOT_WORD)

    action store()  { EACH_WORD(STORE_WORD) }
    action load()   { EACH_WORD(LOAD_WORD) }
    word_t  w;
    word_t  top;
    word_t  sum;
    word_t  sign;       // of the end that a lane stands at, or runs over
    action sum32()  { EACH_WORD(SUM32) }
    action max32()  { EACH_WORD(MAX32) }
    action sum16()  { EACH_WORD(SUM16) }
    action sum8()   { EACH_WORD(SUM8) }
    action sat32()  { EACH_WORD(SAT32) }

    action gather_tail() {
        hdr.lanes[WORDS - 1].setValid();
        hdr.lanes[WORDS - 1].w = hdr.tail32.w ++ hdr.tail16.w ++ hdr.tail8.w ++ hdr.tail4.w ++ hdr.tail2.w ++ hdr.tail1.w ++
            32w0;
    }
    action spread_tail() {
        hdr.tail32.w = hdr.lanes[WORDS - 1].w[2047:1024];
        hdr.tail16.w = hdr.lanes[WORDS - 1].w[1023:512];
        hdr.tail8.w = hdr.lanes[WORDS - 1].w[511:256];
        hdr.tail4.w = hdr.lanes[WORDS - 1].w[255:128];
        hdr.tail2.w = hdr.lanes[WORDS - 1].w[127:64];
        hdr.tail1.w = hdr.lanes[WORDS - 1].w[63:32];
        hdr.lanes[WORDS - 1].setInvalid();
    }

    apply {
        if (meta.rest != 0) {       // the payload has lanes beyond whole words
            gather_tail();
        }
        if (meta.decided.lanes == STORE) {
            store();
        } else if (meta.decided.lanes == LOAD) {
            load();
        } else if (meta.tree.operation == OP_SUM32) {
            sum32();
        } else if (meta.tree.operation == OP_MAX32) {
            max32();
        } else if (meta.tree.operation == OP_SUM16) {
            sum16();
        } else if (meta.tree.operation == OP_SUM8) {
            sum8();
        } else {
            sat32();
        }
        if (meta.rest != 0) {
            spread_tail();
        }
    }
}
#endif
