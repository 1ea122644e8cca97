/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet trace: what happened to each frame, as binary records (softswitch/trace/records.py reads them).
 *
 * A switch that is built with -DSS_TRACE writes them; one built without has no trace of it, neither code nor data.
 * A program that was compiled for tracing (compiler/trace_sites.py) calls the functions that softswitch.h declares with
 * the numbers of its sites; pipeline.c and tables.c record what the program does not see (trace.h).
 *
 *   record   u16 length of the payload, u8 kind, u32 id, payload; all numbers are little-endian
 *   chunk    u32 length of all that follows, u16 type, u16 program, payload
 *
 * A chunk holds all records of one frame, so that a frame is traced as a whole or not at all.  Nothing here blocks, and
 * nothing grows without limit: what finds no room is dropped and counted, and the count is a chunk of its own.
 */
#ifndef SS_RECORDS_H
#define SS_RECORDS_H
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
#else
#define TRACE(...)
#endif
#endif
