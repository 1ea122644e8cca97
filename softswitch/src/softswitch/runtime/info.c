/* SPDX-License-Identifier: Apache-2.0
 *
 * OP_INFO: a program's description, for clients that did not compile it.  texts are u16 length and bytes; lists are u32
 * length and items:
 *
 *     text source, i32 packet_in_bits, i32 packet_out_bits, u32 cpu_port
 *     tables     text name, u32 id, u64 size, u8 flags (1 const default, 2 const entries, 4 idle timeout),
 *                i32 profile, i32 direct counter, i32 direct meter, keys, actions (text, u32 id, list of u32 bits)
 *     registers  text, u32 id, u64 size, u32 bits
 *     counters   text, u32 id, u64 size, u8 unit, i32 table;  meters likewise
 *     profiles   text, u32 id, u64 size, u8 selector, u32 max group size
 *     digests    text, u32 id, list of u32 bits
 *     value sets text, u32 id, u64 size, keys (text, u8 match, u32 bits)
 *     errors     text
 */
#include "info.h"
#include "internal.h"

static void put_named(ss_writer *w, const char *name, uint32_t id) { put_text(w, name), put_u32(w, id); }

static void put_keys(ss_writer *w, uint32_t n, const ss_key_field *keys) {
    put_u32(w, n);
    for (uint32_t i = 0; i < n; i++)
        put_text(w, keys[i].name), put_u8(w, (uint8_t)keys[i].match), put_u32(w, keys[i].bits);
}

static void put_list(ss_writer *w, uint32_t n, const uint32_t *values) {
    put_u32(w, n);
    put_bytes(w, values, 4ull * n);
}

static void put_table(ss_writer *w, const ss_table_info *t) {
    put_named(w, t->name, t->id);
    put_u64(w, t->size);
    put_u8(w, (uint8_t)(t->const_default | t->has_const_entries << 1 | t->idle_timeout << 2));
    put_u32(w, (uint32_t)t->profile), put_u32(w, (uint32_t)t->direct_counter), put_u32(w, (uint32_t)t->direct_meter);
    put_keys(w, t->n_keys, t->keys);
    put_u32(w, t->n_actions);
    for (uint32_t i = 0; i < t->n_actions; i++) {
        put_named(w, t->actions[i].name, t->actions[i].id);
        put_list(w, t->actions[i].n_params, t->actions[i].param_bits);
    }
}

int ss_do_info(ss_switch *sw, ss_reader *r, ss_writer *w) {
    (void)r;
    const ss_program *p = sw->program;
    put_text(w, p->source);
    put_u32(w, (uint32_t)p->packet_in_bits), put_u32(w, (uint32_t)p->packet_out_bits);
    put_u32(w, sw->options.cpu_port);
    put_u32(w, p->n_tables);
    for (uint32_t i = 0; i < p->n_tables; i++) put_table(w, &p->tables[i]);
    put_u32(w, p->n_registers);
    for (uint32_t i = 0; i < p->n_registers; i++) {
        put_named(w, p->registers[i].name, p->registers[i].id);
        put_u64(w, p->registers[i].size), put_u32(w, p->registers[i].bits);
    }
    put_u32(w, p->n_counters);
    for (uint32_t i = 0; i < p->n_counters; i++) {
        put_named(w, p->counters[i].name, p->counters[i].id);
        put_u64(w, p->counters[i].size), put_u8(w, (uint8_t)p->counters[i].unit),
            put_u32(w, (uint32_t)p->counters[i].table);
    }
    put_u32(w, p->n_meters);
    for (uint32_t i = 0; i < p->n_meters; i++) {
        put_named(w, p->meters[i].name, p->meters[i].id);
        put_u64(w, p->meters[i].size), put_u8(w, (uint8_t)p->meters[i].unit), put_u32(w, (uint32_t)p->meters[i].table);
    }
    put_u32(w, p->n_profiles);
    for (uint32_t i = 0; i < p->n_profiles; i++) {
        put_named(w, p->profiles[i].name, p->profiles[i].id);
        put_u64(w, p->profiles[i].size), put_u8(w, p->profiles[i].selector), put_u32(w, p->profiles[i].max_group_size);
    }
    put_u32(w, p->n_digests);
    for (uint32_t i = 0; i < p->n_digests; i++) {
        put_named(w, p->digests[i].name, p->digests[i].id);
        put_list(w, p->digests[i].n_fields, p->digests[i].field_bits);
    }
    put_u32(w, p->n_value_sets);
    for (uint32_t i = 0; i < p->n_value_sets; i++) {
        put_named(w, p->value_sets[i].name, p->value_sets[i].id);
        put_u64(w, p->value_sets[i].size);
        put_keys(w, p->value_sets[i].n_keys, p->value_sets[i].keys);
    }
    put_u32(w, p->n_errors);
    for (uint32_t i = 0; i < p->n_errors; i++) put_text(w, p->errors[i]);
    return SS_OK;
}
