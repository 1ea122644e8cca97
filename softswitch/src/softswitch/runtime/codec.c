/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of what has ids, a page at a time.
 */
#include "codec.h"

int ss_read_items(const ss_idmap *map, const char *what, ss_reader *r, ss_writer *w, ss_put_item put) {
    uint64_t slot = get_u64(r);
    bool one = get_u8(r);
    uint32_t id = get_u32(r);
    if (r->bad) return refuse_short(w);
    const void *item = one ? ss_idmap_get(map, id) : NULL;
    if (one && !item) return refuse(w, SS_NOT_FOUND, "no %s %u", what, id);
    ss_page page = page_begin(w);
    if (one) {
        uint8_t *before = w->at;
        put(w, item);
        page_add(&page, before);
        page_end(&page, 0);
        return SS_OK;
    }
    for (; slot < map->n_slots; slot++) {
        uint8_t *before = w->at;
        if (!map->items[slot]) continue;
        put(w, map->items[slot]);
        if (!page_add(&page, before)) break;
    }
    page_end(&page, slot < map->n_slots ? slot : 0);
    return SS_OK;
}
