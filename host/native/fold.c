/* SPDX-License-Identifier: Apache-2.0 */
#include "fold.h"

#include <stdlib.h>

#include "quantise.h"

#define FIELD_TOP 0x7fffffffu          /* MAX lanes stay below 2^31 (p4src/lanes.p4) */

typedef struct {                       /* one stream, and its share of the operation */
    nf_stream stream;
    nf_stream_plan plan;
    uint32_t tree;
    nf_kind kind;
    uint64_t base, packets;            /* sequence number of its first packet, how many there are */
    uint32_t operation;                /* of the switches, on this operation's packets */
} channel;

typedef struct {
    double weight;
    channel channels[2];
    uint64_t first_block, blocks;      /* this tree's stripe */
    uint64_t signature;                /* 1 where the max stream starts with the signature, else 0 */
} tree;

struct nf_fold {
    uint32_t address, world, n_trees, max_run;
    unsigned headroom;
    tree *trees;
    uint32_t turn;                     /* which tree may send next */
    /* the operation */
    uint32_t number;
    nf_dtype dtype;
    const uint8_t *source;
    uint8_t *out;
    uint64_t count;
    float divisor;
    uint16_t *exponents;               /* agreed ones, by block */
    uint64_t exponents_room;
    uint32_t signature[NF_FIELDS];
    int64_t progress;
    nf_failure failure;
    uint64_t foreign;
    uint8_t run[NF_RUN_PACKETS * NF_PACKET_BYTES_RETH];
};

/* ---- opening and starting ------------------------------------------------------------------------------------------ */
nf_fold *nf_fold_open(uint32_t address, uint32_t world, uint32_t n_trees, const nf_tree_plan *plans, uint32_t max_run,
                      const char **why)
{
    *why = "out of memory";
    if (world < 1 || world > 1023 || n_trees < 1 || n_trees > NF_MAX_TREES || max_run < 1) {
        *why = "expected 1..1023 ranks, 1..64 trees and runs of at least 1 packet";
        return NULL;
    }
    nf_fold *f = calloc(1, sizeof *f);
    if (!f || !(f->trees = calloc(n_trees, sizeof *f->trees)))
        goto fail;
    f->address = address;
    f->world = world;
    f->n_trees = n_trees;
    f->max_run = max_run < NF_RUN_PACKETS ? max_run : NF_RUN_PACKETS;
    f->headroom = nf_headroom(world);
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
            if (!nf_stream_open(&c->stream, c->plan.psn, c->plan.window))
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
        for (int kind = 0; kind < 2; kind++)
            nf_stream_close(&f->trees[t].channels[kind].stream);
    free(f->trees);
    free(f->exponents);
    free(f);
}

/* Cuts the blocks into stripes.  Borders are rounded cumulative shares: every rank finds the same ones. */
static void stripe(nf_fold *f, uint64_t blocks)
{
    double total = 0, sum = 0;
    for (uint32_t t = 0; t < f->n_trees; t++)
        total += f->trees[t].weight;
    uint64_t border = 0;
    for (uint32_t t = 0; t < f->n_trees; t++) {
        tree *tr = &f->trees[t];
        sum += tr->weight;
        uint64_t next = t + 1 == f->n_trees ? blocks : (uint64_t)((double)blocks * (sum / total) + 0.5);
        next = next > blocks ? blocks : next < border ? border : next;
        tr->first_block = border;
        tr->blocks = next - border;
        border = next;
    }
}

bool nf_fold_start(nf_fold *f, uint32_t number, nf_dtype dtype, const void *source, void *out, uint64_t count,
                   float divisor, int64_t now)
{
    uint64_t blocks = (count + NF_BLOCK - 1) / NF_BLOCK;
    if (dtype == NF_FLOAT32 && blocks > f->exponents_room) {
        uint16_t *more = realloc(f->exponents, blocks * sizeof *more);
        if (!more)
            return false;
        f->exponents = more;
        f->exponents_room = blocks;
    }
    f->number = number;
    f->dtype = dtype;
    f->source = source;
    f->out = out;
    f->count = count;
    f->divisor = divisor;
    f->progress = now;
    f->failure = (nf_failure){ .error = NF_OK };
    f->signature[NF_FIELD_NUMBER] = number & FIELD_TOP;
    f->signature[NF_FIELD_DTYPE] = dtype;
    f->signature[NF_FIELD_AVERAGE] = divisor != 1;
    f->signature[NF_FIELD_COUNT_LOW] = count & FIELD_TOP;
    f->signature[NF_FIELD_COUNT_HIGH] = (uint32_t)(count >> 31) & FIELD_TOP;
    f->signature[NF_FIELD_WORLD] = f->world;
    f->signature[NF_FIELD_TREES] = f->n_trees;
    stripe(f, blocks);
    for (uint32_t t = 0; t < f->n_trees; t++) {
        tree *tr = &f->trees[t];
        channel *max = &tr->channels[NF_MAX_STREAM], *sum = &tr->channels[NF_SUM_STREAM];
        tr->signature = t == 0;
        max->operation = NF_MAX32;
        sum->operation = NF_SUM32;
        max->base = max->stream.next;
        max->packets = tr->signature + (dtype == NF_FLOAT32 ? (tr->blocks + NF_LANES - 1) / NF_LANES : 0);
        sum->base = sum->stream.next;
        sum->packets = tr->blocks;
        for (uint32_t other = 0; other < f->n_trees; other++) { /* paths of one fabric are much alike */
            nf_stream_borrow(&max->stream, &f->trees[other].channels[NF_SUM_STREAM].stream);
            nf_stream_borrow(&sum->stream, &f->trees[other].channels[NF_SUM_STREAM].stream);
        }
    }
    return true;
}

/* ---- packets out --------------------------------------------------------------------------------------------------- */
static nf_header header_of(const nf_fold *f, const channel *c, uint64_t i)
{
    uint64_t place = i % NF_MESSAGE_PACKETS, message = i - place;
    uint64_t length = c->packets - message < NF_MESSAGE_PACKETS ? c->packets - message : NF_MESSAGE_PACKETS;
    bool first = place == 0, last = place + 1 == length;
    nf_header h = { .opcode = first && last ? NF_WRITE_ONLY : first ? NF_WRITE_FIRST : last ? NF_WRITE_LAST
                                                                                          : NF_WRITE_MIDDLE,
                    .dest_qp = c->plan.peer_qp + c->operation, .psn = nf_stream_psn(&c->stream, c->base + i) };
    if (first) {
        h.address = (uint64_t)f->number << 32 | (uint32_t)(message * NF_PATH_MTU);
        h.length = (uint32_t)(length * NF_PATH_MTU);
    }
    return h;
}

/* Elements of block b, which is the tensor's last one where they are fewer than 256. */
static size_t elements_of(const nf_fold *f, uint64_t block)
{
    uint64_t left = f->count - block * NF_BLOCK;
    return left < NF_BLOCK ? (size_t)left : NF_BLOCK;
}

static void write_signature(const nf_fold *f, uint8_t *payload)
{
    memset(payload, 0, NF_PATH_MTU);
    for (int i = 0; i < NF_FIELDS; i++) {
        nf_put32(payload + 8 * i, f->signature[i]);
        nf_put32(payload + 8 * i + 4, FIELD_TOP - f->signature[i]);
    }
}

static void write_exponents(const nf_fold *f, const tree *tr, uint64_t chunk, uint8_t *payload)
{
    uint64_t first = chunk * NF_LANES, n = tr->blocks - first < NF_LANES ? tr->blocks - first : NF_LANES;
    memset(payload, 0, NF_PATH_MTU);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t block = tr->first_block + first + i;
        const float *x = (const float *)f->source + block * NF_BLOCK;
        nf_put32(payload + 4 * i, nf_block_exponent(x, elements_of(f, block)));
    }
}

static void write_payload(const nf_fold *f, const channel *c, uint64_t i, uint8_t *payload)
{
    const tree *tr = &f->trees[c->tree];
    if (c->kind == NF_MAX_STREAM) {
        if (i < tr->signature)
            write_signature(f, payload);
        else
            write_exponents(f, tr, i - tr->signature, payload);
        return;
    }
    uint64_t block = tr->first_block + i;
    size_t n = elements_of(f, block);
    if (f->dtype == NF_INT32)
        nf_to_lanes((const int32_t *)f->source + block * NF_BLOCK, n, payload);
    else
        nf_quantise((const float *)f->source + block * NF_BLOCK, n, f->exponents[block], f->headroom, payload);
}

/* Sequence number below which packets may leave, as far as their contents are known. */
static uint64_t limit_of(const nf_fold *f, const channel *c)
{
    const tree *tr = &f->trees[c->tree];
    const channel *max = &tr->channels[NF_MAX_STREAM], *sum = &tr->channels[NF_SUM_STREAM];
    uint64_t ready = c->packets;
    if (c->kind == NF_SUM_STREAM && f->dtype == NF_FLOAT32) {
        uint64_t known = max->stream.una - max->base;
        known = known > tr->signature ? (known - tr->signature) * NF_LANES : 0;
        ready = known < ready ? known : ready;
    } else if (c->kind == NF_MAX_STREAM) {
        /* far enough ahead to hide a round trip, near enough that the blocks are still in the cache when they leave */
        uint64_t lead = 4 + sum->stream.window / NF_LANES;
        uint64_t wanted = tr->signature + (sum->stream.next - sum->base) / NF_LANES + lead;
        ready = wanted < ready ? wanted : ready;
    }
    return c->base + ready;
}

/* How many packets of a channel should leave in one run now; 0: wait. */
static uint64_t worth_sending(const nf_fold *f, const channel *c)
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
        nf_header h = header_of(f, c, seq - c->base);
        size_t bytes = nf_packet_bytes(h.opcode);
        if (run->packets && bytes > run->segment)
            break;                                              /* only the last packet may differ, and be shorter */
        uint8_t *packet = f->run + run->length;
        write_payload(f, c, seq - c->base, nf_write_header(packet, &h));
        nf_write_icrc(packet, &run->route, (uint16_t)run->packets);
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
        if (send_channel(f, &f->trees[t].channels[NF_MAX_STREAM], now, run))
            return true;
    for (uint32_t i = 0; i < f->n_trees; i++) {
        uint32_t t = (f->turn + i) % f->n_trees;
        if (send_channel(f, &f->trees[t].channels[NF_SUM_STREAM], now, run)) {
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
            if (f->trees[t].channels[kind].plan.qp + f->trees[t].channels[kind].operation == qp)
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
    nf_header own = header_of(f, c, seq - c->base);
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

static void read_payload(nf_fold *f, const channel *c, uint64_t i, const uint8_t *payload)
{
    const tree *tr = &f->trees[c->tree];
    if (c->kind == NF_MAX_STREAM) {
        if (i < tr->signature)
            return;
        uint64_t first = (i - tr->signature) * NF_LANES;
        for (uint64_t k = 0; k < NF_LANES && first + k < tr->blocks; k++) {
            uint32_t lane = nf_get32(payload + 4 * k);
            f->exponents[tr->first_block + first + k] = lane < NF_SPECIAL ? (uint16_t)lane : NF_SPECIAL;
        }
        return;
    }
    uint64_t block = tr->first_block + i;
    size_t n = elements_of(f, block);
    if (f->dtype == NF_INT32)
        nf_from_lanes(payload, n, (int32_t *)f->out + block * NF_BLOCK);
    else
        nf_dequantise(payload, n, f->exponents[block], f->headroom, f->divisor, (float *)f->out + block * NF_BLOCK);
}

static void receive_packet(nf_fold *f, const uint8_t *packet, size_t n, bool marked, int64_t now)
{
    nf_header h;
    uint64_t seq;
    const uint8_t *payload = nf_read_header(packet, n, &h);
    channel *c = payload ? channel_of(f, h.dest_qp) : NULL;
    if (!c) {
        f->foreign++;
        return;
    }
    if (!nf_stream_find(&c->stream, h.psn, &seq))
        return;
    nf_error error = NF_OK;
    if (c->kind == NF_MAX_STREAM && seq - c->base < f->trees[c->tree].signature && !signatures_agree(f, payload))
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

uint64_t nf_fold_elements(const nf_fold *f, uint32_t t)
{
    uint64_t first = f->trees[t].first_block * NF_BLOCK, end = first + f->trees[t].blocks * NF_BLOCK;
    return (end < f->count ? end : f->count) - (first < f->count ? first : f->count);
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
    *standing = (nf_standing){ .sent_ahead = c->stream.next - c->base, .results = c->stream.una - c->base,
                               .packets = c->packets, .una_psn = nf_stream_psn(&c->stream, c->stream.una),
                               .window = c->stream.window, .rto = c->stream.rto, .srtt = c->stream.srtt,
                               .counters = c->stream.counters };
}
