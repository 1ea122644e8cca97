/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the turn: what programs compute for a packet and what frames that leave may refer to, taken piece by piece
 * and given back together.  At the end of a packet what was taken behind the last bytes that a frame refers to goes
 * back at once, so that the next packet computes in the same, cached place; at the end of the turn the rest, or one
 * turn later, where another thread sends the frames of a turn during the next one.
 */
#include <stdio.h>
#include "turn.h"
#include "internal.h"

#define CHUNK (256u << 10)
#define MOST (1u << 30) /* bytes of a turn */
#define KEPT_CHUNKS 8u  /* more than these are freed at the end of a turn */

struct ss_chunk {
    ss_chunk *next;
    size_t size;
    uint8_t bytes[] __attribute__((aligned(64)));
};

/* Nobody could go on without: half a value is worse than no switch.  A turn's frames refer to less than 100 MiB, and
 * copies and packets that go round are dropped at a quarter of the limit, so who takes more is a program that computes
 * for ever in one pass, and must not take the machine's memory with it. */
static ss_chunk *new_chunk(const ss_turn *t, size_t size) {
    size_t taken = t->before + size;
    ss_chunk *chunk = taken <= MOST ? aligned_alloc(64, sizeof *chunk + size) : NULL;
    if (!chunk) {
        fprintf(stderr, "softswitch: the values of a packet take %zu bytes: too many, or out of memory\n", taken);
        abort();
    }
    *chunk = (ss_chunk){.size = size};
    return chunk;
}

uint8_t *ss_take(ss_switch *sw, uint32_t n) {
    ss_turn *t = &sw->turn;
    size_t size = ((size_t)n + 63) & ~(size_t)63;
    while (!t->now || t->now->size - t->used < size) {
        ss_chunk **next = t->now ? &t->now->next : &t->first;
        if (t->now) t->before += t->now->size;
        if (!*next) *next = new_chunk(t, size > CHUNK ? size : CHUNK);
        t->now = *next;
        t->used = 0;
    }
    uint8_t *at = t->now->bytes + t->used;
    t->used += size;
    return at;
}

bool ss_taken(const ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    for (const ss_chunk *chunk = sw->turn.first; chunk; chunk = chunk->next) {
        size_t at = (uintptr_t)bytes - (uintptr_t)chunk->bytes;
        if (at <= chunk->size && n <= chunk->size - at) return true;
        if (chunk == sw->turn.now) break;
    }
    return false;
}

/* What lies in front of the chunk of the mark is kept in any case. */
void ss_turn_keep(ss_switch *sw, const uint8_t *bytes, uint32_t n) {
    ss_turn *t = &sw->turn;
    size_t before = t->kept_before;
    for (ss_chunk *c = t->kept ? t->kept : t->first; c; before += c->size, c = c->next) {
        size_t at = (uintptr_t)bytes - (uintptr_t)c->bytes;
        if (at < c->size && (c != t->kept || at + n > t->mark)) {
            t->kept = c;
            t->kept_before = before;
            t->mark = (at + n + 63) & ~(size_t)63;
        }
        if (at < c->size || c == t->now) return;
    }
}

void ss_turn_packet(ss_switch *sw) {
    ss_turn *t = &sw->turn;
    t->now = t->kept ? t->kept : t->first;
    t->used = t->mark;
    t->before = t->kept_before;
}

bool ss_turn_full(const ss_switch *sw) { return sw->turn.before + sw->turn.used > MOST / 4; }

static void free_chunks(ss_chunk *chunk) {
    while (chunk) {
        ss_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

static void end(ss_turn *t) {
    ss_chunk *last = t->first;
    for (uint32_t n = 1; last && n < KEPT_CHUNKS; n++) last = last->next;
    if (last) {
        free_chunks(last->next);
        last->next = NULL;
    }
    *t = (ss_turn){.first = t->first, .now = t->first};
}

void ss_turn_end(ss_switch *sw) { end(&sw->turn), end(&sw->turn_before); }

void ss_turn_next(ss_switch *sw) {
    ss_turn before = sw->turn_before;
    sw->turn_before = sw->turn;
    sw->turn = before;
    end(&sw->turn);
}

void ss_turn_close(ss_switch *sw) {
    free_chunks(sw->turn.first);
    free_chunks(sw->turn_before.first);
    sw->turn = sw->turn_before = (ss_turn){0};
}
