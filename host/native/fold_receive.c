/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"
#include "fold_payload.h"
#include "fold_state.h"

static nf_channel *channel_of(nf_fold *f, uint32_t qp) {
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            if (f->trees[t].channels[kind].plan.qp == (qp & ~((1u << NF_OPERATION_BITS) - 1)))
                return &f->trees[t].channels[kind];
    return NULL;
}

/* Is this a result or a NAK, made by our own first switch, and as that has made it?  It has a result's addresses then,
 * and the TTL that nothing has which was routed (RFC 5082): whoever can send from the rank before us has no way to make
 * that.  No other check is sure to have seen its bytes: switches may leave the UDP checksum out, and kernels believe
 * that of a super-packet of a virtual link. */
static bool is_result(nf_fold *f, const nf_channel *c, const uint8_t *packet, size_t n, uint32_t psn,
                      const nf_origin *from) {
    bool addressed = from->source == c->plan.predecessor && from->source_port == c->plan.predecessor_port;
    const nf_route route = {from->source, f->address, from->source_port, f->port};
    if (addressed && from->ttl == NF_RESULT_TTL) {
        bool whole = nf_icrc_holds(packet, n, &route, (uint16_t)psn);
        f->corrupt += !whole;
        return whole;
    }
    if (addressed) { /* a switch that lost its entries routes what it should fold */
        f->unfolded++;
    } else {
        f->refused++;
        f->refused_from = *from;
    }
    return false;
}

/* Whoever contributes lanes to a PSN sends the same headers, and the switches keep them: others mean that ranks
 * disagree. */
static bool headers_agree(nf_fold *f, const nf_channel *c, uint64_t seq, const nf_header *got) {
    nf_header own = nf_history_at(&c->history, seq)->header;
    if (own.presence) own = nf_payload_header(f, c, seq - c->base);
    if (own.opcode == got->opcode && own.address == got->address && own.length == got->length) return true;
    f->failure.psn = got->psn;
    f->failure.expected_opcode = own.opcode;
    f->failure.got_opcode = got->opcode;
    f->failure.expected_address = own.address;
    f->failure.got_address = got->address;
    f->failure.expected_length = own.length;
    f->failure.got_length = got->length;
    return false;
}

static void receive_nak(nf_fold *f, const nf_nak *nak, const uint8_t *packet, const nf_origin *from, int64_t now) {
    nf_channel *c = channel_of(f, nak->dest_qp);
    if (!c)
        f->foreign++;
    else if (is_result(f, c, packet, NF_NAK_BYTES, nak->psn, from))
        nf_stream_nak(&c->stream, nak->psn, nak->end, now);
}

static void receive_packet(nf_fold *f, const uint8_t *packet, size_t n, const nf_origin *from, bool marked,
                           int64_t now) {
    nf_header h;
    nf_nak nak;
    uint64_t seq;
    if (nf_read_nak(packet, n, &nak)) {
        receive_nak(f, &nak, packet, from, now);
        return;
    }
    const uint8_t *payload = nf_read_header(packet, n, f->path_mtu, &h);
    nf_channel *c = payload ? channel_of(f, h.dest_qp) : NULL;
    if (!c) {
        f->foreign++;
        return;
    }
    if (!is_result(f, c, packet, n, h.psn, from)) return;
    nf_stream_order(&c->stream, h.psn, h.previous);
    if (!nf_stream_find(&c->stream, h.psn, &seq)) return;
    const nf_contribution *sent = nf_history_at(&c->history, seq);
    if (h.dest_qp != c->plan.qp + sent->header.dest_qp) {
        f->foreign++;
        return;
    }
    if (sent->answered) { /* over the trees before these: the bits are the same */
        nf_stream_result(&c->stream, seq, marked, now);
        return;
    }
    if (h.presence && !sent->header.content) return; /* nobody has made that of lanes: they are asked for again */
    nf_error error = NF_OK;
    const nf_channel *first = &f->trees[0].channels[NF_AGREEMENT_STREAM];
    bool signature = c->kind == NF_AGREEMENT_STREAM && seq - c->base < f->trees[c->tree].signature;
    if (signature && !nf_payload_signatures(f, payload))
        error = NF_SIGNATURES_DIFFER;
    else if (!sent->header.content && !headers_agree(f, c, seq, &h))
        error = NF_HEADERS_DIFFER;
    if (error == NF_HEADERS_DIFFER && first->history.una == first->base)
        return; /* the signature is still to come, and says what the ranks disagree about; without it this comes again
                 */
    if (error != NF_OK) {
        f->failure.error = error;
        f->failure.tree = c->tree;
        f->failure.kind = c->kind;
        return;
    }
    if (!sent->header.content) nf_payload_read(f, c, seq - c->base, payload);
    nf_stream_result(&c->stream, seq, marked, now);
    nf_history_result(&c->history, seq);
    if (c->tree == 0 && c->kind == NF_AGREEMENT_STREAM && c->history.una == c->base + c->packets && f->scaled)
        nf_payload_settle(f);
    f->progress = now;
}

void nf_fold_receive(nf_fold *f, const uint8_t *bytes, size_t n, size_t segment, const nf_origin *from, bool marked,
                     int64_t now) {
    for (size_t done = 0; done < n && f->failure.error == NF_OK; done += segment)
        receive_packet(f, bytes + done, n - done < segment ? n - done : segment, from, marked, now);
    nf_payload_all_read(f);
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) nf_stream_end_batch(&f->trees[t].channels[kind].stream, now);
    for (uint32_t t = 0; t < f->n_trees; t++) { /* what is to be agreed on leaves before the data */
        nf_channel *channels = f->trees[t].channels;
        nf_stream_overtaken(&channels[NF_AGREEMENT_STREAM].stream, &channels[NF_DATA_STREAM].stream, now);
    }
}
