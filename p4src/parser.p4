// SPDX-License-Identifier: Apache-2.0
// The payload of RDMA WRITEs and SENDs is taken apart into lanes: at once where it has a whole path MTU, word by word where it
// is shorter or comes with immediate data.  Acknowledgements are parsed as well; all else passes as an opaque payload.
#ifndef PARSER_P4
#define PARSER_P4
#include "headers.p4"

#define EXTRACT(i)  pkt.extract(hdr.lanes[i]);
// The bits that the length of a payload less 4 never has set: 4 .. PATH_MTU bytes, a multiple of 4, are folded.
#define NO_LENGTH   (0xffff - (PATH_MTU - 4))

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
            CPU_HEARD: heard;
            default:   ethernet;
        }
    }
    state heard {
        pkt.extract(hdr.heard);
        transition accept;
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
            (4w4, 4w5, 13w0, PROTO_TCP): tcp;
            default:                     accept;
        }
    }
    state udp {
        pkt.extract(hdr.udp);
        transition select(hdr.udp.dport) {
            ROCE_PORT:                      bth;
            ROCE_PORTS &&& ROCE_PORTS_MASK: bth;
            default:                        accept;
        }
    }
    state tcp {
        pkt.extract(hdr.tcp);
        transition accept;
    }
    state bth {
        pkt.extract(hdr.bth);
        transition select(hdr.bth.opcode, hdr.udp.length) {
            (WRITE_FIRST,  UDP_LEN_RETH): reth;
            (WRITE_ONLY,   UDP_LEN_RETH): reth;
            (WRITE_MIDDLE, UDP_LEN_DATA): lanes;
            (WRITE_LAST,   UDP_LEN_DATA): lanes;
            (SEND_FIRST,   UDP_LEN_DATA): lanes;
            (SEND_MIDDLE,  UDP_LEN_DATA): lanes;
            (SEND_LAST,    UDP_LEN_DATA): lanes;
            (SEND_ONLY,    UDP_LEN_DATA): lanes;
            (WRITE_ONLY,   UDP_LEN_PRESENCE): presence;
            (ACKNOWLEDGE,  UDP_LEN_ACK):  aeth;
            default:                      other;
        }
    }
    state reth {
        pkt.extract(hdr.reth);
        transition lanes;
    }
    // No lanes: a WRITE of no bytes
    state presence {
        pkt.extract(hdr.reth);
        meta.present = 1;
        transition select(hdr.reth.length) {
            0:       icrc;
            default: accept;
        }
    }
    state lanes {
        EACH_WORD(EXTRACT)
        meta.full = 1;
        transition icrc;
    }
    state icrc {
        pkt.extract(hdr.icrc);
        transition accept;
    }
    state aeth {
        pkt.extract(hdr.aeth);
        transition accept;
    }

    // Shorter payloads, and those with immediate data
    state other {
        meta.rest = hdr.udp.length - UDP_LEN_PLAIN;
        transition select(hdr.bth.opcode) {
            SEND_FIRST:     payload;
            SEND_MIDDLE:    payload;
            SEND_LAST:      payload;
            SEND_ONLY:      payload;
            WRITE_MIDDLE:   payload;
            WRITE_LAST:     payload;
            SEND_LAST_IMM:  immediate;
            SEND_ONLY_IMM:  immediate;
            WRITE_LAST_IMM: immediate;
            WRITE_FIRST:    other_reth;
            WRITE_ONLY:     other_reth;
            WRITE_ONLY_IMM: other_reth;
            default:        accept;
        }
    }
    state other_reth {
        pkt.extract(hdr.reth);
        meta.rest = meta.rest - RETH_BYTES;
        transition select(hdr.bth.opcode) {
            WRITE_ONLY_IMM: immediate;
            default:        payload;
        }
    }
    state immediate {
        pkt.extract(hdr.immediate);
        meta.rest = meta.rest - IMMEDIATE_BYTES;
        meta.immediate = 1;
        transition payload;
    }
    state payload {
        meta.payload = meta.rest;
        transition select(meta.rest - LANE_BYTES) {
            0 &&& NO_LENGTH: words;
            default:         accept;
        }
    }
    state words {
        transition select(meta.rest[15:8]) {
            0:       tail32;
            default: word;
        }
    }
    state word {
        pkt.extract(hdr.lanes.next);
        meta.rest = meta.rest - WORD_BYTES;
        transition words;
    }
#define TAIL(lanes, bit, next)                          \
    state tail##lanes {                                 \
        transition select(meta.rest[bit:bit]) {         \
            1w1:     some##lanes;                       \
            default: next;                              \
        }                                               \
    }                                                   \
    state some##lanes {                                 \
        pkt.extract(hdr.tail##lanes);                   \
        transition next;                                \
    }
    TAIL(32, 7, tail16)
    TAIL(16, 6, tail8)
    TAIL(8, 5, tail4)
    TAIL(4, 4, tail2)
    TAIL(2, 3, tail1)
    TAIL(1, 2, icrc)
}

// In which order do headers leave?
control Deparse(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.probe);
        pkt.emit(hdr.heard);
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.udp);
        pkt.emit(hdr.tcp);
        pkt.emit(hdr.bth);
        pkt.emit(hdr.aeth);
        pkt.emit(hdr.reth);
        pkt.emit(hdr.immediate);
        pkt.emit(hdr.lanes);
        pkt.emit(hdr.tail32);
        pkt.emit(hdr.tail16);
        pkt.emit(hdr.tail8);
        pkt.emit(hdr.tail4);
        pkt.emit(hdr.tail2);
        pkt.emit(hdr.tail1);
        pkt.emit(hdr.icrc);
    }
}
#endif
