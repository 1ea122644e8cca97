/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the turn: what programs compute for a packet and what frames that leave may refer to, taken piece by piece
 * and given back all at once.
 */
#include <stdio.h>
#include "internal.h"

#define CHUNK (256u << 10)

struct ss_chunk {
    ss_chunk *next;
    size_t size;
    uint8_t bytes[] __attribute__((aligned(64)));
};

/* Nobody could go on without: half a value is worse than no switch. */
static ss_chunk *new_chunk(size_t size) {
    ss_chunk *chunk = aligned_alloc(64, sizeof *chunk + size);
    if (!chunk) {
        fputs("softswitch: out of memory for the values of a packet\n", stderr);
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
        if (!*next) *next = new_chunk(size > CHUNK ? size : CHUNK);
        t->now = *next;
        t->used = 0;
    }
    uint8_t *at = t->now->bytes + t->used;
    t->used += size;
    return at;
}

static void free_chunks(ss_chunk *chunk) {
    while (chunk) {
        ss_chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
}

void ss_turn_end(ss_switch *sw) {
    ss_turn *t = &sw->turn;
    if (t->now != t->first) { /* more than one is seldom needed, and may be much */
        free_chunks(t->first->next);
        t->first->next = NULL;
    }
    t->now = t->first;
    t->used = 0;
}

void ss_turn_close(ss_switch *sw) {
    free_chunks(sw->turn.first);
    sw->turn = (ss_turn){0};
}
