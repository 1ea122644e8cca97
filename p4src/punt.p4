// SPDX-License-Identifier: Apache-2.0
// What may reach the CPU port, and so the controller: probes of links, which the switch at the other end of a link sent.
// Everything that is punted waits in one queue, 64 packets long on BMv2: without a limit for each port, one port's flood
// would cost the probes of all others their place, and healthy links would be judged down.
#ifndef PUNT_P4
#define PUNT_P4
#include "headers.p4"

// May this packet go to the CPU port?
control Punt(in headers_t hdr, in meta_t meta, inout standard_metadata_t sm) {
    direct_meter<bit<2>>(MeterType.packets) rate;
    counter(PORTS, CounterType.packets) refused;    // from a port with a host behind it, or come further than one hop
    counter(PORTS, CounterType.packets) over_rate;
    bit<2> color = METER_GREEN;

    action allow() {
        rate.read(color);
    }

    // Which ports may punt?  An entry for each port with a switch behind it, and its rate; other ports have none.
    table punt {
        key = { meta.port: exact @name("ingress_port"); }
        actions = { allow; @defaultonly NoAction; }
        const default_action = NoAction();
        meters = rate;
        size = PORTS;
    }
    apply {
        // What was routed even once has a lower time to live (RFC 5082, generalised TTL security).
        if (hdr.ipv4.ttl != ONE_HOP_TTL || !punt.apply().hit) {
            refused.count((bit<32>)meta.port);
        } else if (color != METER_GREEN) {
            over_rate.count((bit<32>)meta.port);
        } else {
            sm.egress_spec = CPU_PORT;
        }
    }
}
#endif
