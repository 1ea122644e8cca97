// SPDX-License-Identifier: Apache-2.0
// What may reach the CPU port, and so the controller: probes of links, which the switch at the other end of a link sent.
// Those that a switch sends to all its neighbours at once do not: where one comes from the very port that the cable should
// lead to, and as long as a full data packet, it is counted (route.p4).  What is left are short ones, ones from elsewhere,
// and ones that ask for an acknowledgement.
// Everything that is punted waits in one queue, 64 packets long on BMv2: without a limit for each port, one port's flood
// would cost the probes of all others their place, and healthy links would be judged down.
#ifndef PUNT_P4
#define PUNT_P4
#include "headers.p4"

// May this packet go to the CPU port, or is it one to be counted?
control Punt(in headers_t hdr, in meta_t meta, inout standard_metadata_t sm, inout bit<1> counted) {
    direct_meter<bit<2>>(MeterType.packets) rate;
    counter(PORTS, CounterType.packets) refused;    // from a port with a host behind it, or come further than one hop
    counter(PORTS, CounterType.packets) over_rate;
    bit<2> color = METER_GREEN;

    // address, sport  of the probes that the other end of the link sends to all its neighbours
    action allow(ipv4_addr_t address, bit<16> sport) {
        rate.read(color);
        if (hdr.ipv4.src == address && hdr.udp.isValid() && hdr.udp.sport == sport && meta.full == 1 &&
            hdr.reth.isValid() && hdr.bth.ack_req == 0) {
            counted = 1;
        }
    }

    // Which ports may punt?  An entry for each port with a switch behind it, with its rate, and what that switch sends;
    // other ports have none.
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
        } else if (counted == 0 && color != METER_GREEN) {
            over_rate.count((bit<32>)meta.port);
        } else if (counted == 0) {
            sm.egress_spec = CPU_PORT;
        }
    }
}
#endif
