/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames that leave a packet's deparser: what was deparsed, the payload behind it, both cut where the program says so.
 */
#ifndef SS_OUTGOING_H
#define SS_OUTGOING_H
#include "internal.h"

/* The frame, as `out` (of at least `cap` bytes) and what it refers to: header bytes, payload, truncation.  Its length;
 * 0 where it is longer than any frame may be, or truncated to nothing. */
uint32_t ss_build(ss_switch *sw, void *state, uint8_t *out, uint32_t cap, bool truncate, ss_outgoing *made);
/* The frame in out[0..length). */
uint32_t ss_build_whole(ss_switch *sw, void *state, uint8_t *out, uint32_t cap, bool truncate);
#endif
