// SPDX-License-Identifier: Apache-2.0
//
// Frames in parts that wait at a port, against copies of them: reserved, committed, sent, put aside, in random order.
//     queue_fuzz SEED
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "queue.h"

static uint64_t seed;
static uint32_t draw(uint32_t n) { // 0..n-1
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (uint32_t)((seed >> 16) % n);
}

void ss_pcap_write(ss_pcap *p, const uint8_t *frame, uint32_t len) { (void)p, (void)frame, (void)len; }

enum { SLOTS = 40, CAP = 3000, ARENA = 24000 };
static struct {
    uint8_t *bytes;
    uint32_t len;
} expected[SLOTS];
static uint32_t n_expected;

static void compare(const ss_port *p) {
    if (ss_port_waiting(p) != n_expected) abort();
    for (uint32_t i = 0; i < n_expected; i++) {
        const struct ss_slot *slot = &p->slots[p->first + i];
        if (ss_slot_length(slot) != expected[i].len || slot->at + slot->head + slot->tail > p->used) abort();
        if (i + p->first < p->settled && slot->ref) abort();
        uint8_t whole[2 * CAP];
        memcpy(whole, p->arena + slot->at, slot->ref ? slot->head + slot->tail : expected[i].len);
        if (slot->ref) ss_flatten(whole, &(ss_parts){slot->head, slot->tail, slot->ref_len, slot->ref});
        if (memcmp(whole, expected[i].bytes, expected[i].len)) abort();
    }
}

static void leave(ss_port *p, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) free(expected[i].bytes);
    memmove(expected, expected + n, (n_expected -= n) * sizeof *expected);
    p->first += n;
    if (p->first == p->n) ss_port_empty(p);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    ss_port port = {.up = true, .limit = SLOTS, .n_slots = SLOTS, .arena_size = ARENA};
    port.arena = malloc(ARENA);
    port.slots = malloc(SLOTS * sizeof *port.slots);
    uint8_t *runs[SLOTS];
    uint32_t n_runs = 0, frames = 0;
    for (uint32_t round = 0; round < 60000; round++) {
        uint8_t *out = draw(8) && n_runs < SLOTS ? ss_port_reserve(&port, CAP) : NULL;
        if (out) {
            uint32_t head = draw(CAP / 2), ref = draw(3) ? draw(CAP / 3) : 0, tail = draw(3) ? 0 : draw(CAP / 6);
            uint8_t *run = runs[n_runs++] = malloc(ref + 1);
            for (uint32_t i = 0; i < head + tail; i++) out[i] = (uint8_t)draw(256);
            for (uint32_t i = 0; i < ref; i++) run[i] = (uint8_t)draw(256);
            ss_outgoing made = {{head, tail, ref, ref ? run : NULL}, SS_NO_SUM};
            uint32_t len = ss_outgoing_length(&made);
            uint8_t *whole = malloc(CAP);
            memcpy(whole, out, head + tail);
            ss_flatten(whole, &made.parts);
            ss_port_commit(&port, &made);
            if (len)
                expected[n_expected].bytes = whole, expected[n_expected++].len = len, frames++;
            else
                free(whole);
        } else if (draw(8) == 0)
            leave(&port, draw(ss_port_waiting(&port) + 1));
        if (draw(30) && n_runs < SLOTS) continue;
        compare(&port);
        ss_port_settle(&port);
        while (n_runs) free(runs[--n_runs]); // what was referred to is gone
        compare(&port);
    }
    printf("%u frames\n", frames);
    leave(&port, n_expected);
    while (n_runs) free(runs[--n_runs]);
    free(port.arena), free(port.slots);
    return 0;
}
