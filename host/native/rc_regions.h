/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that peers may write to.
 */
#ifndef NF_RC_REGIONS_H
#define NF_RC_REGIONS_H
#include "rc_state.h"

/* Where `length` bytes at `offset` of the region with this key lie; NULL where they are not registered. */
uint8_t *nf_rc_region(nf_rc *, uint32_t key, uint64_t offset, uint64_t length);
/* Takes in that a message, which `arrived` tells of, lies in its region.  *tell: the owner is to hear of it: of each in
 * most regions; in one to be filled of the last, whose event then tells of the whole, and the region ends.  Returns 0,
 * or the syndrome of the NAK that refuses the message: its region has ended meanwhile; or messages in a region to be
 * filled overlap, so that their lengths do not say what is in, and the region ends untold. */
uint8_t nf_rc_filled(nf_rc *, nf_rc_event *arrived, bool *tell);
#endif
