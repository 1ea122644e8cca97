/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract between a compiled P4 program and the switch that runs it.
 *
 *   compiler/emit  writes one C file that defines `const ss_program ss_the_program`
 *   runtime        owns tables, registers, counters, meters, the replication engine, queues and packet I/O
 *
 *   frame -> parse -> verify_checksum -> ingress -> traffic manager -> egress -> compute_checksum -> deparse -> frame
 *            `------ one `state` a packet ------'   (copies it for      `------------ once a copy ------------'
 *                                                    every replica)
 *
 * Numbers.  A value of bit<W>/int<W> with W <= 64 is a uint64_t (in a struct the shortest type that holds it), with
 * W <= 128 an unsigned __int128, and beyond that, where W is a multiple of 64, a pointer to W / 8 bytes in the order of
 * the wire that never change (wire.h), else an array of ceil(W/64) uint64_t limbs, least significant first (wide.h);
 * bits above W are always zero (int<W> too: two's complement in W bits).  No _BitInt: gcc 12 has none, and run-time
 * shifts on it cost microseconds.
 *
 * Bytes.  Where the runtime sees values as bytes (keys, parameters, digests) each field is ceil(W/8) bytes, big endian,
 * left padded with zero bits, fields one after another without gaps.
 */
#ifndef SOFTSWITCH_H
#define SOFTSWITCH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SS_ABI 3
#define SS_DROP_PORT 511   /* v1model: egress_spec of a dropped packet (9-bit ports) */
#define SS_MAX_FRAME 16384 /* longest frame in or out, bytes */
#define SS_MAX_ADDED 5120  /* most bytes a program may add in front of the payload: a page and its headers */

typedef struct ss_switch ss_switch; /* runtime/switch.h; opaque to the program */

/* ---- the packet: v1model's standard_metadata and what externs ask of the traffic manager ------------------------- */
enum {
    SS_NORMAL = 0,
    SS_INGRESS_CLONE = 1,
    SS_EGRESS_CLONE = 2,
    SS_COALESCED = 3,
    SS_RECIRC = 4,
    SS_REPLICATION = 5,
    SS_RESUBMIT = 6
}; /* instance_type, as BMv2 numbers it */

typedef struct ss_packet { /* first member of every program's `state` */
    /* standard_metadata_t, one C member a P4 field, same names */
    uint64_t ingress_port, egress_spec, egress_port, instance_type, packet_length;
    uint64_t enq_timestamp, enq_qdepth, deq_timedelta, deq_qdepth;
    uint64_t ingress_global_timestamp, egress_global_timestamp;
    uint64_t mcast_grp, egress_rid, checksum_error, priority;
    uint64_t parser_error; /* index into the program's error list; 0 is NoError */
    /* bytes after the parsed headers */
    const uint8_t *payload;
    uint32_t payload_len;
    /* The frame, whose bytes stay as they are while its packet is in the pipeline.  Once that is through, those before
     * `stable` may be overwritten, and the others at the end of the turn. */
    const uint8_t *frame, *stable;
    uint32_t truncate_to; /* the longest frame that may leave, bytes: the least of all truncate() calls; or SS_WHOLE */
    /* left by externs for the traffic manager (0 / false: nothing asked) */
    bool clone_asked;
    uint32_t clone_session;
    uint32_t clone_list; /* list: index for keep_fields, or SS_NO_LIST */
    bool resubmit_asked;
    uint32_t resubmit_list;
    bool recirculate_asked;
    uint32_t recirculate_list;
    bool exited;           /* `exit` ran: skip the rest of this control */
    int32_t length_change; /* setValid() that made a header valid adds its bytes, setInvalid() subtracts them:
                                         BMv2's packet_length in egress = length at ingress + this */
} ss_packet;
#define SS_NO_LIST 0xffffffffu
#define SS_SESSIONS 0x7fffu  /* a clone session's number has 15 bits, the lowest of what the program gives (BMv2) */
#define SS_WHOLE 0xffffffffu /* of truncate_to: no bound */
#define SS_LINE __attribute__((aligned(64))) /* begins a cache line: what is cleared and copied whole */

/* A frame that leaves: out[0..head) ref[0..ref_len) out[head..head + tail).  A longer run of bytes that is sent on as
 * it lies somewhere else is not copied but referred to. */
typedef struct ss_parts {
    uint32_t head, tail, ref_len;
    const uint8_t *ref; /* into the frame, or what ss_take gave, or constant; NULL: none */
} ss_parts;
#define SS_NO_FRAME 0xffffffffu /* in `head`: longer than any frame may be, so that it is dropped and counted */

/* ---- static description of a program ----------------------------------------------------------------------------- */
typedef enum { SS_EXACT, SS_LPM, SS_TERNARY, SS_RANGE, SS_OPTIONAL } ss_match;

typedef struct {
    const char *name;
    ss_match match;
    uint32_t bits;
} ss_key_field;
typedef struct {
    const char *name;
    uint32_t id;
    uint32_t n_params;
    const uint32_t *param_bits;
} ss_action_info;

typedef struct {         /* a const entry; key/mask/hi/params in the byte form above */
    const uint8_t *key;  /* value, or low end of a range */
    const uint8_t *mask; /* ternary/optional/lpm mask (exact: all ones), high end of a range */
    int32_t priority;    /* larger wins */
    uint32_t action;     /* index into the table's actions */
    const uint8_t *params;
} ss_const_entry;

typedef struct {
    const char *name;
    uint32_t id; /* control-plane name and p4info id */
    uint32_t n_keys;
    const ss_key_field *keys;
    uint32_t n_actions;
    const ss_action_info *actions; /* ss_entry.action indexes this list */
    uint32_t default_action;
    const uint8_t *default_params;
    bool const_default;
    uint32_t n_const_entries;
    const ss_const_entry *const_entries;
    bool has_const_entries;
    uint64_t size;
    bool idle_timeout;
    int32_t profile;                      /* index into profiles, or -1 */
    int32_t direct_counter, direct_meter; /* index into counters / meters, or -1 */
} ss_table_info;

typedef enum { SS_PACKETS, SS_BYTES, SS_PACKETS_AND_BYTES } ss_unit;
typedef struct {
    const char *name;
    uint32_t id;
    uint64_t size;
    uint32_t bits;
    uint32_t stride; /* bytes a cell: 1, 2, 4, 8, 16 or 8 * limbs */
    bool wire;       /* cells are in the order of the wire, not little-endian integers */
} ss_register_info;
typedef struct {
    const char *name;
    uint32_t id;
    uint64_t size;
    ss_unit unit;
    int32_t table;
} ss_counter_info; /* table >= 0: direct */
typedef struct {
    const char *name;
    uint32_t id;
    uint64_t size;
    ss_unit unit;
    int32_t table;
} ss_meter_info;
typedef struct {
    const char *name;
    uint32_t id;
    uint64_t size;
    bool selector;
    uint32_t max_group_size;
    uint32_t algo;
} ss_profile_info;
typedef struct {
    const char *name;
    uint32_t id;
    uint32_t n_fields;
    const uint32_t *field_bits;
} ss_digest_info;
typedef struct {
    const char *name;
    uint32_t id;
    uint64_t size;
    uint32_t n_keys;
    const ss_key_field *keys;
} ss_value_set_info;

typedef struct ss_program {
    uint32_t abi;                        /* SS_ABI */
    const char *source;                  /* file name of the main P4 file, for messages */
    size_t state_size;                   /* sizeof(state); copied whole for replicas */
    void (*init)(void *state);           /* headers invalid, metadata zero, standard metadata untouched */
    void (*reset_metadata)(void *state); /* user metadata zero; headers and standard metadata untouched (clones) */
    /* Each returns nothing; parse fills payload/payload_len and parser_error (it never rejects: v1model goes on). */
    void (*parse)(ss_switch *, void *state, const uint8_t *frame, uint32_t len);
    void (*verify_checksum)(ss_switch *, void *state);
    void (*ingress)(ss_switch *, void *state);
    void (*egress)(ss_switch *, void *state);
    void (*compute_checksum)(ss_switch *, void *state);
    /* What stands in front of the payload: at most SS_MAX_ADDED bytes and as many as were parsed, counted together. */
    void (*deparse)(ss_switch *, void *state, uint8_t *out, ss_parts *);
    void (*keep_fields)(void *to, const void *from, uint32_t list); /* @field_list(list): user metadata kept */
    uint32_t n_tables;
    const ss_table_info *tables;
    uint32_t n_registers;
    const ss_register_info *registers;
    uint32_t n_counters;
    const ss_counter_info *counters;
    uint32_t n_meters;
    const ss_meter_info *meters;
    uint32_t n_profiles;
    const ss_profile_info *profiles;
    uint32_t n_digests;
    const ss_digest_info *digests;
    uint32_t n_value_sets;
    const ss_value_set_info *value_sets;
    uint32_t n_errors;
    const char *const *errors;
    int32_t packet_in_bits, packet_out_bits; /* size of the @controller_header headers, -1 where absent */
} ss_program;
extern const ss_program ss_the_program;

/* ---- what the runtime offers to the program ---------------------------------------------------------------------- */
#define SS_NO_ACTION 0xffffffffu /* hit an empty selector group: no action runs (BMv2) */
typedef struct ss_entry {
    uint32_t action; /* index into ss_table_info.actions, or SS_NO_ACTION */
    bool hit;
    const uint8_t *params; /* byte form; valid until the next control-plane write */
    void *direct;          /* direct counter/meter cells of the entry, or NULL */
} ss_entry;

/* Looks up `key` (byte form, all fields in order, zeros up to whole words), counts direct counters on a hit as BMv2
 * does, and returns the entry or the default.  For a table with a selector, `sel` is the selector fields packed as
 * hash input (else NULL, 0). */
ss_entry ss_lookup(ss_switch *, ss_packet *, uint32_t table, const uint64_t *key, const uint8_t *sel, uint32_t sel_len);
bool ss_value_set_has(ss_switch *, uint32_t value_set, const uint8_t *key);

typedef struct {
    uint64_t packets, bytes;
} ss_count_cell;
typedef struct { /* what programs reach without a call: a switch begins with it */
    uint8_t **registers;
    ss_count_cell **counters;
    const uint32_t *counted; /* bytes of the frame as it came in, which counters count (BMv2) */
} ss_shared;

/* size * stride bytes.  The program checks the index: reads out of range give 0, and writes there do nothing (BMv2). */
static inline uint8_t *ss_register_cells(ss_switch *sw, uint32_t reg) { return ((ss_shared *)sw)->registers[reg]; }
/* Of a counter that is not direct; the program checks the index. */
static inline void ss_count(ss_switch *sw, uint32_t counter, uint64_t index) {
    ss_count_cell *cell = &((ss_shared *)sw)->counters[counter][index];
    cell->packets++;
    cell->bytes += *((ss_shared *)sw)->counted;
}
uint32_t ss_meter(ss_switch *, ss_packet *, uint32_t meter, uint64_t index); /* 0 green, 1 yellow, 2 red */
uint32_t ss_direct_meter(ss_switch *, ss_packet *, const ss_entry *);

enum {
    SS_CRC32,
    SS_CRC32_CUSTOM,
    SS_CRC16,
    SS_CRC16_CUSTOM,
    SS_RANDOM,
    SS_IDENTITY,
    SS_CSUM16,
    SS_XOR16
}; /* HashAlgorithm; a custom CRC has its number, from 1 on, in the bits above the lowest eight */
uint64_t ss_hash(ss_switch *, uint32_t algo, const uint8_t *bytes,
                 uint32_t n); /* bit strings packed, zero padded at the end */
typedef struct ss_run {
    const uint8_t *bytes;
    uint32_t len;
} ss_run;
/* ss_hash over bytes that lie in several places, one after another. */
uint64_t ss_hash_runs(ss_switch *, uint32_t algo, const ss_run *, uint32_t n);
/* The ones' complement sum of a run as big-endian 16-bit words, 0..0xffff, where 0 stands for zeros alone; an odd last
 * byte is the upper half of a word. */
uint64_t ss_sum16_run(ss_switch *, const uint8_t *bytes, uint32_t n);
#define SS_NO_SUM 0x10000u                              /* not a sum: not known */
uint16_t ss_sum16_of(const uint8_t *bytes, uint32_t n); /* the same, computed anew */
/* csum16 over two runs of bytes, the second of which is the payload (update_checksum_with_payload).  n is even where
 * n_more is not 0. */
uint16_t ss_csum16(const uint8_t *bytes, uint32_t n, const uint8_t *more, uint32_t n_more);
/* The same over bytes that follow others, which, as big-endian numbers of 16 or 32 bits each, add up to `sum`. */
uint16_t ss_csum16_after(uint64_t sum, const uint8_t *bytes, uint32_t n);
uint64_t ss_random(ss_switch *, uint64_t lo, uint64_t hi); /* uniform in [lo, hi] */
void ss_digest(ss_switch *, uint32_t digest, const uint8_t *bytes, uint32_t n);
void ss_log(ss_switch *, const char *text);            /* log_msg, already formatted */
void ss_assert_failed(ss_switch *, const char *where); /* assert/assume: counted and logged, packet goes on */

/* Fresh memory for n bytes, aligned to 64, for a value that is written once and then read: it stays until every frame
 * that refers to it has left or was copied.  Never NULL. */
uint8_t *ss_take(ss_switch *, uint32_t n);
/* Bytes that may be referred to after the packet is through: these, or a copy. */
static inline const uint8_t *ss_refer(ss_switch *sw, const ss_packet *p, const uint8_t *bytes, uint32_t n) {
    if ((uintptr_t)bytes - (uintptr_t)p->frame >= (uintptr_t)p->stable - (uintptr_t)p->frame) return bytes;
    return (const uint8_t *)memcpy(ss_take(sw, n), bytes, n);
}

/* The packet trace (records.h), which only programs call that were compiled for it: they pass a place in the program,
 * and a value, little-endian in whole 64-bit words, or bytes of the packet. */
void ss_trace_site(ss_switch *, uint32_t site);
void ss_trace_value(ss_switch *, uint32_t site, uint64_t value);
void ss_trace_bytes(ss_switch *, uint32_t site, const void *bytes, uint32_t n);

#endif
