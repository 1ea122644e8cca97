/* SPDX-License-Identifier: Apache-2.0 */
#include "rc_events.h"

#include <stdlib.h>

#define MOST_EVENTS (1u << 31) /* a place in the ring plus a count of events fits 32 bits */

bool nf_rc_reserve_events(nf_rc *rc, uint32_t more) {
    uint64_t wanted = (uint64_t)rc->event_count + rc->reserved_events + more;
    uint64_t room = rc->event_room ? rc->event_room : 64;
    if (wanted <= rc->event_room) return true;
    if (wanted > MOST_EVENTS) return false;
    while (room < wanted) room *= 2;
    nf_rc_event *events = malloc(room * sizeof *events);
    if (!events) return false;
    for (uint32_t i = 0; i < rc->event_count; i++) events[i] = rc->events[(rc->event_head + i) % rc->event_room];
    free(rc->events);
    rc->events = events;
    rc->event_head = 0;
    rc->event_room = (uint32_t)room;
    return true;
}

static bool of_one_message(const nf_rc_event *event) { return event->what == NF_RC_ARRIVED && event->length; }

void nf_rc_emit(nf_rc *rc, const nf_rc_event *event) {
    if (event->what == NF_RC_SENT || event->what == NF_RC_BROKEN) rc->reserved_events--;
    rc->events_sent += event->what == NF_RC_SENT;
    rc->events_arrived += of_one_message(event);
    rc->events[(rc->event_head + rc->event_count++) % rc->event_room] = *event;
}

bool nf_rc_event_next(nf_rc *rc, nf_rc_event *event) {
    if (!rc->event_count) return false;
    *event = rc->events[rc->event_head];
    rc->event_head = (rc->event_head + 1) % rc->event_room;
    rc->event_count--;
    rc->events_sent -= event->what == NF_RC_SENT;
    rc->events_arrived -= of_one_message(event);
    return true;
}

bool nf_rc_has_events(const nf_rc *rc, uint32_t quiet) {
    uint32_t sent = quiet & NF_RC_QUIET_SENT ? rc->events_sent : 0;
    return rc->event_count > sent + (quiet & NF_RC_QUIET_ARRIVED ? rc->events_arrived : 0);
}

uint64_t nf_rc_progress(const nf_rc *rc) { return rc->progress; }
uint64_t nf_rc_foreign(const nf_rc *rc) { return rc->foreign; }

uint64_t nf_rc_corrupt(const nf_rc *rc) { return rc->corrupt; }

uint64_t nf_rc_refused(const nf_rc *rc, nf_origin *last) {
    *last = rc->refused_from;
    return rc->refused;
}
