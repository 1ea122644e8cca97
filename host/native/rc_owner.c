/* SPDX-License-Identifier: Apache-2.0
 * What an endpoint shares with its owner: memory that peers may write to, and news of what happened. */
#include <stdlib.h>

#include "rc_inside.h"

/* ---- regions: key = generation << 16 | index, so that a late packet does not write into the next message ------- */
int64_t nf_rc_register(nf_rc *rc, void *base, uint64_t length)
{
    uint32_t i = rc->free_from;
    while (i < rc->n_regions && rc->regions[i].used)
        i++;
    if (i == rc->room_regions) {
        uint32_t room = rc->room_regions ? 2 * rc->room_regions : 64;
        nf_region *more = room <= 1u << 16 ? realloc(rc->regions, room * sizeof *more) : NULL;
        if (!more)
            return -1;
        memset(more + rc->room_regions, 0, (room - rc->room_regions) * sizeof *more);
        rc->regions = more;
        rc->room_regions = room;
    }
    if (i == rc->n_regions)
        rc->n_regions++;
    rc->free_from = i + 1;
    nf_region *r = &rc->regions[i];
    r->base = base;
    r->length = length;
    r->used = true;
    return (int64_t)((uint32_t)r->generation << 16 | i);
}

static nf_region *region(const nf_rc *rc, uint32_t key)
{
    uint32_t i = key & 0xffff;
    if (i >= rc->n_regions || !rc->regions[i].used || rc->regions[i].generation != key >> 16)
        return NULL;
    return &rc->regions[i];
}

void nf_rc_forget(nf_rc *rc, uint32_t key)
{
    nf_region *r = region(rc, key);
    if (!r)
        return;
    r->used = false;
    r->generation++;
    if ((key & 0xffff) < rc->free_from)
        rc->free_from = key & 0xffff;
}

uint8_t *nf_rc_region(nf_rc *rc, uint32_t key, uint64_t offset, uint64_t length)
{
    nf_region *r = region(rc, key);
    return r && offset <= r->length && length <= r->length - offset ? r->base + offset : NULL;
}

/* ---- events --------------------------------------------------------------------------------------------------- */
bool nf_rc_reserve_events(nf_rc *rc, uint32_t more)
{
    uint32_t wanted = rc->event_count + rc->owed + more, room = rc->event_room ? rc->event_room : 64;
    if (wanted <= rc->event_room)
        return true;
    while (room < wanted)
        room *= 2;
    nf_rc_event *events = malloc(room * sizeof *events);
    if (!events)
        return false;
    for (uint32_t i = 0; i < rc->event_count; i++)
        events[i] = rc->events[(rc->event_head + i) % rc->event_room];
    free(rc->events);
    rc->events = events;
    rc->event_head = 0;
    rc->event_room = room;
    return true;
}

void nf_rc_emit(nf_rc *rc, const nf_rc_event *event)
{
    if (event->what == NF_RC_SENT || event->what == NF_RC_BROKEN)
        rc->owed--;
    rc->events[(rc->event_head + rc->event_count++) % rc->event_room] = *event;
}

bool nf_rc_event_next(nf_rc *rc, nf_rc_event *event)
{
    if (!rc->event_count)
        return false;
    *event = rc->events[rc->event_head];
    rc->event_head = (rc->event_head + 1) % rc->event_room;
    rc->event_count--;
    return true;
}

bool nf_rc_has_events(const nf_rc *rc) { return rc->event_count; }
uint64_t nf_rc_progress(const nf_rc *rc) { return rc->progress; }
uint64_t nf_rc_foreign(const nf_rc *rc) { return rc->foreign; }
