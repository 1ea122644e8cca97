/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser's value sets.
 */
#ifndef SS_VALUE_SETS_H
#define SS_VALUE_SETS_H
#include "codec.h"
#include "softswitch.h"

typedef struct ss_value_set {
    const ss_value_set_info *info;
    uint32_t key_bytes, n;
    uint8_t *members;
} ss_value_set;
bool ss_value_sets_open(ss_switch *);
void ss_value_sets_close(ss_switch *);
void ss_value_sets_reset(ss_switch *);

/* Requests; each returns a status and has written the reply's body. */
int ss_do_value_set_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_value_set_read(ss_switch *, ss_reader *, ss_writer *);
#endif
