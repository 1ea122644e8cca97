// SPDX-License-Identifier: Apache-2.0
// Lane-wise arithmetic inside one wide word, without a carry crossing a lane's border.  T has the top bit of every lane.
//   sum       the low bits add freely (their carry lands in the free top bit), the top bits add by exclusive or
//   max       with a's top bit set and b's clear, a - b keeps the bit exactly where a's low bits are no less than b's;
//             where the signs differ, they decide
//   saturate  a lane overflows where a and b have one sign and their sum the other; it becomes the end on a's side
#ifndef LANES_P4
#define LANES_P4
#include "headers.p4"

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
#endif
