/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"
#include "fold_payload.h"
#include "fold_state.h"

/* The sequence number below which packets may leave: their contents are known, and credits cover them. */
static uint64_t limit_of(const nf_fold *f, nf_channel *c) {
    const nf_tree *tr = &f->trees[c->tree];
    const nf_channel *agreement = &tr->channels[NF_AGREEMENT_STREAM], *data = &tr->channels[NF_DATA_STREAM];
    uint64_t ready = c->packets;
    uint64_t each = (uint64_t)f->entries * NF_BLOCK / f->piece; /* packets that one packet of scales serves */
    if (c->kind == NF_DATA_STREAM && f->scaled && !f->guess.guessed) {
        uint64_t known = agreement->history.una - agreement->base;
        known = known > tr->signature ? (known - tr->signature) * each : 0;
        ready = known < ready ? known : ready;
    } else if (c->kind == NF_AGREEMENT_STREAM && f->scaled) {
        /* far enough ahead to hide a round trip, near enough that the blocks are still in the cache when they leave */
        uint64_t lead = 4 + data->stream.window / each;
        uint64_t wanted = tr->signature + (data->history.next - data->base) / each + lead;
        ready = wanted < ready ? wanted : ready;
    }
    if (f->credits && c->kind == NF_DATA_STREAM) {
        /* what was found lost is not under way: where holes held messages up, every loss would cost a round trip */
        uint64_t unknown = nf_stream_first_unknown(&c->stream), through = unknown > c->base ? unknown - c->base : 0;
        uint64_t credit = (through / f->message + f->credits) * f->message;
        ready = credit < ready ? credit : ready;
    }
    return c->base + ready > c->history.next ? c->base + ready : c->history.next;
}

/* How many packets of a channel should leave in one run now; 0: it is worth waiting for more. */
static uint64_t worth_sending(const nf_fold *f, nf_channel *c) {
    uint64_t limit = limit_of(f, c), n = nf_stream_sendable(&c->stream, limit);
    uint64_t quarter = (uint64_t)c->stream.congestion.allowed / 4,
             quantum = quarter < f->max_run ? quarter : f->max_run;
    bool all = n >= limit - c->stream.next + c->stream.n_lost;
    bool idle = c->stream.una == c->stream.next;
    /* A nearly closed window opens packet by packet; results then come one by one, and so on.  Gather a few. */
    if (n < quantum && !all && !idle && c->stream.n_lost == 0) return 0;
    return n;
}

static void begin_run(const nf_fold *f, const nf_channel *c, bool asks, nf_run *run) {
    run->n_pieces = run->length = run->segment = run->packets = 0;
    run->asks = asks;
    run->tree = c->tree;
    run->kind = c->kind;
    run->data = 0;
    run->route = (nf_route){f->address, c->plan.peer, (uint16_t)c->plan.source_port, (uint16_t)c->plan.peer_port};
}

static void append(nf_run *run, uint8_t *bytes, size_t n) {
    struct iovec *last = run->pieces + run->n_pieces;
    run->length += (uint32_t)n;
    if (run->n_pieces && (uint8_t *)last[-1].iov_base + last[-1].iov_len == bytes)
        last[-1].iov_len += n;
    else
        run->pieces[run->n_pieces++] = (struct iovec){bytes, n};
}

/* Adds what a channel may send to a run, which may have packets already. */
static void add_channel(nf_fold *f, nf_channel *c, int64_t now, nf_run *run) {
    uint64_t limit = limit_of(f, c);
    if (c->kind == NF_AGREEMENT_STREAM) run->data = UINT32_MAX;
    while (nf_stream_sendable(&c->stream, limit)) {
        uint64_t seq = nf_stream_peek(&c->stream);
        bool before = seq < c->history.next;
        nf_header h = before ? nf_history_at(&c->history, seq)->header : nf_payload_own_header(f, c, seq - c->base);
        uint32_t bytes = (uint32_t)nf_bytes_of(&h, f->path_mtu);
        if (run->packets == (h.presence ? f->kernel_run : f->max_run)) break;
        if (run->packets && bytes > run->segment) break; /* only the last packet may differ, and be shorter */
        uint8_t *payload = nf_history_payload(&c->history, seq);
        if (!before) {
            nf_history_add(&c->history, &h);
            if (!h.presence) nf_payload_write(f, c, seq - c->base, payload);
        } else if (c->stream.n_lost == 0)
            c->stream.counters.retransmitted++; /* it had left already, over the trees before these */
        h.dest_qp += c->plan.peer_qp;
        h.psn = nf_stream_psn(&c->stream, seq);
        h.previous = nf_stream_previous(&c->stream);
        uint8_t *head = nf_has_reth(h.opcode) ? f->heads[run->packets] : payload - NF_BTH_BYTES;
        size_t head_bytes = (size_t)(nf_write_header(head, &h) - head);
        if (h.presence) {
            nf_write_icrc(head, bytes, &run->route, (uint16_t)run->packets);
            append(run, head, bytes);
        } else {
            nf_write_icrc_behind(head, head_bytes, payload, f->path_mtu, &run->route, (uint16_t)run->packets);
            append(run, head, head_bytes);
            append(run, payload, f->path_mtu + NF_ICRC_BYTES);
        }
        nf_stream_send(&c->stream, now);
        run->seqs[run->packets++] = seq;
        if (run->packets == 1)
            run->segment = bytes;
        else if (bytes < run->segment)
            break;
    }
}

/* Whether the data of a tree may leave in one run with what its ranks agree on. */
static bool joins(const nf_fold *f, const nf_tree *tr, const nf_run *run) {
    const nf_stream_plan *agreement = &tr->channels[0].plan, *data = &tr->channels[1].plan;
    return f->brief && agreement->source_port == data->source_port && agreement->peer == data->peer &&
           agreement->peer_port == data->peer_port && !data->message && run->length == run->packets * run->segment &&
           run->packets < f->max_run;
}

static bool send_channel(nf_fold *f, nf_channel *c, int64_t now, nf_run *run) {
    if (worth_sending(f, c) == 0) return false;
    begin_run(f, c, false, run);
    add_channel(f, c, now, run);
    return true;
}

/* A run of NAKs for what the stream asks for. */
static bool send_asks(nf_fold *f, nf_channel *c, int64_t now, nf_run *run) {
    uint64_t seq;
    if (c->stream.n_ask == 0) return false;
    begin_run(f, c, true, run);
    run->segment = NF_NAK_BYTES;
    while (run->packets < f->max_run && nf_stream_ask(&c->stream, &seq, now)) {
        nf_nak nak = {c->plan.peer_qp + nf_history_at(&c->history, seq)->header.dest_qp, nf_stream_psn(&c->stream, seq),
                      nf_stream_psn(&c->stream, seq + 1)};
        uint8_t *packet = f->heads[0] + run->length;
        nf_write_nak(packet, &nak);
        nf_write_icrc(packet, NF_NAK_BYTES, &run->route, (uint16_t)run->packets++);
        append(run, packet, NF_NAK_BYTES);
    }
    return run->packets > 0;
}

bool nf_fold_send(nf_fold *f, int64_t now, nf_run *run) {
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            if (send_asks(f, &f->trees[t].channels[kind], now, run)) return true;
    for (uint32_t t = 0; t < f->n_trees; t++) { /* exponents first: data waits for them */
        nf_channel *data = &f->trees[t].channels[NF_DATA_STREAM];
        if (!send_channel(f, &f->trees[t].channels[NF_AGREEMENT_STREAM], now, run)) continue;
        if (!joins(f, &f->trees[t], run) || worth_sending(f, data) == 0) return true;
        run->data = run->packets;
        add_channel(f, data, now, run);
        return true;
    }
    for (uint32_t i = 0; i < f->n_trees; i++) {
        uint32_t t = (f->turn + i) % f->n_trees;
        if (send_channel(f, &f->trees[t].channels[NF_DATA_STREAM], now, run)) {
            f->turn = t + 1;
            return true;
        }
    }
    return false;
}

void nf_fold_unsent(nf_fold *f, const nf_run *run, uint32_t from) {
    for (uint32_t i = from; i < run->packets && !run->asks; i++) /* who was asked in vain is asked again */
        nf_stream_unsent(&f->trees[run->tree].channels[i < run->data ? run->kind : NF_DATA_STREAM].stream,
                         run->seqs[i]);
}

void nf_fold_no_runs(nf_fold *f) { f->max_run = f->kernel_run = 1; }
