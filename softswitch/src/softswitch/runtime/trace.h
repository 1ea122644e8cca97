/* SPDX-License-Identifier: Apache-2.0
 *
 * Recording what happens to a frame (records.h); nothing where the switch is built without -DSS_TRACE.
 */
#ifndef SS_TRACE_H
#define SS_TRACE_H
#include "records.h"
#ifdef SS_TRACE
#include "rules.h"

ss_trace *ss_trace_of(ss_switch *);
bool ss_trace_open(ss_switch *, void (*sink)(void *, const uint8_t *, size_t), void *arg, uint32_t keep);
void ss_trace_close(ss_switch *);

typedef struct ss_pass_scope {
    ss_switch *sw;
    uint32_t before;
} ss_pass_scope;

void ss_trace_packet(ss_switch *, uint32_t port, const uint8_t *frame, uint32_t len);
void ss_trace_done(ss_switch *);
/* A pass ends with the block in which it began, however that is left. */
ss_pass_scope ss_trace_pass(ss_switch *, ss_pass_kind, const ss_packet *, uint32_t parent, uint32_t port,
                            uint32_t instance, uint32_t length);
void ss_trace_pass_end(ss_pass_scope *);
#define PASS(...) ss_pass_scope pass_scope __attribute__((cleanup(ss_trace_pass_end))) = ss_trace_pass(__VA_ARGS__)
void ss_trace_numbers(ss_switch *, uint8_t kind, uint32_t id, uint32_t n, const uint32_t *numbers);
#define NUMBERS(sw, kind, id, ...) \
    ss_trace_numbers(sw, kind, id, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})
void ss_trace_frame(ss_switch *, uint8_t kind, uint32_t id, const uint8_t *frame, uint32_t len);
void ss_trace_parts(ss_switch *, uint8_t kind, uint32_t id, const uint8_t *out, const ss_parts *);
void ss_trace_text(ss_switch *, uint32_t id, const char *text);
void ss_trace_refused(ss_switch *, uint32_t port);
/* Returns the entry.  u8 hit, u8 kind (SS_DO_*), u32 action that runs, u64 handle, u32 slot, i32 priority, u32 target,
 * u32 member, then the key looked up; on a hit the entry's key and mask; the parameters of the action, as many as it
 * has. */
ss_entry ss_trace_lookup(ss_switch *, const ss_table *, const uint64_t *key, const ss_rule *, uint32_t member,
                         ss_entry);
#endif
#endif
