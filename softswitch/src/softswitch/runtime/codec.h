/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading requests and writing replies (protocol.h).  A reader that runs past its end turns `bad` and yields zeros; a
 * writer that runs past its end turns `full` and drops bytes: callers check once, at the end.
 */
#ifndef SS_CODEC_H
#define SS_CODEC_H
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "idmap.h"
#include "protocol.h"

typedef struct {
    const uint8_t *at, *end;
    bool bad;
} ss_reader;
typedef struct {
    uint8_t *at, *end;
    bool full;
} ss_writer;

static inline const uint8_t *get_bytes(ss_reader *r, size_t n) {
    if ((size_t)(r->end - r->at) < n) {
        r->bad = true;
        r->at = r->end;
        return NULL;
    }
    r->at += n;
    return r->at - n;
}

static inline size_t get_left(const ss_reader *r) { return (size_t)(r->end - r->at); }

#define SS_GETTER(name, type)                      \
    static inline type name(ss_reader *r) {        \
        type v = 0;                                \
        const uint8_t *p = get_bytes(r, sizeof v); \
        if (p) memcpy(&v, p, sizeof v);            \
        return v;                                  \
    }
SS_GETTER(get_u8, uint8_t)
SS_GETTER(get_u16, uint16_t)
SS_GETTER(get_u32, uint32_t)
SS_GETTER(get_u64, uint64_t)
SS_GETTER(get_i32, int32_t)

static inline void put_bytes(ss_writer *w, const void *data, size_t n) {
    if ((size_t)(w->end - w->at) < n) {
        w->full = true;
        return;
    }
    if (n) memcpy(w->at, data, n);
    w->at += n;
}

static inline void put_u8(ss_writer *w, uint8_t v) { put_bytes(w, &v, sizeof v); }
static inline void put_u16(ss_writer *w, uint16_t v) { put_bytes(w, &v, sizeof v); }
static inline void put_u32(ss_writer *w, uint32_t v) { put_bytes(w, &v, sizeof v); }
static inline void put_u64(ss_writer *w, uint64_t v) { put_bytes(w, &v, sizeof v); }

static inline void put_text(ss_writer *w, const char *text) {
    uint16_t n = (uint16_t)strlen(text);
    put_u16(w, n);
    put_bytes(w, text, n);
}

/* A refusal: the reply's body becomes the text. */
__attribute__((format(printf, 3, 4))) static inline int refuse(ss_writer *w, int status, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n > (int)sizeof text - 1) n = (int)sizeof text - 1;
    put_bytes(w, text, n > 0 ? (size_t)n : 0);
    return status;
}

static inline int refuse_short(ss_writer *w) { return refuse(w, SS_INVALID_ARGUMENT, "request cut short"); }

/* Paged reads: the record that did not fit any more is taken back. */
typedef struct {
    ss_writer *w;
    uint8_t *head;
    uint32_t n;
} ss_page;

static inline ss_page page_begin(ss_writer *w) {
    ss_page page = {w, w->at, 0};
    put_u64(w, 0);
    put_u32(w, 0);
    return page;
}

/* Call after writing a record that began at `before`: false where it did not fit and the page must end before it. */
static inline bool page_add(ss_page *page, uint8_t *before) {
    if (page->w->full) {
        page->w->full = page->n == 0;
        page->w->at = before;
        return false;
    }
    page->n++;
    return true;
}

static inline void page_end(ss_page *page, uint64_t next) {
    if (page->w->full) return;
    memcpy(page->head, &next, 8);
    memcpy(page->head + 8, &page->n, 4);
}

/* The items of `map` from u64 cursor on, or (u8 one) the one called u32 id, each written by `put`. */
typedef void (*ss_put_item)(ss_writer *, const void *);
int ss_read_items(const ss_idmap *map, const char *what, ss_reader *, ss_writer *, ss_put_item put);
#endif
