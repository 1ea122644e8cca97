/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet trace; see trace.h.
 */
#include "trace.h"
#ifdef SS_TRACE
#include "internal.h"
#include "rules.h"

#define RECORD 7u

ss_trace *ss_trace_of(ss_switch *sw) { return &sw->trace; }

bool ss_trace_open(ss_switch *sw, void (*sink)(void *, const uint8_t *, size_t), void *arg, uint32_t keep) {
    ss_trace *t = &sw->trace;
    *t = (ss_trace){.sink = sink, .arg = arg, .keep = keep, .buffer = malloc(SS_TRACE_RECORDS)};
    if (!t->buffer) t->sink = NULL;
    return t->buffer != NULL;
}

void ss_trace_close(ss_switch *sw) {
    free(sw->trace.buffer);
    sw->trace = (ss_trace){0};
}

/* Room for a record with a payload of n bytes, its head written; NULL where nothing is traced, or there is no room. */
static uint8_t *record(ss_switch *sw, uint8_t kind, uint32_t id, size_t n) {
    ss_trace *t = &sw->trace;
    if (!t->sink || t->cut) return NULL; /* after a cut nothing follows: a smaller step would be of another pass */
    if (n > UINT16_MAX || SS_TRACE_RECORDS - t->used < RECORD + n + RECORD) { /* room for SS_REC_CUT is left */
        t->cut = true;
        return NULL;
    }
    uint8_t *at = t->buffer + t->used;
    uint16_t length = (uint16_t)n;
    memcpy(at, &length, 2);
    at[2] = kind;
    memcpy(at + 3, &id, 4);
    t->used += RECORD + n;
    return at + RECORD;
}

static uint8_t *put32(uint8_t *at, uint32_t v) {
    memcpy(at, &v, 4);
    return at + 4;
}

void ss_trace_numbers(ss_switch *sw, uint8_t kind, uint32_t id, uint32_t n, const uint32_t *numbers) {
    uint8_t *at = record(sw, kind, id, 4u * n);
    if (at) memcpy(at, numbers, 4u * n);
}

void ss_trace_packet(ss_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len) {
    ss_trace *t = &sw->trace;
    t->used = t->passes = t->pass = t->parent = 0;
    t->cut = false;
    uint32_t kept = len < t->keep ? len : t->keep;
    uint8_t *at = record(sw, SS_REC_PACKET, port, 12 + kept);
    if (!at) return;
    memcpy(at, &sw->now_us, 8);
    memcpy(put32(at + 8, len), frame, kept);
}

void ss_trace_done(ss_switch *sw) {
    ss_trace *t = &sw->trace;
    if (!t->sink) return;
    if (t->cut) {
        memset(t->buffer + t->used, 0, RECORD);
        t->buffer[t->used + 2] = SS_REC_CUT;
        t->used += RECORD;
    }
    t->sink(t->arg, t->buffer, t->used);
    t->used = 0;
}

ss_pass_scope ss_trace_pass(ss_switch *sw, ss_pass_kind kind, const ss_packet *p, uint32_t parent, uint32_t port,
                            uint32_t instance, uint32_t length) {
    ss_trace *t = &sw->trace;
    ss_pass_scope scope = {sw, t->pass};
    t->pass = ++t->passes;
    uint8_t *at = record(sw, SS_REC_PASS, t->pass, 25);
    if (at) {
        *at = (uint8_t)kind;
        uint32_t depth = kind == SS_PASS_EGRESS ? (uint32_t)p->enq_qdepth : 0;
        uint32_t numbers[] = {parent, port, instance, (uint32_t)p->instance_type, length, depth};
        memcpy(at + 1, numbers, sizeof numbers);
    }
    return scope;
}

void ss_trace_pass_end(ss_pass_scope *scope) {
    record(scope->sw, SS_REC_PASS_END, scope->sw->trace.pass, 0);
    scope->sw->trace.pass = scope->before;
}

void ss_trace_frame(ss_switch *sw, uint8_t kind, uint32_t id, const uint8_t *frame, uint32_t len) {
    uint32_t kept = len < sw->trace.keep ? len : sw->trace.keep;
    uint8_t *at = record(sw, kind, id, 4 + kept);
    if (at) memcpy(put32(at, len), frame, kept);
}

static uint8_t *put_kept(uint8_t *at, const uint8_t *bytes, uint32_t n, uint32_t *kept) {
    if (n > *kept) n = *kept;
    *kept -= n;
    return n ? (uint8_t *)memcpy(at, bytes, n) + n : at;
}

void ss_trace_parts(ss_switch *sw, uint8_t kind, uint32_t id, const uint8_t *out, const ss_parts *p) {
    uint32_t len = p->head + p->ref_len + p->tail, kept = len < sw->trace.keep ? len : sw->trace.keep;
    uint8_t *at = record(sw, kind, id, 4 + kept);
    if (!at) return;
    at = put_kept(put32(at, len), out, p->head, &kept);
    at = put_kept(at, p->ref, p->ref_len, &kept);
    put_kept(at, out + p->head, p->tail, &kept);
}

void ss_trace_text(ss_switch *sw, uint32_t id, const char *text) {
    size_t n = strlen(text);
    uint8_t *at = record(sw, SS_REC_LOG, id, n);
    if (at) memcpy(at, text, n);
}

void ss_trace_refused(ss_switch *sw, uint32_t port) {
    uint32_t why = sw->options.refusal ? sw->options.refusal(sw->options.io, port) : SS_DROP_QUEUE;
    NUMBERS(sw, SS_REC_DROP, why, port);
}

ss_entry ss_trace_lookup(ss_switch *sw, const ss_table *t, const uint64_t *key, const ss_rule *rule, uint32_t member,
                         ss_entry entry) {
    uint32_t bytes = t->key_bytes;
    uint32_t params = entry.action < t->info->n_actions ? ss_params_bytes(&t->info->actions[entry.action]) : 0;
    uint8_t *at = record(sw, SS_REC_LOOKUP, (uint32_t)(t - sw->tables), 30 + (rule ? 3 : 1) * bytes + params);
    if (!at) return entry;
    *at++ = entry.hit;
    *at++ = rule ? rule->kind : 0;
    at = put32(at, entry.action);
    uint64_t handle = rule ? rule->handle : 0;
    memcpy(at, &handle, 8);
    at = put32(at + 8, rule ? rule->slot : 0);
    at = put32(at, rule ? (uint32_t)rule->priority : 0);
    at = put32(at, rule ? rule->target : 0);
    at = put32(at, member);
    memcpy(at, key, bytes);
    if (rule) {
        memcpy(at += bytes, rule->bytes, bytes);
        memcpy(at += bytes, ss_rule_mask(t, rule), bytes);
    }
    if (params) memcpy(at + bytes, entry.params, params);
    return entry;
}

/* ---- what programs record ---------------------------------------------------------------------------------------- */

void ss_trace_site(ss_switch *sw, uint32_t site) { record(sw, SS_REC_SITE, site, 0); }

void ss_trace_value(ss_switch *sw, uint32_t site, uint64_t value) {
    uint8_t *at = record(sw, SS_REC_SITE, site, 8);
    if (at) memcpy(at, &value, 8);
}

void ss_trace_bytes(ss_switch *sw, uint32_t site, const void *bytes, uint32_t n) {
    uint8_t *at = record(sw, SS_REC_SITE, site, n);
    if (at) memcpy(at, bytes, n);
}
#else
typedef int ss_nothing; /* a C file must declare something */
#endif
