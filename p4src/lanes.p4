// SPDX-License-Identifier: Apache-2.0
// Lane-wise arithmetic inside one wide word: 64 lanes of 32 bits without a carry crossing a lane border.
//   sum: the low 31 bits add freely (their carry lands in the free top bit), the top bits add by exclusive or.
//   max: for lanes below 2^31.  With a's top bit set, a - b keeps that bit exactly where a >= b.
#ifndef LANES_P4
#define LANES_P4
#include "headers.p4"

#define T8      32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000 ++ 32w0x80000000
#define TOP     (T8 ++ T8 ++ T8 ++ T8 ++ T8 ++ T8 ++ T8 ++ T8)

#define SUM32(a, b)         (((a & ~TOP) + (b & ~TOP)) ^ ((a ^ b) & TOP))
#define NOT_LESS32(a, b)    (((a | TOP) - b) & TOP)
#define SPREAD32(top)       ((top - (top >> 31)) | top)
#endif
