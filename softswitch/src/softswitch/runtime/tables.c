/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables: finding the entry for a key.
 *
 * exact, lpm  one hash table of (masked key, prefix length), probed once for each prefix length in use, the longest
 *                  first
 * ternary, range,  a list by falling priority, whose keys and masks lie one after another, compared 8 bytes at a time
 * optional
 *
 * Ties are BMv2's: of equal priorities the entry with the lowest handle wins, and a new entry takes the lowest free
 * one.
 */
#include "tables.h"
#include "internal.h"
#include "profiles.h"
#include "state.h"
#include "trace.h"

static inline uint64_t mix(uint64_t h, uint64_t word) {
    unsigned __int128 product = (unsigned __int128)(h ^ word) * 0x9E3779B97F4A7C15u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t hash_masked(const ss_table *t, const uint64_t *key, const ss_prefix *prefix, uint64_t *masked) {
    uint64_t h = 0xA0761D6478BD642Fu + prefix->length;
    for (uint32_t i = 0; i < t->words; i++) {
        masked[i] = key[i] & prefix->mask[i];
        h = mix(h, masked[i]);
    }
    return h;
}

static inline ss_rule *probe(const ss_table *t, const uint64_t *masked, const ss_prefix *prefix, uint64_t h) {
    uint32_t last = t->n_buckets - 1;
    for (uint32_t b = (uint32_t)h & last;; b = (b + 1) & last) {
        uint64_t bucket = t->buckets[b];
        if (bucket == 0) return NULL;
        if ((uint32_t)(bucket >> 32) != (uint32_t)(h >> 32)) continue;
        ss_rule *rule = t->slots[(uint32_t)bucket - 1];
        const uint64_t *mask = ss_rule_mask(t, rule);
        bool same = true;
        for (uint32_t i = 0; i < t->words; i++) same &= (rule->bytes[i] == masked[i]) & (mask[i] == prefix->mask[i]);
        if (same) return rule;
    }
}

static bool in_ranges(const ss_table *t, const ss_rule *rule, const uint64_t *key) {
    const uint8_t *k = (const uint8_t *)key, *low = (const uint8_t *)rule->bytes,
                  *high = (const uint8_t *)ss_rule_mask(t, rule);
    for (uint32_t f = 0; f < t->info->n_keys; f++) {
        if (t->info->keys[f].match != SS_RANGE) continue;
        uint32_t at = t->offsets[f], n = ss_width(t->info->keys[f].bits);
        if (memcmp(k + at, low + at, n) < 0 || memcmp(k + at, high + at, n) > 0) return false;
    }
    return true;
}

ss_rule *ss_rule_match(const ss_table *t, const uint64_t *key) {
    if (t->used == 0) return NULL;
    if (t->way == SS_BY_HASH) {
        uint64_t masked[t->words];
        for (uint32_t i = 0; i < t->n_prefixes; i++) {
            uint64_t h = hash_masked(t, key, &t->prefixes[i], masked);
            ss_rule *rule = probe(t, masked, &t->prefixes[i], h);
            if (rule) return rule;
        }
        return NULL;
    }
    const uint64_t *p = t->packed;
    for (uint32_t i = 0; i < t->used; i++, p += 2 * t->words) {
        uint64_t differs = 0;
        for (uint32_t w = 0; w < t->words; w++) differs |= (key[w] & p[t->words + w]) ^ p[w];
        if (differs) continue;
        ss_rule *rule = t->slots[t->order[i]];
        if (!t->has_range || in_ranges(t, rule, key)) return rule;
    }
    return NULL;
}

static inline bool same_words(const ss_table *t, const uint64_t *a, const uint64_t *b) {
    uint64_t differs = 0;
    for (uint32_t i = 0; i < t->words; i++) differs |= a[i] ^ b[i];
    return differs == 0;
}

static ss_rule *find_and_keep(ss_table *t, const uint64_t *key, uint32_t place) {
    t->seen[place] = ss_rule_match(t, key);
    if (t->seen[place]) memcpy(t->seen_keys + place * t->words, key, 8 * t->words);
    return t->seen[place];
}

static inline ss_rule *rule_of(ss_table *t, const uint64_t *key) {
    uint64_t mix = key[0];
    for (uint32_t i = 1; i < t->words; i++) mix = (mix << 7 | mix >> 57) ^ key[i];
    uint32_t place = (uint32_t)(mix * 0x9E3779B97F4A7C15u >> 32) % SS_SEEN;
    ss_rule *rule = t->seen[place];
    return rule && same_words(t, key, t->seen_keys + place * t->words) ? rule : find_and_keep(t, key, place);
}

static void forget_keys(ss_table *t) { memset(t->seen, 0, sizeof t->seen); }

/* ---- what a program calls ---------------------------------------------------------------------------------------- */

#ifdef SS_TRACE
#define TRACED(rule, member, ...) ss_trace_lookup(sw, t, key, rule, member, __VA_ARGS__)
#else
#define TRACED(rule, member, ...) __VA_ARGS__
#endif

ss_entry ss_lookup(ss_switch *sw, ss_packet *packet, uint32_t table, const uint64_t *key, const uint8_t *sel,
                   uint32_t sel_len) {
    (void)packet;
    ss_table *t = &sw->tables[table];
    ss_rule *rule = NULL;
    if (t->used && t->info->n_keys) rule = rule_of(t, key);
    if (!rule)
        return TRACED(NULL, 0, (ss_entry){.action = t->default_action, .hit = false, .params = t->default_params});
    rule->last_hit = sw->now_us;
    rule->count.packets++;
    rule->count.bytes += sw->counted;
    if (rule->meter.set && t->info->direct_meter >= 0) { /* BMv2 runs it on every hit, read or not */
        bool bytes = sw->program->meters[t->info->direct_meter].unit == SS_BYTES;
        rule->color = ss_meter_run(&rule->meter, sw->now_us, bytes ? sw->counted : 1);
    }
    if (likely(rule->kind == SS_DO_ACTION))
        return TRACED(
            rule, 0,
            (ss_entry){.action = rule->target, .hit = true, .params = ss_rule_params(t, rule), .direct = rule});
    const ss_member *member = ss_profile_choose(sw, &sw->profiles[t->info->profile], rule, sel, sel_len);
    uint32_t action = SS_NO_ACTION;
    if (member) ss_action_by_id(t->info, member->action_id, &action);
    return TRACED(rule, member ? member->id : 0,
                  (ss_entry){.action = action, .hit = true, .params = member ? member->params : NULL, .direct = rule});
}

uint32_t ss_direct_meter(ss_switch *sw, ss_packet *packet, const ss_entry *entry) {
    (void)sw, (void)packet;
    const ss_rule *rule = entry->direct;
    return rule && rule->meter.set ? rule->color : 0;
}

/* ---- changing ---------------------------------------------------------------------------------------------------- */

const ss_action_info *ss_action_by_id(const ss_table_info *info, uint32_t id, uint32_t *index) {
    for (uint32_t i = 0; i < info->n_actions; i++)
        if (info->actions[i].id == id) {
            *index = i;
            return &info->actions[i];
        }
    return NULL;
}

static ss_prefix *find_prefix(const ss_table *t, const uint64_t *mask) {
    for (uint32_t i = 0; i < t->n_prefixes; i++)
        if (memcmp(t->prefixes[i].mask, mask, 8 * t->words) == 0) return &t->prefixes[i];
    return NULL;
}

/* The first place in the list whose rule comes at or after (priority, slot). */
static uint32_t list_place(const ss_table *t, int32_t priority, uint32_t slot) {
    uint32_t low = 0, high = t->used;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const ss_rule *rule = t->slots[t->order[middle]];
        if (rule->priority > priority || (rule->priority == priority && rule->slot < slot))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

ss_rule *ss_rule_find(const ss_table *t, const uint64_t *key, const uint64_t *mask, int32_t priority) {
    if (t->used == 0) return NULL;
    if (t->way == SS_BY_HASH) {
        const ss_prefix *prefix = find_prefix(t, mask);
        uint64_t masked[t->words];
        if (!prefix) return NULL;
        uint64_t h = hash_masked(t, key, prefix, masked);
        return probe(t, masked, prefix, h);
    }
    for (uint32_t i = list_place(t, priority, 0); i < t->used; i++) {
        ss_rule *rule = t->slots[t->order[i]];
        if (rule->priority != priority) break;
        if (!memcmp(rule->bytes, key, 8 * t->words) && !memcmp(ss_rule_mask(t, rule), mask, 8 * t->words)) return rule;
    }
    return NULL;
}

static bool grow_slots(ss_table *t) {
    uint32_t n = t->n_slots ? 2 * t->n_slots : 16;
    ss_rule **slots = realloc(t->slots, n * sizeof *slots);
    if (slots) t->slots = slots;
    uint32_t *uses = realloc(t->uses, n * sizeof *uses);
    if (uses) t->uses = uses;
    if (!slots || !uses) return false;
    memset(slots + t->n_slots, 0, (n - t->n_slots) * sizeof *slots);
    memset(uses + t->n_slots, 0, (n - t->n_slots) * sizeof *uses);
    t->n_slots = n;
    return true;
}

static void place(ss_table *t, const ss_rule *rule) {
    uint32_t b = (uint32_t)rule->hash & (t->n_buckets - 1);
    while (t->buckets[b]) b = (b + 1) & (t->n_buckets - 1);
    t->buckets[b] = (rule->hash >> 32) << 32 | (rule->slot + 1);
}

static bool hash_room(ss_table *t) {
    if (2 * (t->used + 1) <= t->n_buckets) return true;
    uint32_t n = t->n_buckets ? 2 * t->n_buckets : 64;
    uint64_t *buckets = calloc(n, sizeof *buckets);
    if (!buckets) return false;
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
    for (uint32_t s = 0; s < t->n_slots; s++)
        if (t->slots[s]) place(t, t->slots[s]);
    return true;
}

static uint32_t count_bits(const ss_table *t, const uint64_t *words) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->words; i++) n += (uint32_t)__builtin_popcountll(words[i]);
    return n;
}

static bool hash_prefix(ss_table *t, const uint64_t *mask) { /* makes sure that there is one */
    if (find_prefix(t, mask)) return true;
    ss_prefix *prefixes = realloc(t->prefixes, (t->n_prefixes + 1) * sizeof *prefixes);
    if (!prefixes) return false;
    t->prefixes = prefixes;
    uint64_t *copy = malloc(8 * t->words);
    if (!copy) return false;
    memcpy(copy, mask, 8 * t->words);
    uint32_t length = count_bits(t, mask), i = t->n_prefixes;
    for (; i > 0 && prefixes[i - 1].length < length; i--) prefixes[i] = prefixes[i - 1];
    prefixes[i] = (ss_prefix){.length = length, .mask = copy};
    t->n_prefixes++;
    return true;
}

static bool list_room(ss_table *t) {
    if (t->used < t->cap_order) return true;
    uint32_t n = t->cap_order ? 2 * t->cap_order : 16;
    uint32_t *order = realloc(t->order, n * sizeof *order);
    if (order) t->order = order;
    uint64_t *packed = realloc(t->packed, (size_t)n * 16 * t->words);
    if (packed) t->packed = packed;
    if (!order || !packed) return false;
    t->cap_order = n;
    return true;
}

/* In the list a range field takes no part in the masked compare: in_ranges looks at it. */
static void pack(const ss_table *t, const ss_rule *rule, uint64_t *out) {
    memcpy(out, rule->bytes, 16 * t->words);
    for (uint32_t f = 0; t->has_range && f < t->info->n_keys; f++) {
        if (t->info->keys[f].match != SS_RANGE) continue;
        memset((uint8_t *)out + t->offsets[f], 0, ss_width(t->info->keys[f].bits));
        memset((uint8_t *)(out + t->words) + t->offsets[f], 0, ss_width(t->info->keys[f].bits));
    }
}

ss_rule *ss_rule_add(ss_table *t, const uint64_t *key, const uint64_t *mask, int32_t priority) {
    uint32_t slot = t->free_hint;
    while (slot < t->n_slots && t->slots[slot]) slot++;
    if (slot == t->n_slots && !grow_slots(t)) return NULL;
    if (t->way == SS_BY_HASH ? !hash_prefix(t, mask) || !hash_room(t) : !list_room(t)) return NULL;
    ss_rule *rule = calloc(1, sizeof *rule + 16 * t->words + t->max_params);
    if (!rule) return NULL;
    memcpy(rule->bytes, key, 8 * t->words);
    memcpy(rule->bytes + t->words, mask, 8 * t->words);
    rule->slot = slot;
    rule->priority = priority;
    rule->handle = (uint64_t)t->uses[slot] << 32 | slot;
    if (t->way == SS_BY_HASH) {
        uint64_t masked[t->words];
        ss_prefix *prefix = find_prefix(t, mask);
        prefix->used++;
        rule->hash = hash_masked(t, key, prefix, masked);
        place(t, rule);
    } else {
        uint32_t i = list_place(t, priority, slot), after = t->used - i;
        size_t each = 2 * t->words;
        memmove(t->order + i + 1, t->order + i, after * sizeof *t->order);
        memmove(t->packed + (i + 1) * each, t->packed + i * each, after * each * 8);
        t->order[i] = slot;
        pack(t, rule, t->packed + i * each);
    }
    t->slots[slot] = rule;
    forget_keys(t);
    t->free_hint = slot + 1;
    t->used++;
    return rule;
}

static void unplace(ss_table *t, const ss_rule *rule) {
    uint32_t last = t->n_buckets - 1, b = (uint32_t)rule->hash & last;
    while ((uint32_t)t->buckets[b] != rule->slot + 1) b = (b + 1) & last;
    t->buckets[b] = 0;
    for (uint32_t next = (b + 1) & last; t->buckets[next]; next = (next + 1) & last) { /* close the gap */
        uint32_t home = (uint32_t)t->slots[(uint32_t)t->buckets[next] - 1]->hash & last;
        if (((next - home) & last) < ((next - b) & last)) continue;
        t->buckets[b] = t->buckets[next];
        t->buckets[next] = 0;
        b = next;
    }
}

void ss_rule_remove(ss_table *t, ss_rule *rule) {
    if (t->way == SS_BY_HASH) {
        unplace(t, rule);
        ss_prefix *prefix = find_prefix(t, ss_rule_mask(t, rule));
        if (--prefix->used == 0) {
            free(prefix->mask);
            memmove(prefix, prefix + 1, (size_t)(t->prefixes + t->n_prefixes - prefix - 1) * sizeof *prefix);
            t->n_prefixes--;
        }
    } else {
        uint32_t i = list_place(t, rule->priority, rule->slot), after = t->used - i - 1;
        size_t each = 2 * t->words;
        memmove(t->order + i, t->order + i + 1, after * sizeof *t->order);
        memmove(t->packed + i * each, t->packed + (i + 1) * each, after * each * 8);
    }
    t->slots[rule->slot] = NULL;
    t->uses[rule->slot]++;
    forget_keys(t);
    if (rule->slot < t->free_hint) t->free_hint = rule->slot;
    t->used--;
    free(rule);
}

void ss_rule_clear(ss_table *t) {
    for (uint32_t s = 0; s < t->n_slots; s++) free(t->slots[s]);
    for (uint32_t i = 0; i < t->n_prefixes; i++) free(t->prefixes[i].mask);
    if (t->slots) memset(t->slots, 0, t->n_slots * sizeof *t->slots);
    if (t->uses) memset(t->uses, 0, t->n_slots * sizeof *t->uses);
    if (t->buckets) memset(t->buckets, 0, t->n_buckets * sizeof *t->buckets);
    t->n_prefixes = t->used = t->free_hint = 0;
    forget_keys(t);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static bool open_table(ss_table *t, const ss_table_info *info) {
    t->info = info;
    t->offsets = calloc(info->n_keys + 1, sizeof *t->offsets);
    if (!t->offsets) return false;
    for (uint32_t f = 0; f < info->n_keys; f++) {
        t->offsets[f] = t->key_bytes;
        t->key_bytes += ss_width(info->keys[f].bits);
        ss_match match = info->keys[f].match;
        t->has_priority |= match == SS_TERNARY || match == SS_RANGE || match == SS_OPTIONAL;
        t->has_range |= match == SS_RANGE;
    }
    t->way = t->has_priority ? SS_BY_LIST : SS_BY_HASH;
    t->words = t->key_bytes ? (t->key_bytes + 7) / 8 : 1;
    t->value_bits = calloc(t->words, 8);
    if (!t->value_bits) return false;
    uint8_t *bits = (uint8_t *)t->value_bits;
    for (uint32_t f = 0; f < info->n_keys; f++) {
        uint32_t n = ss_width(info->keys[f].bits), over = 8 * n - info->keys[f].bits;
        memset(bits + t->offsets[f], 0xff, n);
        bits[t->offsets[f]] = (uint8_t)(0xff >> over);
    }
    for (uint32_t a = 0; a < info->n_actions; a++) {
        uint32_t n = ss_params_bytes(&info->actions[a]);
        if (n > t->max_params) t->max_params = n;
    }
    t->default_params = calloc(1, t->max_params + 1);
    t->seen_keys = calloc(SS_SEEN * t->words, 8);
    return t->default_params && t->seen_keys;
}

bool ss_tables_open(ss_switch *sw) {
    sw->tables = calloc(sw->program->n_tables + 1, sizeof *sw->tables);
    if (!sw->tables) return false;
    for (uint32_t i = 0; i < sw->program->n_tables; i++)
        if (!open_table(&sw->tables[i], &sw->program->tables[i])) return false;
    return true;
}

void ss_tables_close(ss_switch *sw) {
    for (uint32_t i = 0; sw->tables && i < sw->program->n_tables; i++) {
        ss_table *t = &sw->tables[i];
        ss_rule_clear(t);
        free(t->offsets), free(t->value_bits), free(t->slots), free(t->uses), free(t->buckets), free(t->prefixes);
        free(t->order), free(t->packed), free(t->default_params), free(t->seen_keys);
    }
    free(sw->tables);
}
