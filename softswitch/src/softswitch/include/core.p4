// SPDX-License-Identifier: Apache-2.0
// The core library of P4_16 (specification, "P4 core library").
#ifndef _CORE_P4_
#define _CORE_P4_

error {
    NoError,
    PacketTooShort,         // extract or lookahead beyond the end of the packet
    NoMatch,                // select without a matching case
    StackOutOfBounds,       // a stack's next or last where there is none
    HeaderTooShort,         // more bits than a varbit field holds
    ParserTimeout,
    ParserInvalidArgument   // for example a varbit size that is no multiple of 8
}

extern packet_in {
    void extract<T>(out T hdr);
    void extract<T>(out T variableSizeHeader, in bit<32> variableFieldSizeInBits);
    T lookahead<T>();
    void advance(in bit<32> sizeInBits);
    bit<32> length();
}

extern packet_out {
    void emit<T>(in T hdr);
}

extern void verify(in bool check, in error toSignal);

@noWarn("unused")
action NoAction() {}

match_kind {
    exact,
    ternary,
    lpm
}

extern bool static_assert(bool check, string message);
extern bool static_assert(bool check);
#endif
