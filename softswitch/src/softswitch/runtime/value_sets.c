/* SPDX-License-Identifier: Apache-2.0
 *
 * Parser value sets: short lists of (key, mask) that select() cases ask.
 */
#include "value_sets.h"
#include "internal.h"
#include "rules.h"

bool ss_value_sets_open(ss_switch *sw) {
    sw->value_sets = calloc(sw->program->n_value_sets + 1, sizeof *sw->value_sets);
    if (!sw->value_sets) return false;
    for (uint32_t i = 0; i < sw->program->n_value_sets; i++) {
        ss_value_set *set = &sw->value_sets[i];
        set->info = &sw->program->value_sets[i];
        for (uint32_t f = 0; f < set->info->n_keys; f++) set->key_bytes += ss_width(set->info->keys[f].bits);
    }
    return true;
}

void ss_value_sets_reset(ss_switch *sw) {
    for (uint32_t i = 0; sw->value_sets && i < sw->program->n_value_sets; i++) {
        free(sw->value_sets[i].members);
        sw->value_sets[i].members = NULL;
        sw->value_sets[i].n = 0;
    }
}

void ss_value_sets_close(ss_switch *sw) {
    ss_value_sets_reset(sw);
    free(sw->value_sets);
}

static bool field_matches(const ss_key_field *field, const uint8_t *value, const uint8_t *key, const uint8_t *mask) {
    uint32_t n = ss_width(field->bits);
    if (field->match == SS_RANGE) return memcmp(value, key, n) >= 0 && memcmp(value, mask, n) <= 0;
    for (uint32_t i = 0; i < n; i++)
        if ((value[i] ^ key[i]) & mask[i]) return false;
    return true;
}

bool ss_value_set_has(ss_switch *sw, uint32_t value_set, const uint8_t *value) {
    const ss_value_set *set = &sw->value_sets[value_set];
    for (uint32_t m = 0; m < set->n; m++) {
        const uint8_t *key = set->members + 2ull * m * set->key_bytes, *mask = key + set->key_bytes, *v = value;
        uint32_t f = 0;
        for (; f < set->info->n_keys && field_matches(&set->info->keys[f], v, key, mask); f++) {
            uint32_t n = ss_width(set->info->keys[f].bits);
            v += n, key += n, mask += n;
        }
        if (f == set->info->n_keys) return true;
    }
    return false;
}

static ss_value_set *get_set(ss_switch *sw, ss_reader *r, ss_writer *w, int *status) {
    uint32_t index = get_u32(r);
    if (r->bad) {
        *status = refuse_short(w);
        return NULL;
    }
    if (index >= sw->program->n_value_sets) {
        *status =
            refuse(w, SS_INVALID_ARGUMENT, "no value set %u: the program has %u", index, sw->program->n_value_sets);
        return NULL;
    }
    return &sw->value_sets[index];
}

int ss_do_value_set_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_value_set *set = get_set(sw, r, w, &status);
    if (!set) return status;
    uint32_t n = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (n > set->info->size)
        return refuse(w, SS_RESOURCE_EXHAUSTED, "value set %s holds %llu members, got %u", set->info->name,
                      (unsigned long long)set->info->size, n);
    size_t bytes = 2ull * n * set->key_bytes;
    const uint8_t *data = get_bytes(r, bytes);
    if (!data) return refuse_short(w);
    uint8_t *members = malloc(bytes + 1);
    if (!members) return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    memcpy(members, data, bytes);
    free(set->members);
    set->members = members;
    set->n = n;
    return SS_OK;
}

int ss_do_value_set_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_value_set *set = get_set(sw, r, w, &status);
    if (!set) return status;
    uint64_t m = get_u64(r);
    if (r->bad) return refuse_short(w);
    ss_page page = page_begin(w);
    for (; m < set->n; m++) {
        uint8_t *before = w->at;
        put_bytes(w, set->members + 2 * m * set->key_bytes, 2ull * set->key_bytes);
        if (!page_add(&page, before)) break;
    }
    page_end(&page, m < set->n ? m : 0);
    return SS_OK;
}
