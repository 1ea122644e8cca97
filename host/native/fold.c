/* SPDX-License-Identifier: Apache-2.0 */
#include "fold.h"

#include <stdlib.h>

#include "narrow.h"
#include "quantise.h"

#define FIELD_TOP 0x7fffffffu          /* of the signature's values: MAX lanes are signed (p4src/lanes.p4) */
#define UDP_MOST 65507                 /* bytes of UDP payload in one super-packet */

typedef struct {                       /* one stream, and its share of the operation */
    nf_stream stream;
    nf_stream_plan plan;
    nf_history history;
    uint32_t tree;
    nf_kind kind;
    uint64_t base, packets;            /* sequence number of its first packet, how many there are */
    uint32_t lanes;                    /* what the switches do with this operation's: NF_SUM32, ... */
} channel;

typedef struct {
    double weight;
    channel channels[2];
    uint64_t first, pieces;            /* this tree's stripe */
    uint64_t signature;                /* 1 where the agreement starts with the signature, else 0 */
} tree;

struct nf_fold {
    uint32_t address, world, path_mtu, n_trees, max_run;
    unsigned headroom;
    tree *trees;
    uint32_t message, credits;         /* packets of a message; messages in flight at most, 0: as the window has it */
    uint32_t turn;                     /* which tree may send next */
    /* the operation */
    nf_operation op;
    uint32_t piece;                    /* elements of one packet */
    uint32_t entries;                  /* scales of one packet */
    bool scaled;                       /* blocks have scales */
    nf_narrowing narrowing;            /* of narrow lanes */
    uint32_t *scales;                  /* agreed ones, by block */
    uint64_t scales_room;
    uint64_t saturated;
    uint32_t signature[NF_FIELDS];
    int64_t progress;
    nf_failure failure;
    uint64_t foreign;
    uint8_t run[UDP_MOST];
};

/* ---- opening and starting ------------------------------------------------------------------------------------------ */
nf_fold *nf_fold_open(uint32_t address, uint32_t world, uint32_t path_mtu, uint32_t n_trees, const nf_tree_plan *plans,
                      uint32_t max_run, const char **why)
{
    *why = "out of memory";
    if (world < 1 || world > 1023 || n_trees < 1 || n_trees > NF_MAX_TREES || max_run < 1 ||
        (path_mtu != 1024 && path_mtu != NF_MAX_PATH_MTU)) {
        *why = "expected 1..1023 ranks, a path MTU of 1024 or 4096, 1..64 trees and runs of at least 1 packet";
        return NULL;
    }
    nf_fold *f = calloc(1, sizeof *f);
    if (!f || !(f->trees = calloc(n_trees, sizeof *f->trees)))
        goto fail;
    f->address = address;
    f->world = world;
    f->path_mtu = path_mtu;
    f->entries = path_mtu / sizeof(nf_lane);
    f->n_trees = n_trees;
    f->max_run = UDP_MOST / (uint32_t)nf_packet_bytes(NF_WRITE_FIRST, path_mtu);
    f->max_run = f->max_run < NF_RUN_PACKETS ? f->max_run : NF_RUN_PACKETS;
    f->max_run = f->max_run < max_run ? f->max_run : max_run;
    f->headroom = nf_headroom(world);
    f->message = NF_MESSAGE_PACKETS;
    for (uint32_t t = 0; t < n_trees; t++) {
        f->trees[t].weight = plans[t].weight;
        for (int kind = 0; kind < 2; kind++) {
            channel *c = &f->trees[t].channels[kind];
            c->plan = plans[t].streams[kind];
            c->tree = t;
            c->kind = (nf_kind)kind;
            if (c->plan.window == 0 || c->plan.window & (c->plan.window - 1) || c->plan.window > 1u << 19) {
                *why = "expected windows that are powers of two up to 2^19";
                goto fail;
            }
            if (c->plan.slots < 2 * c->plan.window || c->plan.slots & (c->plan.slots - 1)) {
                *why = "expected slots that are a power of two and hold two windows";
                goto fail;
            }
            if (!nf_stream_open(&c->stream, c->plan.psn, c->plan.window) ||
                !nf_history_open(&c->history, c->plan.slots, path_mtu))
                goto fail;
        }
    }
    return f;
fail:
    nf_fold_close(f);
    return NULL;
}

void nf_fold_close(nf_fold *f)
{
    if (!f)
        return;
    for (uint32_t t = 0; f->trees && t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            nf_stream_close(&f->trees[t].channels[kind].stream);
            nf_history_close(&f->trees[t].channels[kind].history);
        }
    free(f->trees);
    free(f->scales);
    free(f);
}

/* Cuts the pieces into stripes.  Borders are rounded cumulative shares: every rank finds the same ones. */
static void stripe(nf_fold *f, uint64_t pieces)
{
    double total = 0, sum = 0;
    for (uint32_t t = 0; t < f->n_trees; t++)
        total += f->trees[t].weight;
    uint64_t border = 0;
    for (uint32_t t = 0; t < f->n_trees; t++) {
        tree *tr = &f->trees[t];
        sum += tr->weight;
        uint64_t next = t + 1 == f->n_trees ? pieces : (uint64_t)((double)pieces * (sum / total) + 0.5);
        next = next > pieces ? pieces : next < border ? border : next;
        tr->first = border;
        tr->pieces = next - border;
        border = next;
    }
}

static const char *refusal(const nf_fold *f, const nf_operation *op)
{
    bool adds = op->reduction == NF_SUM || op->reduction == NF_AVERAGE;
    if (op->lane_bits != 32 && op->lane_bits != 16 && op->lane_bits != 8)
        return "expected lanes of 32, 16 or 8 bits";
    if (op->lane_bits != 32 && (op->dtype != NF_FLOAT32 || !adds))
        return "narrow lanes are for sums and averages of float32";
    if (op->lane_bits != 32 && nf_levels(f->world, op->lane_bits) == 0)
        return "8-bit lanes hold the sum of 127 ranks at most: use 16 bits";
    if (op->residual && op->lane_bits == 32)
        return "error feedback is for narrow lanes";
    if (op->reduction == NF_SATURATED && op->dtype != NF_INT32)
        return "saturating sums are of int32";
    return NULL;
}

static uint32_t lanes_of(const nf_operation *op)
{
    switch (op->reduction) {
    case NF_SATURATED: return NF_SAT32;
    case NF_MAX: case NF_MIN: return NF_MAX32;
    default: return op->lane_bits == 32 ? NF_SUM32 : op->lane_bits == 16 ? NF_SUM16 : NF_SUM8;
    }
}

static void sign(nf_fold *f)
{
    const nf_operation *op = &f->op;
    f->signature[NF_FIELD_NUMBER] = op->number & FIELD_TOP;
    f->signature[NF_FIELD_DTYPE] = (uint32_t)op->dtype;
    f->signature[NF_FIELD_REDUCTION] = (uint32_t)op->reduction;
    f->signature[NF_FIELD_LANE_BITS] = op->lane_bits;
    f->signature[NF_FIELD_COUNT_LOW] = op->count & FIELD_TOP;
    f->signature[NF_FIELD_COUNT_HIGH] = (uint32_t)(op->count >> 31) & FIELD_TOP;
    f->signature[NF_FIELD_WORLD] = f->world;
    f->signature[NF_FIELD_TREES] = f->n_trees;
}

/* Blocks of a tree's stripe.  A packet's elements are whole blocks, so that a stripe begins with one. */
static uint64_t blocks_of(const nf_fold *f, const tree *tr) { return tr->pieces * f->piece / NF_BLOCK; }

bool nf_fold_start(nf_fold *f, const nf_operation *op, int64_t now, const char **why)
{
    if ((*why = refusal(f, op)))
        return false;
    uint32_t piece = f->path_mtu * 8 / op->lane_bits;
    uint64_t pieces = (op->count + piece - 1) / piece, blocks = pieces * piece / NF_BLOCK;
    bool scaled = op->dtype == NF_FLOAT32 && (op->reduction == NF_SUM || op->reduction == NF_AVERAGE);
    if (scaled && blocks > f->scales_room) {
        uint32_t *more = realloc(f->scales, blocks * sizeof *more);
        *why = "out of memory for the blocks' scales";
        if (!more)
            return false;
        f->scales = more;
        f->scales_room = blocks;
    }
    f->op = *op;
    f->piece = piece;
    f->scaled = scaled;
    f->narrowing = (nf_narrowing){ .bits = op->lane_bits, .levels = nf_levels(f->world, op->lane_bits),
                                   .stochastic = op->stochastic, .key = op->key };
    f->saturated = 0;
    f->progress = now;
    f->failure = (nf_failure){ .error = NF_OK };
    sign(f);
    stripe(f, pieces);
    for (uint32_t t = 0; t < f->n_trees; t++) {
        tree *tr = &f->trees[t];
        channel *agreement = &tr->channels[NF_AGREEMENT_STREAM], *data = &tr->channels[NF_DATA_STREAM];
        tr->signature = t == 0;
        agreement->lanes = NF_MAX32;
        agreement->base = agreement->history.high;
        agreement->packets = tr->signature + (scaled ? (blocks_of(f, tr) + f->entries - 1) / f->entries : 0);
        data->lanes = lanes_of(op);
        data->base = data->history.high;
        data->packets = tr->pieces;
        for (uint32_t other = 0; other < f->n_trees; other++) { /* paths of one fabric are much alike */
            nf_stream_borrow(&agreement->stream, &f->trees[other].channels[NF_DATA_STREAM].stream);
            nf_stream_borrow(&data->stream, &f->trees[other].channels[NF_DATA_STREAM].stream);
        }
    }
    return true;
}

/* ---- trees planned anew -------------------------------------------------------------------------------------------- */
uint32_t nf_fold_missing(const nf_fold *f, uint32_t t, nf_kind kind)
{
    const channel *c = &f->trees[t].channels[kind];
    return nf_stream_psn(&c->stream, c->history.got);
}

/* How many packets before the lowest one without a result all ranks begin: not more than are kept. */
static bool rewind_of(const channel *c, const nf_stream_plan *plan, uint64_t *back)
{
    *back = (nf_stream_psn(&c->stream, c->history.got) - plan->psn) & NF_PSN_MASK;
    return *back <= c->history.got && c->history.high - (c->history.got - *back) <= c->history.size;
}

bool nf_fold_resume(nf_fold *f, const nf_tree_plan *plans, int64_t now, const char **why)
{
    uint64_t back;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            *why = "the first PSN is none that this rank still has";
            if (!rewind_of(&f->trees[t].channels[kind], &plans[t].streams[kind], &back))
                return false;
        }
    *why = "out of memory";
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            channel *c = &f->trees[t].channels[kind];
            rewind_of(c, &plans[t].streams[kind], &back);
            c->plan = plans[t].streams[kind];
            uint32_t most = c->history.size / 2;
            if (!nf_stream_restart(&c->stream, c->history.got - back, c->plan.window < most ? c->plan.window : most))
                return false;
        }
    f->progress = now;
    return true;
}

bool nf_fold_messages(nf_fold *f, uint32_t packets, uint32_t credits)
{
    if (packets < 1 || packets > NF_MESSAGE_PACKETS)
        return false;
    f->message = packets;
    f->credits = credits;
    return true;
}

/* ---- packets out --------------------------------------------------------------------------------------------------- */
static nf_header header_of(const nf_fold *f, const channel *c, uint64_t i)
{
    uint64_t place = i % f->message, message = i - place;
    uint64_t length = c->packets - message < f->message ? c->packets - message : f->message;
    bool first = place == 0, last = place + 1 == length;
    nf_header h = { .opcode = first && last ? NF_WRITE_ONLY : first ? NF_WRITE_FIRST : last ? NF_WRITE_LAST
                                                                                          : NF_WRITE_MIDDLE,
                    .dest_qp = c->lanes };                      /* peer and PSN are the stream's, when it leaves */
    if (first) {
        h.address = (uint64_t)f->op.number << 32 | (uint32_t)(message * f->path_mtu);
        h.length = (uint32_t)(length * f->path_mtu);
    }
    return h;
}

/* Elements of a run of `most` from `first` on that are in the tensor: fewer at its end, none beyond. */
static size_t elements_from(const nf_fold *f, uint64_t first, uint32_t most)
{
    uint64_t left = f->op.count > first ? f->op.count - first : 0;
    return left < most ? (size_t)left : most;
}

static void write_signature(const nf_fold *f, uint8_t *payload)
{
    memset(payload, 0, f->path_mtu);
    for (int i = 0; i < NF_FIELDS; i++) {
        nf_put32(payload + 8 * i, f->signature[i]);
        nf_put32(payload + 8 * i + 4, FIELD_TOP - f->signature[i]);
    }
}

/* Where a block's elements are in the packet with its piece. */
static uint8_t *block_in(const nf_fold *f, uint8_t *payload, uint32_t at) { return payload + at * f->op.lane_bits / 8; }

static uint32_t own_scale(const nf_fold *f, uint64_t block)
{
    uint64_t first = block * NF_BLOCK;
    size_t n = elements_from(f, first, NF_BLOCK);
    const float *x = (const float *)f->op.source + first;
    if (f->op.lane_bits == 32)
        return nf_block_exponent(x, n);
    return nf_block_top(x, f->op.residual ? f->op.residual + first : NULL, n);
}

static void write_scales(const nf_fold *f, const tree *tr, uint64_t chunk, uint8_t *payload)
{
    uint64_t first = chunk * f->entries, blocks = blocks_of(f, tr);
    uint64_t n = blocks - first < f->entries ? blocks - first : f->entries;
    memset(payload + 4 * n, 0, f->path_mtu - 4 * n);
    for (uint64_t i = 0; i < n; i++)
        nf_put32(payload + 4 * i, own_scale(f, tr->first * f->piece / NF_BLOCK + first + i));
}

/* Elements `first` to `first + n` of a sum of floats, block by block. */
static void write_blocks(const nf_fold *f, uint64_t first, size_t n, uint8_t *payload)
{
    const float *source = f->op.source;
    for (uint32_t at = 0; at < n; at += NF_BLOCK) {
        size_t some = n - at < NF_BLOCK ? n - at : NF_BLOCK;
        const float *x = source + first + at;
        uint32_t scale = f->scales[(first + at) / NF_BLOCK];
        if (f->op.lane_bits == 32)
            nf_quantise(x, some, scale, f->headroom, block_in(f, payload, at));
        else
            nf_narrow(&f->narrowing, x, f->op.residual ? f->op.residual + first + at : NULL, some, scale, first + at,
                      block_in(f, payload, at));
    }
}

static void write_payload(const nf_fold *f, const channel *c, uint64_t i, uint8_t *payload)
{
    const tree *tr = &f->trees[c->tree];
    if (c->kind == NF_AGREEMENT_STREAM) {
        if (i < tr->signature)
            write_signature(f, payload);
        else
            write_scales(f, tr, i - tr->signature, payload);
        return;
    }
    uint64_t first = (tr->first + i) * f->piece;
    size_t n = elements_from(f, first, f->piece);
    bool least = f->op.reduction == NF_MIN;
    if (f->scaled)
        write_blocks(f, first, n, payload);
    else if (f->op.dtype == NF_INT32)
        nf_to_lanes((const int32_t *)f->op.source + first, n, least, payload);
    else
        nf_to_order((const float *)f->op.source + first, n, least, payload);
    if (n < f->piece)
        memset(payload + n * f->op.lane_bits / 8, 0, (f->piece - n) * f->op.lane_bits / 8);
}

/* Sequence number below which packets may leave, as far as their contents are known. */
static uint64_t limit_of(const nf_fold *f, channel *c)
{
    const tree *tr = &f->trees[c->tree];
    const channel *agreement = &tr->channels[NF_AGREEMENT_STREAM], *data = &tr->channels[NF_DATA_STREAM];
    uint64_t ready = c->packets;
    uint64_t each = (uint64_t)f->entries * NF_BLOCK / f->piece;         /* packets that one packet of scales serves */
    if (c->kind == NF_DATA_STREAM && f->scaled) {
        uint64_t known = agreement->history.got - agreement->base;
        known = known > tr->signature ? (known - tr->signature) * each : 0;
        ready = known < ready ? known : ready;
    } else if (c->kind == NF_AGREEMENT_STREAM) {
        /* far enough ahead to hide a round trip, near enough that the blocks are still in the cache when they leave */
        uint64_t lead = 4 + data->stream.window / each;
        uint64_t wanted = tr->signature + (data->history.high - data->base) / each + lead;
        ready = wanted < ready ? wanted : ready;
    }
    if (f->credits && c->kind == NF_DATA_STREAM) {
        /* what was found lost is not under way: where holes held messages up, every loss would cost a round trip */
        uint64_t unknown = nf_stream_unknown(&c->stream), through = unknown > c->base ? unknown - c->base : 0;
        uint64_t credit = (through / f->message + f->credits) * f->message;
        ready = credit < ready ? credit : ready;
    }
    return c->base + ready > c->history.high ? c->base + ready : c->history.high;
}

/* How many packets of a channel should leave in one run now; 0: wait. */
static uint64_t worth_sending(const nf_fold *f, channel *c)
{
    uint64_t limit = limit_of(f, c), n = nf_stream_sendable(&c->stream, limit);
    uint64_t quantum = c->stream.window / 4 < f->max_run ? c->stream.window / 4 : f->max_run;
    bool all = n >= limit - c->stream.next + c->stream.n_lost;
    bool idle = c->stream.una == c->stream.next;
    /* A nearly closed window opens packet by packet; results then come one by one, and so on.  Gather a few. */
    if (n < quantum && !all && !idle && c->stream.n_lost == 0)
        return 0;
    return n;
}

static bool send_channel(nf_fold *f, channel *c, int64_t now, nf_run *run)
{
    if (worth_sending(f, c) == 0)
        return false;
    uint64_t limit = limit_of(f, c);
    *run = (nf_run){ .bytes = f->run, .tree = c->tree, .kind = c->kind,
                     .route = { f->address, c->plan.peer, (uint16_t)c->plan.source_port } };
    while (run->packets < f->max_run && nf_stream_sendable(&c->stream, limit)) {
        uint64_t seq = nf_stream_peek(&c->stream);
        bool before = seq < c->history.high;
        nf_header h = before ? nf_history_at(&c->history, seq)->header : header_of(f, c, seq - c->base);
        size_t bytes = nf_packet_bytes(h.opcode, f->path_mtu);
        if (run->packets && bytes > run->segment)
            break;                                              /* only the last packet may differ, and be shorter */
        uint8_t *packet = f->run + run->length, *kept = nf_history_payload(&c->history, seq);
        if (!before)
            write_payload(f, c, seq - c->base, nf_history_add(&c->history, &h));
        else if (c->stream.n_lost == 0)
            c->stream.counters.retransmitted++;                 /* it left before the trees were planned anew */
        h.dest_qp += c->plan.peer_qp;
        h.psn = nf_stream_psn(&c->stream, seq);
        memcpy(nf_write_header(packet, &h), kept, f->path_mtu);
        nf_write_icrc(packet, bytes, &run->route, (uint16_t)run->packets);
        nf_stream_send(&c->stream, now);
        run->seqs[run->packets++] = seq;
        run->length += (uint32_t)bytes;
        if (run->packets == 1)
            run->segment = (uint32_t)bytes;
        else if (bytes < run->segment)
            break;
    }
    return true;
}

bool nf_fold_send(nf_fold *f, int64_t now, nf_run *run)
{
    for (uint32_t t = 0; t < f->n_trees; t++)                   /* exponents first: data waits for them */
        if (send_channel(f, &f->trees[t].channels[NF_AGREEMENT_STREAM], now, run))
            return true;
    for (uint32_t i = 0; i < f->n_trees; i++) {
        uint32_t t = (f->turn + i) % f->n_trees;
        if (send_channel(f, &f->trees[t].channels[NF_DATA_STREAM], now, run)) {
            f->turn = t + 1;
            return true;
        }
    }
    return false;
}

void nf_fold_unsent(nf_fold *f, const nf_run *run, uint32_t from)
{
    for (uint32_t i = from; i < run->packets; i++)
        nf_stream_unsent(&f->trees[run->tree].channels[run->kind].stream, run->seqs[i]);
}

void nf_fold_no_runs(nf_fold *f) { f->max_run = 1; }

/* ---- packets in ---------------------------------------------------------------------------------------------------- */
static channel *channel_of(nf_fold *f, uint32_t qp)
{
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            if (f->trees[t].channels[kind].plan.qp == (qp & ~((1u << NF_OPERATION_BITS) - 1)))
                return &f->trees[t].channels[kind];
    return NULL;
}

static bool signatures_agree(nf_fold *f, const uint8_t *payload)
{
    bool agree = true;
    for (int i = 0; i < NF_FIELDS; i++) {
        f->failure.high[i] = nf_get32(payload + 8 * i);
        f->failure.low[i] = FIELD_TOP - nf_get32(payload + 8 * i + 4);
        agree &= f->failure.high[i] == f->failure.low[i];
    }
    return agree;
}

/* Every rank sends the same headers for the same PSN, and the switches keep them: others mean that ranks disagree. */
static bool headers_agree(nf_fold *f, const channel *c, uint64_t seq, const nf_header *got)
{
    nf_header own = nf_history_at(&c->history, seq)->header;
    if (own.opcode == got->opcode && own.address == got->address && own.length == got->length)
        return true;
    f->failure.psn = got->psn;
    f->failure.expected_opcode = own.opcode;
    f->failure.got_opcode = got->opcode;
    f->failure.expected_address = own.address;
    f->failure.got_address = got->address;
    f->failure.expected_length = own.length;
    f->failure.got_length = got->length;
    return false;
}

static void read_scales(nf_fold *f, const tree *tr, uint64_t chunk, const uint8_t *payload)
{
    uint64_t first = chunk * f->entries, blocks = blocks_of(f, tr);
    uint32_t *scales = f->scales + tr->first * f->piece / NF_BLOCK;
    uint32_t most = f->op.lane_bits == 32 ? NF_SPECIAL : FIELD_TOP;             /* whatever a broken rank may have sent */
    for (uint64_t k = 0; k < f->entries && first + k < blocks; k++) {
        uint32_t lane = nf_get32(payload + 4 * k);
        scales[first + k] = lane < most ? lane : most;
    }
}

static void read_blocks(nf_fold *f, uint64_t first, size_t n, const uint8_t *payload)
{
    for (uint32_t at = 0; at < n; at += NF_BLOCK) {
        size_t some = n - at < NF_BLOCK ? n - at : NF_BLOCK;
        const uint8_t *wire = block_in(f, (uint8_t *)payload, at);
        float *out = (float *)f->op.out + first + at;
        uint32_t scale = f->scales[(first + at) / NF_BLOCK];
        if (f->op.lane_bits == 32) {
            nf_dequantise(wire, some, scale, f->headroom, f->op.divisor, out);
            continue;
        }
        if (f->op.residual)                                     /* now: never again will this be sent */
            nf_narrow_residual(&f->narrowing, (const float *)f->op.source + first + at, f->op.residual + first + at,
                               some, scale, first + at);
        nf_widen(&f->narrowing, wire, some, scale, f->op.divisor, out);
    }
}

static void read_payload(nf_fold *f, const channel *c, uint64_t i, const uint8_t *payload)
{
    const tree *tr = &f->trees[c->tree];
    if (c->kind == NF_AGREEMENT_STREAM) {
        if (i >= tr->signature)
            read_scales(f, tr, i - tr->signature, payload);
        return;
    }
    uint64_t first = (tr->first + i) * f->piece;
    size_t n = elements_from(f, first, f->piece);
    bool least = f->op.reduction == NF_MIN;
    if (f->scaled) {
        read_blocks(f, first, n, payload);
    } else if (f->op.dtype == NF_INT32) {
        int32_t *out = (int32_t *)f->op.out + first;
        nf_from_lanes(payload, n, least, out);
        if (f->op.reduction == NF_SATURATED)
            f->saturated += nf_ends(out, n);
    } else {
        nf_from_order(payload, n, least, (float *)f->op.out + first);
    }
}

static void receive_packet(nf_fold *f, const uint8_t *packet, size_t n, bool marked, int64_t now)
{
    nf_header h;
    uint64_t seq;
    const uint8_t *payload = nf_read_header(packet, n, f->path_mtu, &h);
    channel *c = payload ? channel_of(f, h.dest_qp) : NULL;
    if (!c) {
        f->foreign++;
        return;
    }
    if (!nf_stream_find(&c->stream, h.psn, &seq))
        return;
    const nf_kept *kept = nf_history_at(&c->history, seq);
    if (h.dest_qp != c->plan.qp + kept->header.dest_qp) {
        f->foreign++;
        return;
    }
    if (kept->had) {                                            /* by the trees before: the same bits */
        nf_stream_result(&c->stream, seq, marked, now);
        return;
    }
    nf_error error = NF_OK;
    if (c->kind == NF_AGREEMENT_STREAM && seq - c->base < f->trees[c->tree].signature && !signatures_agree(f, payload))
        error = NF_SIGNATURES_DIFFER;
    else if (!headers_agree(f, c, seq, &h))
        error = NF_HEADERS_DIFFER;
    if (error != NF_OK) {
        f->failure.error = error;
        f->failure.tree = c->tree;
        f->failure.kind = c->kind;
        return;
    }
    read_payload(f, c, seq - c->base, payload);
    nf_stream_result(&c->stream, seq, marked, now);
    nf_history_result(&c->history, seq);
    f->progress = now;
}

void nf_fold_receive(nf_fold *f, const uint8_t *bytes, size_t n, size_t segment, bool marked, int64_t now)
{
    for (size_t done = 0; done < n && f->failure.error == NF_OK; done += segment)
        receive_packet(f, bytes + done, n - done < segment ? n - done : segment, marked, now);
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            nf_stream_settle(&f->trees[t].channels[kind].stream, now);
}

/* ---- time and state ------------------------------------------------------------------------------------------------ */
void nf_fold_tick(nf_fold *f, int64_t now)
{
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            nf_stream_tick(&f->trees[t].channels[kind].stream, now);
}

int64_t nf_fold_deadline(const nf_fold *f)
{
    int64_t first = NF_NEVER;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            if (f->trees[t].channels[kind].stream.deadline < first)
                first = f->trees[t].channels[kind].stream.deadline;
    return first;
}

bool nf_fold_finished(const nf_fold *f)
{
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            const channel *c = &f->trees[t].channels[kind];
            if (c->stream.una != c->base + c->packets)
                return false;
        }
    return true;
}

const nf_failure *nf_fold_failure(const nf_fold *f) { return &f->failure; }
int64_t nf_fold_progress(const nf_fold *f) { return f->progress; }
uint64_t nf_fold_foreign(const nf_fold *f) { return f->foreign; }

uint64_t nf_fold_saturated(const nf_fold *f) { return f->saturated; }

uint64_t nf_fold_elements(const nf_fold *f, uint32_t t)
{
    uint64_t first = f->trees[t].first * f->piece, end = first + f->trees[t].pieces * f->piece;
    return (end < f->op.count ? end : f->op.count) - (first < f->op.count ? first : f->op.count);
}

uint64_t nf_fold_retransmitted(const nf_fold *f)
{
    uint64_t sum = 0;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++)
            sum += f->trees[t].channels[kind].stream.counters.retransmitted;
    return sum;
}

void nf_fold_standing(const nf_fold *f, uint32_t t, nf_kind kind, nf_standing *standing)
{
    const channel *c = &f->trees[t].channels[kind];
    *standing = (nf_standing){ .sent_ahead = c->history.high - c->base, .results = c->history.got - c->base,
                               .packets = c->packets, .una_psn = nf_stream_psn(&c->stream, c->stream.una),
                               .window = c->stream.window, .rto = c->stream.rto, .srtt = c->stream.srtt,
                               .counters = c->stream.counters };
}
