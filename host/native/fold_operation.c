/* SPDX-License-Identifier: Apache-2.0 */
#include "fold_state.h"
#include "past_caches.h"

#include <stdlib.h>

/* ---- opening and starting ---------------------------------------------------------------------------------------- */
nf_fold *nf_fold_open(uint32_t address, uint16_t port, uint32_t world, uint32_t path_mtu, uint32_t n_trees,
                      const nf_tree_plan *plans, uint32_t max_run, const char **why) {
    *why = "out of memory";
    if (world < 1 || world > NF_MAX_WORLD || n_trees < 1 || n_trees > NF_MAX_TREES || max_run < 1 ||
        (path_mtu != NF_MIN_PATH_MTU && path_mtu != NF_MAX_PATH_MTU)) {
        *why = "expected 1..4096 ranks, a path MTU of 1024 or 4096, 1..64 trees and runs of at least 1 packet";
        return NULL;
    }
    nf_fold *f = calloc(1, sizeof *f);
    if (!f || !(f->trees = calloc(n_trees, sizeof *f->trees)) || !(f->held = calloc(NF_HELD_BYTES, 1))) goto fail;
    f->address = address;
    f->port = port;
    f->world = world;
    f->path_mtu = path_mtu;
    f->entries = path_mtu / sizeof(nf_lane);
    f->n_trees = n_trees;
    f->max_run = NF_UDP_MOST / (uint32_t)nf_packet_bytes(NF_WRITE_FIRST, path_mtu);
    f->max_run = f->max_run < NF_RUN_PACKETS ? f->max_run : NF_RUN_PACKETS;
    f->max_run = f->max_run < max_run ? f->max_run : max_run;
    f->kernel_run = max_run < NF_RUN_PACKETS ? max_run : NF_RUN_PACKETS;
    f->headroom = nf_headroom(world);
    f->message = NF_MESSAGE_PACKETS;
    for (uint32_t t = 0; t < n_trees; t++) {
        f->trees[t].weight = plans[t].weight;
        for (int kind = 0; kind < 2; kind++) {
            nf_channel *c = &f->trees[t].channels[kind];
            c->plan = plans[t].streams[kind];
            c->tree = t;
            c->kind = (nf_kind)kind;
            if (c->plan.window == 0 || c->plan.window & (c->plan.window - 1) || c->plan.window > NF_MAX_WINDOW) {
                *why = "expected windows that are powers of two up to 2^19";
                goto fail;
            }
            if (c->plan.slots < 2 * c->plan.window || c->plan.slots & (c->plan.slots - 1)) {
                *why = "expected slots that are a power of two and hold two windows";
                goto fail;
            }
            if (c->plan.message > c->plan.slots / 4) {
                *why = "expected messages of a quarter of the slots at most";
                goto fail;
            }
            if (!nf_stream_open(&c->stream, c->plan.psn, c->plan.window, NF_LOSS_FLOOR / path_mtu) ||
                !nf_history_open(&c->history, c->plan.slots, path_mtu))
                goto fail;
        }
    }
    return f;
fail:
    nf_fold_close(f);
    return NULL;
}

void nf_fold_close(nf_fold *f) {
    if (!f) return;
    for (uint32_t t = 0; f->trees && t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            nf_stream_close(&f->trees[t].channels[kind].stream);
            nf_history_close(&f->trees[t].channels[kind].history);
        }
    free(f->trees);
    free(f->scales);
    free(f->pieces);
    free(f->held);
    free(f);
}

/* Cuts the pieces into stripes.  Borders are rounded cumulative shares: every rank finds the same ones.  A short tensor
 * is one stripe, of the tree with the signature: what it costs is packets that make processes run, not bytes. */
static void stripe(nf_fold *f, uint64_t pieces) {
    bool whole = f->brief = pieces * f->path_mtu <= NF_SHORT_BLOCKS * NF_BLOCK * sizeof(nf_lane);
    double total = 0, sum = 0;
    for (uint32_t t = 0; t < f->n_trees; t++) total += f->trees[t].weight;
    uint64_t border = 0;
    for (uint32_t t = 0; t < f->n_trees; t++) {
        nf_tree *tr = &f->trees[t];
        sum += tr->weight;
        uint64_t next = whole || t + 1 == f->n_trees ? pieces : (uint64_t)((double)pieces * (sum / total) + 0.5);
        next = next > pieces ? pieces : next < border ? border : next;
        tr->first = border;
        tr->pieces = next - border;
        border = next;
    }
}

static bool gathers(const nf_operation *op) {
    return op->collective == NF_ALL_GATHER || op->collective == NF_BROADCAST;
}

static bool within(const nf_fold *f, const nf_row *rows, uint64_t count) {
    for (uint32_t r = 0; rows && r < f->world; r++)
        if (rows[r].first > count || rows[r].count > count - rows[r].first) return false;
    return true;
}

/* What is wrong with an operation's rows, for all kinds but an allreduce. */
static const char *refusal_of_rows(const nf_fold *f, const nf_operation *op) {
    if (op->collective < NF_ALLREDUCE || op->collective > NF_EXCHANGE) return "expected a collective that folds";
    if (op->rank >= f->world || op->root >= f->world) return "expected rank and root below the number of ranks";
    if (!op->rows != (op->collective == NF_BARRIER)) return "expected rows, but for a barrier";
    if (gathers(op) != (op->dtype == NF_BYTES)) return "what is gathered or broadcast are bytes, and nothing else";
    if (op->residual || op->reduction == NF_SATURATED) return "error feedback and saturation are an allreduce's";
    if (!op->gathered_rows != (op->collective != NF_EXCHANGE))
        return "expected an exchange to gather, and nothing else";
    if (!within(f, op->rows, op->count) || !within(f, op->gathered_rows, op->gathered_bytes))
        return "expected rows within the tensor";
    return NULL;
}

static const char *refusal(const nf_fold *f, const nf_operation *op) {
    /* its packets are of the arrays and scales of the one before */
    if (!nf_fold_finished(f)) return "the operation before has not ended";
    const char *why = op->collective == NF_ALLREDUCE ? NULL : refusal_of_rows(f, op);
    if (why) return why;
    if (op->collective == NF_ALLREDUCE && (op->rows || op->dtype == NF_BYTES || op->out_first))
        return "an allreduce is of the whole tensor, of numbers";
    bool adds = op->reduction == NF_SUM || op->reduction == NF_AVERAGE, narrow = op->lane_bits != 32;
    if (op->lane_bits != 32 && op->lane_bits != 16 && op->lane_bits != 8) return "expected lanes of 32, 16 or 8 bits";
    if (narrow && op->dtype != NF_BYTES && (op->dtype != NF_FLOAT32 || !adds))
        return "narrow lanes are for sums and averages of float32";
    if (narrow && op->dtype != NF_BYTES && nf_levels(f->world, op->lane_bits) == 0)
        return "8-bit lanes hold the sum of 127 ranks at most: use 16 bits";
    if (op->residual && !narrow) return "error feedback is for narrow lanes";
    if (op->reduction == NF_SATURATED && op->dtype != NF_INT32) return "saturating sums are of int32";
    return NULL;
}

static uint32_t lanes_of(const nf_operation *op) {
    switch (op->reduction) {
    case NF_SATURATED: return NF_SAT32;
    case NF_MAX:
    case NF_MIN: return NF_MAX32;
    default: return op->lane_bits == 32 ? NF_SUM32 : op->lane_bits == 16 ? NF_SUM16 : NF_SUM8;
    }
}

static uint64_t pieces_of(const nf_fold *f, const nf_row *rows, uint32_t piece) {
    uint64_t n = 0;
    for (uint32_t r = 0; rows && r < f->world; r++) n += (rows[r].count + piece - 1) / piece;
    return n;
}

/* Adds the pieces of a row's turn.  Returns where the next ones go. */
static nf_piece *add_turn(nf_piece *to, const nf_row *row, uint32_t owner, uint64_t turn, uint32_t piece, bool bytes) {
    uint64_t each = (uint64_t)NF_TURN_PACKETS * piece;
    for (uint64_t at = turn * each; at < (turn + 1) * each && at < row->count; at += piece) {
        uint64_t left = row->count - at;
        *to++ = (nf_piece){row->first + at, (uint32_t)(left < piece ? left : piece), owner, bytes};
    }
    return to;
}

/* Cuts the rows into pieces, which take turns.  Returns how many there are; false in *enough: memory is short. */
static uint64_t cut_rows(nf_fold *f, const nf_operation *op, uint32_t piece, bool *enough) {
    uint64_t n = pieces_of(f, op->rows, piece) + pieces_of(f, op->gathered_rows, f->path_mtu);
    *enough = true;
    if (n > f->pieces_room) {
        nf_piece *more = realloc(f->pieces, n * sizeof *more);
        if (!more) {
            *enough = false;
            return 0;
        }
        f->pieces = more;
        f->pieces_room = n;
    }
    nf_piece *to = f->pieces;
    for (uint64_t turn = 0; to < f->pieces + n; turn++)
        for (uint32_t r = 0; r < f->world; r++) {
            to = add_turn(to, op->rows + r, r, turn, piece, op->dtype == NF_BYTES);
            if (op->gathered_rows) to = add_turn(to, op->gathered_rows + r, r, turn, f->path_mtu, true);
        }
    return n;
}

static uint32_t digest_of_rows(const nf_fold *f, const nf_operation *op) {
    if (!op->rows || op->collective == NF_REDUCE || op->collective == NF_BROADCAST) return 0;
    uint64_t digest = 0xcbf29ce484222325; /* FNV-1a, by row */
    for (uint32_t r = 0; r < f->world; r++) {
        digest = (digest ^ op->rows[r].count) * 0x100000001b3;
        if (op->gathered_rows) digest = (digest ^ op->gathered_rows[r].count) * 0x100000001b3;
    }
    return (uint32_t)(digest >> 33);
}

static void fill_signature(nf_fold *f) {
    const nf_operation *op = &f->op;
    f->signature[NF_FIELD_COLLECTIVE] = (uint32_t)op->collective;
    f->signature[NF_FIELD_ROOT] = op->root;
    f->signature[NF_FIELD_ROWS] = digest_of_rows(f, op);
    f->signature[NF_FIELD_NUMBER] = op->number & NF_FIELD_TOP;
    f->signature[NF_FIELD_DTYPE] = (uint32_t)op->dtype | op->called << 8;
    f->signature[NF_FIELD_REDUCTION] = (uint32_t)op->reduction;
    f->signature[NF_FIELD_LANE_BITS] = op->lane_bits;
    f->signature[NF_FIELD_COUNT_LOW] = op->count & NF_FIELD_TOP;
    f->signature[NF_FIELD_COUNT_HIGH] = (uint32_t)(op->count >> 31) & NF_FIELD_TOP;
    f->signature[NF_FIELD_WORLD] = f->world;
    f->signature[NF_FIELD_TREES] = f->n_trees;
    f->signature[NF_FIELD_GUESS] = nf_guess_digest(&f->guess);
    f->signature[NF_FIELD_MESSAGE] = nf_message_of(f, &f->trees[0].channels[NF_DATA_STREAM]);
}

/* Guesses the scales of a sum of floats that one tree has whole.  Not in jobs with NICs, where the packets of a message
 * are what the NIC was told, nor in narrow lanes, whose scales are never the same twice. */
static void guess(nf_fold *f, uint64_t blocks) {
    bool may = f->scaled && f->op.collective != NF_EXCHANGE && f->op.lane_bits == 32 &&
               !f->trees[0].channels[NF_DATA_STREAM].plan.message && nf_blocks_of(f, &f->trees[0]) == blocks;
    nf_guess_begin(&f->guess, &f->past, f->op.count, may ? blocks : 0, f->piece / NF_BLOCK);
}

bool nf_fold_start(nf_fold *f, const nf_operation *op, int64_t now, const char **why) {
    if ((*why = refusal(f, op))) return false;
    uint32_t piece = op->dtype == NF_BYTES ? f->path_mtu : f->path_mtu * 8 / op->lane_bits;
    bool enough = true;
    uint64_t pieces = op->rows                       ? cut_rows(f, op, piece, &enough)
                      : op->collective == NF_BARRIER ? 0
                                                     : (op->count + piece - 1) / piece;
    uint64_t blocks = pieces * piece / NF_BLOCK;
    *why = "out of memory for the rows' pieces";
    if (!enough) return false;
    bool scaled = op->dtype == NF_FLOAT32 && (op->reduction == NF_SUM || op->reduction == NF_AVERAGE);
    if (scaled && blocks > f->scales_room) {
        uint32_t *more = realloc(f->scales, blocks * sizeof *more);
        *why = "out of memory for the blocks' scales";
        if (!more) return false;
        f->scales = more;
        f->scales_room = blocks;
    }
    f->op = *op;
    f->piece = piece;
    f->itemsize = op->dtype == NF_BYTES ? 1 : sizeof(float);
    f->scaled = scaled;
    /* in place the lines that are overwritten were read just now */
    f->past_caches = nf_can_pass_caches() && op->out != op->source && !op->rows && nf_fold_bytes(f) >= NF_LARGE;
    f->narrowing = (nf_narrowing){.bits = op->lane_bits,
                                  .levels = nf_levels(f->world, op->lane_bits),
                                  .stochastic = op->stochastic,
                                  .key = op->key};
    f->saturated = 0;
    f->progress = now;
    f->failure = (nf_failure){.error = NF_OK};
    stripe(f, pieces);
    guess(f, blocks);
    fill_signature(f);
    for (uint32_t t = 0; t < f->n_trees; t++) {
        nf_tree *tr = &f->trees[t];
        nf_channel *agreement = &tr->channels[NF_AGREEMENT_STREAM], *data = &tr->channels[NF_DATA_STREAM];
        tr->signature = t == 0;
        agreement->lanes = NF_MAX32;
        agreement->base = agreement->history.next;
        agreement->packets = tr->signature + (scaled ? (nf_blocks_of(f, tr) + f->entries - 1) / f->entries : 0);
        data->lanes = lanes_of(op);
        data->base = data->history.next;
        data->packets = t == 0 && f->guess.guessed ? f->guess.guessed : tr->pieces;
        if (data->plan.message && data->lanes == NF_MAX32) { /* a NIC's queue pair has one operation: here are maxima */
            agreement->packets += data->packets;
            data->packets = 0;
        }
        for (uint32_t other = 0; other < f->n_trees; other++) { /* paths of one fabric are much alike */
            nf_stream_seed_rtt(&agreement->stream, &f->trees[other].channels[NF_DATA_STREAM].stream);
            nf_stream_seed_rtt(&data->stream, &f->trees[other].channels[NF_DATA_STREAM].stream);
        }
        nf_stream_end_at(&agreement->stream, agreement->base + agreement->packets);
        nf_stream_end_at(&data->stream, data->base + data->packets);
        if (data->packets) nf_stream_learn(&agreement->stream, &data->stream);
    }
    return true;
}

/* ---- trees planned anew ------------------------------------------------------------------------------------------ */
uint32_t nf_fold_missing(const nf_fold *f, uint32_t t, nf_kind kind) {
    const nf_channel *c = &f->trees[t].channels[kind];
    const nf_history *h = &c->history;
    uint64_t seq = h->una;
    if (!c->plan.message || seq == 0) return nf_stream_psn(&c->stream, seq);
    if (seq == h->next) { /* nothing is outstanding: a message begins here, unless only a part of the last one left */
        if (nf_ends_message(nf_history_at(h, seq - 1)->header.opcode)) return nf_stream_psn(&c->stream, seq);
        seq--;
    }
    while (!nf_begins_message(nf_history_at(h, seq)->header.opcode)) seq--;
    return nf_stream_psn(&c->stream, seq);
}

/* A tree that stays has the queue pairs that it had: a rank that began there anew would repeat PSNs whose slots may
 * have moved on, by what it sent before. */
static bool stays_as_planned(const nf_channel *c, const nf_stream_plan *plan) {
    return plan->qp == c->plan.qp && plan->peer_qp == c->plan.peer_qp && plan->slots == c->plan.slots;
}

/* How many packets before the lowest one without a result all ranks begin: not more than are kept. */
static bool rewind_of(const nf_channel *c, const nf_stream_plan *plan, uint64_t *back) {
    *back = (nf_stream_psn(&c->stream, c->history.una) - plan->psn) & NF_PSN_MASK;
    return *back <= c->history.una && c->history.next - (c->history.una - *back) <= c->history.size;
}

bool nf_fold_resume(nf_fold *f, const nf_tree_plan *plans, int64_t now, const char **why) {
    uint64_t back;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            const nf_channel *c = &f->trees[t].channels[kind];
            const nf_stream_plan *plan = &plans[t].streams[kind];
            *why = plans[t].stays ? "a tree is to stay whose queue pairs or slots this rank does not have"
                                  : "the first PSN is none that this rank still has";
            if (!(plans[t].stays ? stays_as_planned(c, plan) : rewind_of(c, plan, &back))) return false;
        }
    *why = "out of memory";
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2 && !plans[t].stays; kind++) {
            nf_channel *c = &f->trees[t].channels[kind];
            rewind_of(c, &plans[t].streams[kind], &back);
            c->plan = plans[t].streams[kind];
            uint32_t most = c->history.size / 2;
            if (!nf_stream_restart(&c->stream, c->history.una - back, c->plan.window < most ? c->plan.window : most))
                return false;
        }
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) f->trees[t].channels[kind].stream.waits_since = now;
    f->progress = now;
    return true;
}

bool nf_fold_messages(nf_fold *f, uint32_t packets, uint32_t credits) {
    if (packets < 1 || packets > NF_MESSAGE_PACKETS) return false;
    f->message = packets;
    f->credits = credits;
    return true;
}

void nf_fold_no_presence(nf_fold *f) { f->no_presence = true; }

/* ---- time and state ---------------------------------------------------------------------------------------------- */
void nf_fold_tick(nf_fold *f, int64_t now) {
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) nf_stream_tick(&f->trees[t].channels[kind].stream, now);
}

int64_t nf_fold_deadline(const nf_fold *f) {
    int64_t first = NF_NEVER;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            int64_t due = nf_stream_deadline(&f->trees[t].channels[kind].stream);
            first = due < first ? due : first;
        }
    return first;
}

bool nf_fold_finished(const nf_fold *f) {
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) {
            const nf_channel *c = &f->trees[t].channels[kind];
            if (c->stream.una != c->base + c->packets) return false;
        }
    return true;
}

const nf_failure *nf_fold_failure(const nf_fold *f) { return &f->failure; }
int64_t nf_fold_progress(const nf_fold *f) { return f->progress; }
uint64_t nf_fold_foreign(const nf_fold *f) { return f->foreign; }
uint64_t nf_fold_unfolded(const nf_fold *f) { return f->unfolded; }
uint64_t nf_fold_corrupt(const nf_fold *f) { return f->corrupt; }

uint64_t nf_fold_refused(const nf_fold *f, nf_origin *last) {
    *last = f->refused_from;
    return f->refused;
}

uint64_t nf_fold_bytes(const nf_fold *f) { return f->op.count * f->itemsize + f->op.gathered_bytes; }

uint64_t nf_fold_saturated(const nf_fold *f) { return f->saturated; }

uint64_t nf_fold_elements(const nf_fold *f, uint32_t t) {
    const nf_tree *tr = &f->trees[t];
    uint64_t sum = 0;
    for (uint64_t p = tr->first; p < tr->first + tr->pieces; p++) sum += nf_piece_at(f, p).count;
    return sum;
}

uint64_t nf_fold_carried(const nf_fold *f, uint32_t t) {
    const nf_tree *tr = &f->trees[t];
    uint64_t sum = 0;
    for (uint64_t number = tr->first; number < tr->first + tr->pieces; number++) {
        nf_piece p = nf_piece_at(f, number);
        sum += p.count * (p.bytes ? 1 : f->itemsize);
    }
    return sum;
}

uint64_t nf_fold_retransmitted(const nf_fold *f) {
    uint64_t sum = 0;
    for (uint32_t t = 0; t < f->n_trees; t++)
        for (int kind = 0; kind < 2; kind++) sum += f->trees[t].channels[kind].stream.counters.retransmitted;
    return sum;
}

const nf_totals *nf_fold_totals(nf_fold *f) {
    f->totals = (nf_totals){.progress = f->progress,
                            .retransmitted = nf_fold_retransmitted(f),
                            .dropped = f->refused + f->corrupt,
                            .saturated = f->saturated};
    return &f->totals;
}

void nf_fold_stream_state(const nf_fold *f, uint32_t t, nf_kind kind, nf_stream_state *state) {
    const nf_channel *c = &f->trees[t].channels[kind];
    *state = (nf_stream_state){.sent_ahead = c->history.next - c->base,
                               .results = c->history.una - c->base,
                               .packets = c->packets,
                               .una_psn = nf_stream_psn(&c->stream, c->stream.una),
                               .window = c->stream.window,
                               .rto = c->stream.timer.rto,
                               .srtt = c->stream.rtt.srtt,
                               .waits_since = c->stream.waits_since,
                               .counters = c->stream.counters};
}
