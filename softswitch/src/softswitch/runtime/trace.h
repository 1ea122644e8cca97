/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet trace: what happened to each frame, as binary records (softswitch/trace/records.py reads them).
 *
 * A switch that is built with -DSS_TRACE writes them; one built without has no trace of it, neither code nor data.
 * A program that was compiled for tracing (compiler/trace_sites.py) calls the functions that softswitch.h declares with
 * the numbers of its sites; pipeline.c and tables.c record what the program does not see.
 *
 *   record   u16 length of the payload, u8 kind, u32 id, payload; all numbers are little-endian
 *   chunk    u32 length of all that follows, u16 type, u16 program, payload
 *
 * A chunk holds all records of one frame, so that a frame is traced as a whole or not at all.  Nothing here blocks, and
 * nothing grows without limit: what finds no room is dropped and counted, and the count is a chunk of its own.
 */
#ifndef SS_TRACE_H
#define SS_TRACE_H
#ifdef SS_TRACE
#include "softswitch.h"

#define TRACE(...) __VA_ARGS__

enum {
    SS_CHUNK_DESCRIPTION = 1, /* of a program, as JSON; the server writes it */
    SS_CHUNK_PACKET = 2,      /* the records of one frame */
    SS_CHUNK_LOST = 3,        /* u64, how many frames are missing here */
    SS_CHUNK_END = 4          /* the switch has ended, and all before was written */
};

enum {
    SS_REC_SITE = 1,      /* id: site; payload: its value, little-endian, or bytes of the packet */
    SS_REC_PACKET = 2,    /* id: port; u64 now_us, u32 length, then the frame, at most as much as is kept of frames */
    SS_REC_PASS = 3,      /* id: number of the pass; u8 ss_pass_kind, u32 parent, port, instance, instance_type, length,
                             depth of the queue */
    SS_REC_PASS_END = 4,  /* id: number of the pass */
    SS_REC_PARSED = 5,    /* id: parser_error; u32 bytes that remain as payload */
    SS_REC_LOOKUP = 6,    /* id: table; see ss_trace_lookup */
    SS_REC_DROP = 7,      /* id: ss_drop_reason; u32 detail */
    SS_REC_OUT = 8,       /* id: port; u32 length, then the frame */
    SS_REC_PACKET_IN = 9, /* id: ingress port; u32 length, then the frame */
    SS_REC_CLONE = 10,    /* id: session; u32 whether it is there, whether in egress, group, replicas */
    SS_REC_MULTICAST = 11,   /* id: group; u32 whether it is there, replicas */
    SS_REC_RESUBMIT = 12,    /* id: field list; u32 length of the frame */
    SS_REC_RECIRCULATE = 13, /* id: field list; u32 length of the frame */
    SS_REC_EGRESS_SPEC = 14, /* id: egress_spec at the end of ingress */
    SS_REC_LOG = 15,         /* id: 1 where an assert failed, else 0; text */
    SS_REC_CUT = 16          /* the frame has more records, for which there was no room */
};

typedef enum { SS_PASS_INGRESS = 0, SS_PASS_CLONE = 1, SS_PASS_EGRESS = 2 } ss_pass_kind;

typedef enum {
    SS_DROP_INGRESS = 1,      /* egress_spec was 511 at the end of ingress */
    SS_DROP_EGRESS = 2,       /* egress_spec was 511 at the end of egress */
    SS_DROP_NO_GROUP = 3,     /* detail: the multicast group, which does not exist */
    SS_DROP_EMPTY_GROUP = 4,  /* detail: the multicast group, which has no replica */
    SS_DROP_QUEUE = 5,        /* detail: port, whose queue is full */
    SS_DROP_NO_PORT = 6,      /* detail: port, which the switch does not have */
    SS_DROP_PORT_DOWN = 7,    /* detail: port, whose interface is down or gone */
    SS_DROP_TOO_LONG_IN = 8,  /* detail: length of the frame */
    SS_DROP_TOO_LONG_OUT = 9, /* detail: length of the frame */
    SS_DROP_PASSES = 10,      /* resubmitted, recirculated or cloned too often */
    SS_DROP_MEMORY = 11,      /* no memory for a copy */
    SS_DROP_BAD_PORT = 12,    /* detail: ingress port, above 511 */
    SS_DROP_TRUNCATED = 13    /* truncated to 0 bytes */
} ss_drop_reason;

typedef struct ss_trace {
    /* Takes the records of one frame; they are overwritten afterwards.  NULL: nothing is traced. */
    void (*sink)(void *arg, const uint8_t *records, size_t n);
    void *arg;
    uint32_t keep; /* most bytes of a frame that a record has */
    bool cut;
    uint32_t passes, pass, parent; /* passes of the frame so far; the one that runs, 0: none; the one that caused it */
    size_t used;
    uint8_t *buffer; /* SS_TRACE_RECORDS bytes */
} ss_trace;

#define SS_TRACE_RECORDS (256u << 10) /* most bytes of the records of one frame */

ss_trace *ss_trace_of(ss_switch *);
bool ss_trace_open(ss_switch *, void (*sink)(void *, const uint8_t *, size_t), void *arg, uint32_t keep);
void ss_trace_close(ss_switch *);

typedef struct ss_rule ss_rule;
typedef struct ss_table ss_table;
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

/* ---- out of a switch process ------------------------------------------------------------------------------------- */
typedef struct ss_trace_file {
    int fd;     /* a regular file, or a pipe that does not block */
    bool waits; /* the pipe is full: write again when it can be written */
    int error;  /* errno of the write that failed: the reader is gone, or the disk is full; 0: none */
    uint16_t program;
    uint64_t left;   /* bytes that may still be written */
    uint64_t lost;   /* frames whose records were dropped since the last report */
    size_t at, used; /* what is still to be written: out[at..used) */
    uint8_t *out;    /* SS_TRACE_WAITING bytes */
} ss_trace_file;
#define SS_TRACE_WAITING (1u << 20)

bool ss_trace_file_open(ss_trace_file *, int fd, uint16_t program, uint64_t limit);
void ss_trace_file_put(void *file, const uint8_t *records, size_t n); /* a sink */
void ss_trace_file_flush(ss_trace_file *);
void ss_trace_file_end(ss_trace_file *); /* writes the last chunks, which may have to wait like others */
void ss_trace_file_close(ss_trace_file *);
#else
#define TRACE(...)
#endif
#endif
