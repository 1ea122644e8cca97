/* SPDX-License-Identifier: Apache-2.0 */
/* What a switch does with a packet of a fold: the windowed children's part of p4src/verdict.p4, as a function.
 * tests/sim/test_folding.py holds each of its answers against that table. */
#ifndef SIM_VERDICT_H
#define SIM_VERDICT_H
#include <stdint.h>

enum fold_kind { NO_FOLD, UP, DOWN, ASK_UP, ASK_DOWN }; /* of a packet; asks are NAKs, named by the way they travel */
enum slot_age { SAME, NEWER, OLDER };                   /* the packet's, against the slot's */
enum fold_target { NOBODY, PARENT, ALL, ASKER };
enum fold_turns { ITSELF, NAK, RETRANSMIT };
enum fold_outcome { FIRST, ANSWERED, ASKED, WAITED, LATE, REPEATED, LACKED };

struct verdict {
    uint8_t to, turns, outcome, done;
};

/* done: the slot has the result; seen: the child's contribution is in it; complete: all are; fills: all are, with this
 * one; root: this switch is the tree's. */
struct verdict verdict(enum fold_kind packet, enum slot_age age, int done, int seen, int complete, int fills, int root);
/* The same for tests, as one number. */
uint32_t sim_verdict(int packet, int age, int done, int seen, int complete, int fills, int root);
#endif
