// SPDX-License-Identifier: Apache-2.0
// Seeded loss on a port, for tests: packet n of a port is lost where crc32(seed, port, n) < threshold.  The same seed
// loses the same packets on every engine, and a super-packet loses single segments, which no queueing discipline does.
#ifndef FAULT_P4
#define FAULT_P4
#include "headers.p4"

control Fault(in port_t port, inout standard_metadata_t sm, out bit<1> lost) {
    register<bit<32>>(512) fault_number;        // packets seen on each port
    bit<32> number = 0;
    bit<32> draw = 0;
    bit<32> limit = 0;

    action lossy(bit<32> seed, bit<32> threshold) {
        fault_number.read(number, (bit<32>)port);
        fault_number.write((bit<32>)port, number + 1);
        hash(draw, HashAlgorithm.crc32, 32w0, { seed, number, 7w0 ++ port, seed ^ number }, 64w0x100000000);
        limit = threshold;
    }
    direct_counter(CounterType.packets) fault_packets;
    table fault {
        key = { port: exact @name("port"); }
        actions = { lossy; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = fault_packets;
        size = 512;
    }
    counter(512, CounterType.packets) fault_lost;
    apply {
        lost = 0;
        fault.apply();
        if (draw < limit) {
            lost = 1;
            fault_lost.count((bit<32>)port);
            mark_to_drop(sm);
        }
    }
}
#endif
