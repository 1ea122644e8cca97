/* SPDX-License-Identifier: Apache-2.0 */
#include "fold_payload.h"
#include "past_caches.h"

#define FETCH_AHEAD 4096 /* bytes */
#define SOME 1024        /* elements of a result that are decoded at a time, in the first cache: whole blocks */

/* Elements of a run of `most` from `first` on that are in the tensor of an allreduce: fewer at its end, none beyond. */
static size_t elements_from(const nf_fold *f, uint64_t first, uint32_t most) {
    uint64_t left = f->op.count > first ? f->op.count - first : 0;
    return left < most ? (size_t)left : most;
}

/* Elements of a piece's block that begins with its element `at`: fewer at its end, none beyond. */
static size_t block_of(nf_piece p, uint32_t at) {
    uint32_t left = p.count > at ? p.count - at : 0;
    return left < NF_BLOCK ? left : NF_BLOCK;
}

/* Where a block's elements are in the packet with its piece. */
static uint8_t *block_in(const nf_fold *f, uint8_t *payload, uint32_t at) { return payload + at * f->op.lane_bits / 8; }

/* Which piece of the tensor packet i of a tree's data has. */
static uint64_t number_of(const nf_fold *f, const nf_tree *tr, uint64_t i) {
    return f->guess.guessed ? f->guess.piece[i] : tr->first + i;
}

/* Whether this rank has lanes for a piece of a row: what the others' sum lacks its owner adds itself. */
static bool contributes(const nf_fold *f, uint64_t piece) {
    nf_piece p = nf_piece_at(f, piece);
    return !f->op.rows || (p.owner == f->op.rank) == p.bytes;
}

/* The bytes that are gathered or broadcast. */
static uint8_t *bytes_of(const nf_fold *f) {
    return f->op.collective == NF_EXCHANGE ? f->op.gathered : (uint8_t *)f->op.out;
}

/* The scales of a piece's blocks. */
static const uint32_t *scales_of(const nf_fold *f, uint64_t piece) { return f->scales + piece * f->piece / NF_BLOCK; }

/* ---- out --------------------------------------------------------------------------------------------------------- */
static void write_signature(const nf_fold *f, uint8_t *payload) {
    memset(payload, 0, f->path_mtu);
    for (int i = 0; i < NF_FIELDS; i++) {
        nf_put32(payload + 8 * i, f->signature[i]);
        nf_put32(payload + 8 * i + 4, NF_FIELD_TOP - f->signature[i]);
    }
}

static uint32_t own_scale(const nf_fold *f, uint64_t block) {
    uint64_t number = block * NF_BLOCK / f->piece, at = block * NF_BLOCK % f->piece;
    nf_piece p = nf_piece_at(f, number);
    uint64_t first = p.first + at, left = p.count > at ? p.count - at : 0;
    size_t n = p.bytes ? 0 : left < NF_BLOCK ? (size_t)left : NF_BLOCK;
    const float *x = (const float *)f->op.source + first;
    if (f->op.lane_bits == 32) return nf_block_exponent(x, n);
    return nf_block_top(x, f->op.residual ? f->op.residual + first : NULL, n);
}

static void write_scales(const nf_fold *f, const nf_tree *tr, uint64_t chunk, uint8_t *payload) {
    uint64_t first = chunk * f->entries, blocks = nf_blocks_of(f, tr);
    uint64_t n = blocks - first < f->entries ? blocks - first : f->entries;
    memset(payload + 4 * n, 0, f->path_mtu - 4 * n);
    for (uint64_t i = 0; i < n; i++)
        nf_put32(payload + 4 * i, own_scale(f, tr->first * f->piece / NF_BLOCK + first + i));
}

/* Packet i of a short sum of floats: its blocks in the scales that this packet tries.  What a guess is too small for
 * cannot come to count: there are zeros. */
static void write_guess(const nf_fold *f, uint64_t i, uint8_t *payload) {
    const nf_guess *g = &f->guess;
    nf_piece p = nf_piece_at(f, g->piece[i]);
    for (uint32_t k = 0; k < g->each; k++, payload += NF_BLOCK * sizeof(nf_lane)) {
        uint32_t b = g->piece[i] * g->each + k, at = k * NF_BLOCK;
        const float *x = (const float *)f->op.source + p.first + at;
        size_t n = block_of(p, at);
        uint32_t scale = nf_guess_scale(g, f->scales, (uint32_t)i, b);
        if (scale == NF_NO_SCALE || nf_block_exponent(x, n) > scale) n = 0;
        if (n) nf_quantise(x, n, scale, f->headroom, payload);
        memset(payload + n * sizeof(nf_lane), 0, (NF_BLOCK - n) * sizeof(nf_lane));
    }
}

/* Prefetches values that are some blocks further on, which pays where they are narrowed: so much is
 * computed for each that the processor does not see the next ones in time.  Quantising is slower with it. */
static inline void fetch_ahead(const float *block) {
    uintptr_t at = (uintptr_t)block + FETCH_AHEAD;
    for (uint32_t i = 0; i < NF_BLOCK * sizeof *block; i += NF_LINE) __builtin_prefetch((const void *)(at + i));
}

/* Elements `first` to `first + n` of a sum of floats, block by block, in these scales. */
static void write_blocks(const nf_fold *f, const uint32_t *scales, uint64_t first, size_t n, uint8_t *payload) {
    const float *source = f->op.source;
    for (uint32_t at = 0; at < n; at += NF_BLOCK) {
        size_t some = n - at < NF_BLOCK ? n - at : NF_BLOCK;
        const float *x = source + first + at;
        uint32_t scale = scales[at / NF_BLOCK];
        if (f->op.lane_bits == 32)
            nf_quantise(x, some, scale, f->headroom, block_in(f, payload, at));
        else {
            fetch_ahead(x);
            nf_narrow(&f->narrowing, x, f->op.residual ? f->op.residual + first + at : NULL, some, scale, first + at,
                      block_in(f, payload, at));
        }
    }
}

nf_message nf_payload_message(const nf_fold *f, const nf_channel *c, uint64_t i) {
    uint64_t alone = c->kind == NF_AGREEMENT_STREAM ? f->trees[c->tree].signature : 0, most = nf_message_of(f, c);
    uint64_t guessed = c->kind == NF_DATA_STREAM ? f->guess.guessed : 0, begin = i < guessed ? 0 : alone + guessed;
    if (i < alone) return (nf_message){.first = i, .packets = 1};
    if (c->kind == NF_DATA_STREAM && f->brief && !c->plan.message) most = 1; /* of one length, and so one run */
    uint64_t first = i - (i - begin) % most, left = (i < guessed ? guessed : c->packets) - first;
    return (nf_message){.first = first, .packets = (uint32_t)(left < most ? left : most)};
}

nf_header nf_payload_header(const nf_fold *f, const nf_channel *c, uint64_t i) {
    nf_message m = nf_payload_message(f, c, i);
    bool first = i == m.first, last = i + 1 == m.first + m.packets;
    if (c->plan.message)
        return (nf_header){.opcode = first && last ? NF_SEND_ONLY
                                     : first       ? NF_SEND_FIRST
                                     : last        ? NF_SEND_LAST
                                                   : NF_SEND_MIDDLE,
                           .dest_qp = c->lanes};
    nf_header h = {.opcode = first && last ? NF_WRITE_ONLY
                             : first       ? NF_WRITE_FIRST
                             : last        ? NF_WRITE_LAST
                                           : NF_WRITE_MIDDLE,
                   .dest_qp = c->lanes};
    if (first) {
        h.address = (uint64_t)f->op.number << 32 | (uint32_t)(m.first * f->path_mtu);
        h.length = m.packets * f->path_mtu;
    }
    return h;
}

nf_header nf_payload_own_header(const nf_fold *f, const nf_channel *c, uint64_t i) {
    nf_header h = nf_payload_header(f, c, i);
    if (c->kind == NF_AGREEMENT_STREAM || !f->op.rows || c->plan.message) return h; /* as NICs send it: always lanes */
    h.content = contributes(f, number_of(f, &f->trees[c->tree], i));
    if (h.content || f->no_presence) return h;
    h.presence = true;
    h.opcode = NF_WRITE_ONLY;
    h.address = (uint64_t)f->op.number << 32 | (uint32_t)(i * f->path_mtu);
    h.length = 0;
    return h;
}

/* Lanes of a piece of the source, and zeros behind the last one. */
static void write_piece(const nf_fold *f, uint64_t number, uint8_t *payload) {
    nf_piece p = nf_piece_at(f, number);
    bool least = f->op.reduction == NF_MIN;
    if (p.bytes)
        memcpy(payload, bytes_of(f) + p.first, p.count);
    else if (f->scaled)
        write_blocks(f, scales_of(f, number), p.first, p.count, payload);
    else if (f->op.dtype == NF_INT32)
        nf_to_lanes((const int32_t *)f->op.source + p.first, p.count, least, payload);
    else
        nf_to_order((const float *)f->op.source + p.first, p.count, least, payload);
    size_t bytes = p.bytes ? p.count : (size_t)p.count * f->op.lane_bits / 8;
    memset(payload + bytes, 0, f->path_mtu - bytes);
}

/* Lanes that change nothing where they are added, or compared. */
static void write_nothing(const nf_fold *f, uint8_t *payload) {
    bool least = f->op.reduction == NF_MAX || f->op.reduction == NF_MIN;
    for (size_t at = 0; at < f->path_mtu; at += 4) nf_put32(payload + at, least ? 0x80000000u : 0);
}

void nf_payload_write(const nf_fold *f, const nf_channel *c, uint64_t i, uint8_t *payload) {
    const nf_tree *tr = &f->trees[c->tree];
    if (c->kind == NF_AGREEMENT_STREAM) {
        if (i < tr->signature || f->scaled) {
            if (i < tr->signature)
                write_signature(f, payload);
            else
                write_scales(f, tr, i - tr->signature, payload);
            return;
        }
        i -= tr->signature; /* maxima of a job with RC queue pairs (nf_fold_start) */
    }
    if (!contributes(f, number_of(f, tr, i)))
        write_nothing(f, payload);
    else if (f->guess.guessed)
        write_guess(f, i, payload);
    else
        write_piece(f, tr->first + i, payload);
}

/* ---- in ---------------------------------------------------------------------------------------------------------- */
bool nf_payload_signatures(nf_fold *f, const uint8_t *payload) {
    bool agree = true;
    for (int i = 0; i < NF_FIELDS; i++) {
        f->failure.high[i] = nf_get32(payload + 8 * i);
        f->failure.low[i] = NF_FIELD_TOP - nf_get32(payload + 8 * i + 4);
        agree &= f->failure.high[i] == f->failure.low[i];
    }
    return agree;
}

static void read_scales(nf_fold *f, const nf_tree *tr, uint64_t chunk, const uint8_t *payload) {
    uint64_t first = chunk * f->entries, blocks = nf_blocks_of(f, tr);
    uint32_t *scales = f->scales + tr->first * f->piece / NF_BLOCK;
    uint32_t most = f->op.lane_bits == 32 ? NF_SPECIAL : NF_FIELD_TOP; /* whatever a broken rank may have sent */
    for (uint64_t k = 0; k < f->entries && first + k < blocks; k++) {
        uint32_t lane = nf_get32(payload + 4 * k);
        scales[first + k] = lane < most ? lane : most;
    }
}

/* Elements `first` to `first + n` of a sum of floats, block by block, in these scales, to `to`. */
static void read_blocks(nf_fold *f, const uint32_t *scales, uint64_t first, size_t n, const uint8_t *payload,
                        float *to) {
    for (uint32_t at = 0; at < n; at += NF_BLOCK) {
        size_t some = n - at < NF_BLOCK ? n - at : NF_BLOCK;
        const uint8_t *wire = block_in(f, (uint8_t *)payload, at);
        float *out = to + at;
        uint32_t scale = scales[at / NF_BLOCK];
        if (f->op.lane_bits == 32) {
            nf_dequantise(wire, some, scale, f->headroom, f->op.divisor, out);
            continue;
        }
        if (f->op.residual) /* now: never again will this be sent */
            nf_narrow_residual(&f->narrowing, (const float *)f->op.source + first + at, f->op.residual + first + at,
                               some, scale, first + at);
        nf_widen(&f->narrowing, wire, some, scale, f->op.divisor, out);
    }
}

static void read_elements(nf_fold *f, const uint32_t *scales, uint64_t first, size_t n, const uint8_t *payload,
                          void *to) {
    bool least = f->op.reduction == NF_MIN;
    if (f->scaled) {
        read_blocks(f, scales, first, n, payload, to);
    } else if (f->op.dtype == NF_INT32) {
        nf_from_lanes(payload, n, least, to);
        if (f->op.reduction == NF_SATURATED) f->saturated += nf_count_at_limits(to, n);
    } else {
        nf_from_order(payload, n, least, to);
    }
}

/* The blocks that packet i of a short sum of floats has in the agreed scales. */
static void read_guess(nf_fold *f, uint64_t i, const uint8_t *payload) {
    const nf_guess *g = &f->guess;
    nf_piece p = nf_piece_at(f, g->piece[i]);
    float *out = (float *)f->op.out + (p.first - f->op.out_first);
    for (uint32_t k = 0; k < g->each; k++, payload += NF_BLOCK * sizeof(nf_lane)) {
        uint32_t b = g->piece[i] * g->each + k, at = k * NF_BLOCK;
        size_t n = block_of(p, at);
        if (n && nf_guess_holds(g, f->scales, (uint32_t)i, b))
            nf_dequantise(payload, n, f->scales[b], f->headroom, f->op.divisor, out + at);
    }
}

void nf_payload_settle(nf_fold *f) {
    nf_guess *g = &f->guess;
    nf_guess_settle(g, f->scales);
    nf_channel *data = &f->trees[0].channels[NF_DATA_STREAM];
    data->packets += g->repeated;
    nf_stream_end_at(&data->stream, data->base + data->packets);
    for (uint32_t i = 0; i < g->guessed; i++)
        if (g->held[i]) read_guess(f, i, f->held + (size_t)i * f->path_mtu);
}

/* own = own and theirs, as a switch combines lanes. */
static void combine(const nf_fold *f, uint8_t *own, const uint8_t *theirs) {
    uint32_t lanes = f->op.reduction == NF_MAX || f->op.reduction == NF_MIN ? 0 : f->op.lane_bits;
    for (size_t at = 0; at < f->path_mtu; at += 4) {
        uint32_t a = nf_get32(own + at), b = nf_get32(theirs + at), sum = a + b;
        if (lanes == 0)
            sum = (int32_t)a > (int32_t)b ? a : b;
        else if (lanes == 16) /* without a carry from one lane to the next */
            sum = ((a & 0x7fff7fff) + (b & 0x7fff7fff)) ^ ((a ^ b) & 0x80008000);
        else if (lanes == 8)
            sum = ((a & 0x7f7f7f7f) + (b & 0x7f7f7f7f)) ^ ((a ^ b) & 0x80808080);
        nf_put32(own + at, sum);
    }
}

/* The sums of packet i of a short sum of floats; of a row of this rank's, which it adds itself, in the same scales.
 * What is not agreed on yet is kept. */
static void take_guess(nf_fold *f, uint64_t i, const uint8_t *payload) {
    uint8_t own[NF_MAX_PATH_MTU];
    if (f->op.rows) {
        write_guess(f, i, own);
        combine(f, own, payload);
        payload = own;
    }
    if (f->guess.agreed) {
        read_guess(f, i, payload);
        return;
    }
    memcpy(f->held + i * f->path_mtu, payload, f->path_mtu);
    f->guess.held[i] = true;
}

/* A piece of a row of this rank's, of which the others have sent their sum, or what its owner has sent. */
static void read_row(nf_fold *f, uint64_t number, const uint8_t *payload) {
    nf_piece p = nf_piece_at(f, number);
    if (p.bytes) {
        memcpy(bytes_of(f) + p.first, payload, p.count);
        return;
    }
    uint8_t *out = (uint8_t *)f->op.out + (p.first - f->op.out_first) * f->itemsize, sum[NF_MAX_PATH_MTU];
    write_piece(f, number, sum);
    combine(f, sum, payload);
    read_elements(f, scales_of(f, number), p.first, p.count, sum, out);
}

void nf_payload_read(nf_fold *f, const nf_channel *c, uint64_t i, const uint8_t *payload) {
    const nf_tree *tr = &f->trees[c->tree];
    if (c->kind == NF_AGREEMENT_STREAM) {
        if (i < tr->signature) return;
        i -= tr->signature;
        if (f->scaled) {
            read_scales(f, tr, i, payload);
            return;
        } /* otherwise maxima of a job with RC queue pairs (nf_fold_start) */
    }
    if (f->guess.guessed) {
        take_guess(f, i, payload);
        return;
    }
    if (f->op.rows) {
        if (!contributes(f, tr->first + i)) read_row(f, tr->first + i, payload);
        return;
    }
    uint64_t first = (tr->first + i) * f->piece;
    size_t n = elements_from(f, first, f->piece);
    const uint32_t *scales = scales_of(f, tr->first + i);
    uint32_t *out = (uint32_t *)f->op.out + first; /* elements of all types have 4 bytes */
    if (!f->past_caches) {
        read_elements(f, scales, first, n, payload, out);
        return;
    }
    uint32_t some[SOME] __attribute__((aligned(NF_LINE)));
    for (uint32_t at = 0; at < n; at += SOME) {
        size_t m = n - at < SOME ? n - at : SOME;
        read_elements(f, scales + at / NF_BLOCK, first + at, m, block_in(f, (uint8_t *)payload, at), some);
        nf_copy_past_caches((uint8_t *)(out + at), (const uint8_t *)some, m * sizeof *some);
    }
}

void nf_payload_all_read(const nf_fold *f) {
    if (f->past_caches) nf_passed_caches();
}
