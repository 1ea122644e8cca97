/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables and their entries, as they lie in memory.
 */
#ifndef SS_RULES_H
#define SS_RULES_H
#include "softswitch.h"

typedef struct ss_meter_cell { /* two-rate three-colour meter as BMv2 runs it */
    bool set, slow;            /* slow: rates are units in 10^6 seconds, not in one */
    uint64_t cir, cburst, pir, pburst;
    uint64_t since; /* us when configured: tokens are counted from there, so no rounding adds up */
    uint64_t c_tokens, c_made, p_tokens, p_made;
} ss_meter_cell;

typedef struct ss_rule { /* an entry, one piece of memory, so that a hit costs few cache lines */
    uint64_t handle;     /* uses << 32 | slot */
    uint64_t hash;
    uint32_t slot; /* lowest free number when inserted: BMv2's tie breaker */
    int32_t priority;
    uint8_t kind;    /* SS_DO_* */
    uint32_t target; /* action index, member id or group id */
    uint32_t n_params;
    uint64_t cookie, idle_ns, last_hit;
    uint64_t idle_reported; /* us, when idleness was last reported; 0: never */
    ss_count_cell count;
    ss_meter_cell meter;
    uint32_t color;   /* of the last hit's meter run */
    uint64_t bytes[]; /* key words, mask words, room for the longest parameters */
} ss_rule;

typedef struct {     /* all rules of one prefix length (exact tables have a single one) */
    uint32_t length; /* prefix bits */
    uint32_t used;   /* rules */
    uint64_t *mask;  /* words */
} ss_prefix;

#define SS_SEEN 8u /* keys that a table remembers */
typedef struct ss_table {
    const ss_table_info *info;
    uint32_t key_bytes, words; /* words: key_bytes rounded up to 8, in uint64_t; at least 1 */
    uint32_t max_params;       /* bytes */
    enum { SS_BY_HASH, SS_BY_LIST } way;
    bool has_range, has_priority;
    uint32_t *offsets;    /* first byte of each key field */
    uint64_t *value_bits; /* words; the bits that the fields really have */
    ss_rule **slots;
    uint32_t *uses; /* of each slot: rules removed from it since the table was last cleared */
    uint32_t n_slots, free_hint, used;
    /* SS_BY_HASH (exact, lpm): open addressing, upper half of the hash << 32 | slot + 1, 0: empty */
    uint64_t *buckets;
    uint32_t n_buckets;
    ss_prefix *prefixes;
    uint32_t n_prefixes; /* longest first */
    /* SS_BY_LIST (ternary, range, optional): slots by falling priority, then slot; packed: their key and mask words */
    uint32_t *order;
    uint64_t *packed;
    uint32_t cap_order;
    uint64_t *seen_keys;    /* what packets before looked up, since they come in runs and leave to a few receivers */
    ss_rule *seen[SS_SEEN]; /* the rule that each key met; NULL: no key here */
    uint32_t default_action;
    uint8_t *default_params;
    ss_count_cell default_count;
    ss_meter_cell default_meter;
} ss_table;

static inline const uint64_t *ss_rule_mask(const ss_table *t, const ss_rule *r) { return r->bytes + t->words; }
static inline uint8_t *ss_rule_params(const ss_table *t, const ss_rule *r) {
    return (uint8_t *)(r->bytes + 2 * t->words);
}

static inline uint32_t ss_width(uint32_t bits) { return (bits + 7) / 8; }

/* Bytes of an action's parameters. */
static inline uint32_t ss_params_bytes(const ss_action_info *action) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < action->n_params; i++) n += ss_width(action->param_bits[i]);
    return n;
}
#endif
