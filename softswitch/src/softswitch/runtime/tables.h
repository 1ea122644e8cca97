/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables: finding and changing the entry for a key.
 */
#ifndef SS_TABLES_H
#define SS_TABLES_H
#include "rules.h"

bool ss_tables_open(ss_switch *);
void ss_tables_close(ss_switch *);
const ss_action_info *ss_action_by_id(const ss_table_info *, uint32_t id, uint32_t *index);
ss_rule *ss_rule_find(const ss_table *, const uint64_t *key, const uint64_t *mask, int32_t priority);
ss_rule *ss_rule_match(const ss_table *, const uint64_t *key);
ss_rule *ss_rule_add(ss_table *, const uint64_t *key, const uint64_t *mask, int32_t priority); /* NULL: no memory */
void ss_rule_remove(ss_table *, ss_rule *);
void ss_rule_clear(ss_table *);
#endif
