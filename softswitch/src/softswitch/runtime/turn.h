/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the turn.
 */
#ifndef SS_TURN_H
#define SS_TURN_H
#include "softswitch.h"

bool ss_taken(const ss_switch *, const uint8_t *bytes, uint32_t n); /* whether ss_take gave these */
void ss_turn_keep(ss_switch *, const uint8_t *bytes, uint32_t n);   /* a frame that leaves refers to them */
void ss_turn_packet(ss_switch *);                                   /* the packet is through */
bool ss_turn_full(const ss_switch *); /* so much is taken that copies, and what goes round, must end */
void ss_turn_close(ss_switch *);
#endif
