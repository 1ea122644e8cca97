/* SPDX-License-Identifier: Apache-2.0 */
#include "fold_guess.h"

/* What is remembered of this length; where it is new, in place of what was used the longest ago. */
static nf_length_past *past_of(nf_past *p, uint64_t count, uint32_t blocks) {
    nf_length_past *oldest = p->lengths;
    for (nf_length_past *l = p->lengths; l < p->lengths + NF_GUESS_LENGTHS; l++) {
        if (l->used && l->count == count && l->n_blocks == blocks) return l;
        if (l->used < oldest->used) oldest = l;
    }
    *oldest = (nf_length_past){.count = count, .n_blocks = blocks, .pause = 1};
    return oldest;
}

/* The packets in guessed scales: all pieces in the last scales, then those with a block that has another one. */
static void guess(nf_guess *g) {
    for (uint32_t b = 0; b < g->blocks; b++)
        for (uint32_t t = 0; t < NF_GUESSES; t++) g->tried[t][b] = g->past->blocks[b].tried[t];
    for (uint32_t t = 0; t < NF_GUESSES; t++)
        for (uint32_t first = 0; first < g->blocks; first += g->each) {
            bool some = false;
            for (uint32_t b = first; b < first + g->each; b++) some |= g->tried[t][b] != NF_NO_SCALE;
            if (some) g->piece[g->guessed++] = (uint8_t)(first / g->each);
        }
}

void nf_guess_begin(nf_guess *g, nf_past *p, uint64_t count, uint64_t blocks, uint32_t each) {
    *g = (nf_guess){.each = each};
    if (blocks == 0 || blocks > NF_SHORT_BLOCKS) return;
    g->past = past_of(p, count, (uint32_t)blocks);
    g->blocks = (uint32_t)blocks;
    g->past->used = ++p->clock;
    if (g->past->paused)
        g->past->paused--;
    else if (g->past->known)
        guess(g);
}

uint32_t nf_guess_digest(const nf_guess *g) {
    if (!g->guessed) return 0;
    uint64_t digest = 0xcbf29ce484222325; /* FNV-1a, by scale */
    for (uint32_t t = 0; t < NF_GUESSES; t++)
        for (uint32_t b = 0; b < g->blocks; b++) digest = (digest ^ g->tried[t][b]) * 0x100000001b3;
    return (uint32_t)(digest >> 33) | 1;
}

/* Which of the tried scales packet i is in. */
static uint32_t turn_of(const nf_guess *g, uint32_t i) { return i * g->each < g->blocks ? 0 : 1; }

uint32_t nf_guess_scale(const nf_guess *g, const uint32_t *agreed, uint32_t i, uint32_t block) {
    return i < g->guessed ? g->tried[turn_of(g, i)][block] : agreed[block];
}

bool nf_guess_holds(const nf_guess *g, const uint32_t *agreed, uint32_t i, uint32_t block) {
    if (i >= g->guessed) return true;
    return !g->wrong[block / g->each] && g->tried[turn_of(g, i)][block] == agreed[block];
}

static void remember(nf_block_past *b, uint16_t scale, bool known) {
    if (!known) {
        *b = (nf_block_past){.tried = {scale, NF_NO_SCALE}};
    } else if (b->tried[0] != scale) {
        *b = (nf_block_past){.tried = {scale, b->tried[0]}};
    } else if (++b->age >= NF_GUESS_AGE) {
        *b = (nf_block_past){.tried = {scale, NF_NO_SCALE}};
    }
}

void nf_guess_settle(nf_guess *g, const uint32_t *agreed) {
    g->agreed = true;
    if (!g->past) return;
    if (g->guessed) {
        for (uint32_t b = 0; b < g->blocks; b++)
            g->wrong[b / g->each] |= g->tried[0][b] != agreed[b] && g->tried[1][b] != agreed[b];
        for (uint32_t piece = 0; piece < g->blocks / g->each; piece++)
            if (g->wrong[piece]) g->piece[g->guessed + g->repeated++] = (uint8_t)piece;
        g->past->paused = g->repeated ? g->past->pause : 0;
        g->past->pause = !g->repeated ? 1 : g->past->pause < NF_GUESS_PAUSE ? 2 * g->past->pause : NF_GUESS_PAUSE;
    }
    for (uint32_t b = 0; b < g->blocks; b++) remember(&g->past->blocks[b], (uint16_t)agreed[b], g->past->known);
    g->past->known = true;
}
