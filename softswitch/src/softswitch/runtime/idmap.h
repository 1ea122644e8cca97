/* SPDX-License-Identifier: Apache-2.0
 *
 * A map from 32-bit ids to pointers that also numbers its items: each takes the lowest free slot, and iteration goes by
 * slot, so it is in order of creation unless slots were freed before.
 */
#ifndef SS_IDMAP_H
#define SS_IDMAP_H
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t *ids;
    void **items; /* by slot; items[slot] == NULL: free */
    uint32_t n_slots, free_hint, used;
    uint32_t *buckets;
    uint32_t n_buckets; /* slot + 1, 0: empty; open addressing, at most half full */
} ss_idmap;

static inline uint32_t ss_idmap_home(const ss_idmap *m, uint32_t id) { return (id * 0x9E3779B1u) & (m->n_buckets - 1); }

/* The bucket that holds id, or UINT32_MAX. */
static inline uint32_t ss_idmap_bucket(const ss_idmap *m, uint32_t id) {
    if (m->used == 0) return UINT32_MAX;
    for (uint32_t b = ss_idmap_home(m, id);; b = (b + 1) & (m->n_buckets - 1)) {
        if (m->buckets[b] == 0) return UINT32_MAX;
        if (m->ids[m->buckets[b] - 1] == id) return b;
    }
}

static inline void *ss_idmap_get(const ss_idmap *m, uint32_t id) {
    uint32_t b = ss_idmap_bucket(m, id);
    return b == UINT32_MAX ? NULL : m->items[m->buckets[b] - 1];
}

static inline void ss_idmap_place(ss_idmap *m, uint32_t slot) {
    uint32_t b = ss_idmap_home(m, m->ids[slot]);
    while (m->buckets[b]) b = (b + 1) & (m->n_buckets - 1);
    m->buckets[b] = slot + 1;
}

/* Adds a new id (the caller has checked that it is new); the slot, or UINT32_MAX without memory. */
static inline uint32_t ss_idmap_add(ss_idmap *m, uint32_t id, void *item) {
    uint32_t slot = m->free_hint;
    while (slot < m->n_slots && m->items[slot]) slot++;
    if (slot == m->n_slots) {
        uint32_t n = m->n_slots ? 2 * m->n_slots : 16;
        uint32_t *ids = realloc(m->ids, n * sizeof *ids);
        if (ids) m->ids = ids;
        void **items = realloc(m->items, n * sizeof *items);
        if (items) m->items = items;
        uint32_t *buckets = calloc(4 * (size_t)n, sizeof *buckets);
        if (!ids || !items || !buckets) {
            free(buckets);
            return UINT32_MAX;
        }
        memset(m->items + m->n_slots, 0, (n - m->n_slots) * sizeof *items);
        free(m->buckets);
        m->buckets = buckets;
        m->n_buckets = 4 * n;
        uint32_t old = m->n_slots;
        m->n_slots = n;
        for (uint32_t s = 0; s < old; s++) ss_idmap_place(m, s); /* all taken, or no slot would be missing */
    }
    m->ids[slot] = id;
    m->items[slot] = item;
    m->free_hint = slot + 1;
    m->used++;
    ss_idmap_place(m, slot);
    return slot;
}

static inline void *ss_idmap_remove(ss_idmap *m, uint32_t id) {
    uint32_t b = ss_idmap_bucket(m, id);
    if (b == UINT32_MAX) return NULL;
    uint32_t slot = m->buckets[b] - 1, mask = m->n_buckets - 1;
    void *item = m->items[slot];
    m->buckets[b] = 0;
    for (uint32_t next = (b + 1) & mask; m->buckets[next]; next = (next + 1) & mask) { /* close the gap */
        uint32_t home = ss_idmap_home(m, m->ids[m->buckets[next] - 1]);
        if (((next - home) & mask) < ((next - b) & mask)) continue;
        m->buckets[b] = m->buckets[next];
        m->buckets[next] = 0;
        b = next;
    }
    m->items[slot] = NULL;
    if (slot < m->free_hint) m->free_hint = slot;
    m->used--;
    return item;
}

static inline void ss_idmap_free(ss_idmap *m) {
    free(m->ids);
    free(m->items);
    free(m->buckets);
    memset(m, 0, sizeof *m);
}
#endif
