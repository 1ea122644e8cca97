/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums and hashes that are remembered.
 */
#ifndef SS_SUMS_H
#define SS_SUMS_H
#include "softswitch.h"

uint32_t ss_sum_known(ss_switch *, const uint8_t *bytes, uint32_t n); /* SS_NO_SUM where it would have to be computed */
void ss_sum_is(ss_switch *, const uint8_t *bytes, uint32_t n, uint32_t sum);
#endif
