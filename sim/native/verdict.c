/* SPDX-License-Identifier: Apache-2.0 */
#include "verdict.h"

static struct verdict say(enum fold_target to, enum fold_turns turns, enum fold_outcome outcome, int done) {
    return (struct verdict){(uint8_t)to, (uint8_t)turns, (uint8_t)outcome, (uint8_t)done};
}

static struct verdict contribution(enum slot_age age, int done, int seen, int complete, int fills, int root) {
    if (age == OLDER) return say(NOBODY, ITSELF, LATE, 0);
    if (age == SAME && done) return say(ASKER, ITSELF, ANSWERED, 1);
    if (age == SAME && seen) return complete ? say(PARENT, ITSELF, ASKED, 0) : say(NOBODY, ITSELF, WAITED, 0);
    if (!fills) return say(NOBODY, ITSELF, FIRST, 0);
    return root ? say(ALL, ITSELF, FIRST, 1) : say(PARENT, ITSELF, FIRST, 0);
}

static struct verdict question(enum slot_age age, int done, int seen, int complete) {
    if (age == OLDER) return say(NOBODY, ITSELF, LATE, 0);
    if (age == NEWER) return say(ASKER, NAK, LACKED, 0);
    if (done) return say(ASKER, RETRANSMIT, ANSWERED, 1);
    if (complete) return say(PARENT, NAK, ASKED, 0);
    return seen ? say(NOBODY, ITSELF, WAITED, 0) : say(ASKER, NAK, LACKED, 0);
}

struct verdict verdict(enum fold_kind packet, enum slot_age age, int done, int seen, int complete, int fills,
                       int root) {
    switch (packet) {
    case UP: return contribution(age, done, seen, complete, fills, root);
    case DOWN: return age == SAME && !done && complete ? say(ALL, ITSELF, FIRST, 1) : say(NOBODY, ITSELF, REPEATED, 0);
    case ASK_UP: return question(age, done, seen, complete);
    default:
        if (age == OLDER || (age == SAME && done)) return say(NOBODY, ITSELF, LATE, 0);
        return age == SAME && complete ? say(ASKER, RETRANSMIT, ANSWERED, 0) : say(NOBODY, ITSELF, WAITED, 0);
    }
}

uint32_t sim_verdict(int packet, int age, int done, int seen, int complete, int fills, int root) {
    struct verdict v = verdict((enum fold_kind)packet, (enum slot_age)age, done, seen, complete, fills, root);
    return (uint32_t)v.to | (uint32_t)v.turns << 8 | (uint32_t)v.outcome << 16 | (uint32_t)v.done << 24;
}
