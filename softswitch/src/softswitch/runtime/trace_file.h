/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet trace out of a switch process: chunks (records.h) into a file or pipe.
 */
#ifndef SS_TRACE_FILE_H
#define SS_TRACE_FILE_H
#ifdef SS_TRACE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
#endif
#endif
