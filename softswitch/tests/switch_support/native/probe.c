// SPDX-License-Identifier: Apache-2.0
//
// A program for the runtime's tests, written by hand in the shape that the compiler emits.  One header of 8 bytes
// says what the switch shall do:
//     bit<8> op (top bit: egress writes what it sees into a, b, c) | bit<8> a | bit<16> b | bit<32> c
#include <string.h>
#include "softswitch.h"

#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void); /* what the sanitizer asks for: here, the first report ends the process */
const char *__tsan_default_options(void) { return "halt_on_error=1:atexit_sleep_ms=0"; }
#endif

typedef struct {
    ss_packet std;
    bool valid;
    uint64_t op, a, b, c; // the header
    uint64_t tag, other;  // user metadata; tag is in field list 1
} state;

enum {
    FORWARD = 0,
    MULTICAST,
    DROP,
    CLONE,
    RESUBMIT,
    RECIRCULATE,
    EXACT,
    LPM,
    TERNARY,
    RANGE,
    OPTIONAL,
    SELECT,
    REGISTER,
    COUNT,
    METER,
    DIGEST,
    TRUNCATE,
    HASH,
    RANDOM,
    VALUE_SET,
    CLONE_EGRESS,
    LOG,
    FOREVER,
    GROW,
    MISS_EXIT,
    WIDE,
    CONST
};

static void be(uint8_t *to, uint64_t v, int n) {
    for (int i = n - 1; i >= 0; i--, v >>= 8) to[i] = (uint8_t)v;
}
static uint64_t from_be(const uint8_t *p, int n) {
    uint64_t v = 0;
    while (n--) v = v << 8 | *p++;
    return v;
}

static void init(void *at) {
    state *s = at;
    memset((char *)s + sizeof s->std, 0, sizeof *s - sizeof s->std);
}

static void reset_metadata(void *at) {
    state *s = at;
    s->tag = s->other = 0;
}

static void keep_fields(void *to, const void *from, uint32_t list) {
    if (list == 1) ((state *)to)->tag = ((const state *)from)->tag;
}

static void parse(ss_switch *sw, void *at, const uint8_t *frame, uint32_t len) {
    state *s = at;
    (void)sw;
    s->std.parser_error = 0;
    s->other = 77; // metadata that a parser writes: clones must not see it
    if (len < 8) {
        s->std.parser_error = 1;
        s->std.payload = frame, s->std.payload_len = len;
        return;
    }
    s->valid = true;
    s->op = frame[0], s->a = frame[1], s->b = from_be(frame + 2, 2), s->c = from_be(frame + 4, 4);
    s->std.payload = frame + 8, s->std.payload_len = len - 8;
}

static void verify_checksum(ss_switch *sw, void *at) { (void)sw, (void)at; }

static void act(state *s, ss_entry e) {
    s->a = e.hit;
    if (e.action == 0)
        s->std.egress_spec = from_be(e.params, 2);
    else if (e.action == 1)
        s->c = from_be(e.params, 4), s->std.egress_spec = from_be(e.params + 4, 2);
    else if (e.action == 2)
        s->std.egress_spec = SS_DROP_PORT;
    else
        s->std.egress_spec = 9; // no action ran
}

static void table(ss_switch *sw, state *s, uint32_t index) {
    uint64_t key[1] = {0};
    uint8_t *bytes = (uint8_t *)key, sel[4];
    be(sel, s->c, 4);
    if (index == 0 || index == 4)
        be(bytes, s->c, 4);
    else if (index == 5)
        be(bytes, s->b, 2);
    else
        be(bytes, s->b, 2), be(bytes + 2, s->c, 4);
    ss_entry e = ss_lookup(sw, &s->std, index, key, index == 5 ? sel : NULL, index == 5 ? 4 : 0);
    act(s, e);
    if (index == 0) s->b = ss_direct_meter(sw, &s->std, &e);
}

static void ingress(ss_switch *sw, void *at) {
    state *s = at;
    if (!s->valid) {
        s->std.egress_spec = 3;
        return;
    }
    bool first = s->std.instance_type == SS_NORMAL;
    switch (s->op & 0x7f) {
    case FORWARD: s->std.egress_spec = s->b; break;
    case MULTICAST:
        s->std.mcast_grp = s->b;
        s->std.egress_spec = SS_DROP_PORT;
        break;
    case DROP: s->std.egress_spec = SS_DROP_PORT; break;
    case CLONE:
        s->tag = 0x1234, s->other = 0x5678;
        s->std.clone_asked = true, s->std.clone_session = (uint32_t)s->b;
        s->std.clone_list = s->a ? 1 : SS_NO_LIST;
        s->std.egress_spec = s->c;
        s->c = 0xdead; // clones carry the frame as it came
        break;
    case RESUBMIT:
        if (s->std.instance_type != SS_RESUBMIT)
            s->tag = s->c, s->c = 0xdead, s->std.resubmit_asked = true, s->std.resubmit_list = s->a ? 1 : SS_NO_LIST;
        else
            s->std.egress_spec = s->b, s->b = s->tag & 0xffff, s->a = s->std.ingress_port & 0xff;
        break;
    case RECIRCULATE:
        s->std.egress_spec = s->b;
        if (first)
            s->tag = 0x77;
        else
            s->a = s->tag & 0xff;
        break;
    case EXACT: table(sw, s, 0); break;
    case LPM: table(sw, s, 1); break;
    case TERNARY: table(sw, s, 2); break;
    case RANGE: table(sw, s, 3); break;
    case OPTIONAL: table(sw, s, 4); break;
    case SELECT: table(sw, s, 5); break;
    case CONST: table(sw, s, 6); break;
    case REGISTER: {
        uint32_t *cells = (uint32_t *)ss_register_cells(sw, 0);
        if (s->a < 16) s->c = (cells[s->a] += (uint32_t)s->c);
        s->std.egress_spec = s->b;
        break;
    }
    case WIDE: { // a 100-bit register: low 64 bits in the first limb
        uint64_t *cell = (uint64_t *)ss_register_cells(sw, 1) + 2 * s->a;
        cell[0] += s->c, cell[1] = s->b;
        s->std.egress_spec = 1;
        break;
    }
    case COUNT:
        if (s->a < 8) ss_count(sw, 0, s->a);
        s->std.egress_spec = s->b;
        break;
    case METER:
        s->c = ss_meter(sw, &s->std, 0, s->a);
        s->std.egress_spec = s->b;
        break;
    case DIGEST: {
        uint8_t bytes[6];
        be(bytes, s->b, 2), be(bytes + 2, s->c, 4);
        ss_digest(sw, 0, bytes, 6);
        s->std.egress_spec = s->a;
        break;
    }
    case TRUNCATE:
        s->std.truncate_to = (uint32_t)s->c;
        s->std.egress_spec = s->b;
        break;
    case HASH:
        s->std.egress_spec = s->b;
        s->c = (uint32_t)ss_hash(sw, (uint32_t)s->a, s->std.payload, s->std.payload_len);
        break;
    case RANDOM:
        s->c = ss_random(sw, s->b, s->c);
        s->std.egress_spec = 1;
        break;
    case VALUE_SET: {
        uint8_t key[2];
        be(key, s->b, 2);
        s->a = ss_value_set_has(sw, 0, key);
        s->std.egress_spec = 1;
        break;
    }
    case CLONE_EGRESS: s->std.egress_spec = s->b; break;
    case LOG:
        ss_log(sw, "hello");
        ss_assert_failed(sw, "probe.p4:1: b == 0");
        s->std.egress_spec = s->b;
        break;
    case FOREVER:
        s->std.resubmit_asked = true;
        s->std.resubmit_list = SS_NO_LIST;
        break;
    case GROW:
        s->std.egress_spec = s->b;
        s->std.length_change += 100;
        break;
    default: s->std.egress_spec = SS_DROP_PORT;
    }
}

static void egress(ss_switch *sw, void *at) {
    state *s = at;
    (void)sw;
    uint32_t op = s->op & 0x7f;
    if (op == RECIRCULATE && s->std.instance_type == SS_NORMAL && s->c) {
        s->c--;
        s->std.recirculate_asked = true, s->std.recirculate_list = 1;
    }
    if (op == CLONE_EGRESS && (s->std.instance_type == SS_NORMAL || s->c == 0xffff)) {
        s->tag = 0x4321;
        s->std.clone_asked = true, s->std.clone_session = (uint32_t)s->a, s->std.clone_list = 1;
    }
    if (!(s->op & 0x80)) return;
    s->a = s->std.instance_type;
    s->b = s->tag ? s->tag : s->std.egress_rid;
    s->c = s->other << 24 | s->std.packet_length;
}

static void compute_checksum(ss_switch *sw, void *at) { (void)sw, (void)at; }

static void deparse(ss_switch *sw, void *at, uint8_t *out, ss_parts *parts) {
    state *s = at;
    (void)sw;
    *parts = (ss_parts){0};
    if (!s->valid) return;
    out[0] = (uint8_t)s->op, out[1] = (uint8_t)s->a;
    be(out + 2, s->b, 2), be(out + 4, s->c, 4);
    parts->head = 8;
    if ((s->op & 0x7f) != GROW) return;
    memset(out + 8, 0xee, 100);
    parts->head = 108;
}

static const uint32_t forward_bits[] = {9}, set_bits[] = {32, 9};
static const ss_action_info actions[] = {
    {"I.forward", 0x01000001, 1, forward_bits},
    {"I.set", 0x01000002, 2, set_bits},
    {"I.drop", 0x01000003, 0, NULL},
};
static const ss_key_field exact_key[] = {{"h.c", SS_EXACT, 32}};
static const ss_key_field lpm_key[] = {{"h.b", SS_EXACT, 16}, {"h.c", SS_LPM, 32}};
static const ss_key_field ternary_key[] = {{"h.b", SS_TERNARY, 16}, {"h.c", SS_TERNARY, 32}};
static const ss_key_field range_key[] = {{"h.b", SS_RANGE, 16}, {"h.c", SS_TERNARY, 32}};
static const ss_key_field optional_key[] = {{"h.c", SS_OPTIONAL, 32}};
static const ss_key_field select_key[] = {{"h.b", SS_EXACT, 16}};
static const uint8_t const_keys[] = {0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7},
                     const_masks[] = {0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff};
static const uint8_t const_ports[] = {0, 2, 0, 3};
static const ss_const_entry const_entries[] = {
    {const_keys, const_masks, 2, 0, const_ports},
    {const_keys + 6, const_masks + 6, 1, 0, const_ports + 2},
};
static const uint8_t none[1];
#define TABLE(name_, id_, keys_, n_, size_, ...) \
    {.name = name_,                              \
     .id = id_,                                  \
     .n_keys = n_,                               \
     .keys = keys_,                              \
     .n_actions = 3,                             \
     .actions = actions,                         \
     .default_action = 2,                        \
     .default_params = none,                     \
     .size = size_,                              \
     .profile = -1,                              \
     .direct_counter = -1,                       \
     .direct_meter = -1,                         \
     __VA_ARGS__}
static const ss_table_info tables[] = {
    TABLE("I.exact", 0x02000001, exact_key, 1, 300000, .idle_timeout = true, .direct_counter = 1, .direct_meter = 1),
    TABLE("I.lpm", 0x02000002, lpm_key, 2, 1024),
    TABLE("I.ternary", 0x02000003, ternary_key, 2, 1024),
    TABLE("I.range", 0x02000004, range_key, 2, 1024),
    TABLE("I.optional", 0x02000005, optional_key, 1, 4),
    TABLE("I.select", 0x02000006, select_key, 1, 1024, .profile = 0),
    TABLE("I.fixed", 0x02000007, ternary_key, 2, 1024, .const_default = true, .n_const_entries = 2,
          .const_entries = const_entries, .has_const_entries = true),
};
static const ss_register_info registers[] = {{"I.sums", 0x16000001, 16, 32, 4}, {"I.wide", 0x16000002, 4, 100, 16}};
static const ss_counter_info counters[] = {
    {"I.count", 0x12000001, 8, SS_PACKETS_AND_BYTES, -1},
    {"I.exact_count", 0x13000001, 0, SS_PACKETS_AND_BYTES, 0},
};
static const ss_meter_info meters[] = {
    {"I.meter", 0x14000001, 8, SS_PACKETS, -1},
    {"I.exact_meter", 0x15000001, 0, SS_BYTES, 0},
};
static const ss_profile_info profiles[] = {{"I.ecmp", 0x11000001, 64, true, 16, SS_IDENTITY}};
static const uint32_t digest_bits[] = {16, 32};
static const ss_digest_info digests[] = {{"seen_t", 0x17000001, 2, digest_bits}};
static const ss_key_field set_key[] = {{"h.b", SS_TERNARY, 16}};
static const ss_value_set_info value_sets[] = {{"P.known", 0x18000001, 4, 1, set_key}};
static const char *const errors[] = {"NoError", "PacketTooShort"};

const ss_program ss_the_program = {
    .abi = SS_ABI,
    .source = "probe.p4",
    .state_size = sizeof(state),
    .init = init,
    .reset_metadata = reset_metadata,
    .parse = parse,
    .verify_checksum = verify_checksum,
    .ingress = ingress,
    .egress = egress,
    .compute_checksum = compute_checksum,
    .deparse = deparse,
    .keep_fields = keep_fields,
    .n_tables = 7,
    .tables = tables,
    .n_registers = 2,
    .registers = registers,
    .n_counters = 2,
    .counters = counters,
    .n_meters = 2,
    .meters = meters,
    .n_profiles = 1,
    .profiles = profiles,
    .n_digests = 1,
    .digests = digests,
    .n_value_sets = 1,
    .value_sets = value_sets,
    .n_errors = 2,
    .errors = errors,
    .packet_in_bits = -1,
    .packet_out_bits = -1,
};
