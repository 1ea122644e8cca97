/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet trace out of a switch process; see trace_file.h.
 */
#include "trace_file.h"
#ifdef SS_TRACE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "records.h"

#define CHUNK 8u
#define LOST (CHUNK + 8u)
#define LAST (LOST + CHUNK) /* what is written at the end, whatever the limit */

bool ss_trace_file_open(ss_trace_file *f, int fd, uint16_t program, uint64_t limit) {
    *f = (ss_trace_file){.fd = fd, .program = program, .left = limit, .out = malloc(SS_TRACE_WAITING + LAST)};
    return f->out != NULL;
}

/* Whole chunks are written as far as they are taken; the rest waits. */
void ss_trace_file_flush(ss_trace_file *f) {
    f->waits = false;
    while (f->at < f->used && !f->error) {
        ssize_t n = write(f->fd, f->out + f->at, f->used - f->at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            f->waits = true;
            return;
        }
        if (n <= 0)
            f->error = n < 0 ? errno : EIO;
        else
            f->at += (size_t)n;
    }
    f->at = f->used = 0;
}

static bool has_room(ss_trace_file *f, size_t n) {
    if (f->error || f->left < n) return false;
    if (SS_TRACE_WAITING - f->used >= n) return true;
    if (!f->waits) ss_trace_file_flush(f);
    if (f->at) {
        memmove(f->out, f->out + f->at, f->used - f->at);
        f->used -= f->at;
        f->at = 0;
    }
    return SS_TRACE_WAITING - f->used >= n;
}

static void put_chunk(ss_trace_file *f, uint16_t type, const void *data, size_t n) {
    uint8_t *at = f->out + f->used;
    uint32_t size = (uint32_t)(n + 4);
    memcpy(at, &size, 4);
    memcpy(at + 4, &type, 2);
    memcpy(at + 6, &f->program, 2);
    if (n) memcpy(at + CHUNK, data, n);
    f->used += CHUNK + n;
    f->left -= CHUNK + n;
}

static void put_lost(ss_trace_file *f) {
    if (f->lost) put_chunk(f, SS_CHUNK_LOST, &f->lost, sizeof f->lost);
    f->lost = 0;
}

void ss_trace_file_put(void *file, const uint8_t *records, size_t n) {
    ss_trace_file *f = file;
    if (!has_room(f, CHUNK + n + (f->lost ? LOST : 0))) {
        f->lost++;
        return;
    }
    put_lost(f);
    put_chunk(f, SS_CHUNK_PACKET, records, n);
}

void ss_trace_file_end(ss_trace_file *f) {
    has_room(f, SS_TRACE_WAITING); /* moves what waits to the front; there are LAST bytes more behind it */
    f->left += LAST;
    put_lost(f);
    put_chunk(f, SS_CHUNK_END, NULL, 0);
    ss_trace_file_flush(f);
}

void ss_trace_file_close(ss_trace_file *f) {
    close(f->fd);
    free(f->out);
}
#else
typedef int ss_no_trace_file; /* a C file must declare something */
#endif
