// SPDX-License-Identifier: Apache-2.0
// Lane-wise arithmetic inside one wide word, without a carry crossing a lane's border.  T has the top bit of every lane.
//   sum       the low bits add freely (their carry lands in the free top bit), the top bits add by exclusive or
//   max       for lanes below 2^31: with a's top bit set, a - b keeps that bit exactly where a >= b
//   saturate  a lane overflows where a and b have one sign and their sum the other; it becomes the end on a's side
#ifndef LANES_P4
#define LANES_P4
#include "headers.p4"

#define EIGHT(x)            x ++ x ++ x ++ x ++ x ++ x ++ x ++ x
#define WORD_OF(x)          (EIGHT((EIGHT(x))))
#define TOP32               WORD_OF(32w0x80000000)
#define TOP16               WORD_OF(32w0x80008000)
#define TOP8                WORD_OF(32w0x80808080)

#define SUM(a, b, T)        (((a & ~T) + (b & ~T)) ^ ((a ^ b) & T))

#define NOT_LESS32(a, b)    (((a | TOP32) - b) & TOP32)
#define OVERFLOW32(a, b, s) (~(a ^ b) & (a ^ s) & TOP32)
#define END32(a)            (~TOP32 + ((a & TOP32) >> 31))
// a lane's top bit to all its bits
#define SPREAD32(top)       ((top - (top >> 31)) | top)
#endif
