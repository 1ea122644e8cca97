/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that peers may write to.
 */
#ifndef NF_RC_REGIONS_H
#define NF_RC_REGIONS_H
#include "rc_state.h"

/* Where `length` bytes at `offset` of the region with this key lie; NULL where they are not registered. */
uint8_t *nf_rc_region(nf_rc *, uint32_t key, uint64_t offset, uint64_t length);
#endif
