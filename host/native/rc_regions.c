/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_regions.h"

#include <stdlib.h>

/* A key is generation << 16 | index, so that a late packet does not write into the next message that takes the
 * place. */
int64_t nf_rc_register(nf_rc *rc, void *base, uint64_t length, bool fill) {
    uint32_t i = rc->first_free;
    while (i < rc->n_regions && rc->regions[i].used) i++;
    if (i == rc->room_regions) {
        uint32_t room = rc->room_regions ? 2 * rc->room_regions : 64;
        nf_region *more = room <= 1u << 16 ? realloc(rc->regions, room * sizeof *more) : NULL;
        if (!more) return -1;
        memset(more + rc->room_regions, 0, (room - rc->room_regions) * sizeof *more);
        rc->regions = more;
        rc->room_regions = room;
    }
    if (i == rc->n_regions) rc->n_regions++;
    rc->first_free = i + 1;
    nf_region *r = &rc->regions[i];
    r->base = base;
    r->length = r->unfilled = length;
    r->edges = 0;
    r->fill = fill;
    r->used = true;
    return (int64_t)((uint32_t)r->generation << 16 | i);
}

static nf_region *region(const nf_rc *rc, uint32_t key) {
    uint32_t i = key & 0xffff;
    if (i >= rc->n_regions || !rc->regions[i].used || rc->regions[i].generation != key >> 16) return NULL;
    return &rc->regions[i];
}

void nf_rc_deregister(nf_rc *rc, uint32_t key) {
    nf_region *r = region(rc, key);
    if (!r) return;
    r->used = false;
    r->generation++;
    if ((key & 0xffff) < rc->first_free) rc->first_free = key & 0xffff;
}

uint8_t *nf_rc_region(nf_rc *rc, uint32_t key, uint64_t offset, uint64_t length) {
    nf_region *r = region(rc, key);
    return r && offset <= r->length && length <= r->length - offset ? r->base + offset : NULL;
}

uint64_t nf_rc_unfilled(const nf_rc *rc, uint32_t key) {
    const nf_region *r = region(rc, key);
    return r && r->fill ? r->unfilled : 0;
}

/* A pseudo-random value of a byte's offset, by the last steps of splitmix64. */
static uint64_t hash(uint64_t offset) {
    offset = (offset ^ offset >> 30) * 0xBF58476D1CE4E5B9u;
    offset = (offset ^ offset >> 27) * 0x94D049BB133111EBu;
    return offset ^ offset >> 31;
}

/* Messages as long as the region together need not cover it: [0, 50) twice leaves half of 100 bytes as they were.  So
 * `edges` sums hash(end) - hash(offset) over the messages.  Where they cover the region once, in whatever order, over
 * whatever queue pairs, all terms but the region's own ends cancel.  They cancel only then, hashes that collide apart:
 * where as many messages end as begin at every inner offset, messages form chains that only 0 can begin and only the
 * region's length can end, and there is one more beginning than there are ends at 0, so there is one chain. */
uint8_t nf_rc_filled(nf_rc *rc, nf_rc_event *arrived, bool *tell) {
    nf_region *r = region(rc, arrived->key);
    *tell = r && !r->fill;
    if (!r) return NF_AETH_ACCESS;
    if (!r->fill) return 0;
    bool fits = arrived->length <= r->unfilled;
    r->unfilled -= fits ? arrived->length : 0;
    r->edges += hash(arrived->offset + arrived->length) - hash(arrived->offset);
    if (fits && r->unfilled) return 0;
    *tell = fits && r->edges == hash(r->length) - hash(0);
    nf_rc_deregister(rc, arrived->key);
    arrived->offset = arrived->length = 0;
    return *tell ? 0 : NF_AETH_INVALID;
}
