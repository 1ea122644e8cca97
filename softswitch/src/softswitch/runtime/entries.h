/* SPDX-License-Identifier: Apache-2.0
 *
 * Table requests: entries, default actions, their direct counters and meters.
 */
#ifndef SS_ENTRIES_H
#define SS_ENTRIES_H
#include "codec.h"
#include "rules.h"

bool ss_entries_const(ss_switch *); /* installs the program's const entries and defaults */
void ss_entry_unref(ss_switch *, const ss_table *, const ss_rule *);
void ss_put_entry(ss_writer *, const ss_table *, const ss_rule *, uint64_t now_us);

/* Requests; each returns a status and has written the reply's body. */
int ss_do_table_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_table_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_default_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_default_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_table_clear(ss_switch *, ss_reader *, ss_writer *);
int ss_do_direct_counter(ss_switch *, ss_reader *, ss_writer *);
int ss_do_direct_meter(ss_switch *, ss_reader *, ss_writer *);
#endif
