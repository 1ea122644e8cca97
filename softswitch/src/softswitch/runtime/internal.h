/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the runtime share: struct ss_switch and one section a file.
 */
#ifndef SS_INTERNAL_H
#define SS_INTERNAL_H
#include <stdlib.h>
#include <string.h>
#include "control.h"
#include "idmap.h"
#include "switch.h"
#include "trace.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

typedef struct {    /* two-rate three-colour meter as BMv2 runs it */
    bool set, slow; /* slow: rates are units in 10^6 seconds, not in one */
    uint64_t cir, cburst, pir, pburst;
    uint64_t since; /* us when configured: tokens are counted from there, so no rounding adds up */
    uint64_t c_tokens, c_made, p_tokens, p_made;
} ss_meter_cell;

/* ---- tables.c: match structures ---------------------------------------------------------------------------------- */
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

bool ss_tables_open(ss_switch *);
void ss_tables_close(ss_switch *);
uint32_t ss_params_bytes(const ss_action_info *);
const ss_action_info *ss_action_by_id(const ss_table_info *, uint32_t id, uint32_t *index);
ss_rule *ss_rule_find(const ss_table *, const uint64_t *key, const uint64_t *mask, int32_t priority);
ss_rule *ss_rule_match(const ss_table *, const uint64_t *key);
ss_rule *ss_rule_add(ss_table *, const uint64_t *key, const uint64_t *mask, int32_t priority); /* NULL: no memory */
void ss_rule_remove(ss_table *, ss_rule *);
void ss_rule_clear(ss_table *);
static inline const uint64_t *ss_rule_mask(const ss_table *t, const ss_rule *r) { return r->bytes + t->words; }
static inline uint8_t *ss_rule_params(const ss_table *t, const ss_rule *r) {
    return (uint8_t *)(r->bytes + 2 * t->words);
}

/* ---- entries.c: table requests ----------------------------------------------------------------------------------- */
bool ss_entries_const(ss_switch *); /* installs the program's const entries and defaults */
void ss_entry_unref(ss_switch *, const ss_table *, const ss_rule *);

/* ---- profiles.c -------------------------------------------------------------------------------------------------- */
typedef struct {
    uint32_t id, slot, action_id, refs, n_params;
    uint8_t *params;
} ss_member;
typedef struct {
    uint32_t id, max_size, refs, n;
    uint32_t *member, *weight;
    uint32_t n_choices;
    ss_member **choices;
} ss_group;
typedef struct {
    const ss_profile_info *info;
    ss_idmap members, groups;
} ss_profile;
bool ss_profiles_open(ss_switch *);
void ss_profiles_close(ss_switch *);
void ss_profiles_reset(ss_switch *);
const ss_member *ss_profile_choose(ss_switch *, const ss_profile *, const ss_rule *, const uint8_t *sel, uint32_t n);

/* ---- state.c: registers, counters, meters ------------------------------------------------------------------------ */
typedef struct {
    void *memory;
    uint8_t *cells;
} ss_register_array;
bool ss_state_open(ss_switch *);
void ss_state_close(ss_switch *);
void ss_state_reset(ss_switch *);
uint32_t ss_meter_run(ss_meter_cell *, uint64_t now_us, uint64_t units);
void ss_meter_configure(ss_meter_cell *, const ss_meter_cell *config, uint64_t now_us);

/* ---- pre.c: multicast groups, clone sessions --------------------------------------------------------------------- */
typedef struct {
    uint32_t port, instance;
} ss_replica;
typedef struct {
    uint32_t id, n;
    ss_replica *replicas;
} ss_multicast;
typedef struct {
    uint32_t id, truncate_to, group, n;
    ss_replica *replicas;
} ss_clone;
void ss_pre_reset(ss_switch *);

/* ---- value_sets.c ------------------------------------------------------------------------------------------------ */
typedef struct {
    const ss_value_set_info *info;
    uint32_t key_bytes, n;
    uint8_t *members;
} ss_value_set;
bool ss_value_sets_open(ss_switch *);
void ss_value_sets_close(ss_switch *);
void ss_value_sets_reset(ss_switch *);

/* ---- hash.c ------------------------------------------------------------------------------------------------------ */
typedef struct {
    uint64_t s[4];
} ss_prng; /* xoshiro256** */
void ss_prng_seed(ss_prng *, uint64_t);

#define SS_MAX_CRCS 255u
typedef struct { /* of a custom CRC: as BMv2 has them */
    uint32_t bits, polynomial, initial, final_xor;
    bool data_reflected, remainder_reflected;
    uint32_t table[256]; /* what a byte does to the highest bits */
} ss_custom_crc;

/* ---- pipeline.c -------------------------------------------------------------------------------------------------- */
typedef struct ss_work { /* a packet that waits for its turn within one ss_receive */
    bool egress;         /* else ingress: resubmitted or recirculated */
    void *state;         /* initialised; ingress: kept metadata */
    const uint8_t *frame;
    uint32_t frame_len;
    uint32_t port, instance; /* egress port and egress_rid */
    uint32_t length;         /* BMv2's PACKET_LENGTH register */
    uint32_t counted;        /* BMv2's ingress length: what counters and meters see */
    TRACE(uint32_t parent;)  /* the pass that made this one */
} ss_work;

/* ---- turn.c ------------------------------------------------------------------------------------------------------ */
typedef struct ss_chunk ss_chunk;
typedef struct {
    ss_chunk *first, *now, *kept;
    size_t used, mark;          /* of `now`; of `kept`, up to which nothing is given back when the packet ends */
    size_t before, kept_before; /* bytes of the chunks in front of each */
} ss_turn;
bool ss_taken(const ss_switch *, const uint8_t *bytes, uint32_t n); /* whether ss_take gave these */
void ss_turn_keep(ss_switch *, const uint8_t *bytes, uint32_t n);   /* a frame that leaves refers to them */
void ss_turn_packet(ss_switch *);                                   /* the packet is through */
bool ss_turn_full(const ss_switch *); /* so much is taken that packets that go round must end */
void ss_turn_close(ss_switch *);

/* ---- sums.c ------------------------------------------------------------------------------------------------------ */
#define SS_KNOWN 8u
#define SS_FACTORS 64u
typedef struct { /* a run of bytes, and what is known of it */
    const uint8_t *bytes;
    uint32_t len, sum, crc; /* SS_NO_SUM: not yet */
    bool has_crc;
} ss_known;
typedef struct {
    uint32_t len, factor; /* ss_crc32_factor(len) */
} ss_factor;
uint32_t ss_sum_known(ss_switch *, const uint8_t *bytes, uint32_t n); /* SS_NO_SUM where it would have to be computed */
void ss_sum_is(ss_switch *, const uint8_t *bytes, uint32_t n, uint32_t sum);

struct ss_switch {
    ss_shared shared; /* the first member: what programs reach without a call */
    const ss_program *program;
    ss_options options;
    ss_stats stats;
    uint64_t now_us;
    uint32_t ingress_port, counted; /* of the packet now in the pipeline */
    ss_prng prng;
    ss_turn turn;
    const uint8_t *frame, *stable; /* of the packet in ss_receive */
    uint32_t frame_len, n_known;   /* known[0..n_known), or all of them where it is more */
    ss_known known[SS_KNOWN + 1];  /* the last one stands for what cannot be known */
    ss_factor factors[SS_FACTORS];
    void *state; /* of the packet in ss_receive */
    void **spare;
    uint32_t n_spare, cap_spare; /* further states */
    ss_work *work;
    uint32_t work_head, work_tail, work_cap;
    uint8_t *scratch; /* a frame for the CPU port */
    ss_table *tables;
    ss_profile *profiles;
    ss_register_array *registers;
    ss_count_cell **counters;
    ss_meter_cell **meters;
    ss_value_set *value_sets;
    ss_idmap multicasts, clones;
    bool idle_wanted;
    uint64_t idle_due;
    ss_custom_crc *crcs[SS_MAX_CRCS + 1]; /* by number; NULL: not set, as the plain one */
    TRACE(ss_trace trace;)
};

void ss_report(ss_switch *, ss_event_kind, uint32_t id, const void *data, uint32_t len);

static inline uint32_t ss_width(uint32_t bits) { return (bits + 7) / 8; }
#endif
