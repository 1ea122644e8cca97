/* SPDX-License-Identifier: Apache-2.0
 *
 * Registers, counters and meters: their cells, what a program does to them, and their requests.
 */
#include "state.h"
#include "internal.h"

#define SS_MAX_CELLS 1024u /* counters and meters in one request */

static void *cells(uint64_t n, uint64_t size) {
    if (size && n > (1ull << 36) / size) return NULL; /* more than 64 GiB can only be a mistake */
    return calloc(n + 1, size ? size : 1);
}

bool ss_state_open(ss_switch *sw) {
    const ss_program *p = sw->program;
    sw->registers = calloc(p->n_registers + 1, sizeof *sw->registers);
    sw->shared.registers = calloc(p->n_registers + 1, sizeof *sw->shared.registers);
    sw->counters = calloc(p->n_counters + 1, sizeof *sw->counters);
    sw->meters = calloc(p->n_meters + 1, sizeof *sw->meters);
    if (!sw->registers || !sw->shared.registers || !sw->counters || !sw->meters) return false;
    sw->shared.counters = sw->counters;
    sw->shared.counted = &sw->counted;
    for (uint32_t i = 0; i < p->n_registers; i++) { /* cells on cache lines; untouched pages cost nothing */
        ss_register_array *reg = &sw->registers[i];
        if (!(reg->memory = cells(p->registers[i].size * p->registers[i].stride + 128, 1))) return false;
        sw->shared.registers[i] = reg->cells = (uint8_t *)(((uintptr_t)reg->memory + 63) & ~(uintptr_t)63);
    }
    for (uint32_t i = 0; i < p->n_counters; i++)
        if (!(sw->counters[i] = cells(p->counters[i].table < 0 ? p->counters[i].size : 0, sizeof(ss_count_cell))))
            return false;
    for (uint32_t i = 0; i < p->n_meters; i++)
        if (!(sw->meters[i] = cells(p->meters[i].table < 0 ? p->meters[i].size : 0, sizeof(ss_meter_cell))))
            return false;
    return true;
}

void ss_state_close(ss_switch *sw) {
    const ss_program *p = sw->program;
    for (uint32_t i = 0; sw->registers && i < p->n_registers; i++) free(sw->registers[i].memory);
    for (uint32_t i = 0; sw->counters && i < p->n_counters; i++) free(sw->counters[i]);
    for (uint32_t i = 0; sw->meters && i < p->n_meters; i++) free(sw->meters[i]);
    free(sw->registers), free(sw->shared.registers), free(sw->counters), free(sw->meters);
}

void ss_state_reset(ss_switch *sw) {
    const ss_program *p = sw->program;
    for (uint32_t i = 0; i < p->n_registers; i++)
        memset(sw->registers[i].cells, 0, p->registers[i].size * p->registers[i].stride);
    for (uint32_t i = 0; i < p->n_counters; i++)
        if (p->counters[i].table < 0) memset(sw->counters[i], 0, p->counters[i].size * sizeof(ss_count_cell));
    for (uint32_t i = 0; i < p->n_meters; i++)
        if (p->meters[i].table < 0) memset(sw->meters[i], 0, p->meters[i].size * sizeof(ss_meter_cell));
}

/* ---- what a program calls ---------------------------------------------------------------------------------------- */

uint32_t ss_meter(ss_switch *sw, ss_packet *packet, uint32_t meter, uint64_t index) {
    (void)packet;
    const ss_meter_info *info = &sw->program->meters[meter];
    if (unlikely(index >= info->size || info->table >= 0)) return 0;
    ss_meter_cell *cell = &sw->meters[meter][index];
    return cell->set ? ss_meter_run(cell, sw->now_us, info->unit == SS_BYTES ? sw->counted : 1) : 0;
}

/* Fills one bucket up to what it has been given so far, in millionths of a unit, and tries to take `units` out. */
static bool take(uint64_t *tokens, uint64_t *made, unsigned __int128 millionths, uint64_t burst, uint64_t units) {
    uint64_t total = (uint64_t)(millionths / 1000000u);
    uint64_t fresh = total - *made;
    *made = total;
    *tokens = fresh >= burst - *tokens ? burst : *tokens + fresh; /* tokens <= burst always */
    if (*tokens < units) return false;
    *tokens -= units;
    return true;
}

uint32_t ss_meter_run(ss_meter_cell *m, uint64_t now_us, uint64_t units) {
    unsigned __int128 elapsed = now_us - m->since, p = elapsed * m->pir, c = elapsed * m->cir;
    if (unlikely(m->slow)) p /= 1000000u, c /= 1000000u;
    if (!take(&m->p_tokens, &m->p_made, p, m->pburst, units)) return 2;
    return take(&m->c_tokens, &m->c_made, c, m->cburst, units) ? 0 : 1;
}

void ss_meter_configure(ss_meter_cell *m, const ss_meter_cell *config, uint64_t now_us) {
    *m = *config;
    m->since = now_us;
    m->c_tokens = m->cburst;
    m->p_tokens = m->pburst;
    m->c_made = m->p_made = 0;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

ss_meter_cell ss_get_meter(ss_reader *r) {
    ss_meter_cell m = {0};
    uint8_t set = get_u8(r);
    m.set = set != 0, m.slow = set == 2;
    m.cir = get_u64(r), m.cburst = get_u64(r), m.pir = get_u64(r), m.pburst = get_u64(r);
    return m;
}

void ss_put_meter(ss_writer *w, const ss_meter_cell *m) {
    put_u8(w, (uint8_t)(m->set + m->slow));
    put_u64(w, m->cir), put_u64(w, m->cburst), put_u64(w, m->pir), put_u64(w, m->pburst);
}

typedef struct {
    uint32_t index;
    uint64_t first;
    uint32_t n;
} span;

/* Reads which cells a request is about and checks them against an array of `size`. */
static int get_span(ss_reader *r, ss_writer *w, uint32_t count, const char *what, span *s) {
    s->index = get_u32(r);
    s->first = get_u64(r);
    s->n = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (s->index >= count) return refuse(w, SS_INVALID_ARGUMENT, "no %s %u: the program has %u", what, s->index, count);
    return SS_OK;
}

static int check_span(ss_writer *w, const span *s, const char *name, uint64_t size, int32_t table) {
    if (table >= 0)
        return refuse(w, SS_INVALID_ARGUMENT, "%s is direct: its cells belong to its table's entries", name);
    if (s->first > size || s->n > size - s->first)
        return refuse(w, SS_OUT_OF_RANGE, "%s: cells %llu to %llu are not all within its %llu", name,
                      (unsigned long long)s->first, (unsigned long long)(s->first + s->n), (unsigned long long)size);
    return SS_OK;
}

static int get_counters(ss_switch *sw, ss_reader *r, ss_writer *w, span *s) {
    int status = get_span(r, w, sw->program->n_counters, "counter", s);
    if (status) return status;
    const ss_counter_info *info = &sw->program->counters[s->index];
    if (s->n > SS_MAX_CELLS)
        return refuse(w, SS_INVALID_ARGUMENT, "at most %u cells a request, got %u", SS_MAX_CELLS, s->n);
    return check_span(w, s, info->name, info->size, info->table);
}

int ss_do_counter_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_counters(sw, r, w, &s);
    if (!status) put_bytes(w, sw->counters[s.index] + s.first, s.n * sizeof(ss_count_cell));
    return status;
}

int ss_do_counter_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_counters(sw, r, w, &s);
    if (status) return status;
    const uint8_t *data = get_bytes(r, s.n * sizeof(ss_count_cell));
    if (!data) return refuse_short(w);
    memcpy(sw->counters[s.index] + s.first, data, s.n * sizeof(ss_count_cell));
    return SS_OK;
}

static int get_meters(ss_switch *sw, ss_reader *r, ss_writer *w, span *s) {
    int status = get_span(r, w, sw->program->n_meters, "meter", s);
    if (status) return status;
    const ss_meter_info *info = &sw->program->meters[s->index];
    if (s->n > SS_MAX_CELLS)
        return refuse(w, SS_INVALID_ARGUMENT, "at most %u cells a request, got %u", SS_MAX_CELLS, s->n);
    return check_span(w, s, info->name, info->size, info->table);
}

int ss_do_meter_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_meters(sw, r, w, &s);
    for (uint32_t i = 0; !status && i < s.n; i++) ss_put_meter(w, &sw->meters[s.index][s.first + i]);
    return status;
}

int ss_do_meter_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_meters(sw, r, w, &s);
    if (status) return status;
    if (get_left(r) < 33ull * s.n) return refuse_short(w);
    for (uint32_t i = 0; i < s.n; i++) {
        ss_meter_cell config = ss_get_meter(r);
        if (config.set && config.cir > config.pir)
            return refuse(w, SS_INVALID_ARGUMENT, "meter %s: committed rate %llu is above peak rate %llu",
                          sw->program->meters[s.index].name, (unsigned long long)config.cir,
                          (unsigned long long)config.pir);
        ss_meter_configure(&sw->meters[s.index][s.first + i], &config, sw->now_us);
    }
    return SS_OK;
}

/* Cells are little-endian integers of `stride` bytes, or as on the wire; in requests they are big endian in the fewest
 * bytes. */
static void convert(const ss_register_info *info, uint8_t *to, const uint8_t *from, uint32_t n) {
    if (info->wire)
        memcpy(to, from, n);
    else
        for (uint32_t i = 0; i < n; i++) to[i] = from[n - 1 - i];
}

static int get_registers(ss_switch *sw, ss_reader *r, ss_writer *w, span *s) {
    int status = get_span(r, w, sw->program->n_registers, "register", s);
    if (status) return status;
    const ss_register_info *info = &sw->program->registers[s->index];
    return check_span(w, s, info->name, info->size, -1);
}

int ss_do_register_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_registers(sw, r, w, &s);
    if (status) return status;
    const ss_register_info *info = &sw->program->registers[s.index];
    uint32_t width = ss_width(info->bits);
    if ((uint64_t)width * s.n > (uint64_t)(w->end - w->at))
        return refuse(w, SS_RESOURCE_EXHAUSTED, "register %s: %u cells of %u bytes do not fit a reply", info->name, s.n,
                      width);
    const uint8_t *cell = sw->registers[s.index].cells + s.first * info->stride;
    for (uint32_t i = 0; i < s.n; i++, cell += info->stride, w->at += width) convert(info, w->at, cell, width);
    return SS_OK;
}

int ss_do_register_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    span s;
    int status = get_registers(sw, r, w, &s);
    if (status) return status;
    const ss_register_info *info = &sw->program->registers[s.index];
    uint32_t width = ss_width(info->bits), over = 8 * width - info->bits;
    const uint8_t *data = get_bytes(r, (size_t)width * s.n);
    if (!data) return refuse_short(w);
    for (uint32_t i = 0; i < s.n; i++)
        if (width && data[(size_t)i * width] & ~(0xff >> over))
            return refuse(w, SS_INVALID_ARGUMENT, "register %s: value %u does not fit bit<%u>", info->name, i,
                          info->bits);
    uint8_t *cell = sw->registers[s.index].cells + s.first * info->stride;
    for (uint32_t i = 0; i < s.n; i++, cell += info->stride, data += width) {
        memset(cell, 0, info->stride);
        convert(info, cell, data, width);
    }
    return SS_OK;
}

int ss_do_register_reset(ss_switch *sw, ss_reader *r, ss_writer *w) {
    uint32_t index = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (index >= sw->program->n_registers)
        return refuse(w, SS_INVALID_ARGUMENT, "no register %u: the program has %u", index, sw->program->n_registers);
    const ss_register_info *info = &sw->program->registers[index];
    memset(sw->registers[index].cells, 0, info->size * info->stride);
    return SS_OK;
}
