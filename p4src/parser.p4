// SPDX-License-Identifier: Apache-2.0
// Payload words are taken apart only for full-size RDMA WRITEs: everything else passes as an opaque payload.
#ifndef PARSER_P4
#define PARSER_P4
#include "headers.p4"

#define EXTRACT(i)  pkt.extract(hdr.lanes[i]);

parser Parse(packet_in pkt, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    state start {
        transition select(sm.ingress_port) {
            CPU_PORT: from_cpu;
            default:  ethernet;
        }
    }
    state from_cpu {
        pkt.extract(hdr.packet_out);
        transition select(hdr.packet_out.kind) {
            CPU_PROBE: probe;
            default:   ethernet;
        }
    }
    state probe {
        pkt.extract(hdr.probe);
        transition accept;
    }
    state ethernet {
        pkt.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: ipv4;
            default:        accept;
        }
    }
    state ipv4 {
        pkt.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.frag_offset, hdr.ipv4.protocol) {
            (4w4, 4w5, 13w0, PROTO_UDP): udp;
            default:                     accept;
        }
    }
    state udp {
        pkt.extract(hdr.udp);
        transition select(hdr.udp.dport) {
            ROCE_PORT: bth;
            default:   accept;
        }
    }
    state bth {
        pkt.extract(hdr.bth);
        transition select(hdr.bth.opcode, hdr.udp.length) {
            (WRITE_FIRST,  UDP_LEN_RETH): reth;
            (WRITE_ONLY,   UDP_LEN_RETH): reth;
            (WRITE_MIDDLE, UDP_LEN_DATA): lanes;
            (WRITE_LAST,   UDP_LEN_DATA): lanes;
            default:                      accept;
        }
    }
    state reth {
        pkt.extract(hdr.reth);
        transition lanes;
    }
    state lanes {
        EACH_WORD(EXTRACT)
        pkt.extract(hdr.icrc);
        transition accept;
    }
}

// In which order do headers leave?
control Deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.probe);
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.udp);
        pkt.emit(hdr.bth);
        pkt.emit(hdr.reth);
        pkt.emit(hdr.lanes);
        pkt.emit(hdr.icrc);
    }
}
#endif
