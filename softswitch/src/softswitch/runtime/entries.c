/* SPDX-License-Identifier: Apache-2.0
 *
 * Table requests: entries, default actions, their direct counters and meters.
 */
#include "entries.h"
#include "internal.h"
#include "profiles.h"
#include "state.h"
#include "tables.h"

#define SS_DEFAULT_SIZE 1024 /* p4c's, for a table that names no size */

static ss_table *get_table(ss_switch *sw, ss_reader *r, ss_writer *w, int *status) {
    uint32_t index = get_u32(r);
    if (r->bad) {
        *status = refuse_short(w);
        return NULL;
    }
    if (index >= sw->program->n_tables) {
        *status = refuse(w, SS_INVALID_ARGUMENT, "no table %u: the program has %u", index, sw->program->n_tables);
        return NULL;
    }
    return &sw->tables[index];
}

static const char *bad_field(const ss_key_field *field, const uint8_t *key, const uint8_t *mask, const uint8_t *all) {
    uint32_t n = ss_width(field->bits);
    bool ones = memcmp(mask, all, n) == 0, zeros = true;
    for (uint32_t i = 0; i < n; i++) {
        zeros &= mask[i] == 0;
        if (key[i] & ~all[i] || mask[i] & ~all[i]) return "value or mask has more bits than the field";
    }
    switch (field->match) {
    case SS_EXACT: return ones ? NULL : "an exact field's mask must be all ones";
    case SS_OPTIONAL: return ones || zeros ? NULL : "an optional field's mask must be all ones or zero";
    case SS_RANGE: return memcmp(key, mask, n) <= 0 ? NULL : "the range's low end is above its high end";
    case SS_TERNARY: return NULL;
    case SS_LPM:
        for (uint32_t i = 0, ended = 0; i < n; i++) {
            uint8_t bits = mask[i];
            if (ended && bits) return "an lpm field's mask must be a prefix";
            if (bits == all[i]) continue;
            ended = 1;
            uint8_t gap = (uint8_t)(all[i] & ~bits);
            if (gap & (gap + 1)) return "an lpm field's mask must be a prefix";
        }
        return NULL;
    }
    return "unknown kind of match";
}

/* Reads priority, key and mask into words, checked and with don't-care bits cleared. */
static int get_identity(const ss_table *t, ss_reader *r, ss_writer *w, int32_t *priority, uint64_t *key,
                        uint64_t *mask) {
    *priority = get_i32(r);
    const uint8_t *k = get_bytes(r, t->key_bytes), *m = get_bytes(r, t->key_bytes);
    if (r->bad) return refuse_short(w);
    key[t->words - 1] = mask[t->words - 1] = 0;
    memcpy(key, k, t->key_bytes);
    memcpy(mask, m, t->key_bytes);
    if (!t->has_priority && *priority != 0)
        return refuse(w, SS_INVALID_ARGUMENT, "table %s: entries cannot overlap, so priority must be 0, got %d",
                      t->info->name, *priority);
    for (uint32_t f = 0; f < t->info->n_keys; f++) {
        const ss_key_field *field = &t->info->keys[f];
        uint32_t at = t->offsets[f];
        const char *wrong = bad_field(field, k + at, m + at, (const uint8_t *)t->value_bits + at);
        if (wrong)
            return refuse(w, SS_INVALID_ARGUMENT, "table %s, key field %s: %s", t->info->name, field->name, wrong);
        for (uint32_t i = 0; field->match != SS_RANGE && i < ss_width(field->bits); i++)
            ((uint8_t *)key)[at + i] &= ((uint8_t *)mask)[at + i];
    }
    return SS_OK;
}

static int check_params(const ss_table_info *info, uint32_t index, const uint8_t *params, size_t n, ss_writer *w) {
    if (index >= info->n_actions)
        return refuse(w, SS_INVALID_ARGUMENT, "table %s has no action %u (it has %u)", info->name, index,
                      info->n_actions);
    const ss_action_info *action = &info->actions[index];
    if (n != ss_params_bytes(action))
        return refuse(w, SS_INVALID_ARGUMENT, "action %s: expected %u bytes of parameters, got %zu", action->name,
                      ss_params_bytes(action), n);
    for (uint32_t i = 0; i < action->n_params; i++) {
        uint32_t width = ss_width(action->param_bits[i]), over = 8 * width - action->param_bits[i];
        if (width && params[0] & ~(0xff >> over))
            return refuse(w, SS_INVALID_ARGUMENT, "action %s: parameter %u does not fit bit<%u>", action->name, i,
                          action->param_bits[i]);
        params += width;
    }
    return SS_OK;
}

typedef struct {
    uint8_t kind;
    uint32_t target;
    const uint8_t *params;
    size_t n_params;
} what_to_do;

static int get_do(ss_switch *sw, const ss_table *t, ss_reader *r, ss_writer *w, what_to_do *what) {
    what->kind = get_u8(r);
    what->target = get_u32(r);
    if (r->bad) return refuse_short(w);
    what->n_params = get_left(r);
    what->params = get_bytes(r, what->n_params);
    const ss_table_info *info = t->info;
    if (what->kind > SS_DO_GROUP) return refuse(w, SS_INVALID_ARGUMENT, "unknown kind of action %u", what->kind);
    if ((what->kind == SS_DO_ACTION) != (info->profile < 0))
        return refuse(w, SS_INVALID_ARGUMENT, "table %s takes %s", info->name,
                      info->profile < 0 ? "actions, not members or groups of an action profile"
                                        : "members or groups of its action profile, not actions");
    if (what->kind == SS_DO_ACTION) return check_params(info, what->target, what->params, what->n_params, w);
    const ss_profile *profile = &sw->profiles[info->profile];
    if (what->kind == SS_DO_MEMBER && !ss_idmap_get(&profile->members, what->target))
        return refuse(w, SS_NOT_FOUND, "action profile %s has no member %u", profile->info->name, what->target);
    if (what->kind == SS_DO_GROUP && !ss_idmap_get(&profile->groups, what->target))
        return refuse(w, SS_NOT_FOUND, "action profile %s has no group %u", profile->info->name, what->target);
    return SS_OK;
}

static uint32_t *refs_of(ss_switch *sw, const ss_table *t, const ss_rule *rule) {
    if (rule->kind == SS_DO_ACTION) return NULL;
    ss_profile *profile = &sw->profiles[t->info->profile];
    if (rule->kind == SS_DO_MEMBER) return &((ss_member *)ss_idmap_get(&profile->members, rule->target))->refs;
    return &((ss_group *)ss_idmap_get(&profile->groups, rule->target))->refs;
}

void ss_entry_unref(ss_switch *sw, const ss_table *t, const ss_rule *rule) {
    uint32_t *refs = refs_of(sw, t, rule);
    if (refs) --*refs;
}

static void set_do(ss_switch *sw, const ss_table *t, ss_rule *rule, const what_to_do *what) {
    rule->kind = what->kind;
    rule->target = what->target;
    rule->n_params = what->kind == SS_DO_ACTION ? (uint32_t)what->n_params : 0;
    if (rule->n_params) memcpy(ss_rule_params(t, rule), what->params, rule->n_params);
    uint32_t *refs = refs_of(sw, t, rule);
    if (refs) ++*refs;
}

static int insert(ss_switch *sw, ss_table *t, ss_writer *w, const uint64_t *key, const uint64_t *mask, int32_t priority,
                  const what_to_do *what, ss_rule **made) {
    uint64_t size = t->info->size ? t->info->size : SS_DEFAULT_SIZE;
    if (t->info->n_keys == 0)
        return refuse(w, SS_INVALID_ARGUMENT, "table %s has no key and therefore no entries", t->info->name);
    if (ss_rule_find(t, key, mask, priority))
        return refuse(w, SS_ALREADY_EXISTS, "table %s has an entry with this match and priority", t->info->name);
    if (t->used >= size)
        return refuse(w, SS_RESOURCE_EXHAUSTED, "table %s is full: its size is %llu", t->info->name,
                      (unsigned long long)size);
    ss_rule *rule = ss_rule_add(t, key, mask, priority);
    if (!rule) return refuse(w, SS_RESOURCE_EXHAUSTED, "table %s: out of memory", t->info->name);
    rule->last_hit = sw->now_us;
    set_do(sw, t, rule, what);
    *made = rule;
    return SS_OK;
}

/* Least time between two reports of an entry that nothing hits: a timeout of a nanosecond must not fill the stream. */
#define IDLE_PERIOD_US 100000u

/* When the entry is to be reported next.  A hit and a report start the timer anew (P4Runtime 9.1.5). */
static uint64_t idle_end(const ss_rule *rule) {
    uint64_t idle_us = rule->idle_ns / 1000 + (rule->idle_ns % 1000 != 0), since = rule->last_hit;
    if (rule->idle_reported > since) {
        since = rule->idle_reported;
        if (idle_us < IDLE_PERIOD_US) idle_us = IDLE_PERIOD_US;
    }
    return idle_us < UINT64_MAX - since ? since + idle_us : UINT64_MAX;
}

static void time_idle(ss_switch *sw, const ss_rule *rule) {
    uint64_t ends = idle_end(rule);
    if (ends < sw->idle_rest) ends = sw->idle_rest;
    if (!sw->idle_wanted || ends < sw->idle_due) sw->idle_due = ends;
    sw->idle_wanted = true;
}

int ss_do_table_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    uint8_t kind = get_u8(r);
    ss_table *t = get_table(sw, r, w, &status);
    if (!t) return status;
    if (t->info->has_const_entries) return refuse(w, SS_PERMISSION_DENIED, "table %s has const entries", t->info->name);
    uint64_t key[t->words], mask[t->words];
    int32_t priority;
    if ((status = get_identity(t, r, w, &priority, key, mask))) return status;
    if (kind > SS_DELETE) return refuse(w, SS_INVALID_ARGUMENT, "unknown kind of write %u", kind);
    ss_rule *rule = kind == SS_INSERT ? NULL : ss_rule_find(t, key, mask, priority);
    if (kind != SS_INSERT && !rule)
        return refuse(w, SS_NOT_FOUND, "table %s has no entry with this match and priority", t->info->name);
    if (kind == SS_DELETE) {
        ss_entry_unref(sw, t, rule);
        ss_rule_remove(t, rule);
        return SS_OK;
    }
    uint64_t cookie = get_u64(r), idle_ns = get_u64(r);
    what_to_do what;
    if ((status = get_do(sw, t, r, w, &what))) return status;
    if (idle_ns && !t->info->idle_timeout)
        return refuse(w, SS_INVALID_ARGUMENT, "table %s does not support idle timeouts", t->info->name);
    if (kind == SS_INSERT) {
        if ((status = insert(sw, t, w, key, mask, priority, &what, &rule))) return status;
    } else {
        ss_entry_unref(sw, t, rule);
        set_do(sw, t, rule, &what);
    }
    rule->cookie = cookie;
    rule->idle_ns = idle_ns;
    rule->idle_reported = 0;
    if (idle_ns) time_idle(sw, rule);
    put_u64(w, rule->handle);
    return SS_OK;
}

void ss_put_entry(ss_writer *w, const ss_table *t, const ss_rule *rule, uint64_t now_us) {
    put_u64(w, rule->handle);
    put_u32(w, (uint32_t)rule->priority);
    put_u8(w, rule->kind);
    put_u32(w, rule->target);
    put_u32(w, rule->n_params);
    put_bytes(w, rule->bytes, t->key_bytes);
    put_bytes(w, ss_rule_mask(t, rule), t->key_bytes);
    put_bytes(w, ss_rule_params(t, rule), rule->n_params);
    put_u64(w, rule->cookie);
    put_u64(w, rule->idle_ns);
    put_u64(w, now_us > rule->last_hit ? now_us - rule->last_hit : 0);
    put_u64(w, rule->count.packets);
    put_u64(w, rule->count.bytes);
    ss_put_meter(w, &rule->meter);
}

int ss_do_table_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_table *t = get_table(sw, r, w, &status);
    if (!t) return status;
    uint64_t slot = get_u64(r);
    uint8_t one = get_u8(r);
    if (r->bad) return refuse_short(w);
    if (one) {
        uint64_t key[t->words], mask[t->words];
        int32_t priority;
        const ss_rule *rule;
        if (one == SS_ONE_SLOT)
            rule = slot < t->n_slots ? t->slots[slot] : NULL;
        else if ((status = get_identity(t, r, w, &priority, key, mask)))
            return status;
        else
            rule = ss_rule_find(t, key, mask, priority);
        if (!rule && one == SS_ONE_SLOT)
            return refuse(w, SS_NOT_FOUND, "table %s has no entry at place %llu", t->info->name,
                          (unsigned long long)slot);
        if (!rule) return refuse(w, SS_NOT_FOUND, "table %s has no entry with this match and priority", t->info->name);
        ss_page page = page_begin(w);
        uint8_t *before = w->at;
        ss_put_entry(w, t, rule, sw->now_us);
        page_add(&page, before);
        page_end(&page, 0);
        return SS_OK;
    }
    ss_page page = page_begin(w);
    for (; slot < t->n_slots; slot++) {
        uint8_t *before = w->at;
        if (!t->slots[slot]) continue;
        ss_put_entry(w, t, t->slots[slot], sw->now_us);
        if (!page_add(&page, before)) break;
    }
    page_end(&page, slot < t->n_slots ? slot : 0);
    return SS_OK;
}

int ss_do_default_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_table *t = get_table(sw, r, w, &status);
    if (!t) return status;
    bool set = get_u8(r);
    uint32_t action = t->info->default_action;
    const uint8_t *params = t->info->default_params;
    size_t n = ss_params_bytes(&t->info->actions[action]);
    if (set) {
        action = get_u32(r);
        if (r->bad) return refuse_short(w);
        n = get_left(r);
        params = get_bytes(r, n);
        if (t->info->const_default)
            return refuse(w, SS_PERMISSION_DENIED, "table %s has a const default action", t->info->name);
        if ((status = check_params(t->info, action, params, n, w))) return status;
    }
    if (r->bad) return refuse_short(w);
    t->default_action = action;
    if (n) memcpy(t->default_params, params, n);
    return SS_OK;
}

int ss_do_default_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_table *t = get_table(sw, r, w, &status);
    if (!t) return status;
    put_u32(w, t->default_action);
    put_u64(w, t->default_count.packets);
    put_u64(w, t->default_count.bytes);
    ss_put_meter(w, &t->default_meter);
    put_bytes(w, t->default_params, ss_params_bytes(&t->info->actions[t->default_action]));
    return SS_OK;
}

static void clear_table(ss_switch *sw, ss_table *t) {
    for (uint32_t s = 0; s < t->n_slots; s++)
        if (t->slots[s]) ss_entry_unref(sw, t, t->slots[s]);
    ss_rule_clear(t);
}

int ss_do_table_clear(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_table *t = get_table(sw, r, w, &status);
    if (!t) return status;
    if (t->info->has_const_entries) return refuse(w, SS_PERMISSION_DENIED, "table %s has const entries", t->info->name);
    clear_table(sw, t);
    return SS_OK;
}

/* Reads u8 default and the identity; *rule is NULL for the default action. */
static int get_direct(ss_switch *sw, ss_reader *r, ss_writer *w, ss_table **table, ss_rule **rule) {
    int status = SS_OK;
    ss_table *t = *table = get_table(sw, r, w, &status);
    if (!t) return status;
    *rule = NULL;
    if (get_u8(r)) return SS_OK;
    uint64_t key[t->words], mask[t->words];
    int32_t priority;
    if ((status = get_identity(t, r, w, &priority, key, mask))) return status;
    *rule = ss_rule_find(t, key, mask, priority);
    if (!*rule) return refuse(w, SS_NOT_FOUND, "table %s has no entry with this match and priority", t->info->name);
    return SS_OK;
}

int ss_do_direct_counter(ss_switch *sw, ss_reader *r, ss_writer *w) {
    ss_table *t;
    ss_rule *rule;
    int status = get_direct(sw, r, w, &t, &rule);
    if (status) return status;
    ss_count_cell cell;
    cell.packets = get_u64(r);
    cell.bytes = get_u64(r);
    if (r->bad) return refuse_short(w);
    if (t->info->direct_counter < 0)
        return refuse(w, SS_INVALID_ARGUMENT, "table %s has no direct counter", t->info->name);
    *(rule ? &rule->count : &t->default_count) = cell;
    return SS_OK;
}

int ss_do_direct_meter(ss_switch *sw, ss_reader *r, ss_writer *w) {
    ss_table *t;
    ss_rule *rule;
    int status = get_direct(sw, r, w, &t, &rule);
    if (status) return status;
    ss_meter_cell config = ss_get_meter(r);
    if (r->bad) return refuse_short(w);
    if (t->info->direct_meter < 0) return refuse(w, SS_INVALID_ARGUMENT, "table %s has no direct meter", t->info->name);
    ss_meter_configure(rule ? &rule->meter : &t->default_meter, &config, sw->now_us);
    return SS_OK;
}

bool ss_entries_const(ss_switch *sw) {
    for (uint32_t i = 0; i < sw->program->n_tables; i++) {
        ss_table *t = &sw->tables[i];
        const ss_table_info *info = t->info;
        ss_rule_clear(t);
        t->default_count = (ss_count_cell){0};
        t->default_meter = (ss_meter_cell){0};
        if (info->n_actions) {
            t->default_action = info->default_action;
            uint32_t n = ss_params_bytes(&info->actions[info->default_action]);
            if (n) memcpy(t->default_params, info->default_params, n);
        }
        for (uint32_t e = 0; e < info->n_const_entries; e++) {
            const ss_const_entry *entry = &info->const_entries[e];
            uint64_t key[t->words], mask[t->words];
            key[t->words - 1] = mask[t->words - 1] = 0;
            memcpy(key, entry->key, t->key_bytes);
            memcpy(mask, entry->mask, t->key_bytes);
            for (uint32_t f = 0; f < info->n_keys; f++)
                for (uint32_t b = 0; info->keys[f].match != SS_RANGE && b < ss_width(info->keys[f].bits); b++)
                    ((uint8_t *)key)[t->offsets[f] + b] &= ((uint8_t *)mask)[t->offsets[f] + b];
            int32_t priority = t->has_priority ? entry->priority : 0;
            if (ss_rule_find(t, key, mask, priority)) continue; /* the first of two equal ones wins */
            ss_rule *rule = ss_rule_add(t, key, mask, priority);
            if (!rule) return false;
            what_to_do what = {SS_DO_ACTION, entry->action, entry->params,
                               ss_params_bytes(&info->actions[entry->action])};
            set_do(sw, t, rule, &what);
        }
    }
    return true;
}

/* ---- idle timeouts ----------------------------------------------------------------------------------------------- */

static void report_idle(ss_switch *sw, uint32_t table, const ss_rule *rule) {
    const ss_table *t = &sw->tables[table];
    size_t cap = 256 + 16 * t->words + rule->n_params;
    uint8_t *buffer = malloc(cap);
    if (!buffer) return;
    ss_writer w = {buffer, buffer + cap, false};
    ss_put_entry(&w, t, rule, sw->now_us);
    ss_report(sw, SS_EVENT_IDLE, table, buffer, (uint32_t)(w.at - buffer));
    free(buffer);
}

uint64_t ss_tick(ss_switch *sw, uint64_t now_us) {
    sw->now_us = now_us;
    if (!sw->idle_wanted) return UINT64_MAX;
    if (now_us < sw->idle_due) return sw->idle_due;
    uint64_t due = UINT64_MAX;
    bool wanted = false;
    sw->idle_rest = now_us;
    for (uint32_t i = 0; i < sw->program->n_tables; i++) {
        ss_table *t = &sw->tables[i];
        if (t->info->idle_timeout) sw->idle_rest += t->n_slots;
        for (uint32_t s = 0; t->info->idle_timeout && s < t->n_slots; s++) {
            ss_rule *rule = t->slots[s];
            if (!rule || !rule->idle_ns) continue;
            wanted = true;
            uint64_t ends = idle_end(rule);
            if (now_us >= ends) {
                report_idle(sw, i, rule);
                rule->idle_reported = now_us;
                ends = idle_end(rule);
            }
            if (ends < due) due = ends;
        }
    }
    sw->idle_wanted = wanted;
    return sw->idle_due = due > sw->idle_rest ? due : sw->idle_rest;
}
