/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the runtime share: the switch. What its parts point to, their files' headers have.
 */
#ifndef SS_INTERNAL_H
#define SS_INTERNAL_H
#include <stdlib.h>
#include <string.h>
#include "idmap.h"
#include "records.h"
#include "switch.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

typedef struct {
    uint64_t s[4];
} ss_prng; /* xoshiro256** */
#define SS_MAX_CRCS 255u

typedef struct ss_chunk ss_chunk;
typedef struct {
    ss_chunk *first, *now, *kept;
    size_t used, mark;          /* of `now`; of `kept`, up to which nothing is given back when the packet ends */
    size_t before, kept_before; /* bytes of the chunks in front of each */
} ss_turn;

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

struct ss_switch {
    ss_shared shared; /* the first member: what programs reach without a call */
    const ss_program *program;
    ss_options options;
    ss_stats stats;
    uint64_t now_us;
    uint32_t ingress_port, counted; /* of the packet now in the pipeline */
    ss_prng prng;
    ss_turn turn, turn_before;
    const uint8_t *frame, *stable; /* of the packet in ss_receive */
    uint32_t frame_len, n_known;   /* known[0..n_known), or all of them where it is more */
    ss_known known[SS_KNOWN + 1];  /* the last one stands for what cannot be known */
    ss_factor factors[SS_FACTORS];
    void *state; /* of the packet in ss_receive */
    void **spare;
    uint32_t n_spare, cap_spare; /* further states */
    struct ss_work *work;
    uint32_t work_head, work_tail, work_cap;
    uint8_t *scratch; /* a frame for the CPU port */
    struct ss_table *tables;
    struct ss_profile *profiles;
    struct ss_register_array *registers;
    ss_count_cell **counters;
    struct ss_meter_cell **meters;
    struct ss_value_set *value_sets;
    ss_idmap multicasts, clones;
    bool idle_wanted;
    uint64_t idle_due;
    uint64_t idle_rest; /* no search before: a microsecond an entry of the last one, which took a fraction of it */
    struct ss_custom_crc *crcs[SS_MAX_CRCS + 1]; /* by number; NULL: not set, as the plain one */
    TRACE(ss_trace trace;)
};

static inline size_t ss_state_bytes(const ss_switch *sw) { return (sw->program->state_size + 63) & ~(size_t)63; }

static inline void ss_report(ss_switch *sw, ss_event_kind kind, uint32_t id, const void *data, uint32_t len) {
    if (!sw->options.event) return;
    ss_event event = {kind, id, sw->now_us, data, len};
    sw->options.event(sw->options.io, &event);
}
#endif
