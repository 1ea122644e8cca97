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

bool nf_rc_filled(nf_rc *rc, nf_rc_event *arrived) {
    nf_region *r = region(rc, arrived->key);
    if (!r) return false;
    if (!r->fill) return true;
    r->unfilled -= arrived->length < r->unfilled ? arrived->length : r->unfilled;
    if (r->unfilled) return false;
    arrived->offset = arrived->length = 0;
    nf_rc_deregister(rc, arrived->key);
    return true;
}
