// SPDX-License-Identifier: Apache-2.0
//
// Throws hostile frames and requests at a switch; meant to run under the sanitizers.  Every buffer handed over is its
// own allocation of exactly the right size, so that a byte read or written too far is seen.
//     hostile SEED [FRAME-FILE [ROUNDS]]        with a file: that frame with bits turned and cut at every byte
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol.h"
#include "switch.h"

static uint64_t seed;
static uint32_t draw(uint32_t n) { // 0..n-1
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)((seed >> 16) % n);
}

static uint8_t *held; // the frame being built
static uint64_t frames, bytes;

#define TURN 64 // frames that wait as a port has them: what they refer to must stay
static struct {
    uint8_t *out, *whole;
    ss_parts parts;
    uint32_t len;
} waiting[TURN];
static uint32_t n_waiting;

static void leave(void) {
    for (uint32_t i = 0; i < n_waiting; i++) {
        ss_flatten(waiting[i].out, &waiting[i].parts);
        if (memcmp(waiting[i].out, waiting[i].whole, waiting[i].len)) abort();
        free(waiting[i].out), free(waiting[i].whole);
    }
    n_waiting = 0;
}

static uint8_t *reserve(void *io, uint32_t port, uint32_t cap) {
    (void)io, (void)port;
    if (draw(50) == 0) return NULL;
    return held = malloc(cap);
}

static void commit(void *io, uint32_t port, const ss_outgoing *made) {
    (void)io, (void)port;
    const ss_parts *p = &made->parts;
    uint32_t len = ss_outgoing_length(made);
    if (made->sum != SS_NO_SUM && made->sum != ss_sum16_of(p->ref, p->ref_len)) abort();
    if (len && p->ref_len && n_waiting < TURN) {
        uint8_t *out = malloc(len);
        memcpy(out, held, p->head + p->tail);
        waiting[n_waiting].out = out, waiting[n_waiting].parts = *p, waiting[n_waiting].len = len;
        waiting[n_waiting++].whole = held;
    }
    ss_flatten(held, p);
    for (uint32_t i = 0; i < len; i++) bytes += held[i]; // reads each: uninitialised or foreign bytes are seen
    frames += len != 0;
    if (!n_waiting || waiting[n_waiting - 1].whole != held) free(held);
}

static void event(void *io, const ss_event *e) {
    (void)io;
    for (uint32_t i = 0; i < e->len; i++) bytes += e->data[i];
}

static uint64_t now;

static void receive(ss_switch *sw, const uint8_t *data, uint32_t len) {
    static uint8_t *received[8]; // of this turn
    static uint32_t n;
    uint8_t *frame = received[n++] = malloc(len ? len : 1);
    memcpy(frame, data, len);
    ss_arrival in = {.bytes = frame, .len = len, .stable = draw(2) ? draw(len + 1) : 0, .sum = SS_NO_SUM};
    if (draw(2)) in.sum = ss_sum16_of(frame + in.stable, len - in.stable);
    ss_receive(sw, draw(512), &in, now += draw(5000));
    memset(frame, 0x5a, in.stable); // as the next segment's headers do
    if (n < 8 && draw(4)) return;
    leave();
    ss_turn_end(sw);
    while (n) free(received[--n]);
}

static size_t request(ss_switch *sw, const uint8_t *data, size_t n) {
    static uint8_t reply[SS_REPLY_MIN];
    uint8_t *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    size_t got = ss_control(sw, now, copy, n, reply, sizeof reply);
    if (got > sizeof reply) abort();
    leave();
    free(copy);
    return got;
}

static void put(uint8_t **at, uint64_t v, int n) {
    for (; n--; v >>= 8) *(*at)++ = (uint8_t)v;
}

// Requests that are nearly right: real ops, small indices, bodies whose fields are mostly plausible.
static void plausible(ss_switch *sw) {
    static const uint8_t ops[] = {10, 10, 10, 10, 11, 12, 13, 14, 15, 16, 20, 20, 20, 21, 22, 22, 22, 23,
                                  30, 31, 32, 33, 34, 35, 36, 40, 40, 41, 42, 42, 43, 44, 45, 1,  3,  4};
    uint8_t buffer[400], *at = buffer + 4;
    put(&at, ops[draw(sizeof ops)], 2);
    uint32_t fields = draw(16);
    bool with_kind = draw(2);
    if (with_kind) put(&at, draw(4), 1);
    put(&at, draw(7), 4);
    if (draw(2)) put(&at, draw(3), 4);
    for (uint32_t i = 0; i < fields; i++) {
        switch (draw(6)) {
        case 0: put(&at, draw(4), 1); break;
        case 1: put(&at, draw(20), 4); break;
        case 2: put(&at, draw(20), 8); break;
        case 3: put(&at, 0xffff, 2); break;
        case 4: put(&at, 0xffffffff, 4); break;
        default: put(&at, (uint64_t)draw(9) << (8 * draw(8)), 8);
        }
    }
    uint8_t *head = buffer;
    put(&head, (uint64_t)(at - buffer - 4), 4);
    request(sw, buffer, (size_t)(at - buffer));
}

static uint32_t width(uint32_t bits) { return (bits + 7) / 8; }
static uint32_t small(uint32_t n) { return n ? draw(n) : 0; }

// A whole table write for a table of the program, nearly always well-formed, so that lookups have something to find.
static void entry(ss_switch *sw) {
    const ss_program *p = &ss_the_program;
    if (!p->n_tables) return;
    uint32_t index = draw(p->n_tables), params = 0;
    const ss_table_info *t = &p->tables[index];
    static uint8_t buffer[1 << 16];
    uint8_t *at = buffer + 4;
    put(&at, OP_TABLE_WRITE, 2);
    uint8_t what = (uint8_t)draw(3);
    put(&at, what, 1), put(&at, index, 4);
    bool overlaps = false;
    for (uint32_t f = 0; f < t->n_keys; f++) overlaps |= t->keys[f].match >= SS_TERNARY;
    put(&at, overlaps ? draw(4) : 0, 4);
    for (uint32_t f = 0; f < t->n_keys; f++)
        for (uint32_t i = 0, n = width(t->keys[f].bits); i < n; i++)
            put(&at, i + 1 < n || draw(4) == 0 ? 0 : draw(2), 1);
    for (uint32_t f = 0; f < t->n_keys; f++) {
        uint32_t n = width(t->keys[f].bits);
        bool any = t->keys[f].match != SS_EXACT && draw(2) && t->keys[f].match != SS_RANGE;
        for (uint32_t i = 0; i < n; i++) put(&at, any ? 0 : i ? 0xff : 0xff >> (8 * n - t->keys[f].bits), 1);
    }
    uint32_t action = small(t->n_actions);
    for (uint32_t i = 0; i < t->actions[action].n_params; i++) params += width(t->actions[action].param_bits[i]);
    if (what != SS_DELETE) {
        put(&at, draw(9), 8), put(&at, t->idle_timeout ? draw(3) * 1000 : 0, 8);
        put(&at, t->profile >= 0 ? 1 + draw(2) : 0, 1), put(&at, t->profile >= 0 ? draw(4) : action, 4);
        for (uint32_t i = 0; t->profile < 0 && i < params; i++) put(&at, draw(2), 1);
    }
    uint8_t *head = buffer;
    put(&head, (uint64_t)(at - buffer - 4), 4);
    request(sw, buffer, (size_t)(at - buffer));
}

// Members and groups for a selector, multicast groups and clone sessions with low ids.
static void group(ss_switch *sw) {
    uint8_t buffer[200], *at = buffer + 4;
    if (draw(2)) {
        put(&at, draw(2) ? OP_MULTICAST_WRITE : OP_CLONE_WRITE, 2);
        bool clone = buffer[4] == OP_CLONE_WRITE;
        put(&at, draw(2), 1), put(&at, draw(8), 4);
        if (clone) put(&at, draw(3) * 20, 4), put(&at, draw(3), 4);
        uint32_t n = draw(4);
        put(&at, n, 4);
        for (uint32_t i = 0; i < n; i++) put(&at, draw(512), 4), put(&at, i, 4);
    } else if (ss_the_program.n_profiles) {
        uint32_t table = 0;
        while (table < ss_the_program.n_tables && ss_the_program.tables[table].profile < 0) table++;
        bool group = draw(2);
        put(&at, group ? OP_GROUP_WRITE : OP_MEMBER_WRITE, 2);
        put(&at, draw(2), 1), put(&at, 0, 4), put(&at, draw(4), 4);
        if (group)
            put(&at, 0, 4), put(&at, 1, 4), put(&at, draw(4), 4), put(&at, 1 + draw(3), 4);
        else
            put(&at, table, 4), put(&at, 0, 4), put(&at, draw(2), 1), put(&at, draw(9), 1);
    }
    uint8_t *head = buffer;
    put(&head, (uint64_t)(at - buffer - 4), 4);
    if (at > buffer + 4) request(sw, buffer, (size_t)(at - buffer));
}

static uint32_t read_sample(const char *path, uint8_t *to) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    uint32_t n = (uint32_t)fread(to, 1, SS_MAX_FRAME, file);
    fclose(file);
    return n;
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    printf("seed %llu\n", (unsigned long long)seed);
    ss_options options = {NULL, reserve, commit, NULL, event, 500, 3};
    const char *why;
    ss_switch *sw = ss_open(&ss_the_program, &options, &why);
    if (!sw) return puts(why), 1;
    static uint8_t data[SS_MAX_FRAME + 64], sample[SS_MAX_FRAME];
    uint32_t sample_len = argc > 2 ? read_sample(argv[2], sample) : 0;
    uint32_t rounds = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 8000;
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t len = draw(10) ? draw(200) : draw(9);
        for (uint32_t i = 0; i < 200; i++) data[i] = (uint8_t)draw(256);
        if (sample_len) { // a good frame, cut anywhere, a few bits turned
            memcpy(data, sample, sample_len);
            for (uint32_t i = draw(4); i--;) data[draw(sample_len)] ^= (uint8_t)(1u << draw(8));
            len = draw(2) ? sample_len : round % (sample_len + 1);
        } else { // probe.c: any of its operations
            data[0] = (uint8_t)(draw(30) | (draw(2) << 7));
            data[1] = (uint8_t)draw(5), data[2] = (uint8_t)draw(2);
            if (data[0] % 128 == 22 && round % 400) data[0] = 0; // resubmitting for ever is slow: seldom is enough
        }
        receive(sw, data, len);
        plausible(sw);
        entry(sw);
        group(sw);
        if (draw(8) == 0) request(sw, data, draw(200));
        if (draw(16) == 0) ss_tick(sw, now);
    }
    for (uint32_t len = 0; len <= 300; len++) receive(sw, data, len);
    for (uint32_t len = SS_MAX_FRAME - 40; len <= SS_MAX_FRAME + 64; len++) receive(sw, data, len);
    uint64_t received = ss_get_stats(sw)->received;
    uint8_t reset[] = {2, 0, 0, 0, OP_RESET, 0};
    request(sw, reset, sizeof reset);
    receive(sw, data, 100);
    printf("%llu frames, checksum %llu, received %llu\n", (unsigned long long)frames, (unsigned long long)bytes,
           (unsigned long long)received);
    ss_close(sw);
    return 0;
}
