// SPDX-License-Identifier: Apache-2.0
//
// Frames in parts that wait at a port, against copies of them: reserved, committed, sent, put aside, in random order,
// also while another thread would send.
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
} expected[2 * SLOTS];
static uint32_t n_expected;

static bool is(const ss_queue *q, const struct ss_slot *slot, uint32_t i) {
    uint8_t whole[2 * CAP];
    if (ss_slot_length(slot) != expected[i].len) return false;
    memcpy(whole, q->arena + slot->at, slot->ref ? slot->head + slot->tail : expected[i].len);
    if (slot->ref) ss_flatten(whole, &(ss_parts){slot->head, slot->tail, slot->ref_len, slot->ref});
    return !memcmp(whole, expected[i].bytes, expected[i].len);
}

static void compare(const ss_port *p) {
    const ss_queue *q = p->queue;
    if (ss_port_waiting(p) != n_expected) abort();
    for (uint32_t i = 0; i < n_expected; i++) {
        const struct ss_slot *slot = &q->slots[q->first + i];
        if (slot->at + slot->head + slot->tail > q->used || !is(q, slot, i)) abort();
        if (i + q->first < q->settled && slot->ref) abort();
    }
}

static void leave(ss_port *p, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) free(expected[i].bytes);
    memmove(expected, expected + n, (n_expected -= n) * sizeof *expected);
    p->leaving->first += n;
    if (p->leaving == p->queue && !ss_port_waiting(p)) ss_port_empty(p);
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    ss_port port = {.up = true, .limit = SLOTS, .n_slots = SLOTS, .arena_size = ARENA};
    port.queue = port.leaving = port.queues;
    for (uint32_t i = 0; i < 2; i++) {
        port.queues[i].arena = malloc(ARENA);
        port.queues[i].slots = malloc(SLOTS * sizeof *port.queues[i].slots);
    }
    uint8_t *runs[SLOTS];
    uint32_t n_runs = 0, frames = 0, parted = 0, full = 0;
    for (uint32_t round = 0; round < 60000; round++) {
        uint8_t *out = draw(8) && n_runs < SLOTS ? ss_port_reserve(&port, CAP) : NULL;
        if (out) {
            uint32_t most = round / 500 % 2 ? CAP : 60; // bytes are short, or slots
            uint32_t head = draw(most / 2), ref = draw(3) ? draw(most / 3) : 0, tail = draw(3) ? 0 : draw(most / 6);
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
            leave(&port, draw(port.leaving->n - port.leaving->first + 1));
        else if (port.leaving == port.queue && draw(2))
            ss_port_part(&port), parted++;
        if (draw(30) && n_runs < SLOTS) continue;
        full += (uint32_t)port.stats.dropped_full, port.stats.dropped_full = 0;
        ss_port_unite(&port);
        if (port.flying || port.leaving != port.queue || port.stats.dropped_full) abort(); // what was put finds room
        compare(&port);
        ss_port_settle(&port);
        while (n_runs) free(runs[--n_runs]); // what was referred to is gone
        compare(&port);
    }
    printf("%u frames, parted %u times, %u refused\n", frames, parted, full);
    if (frames < 10000 || parted < 500 || !full) abort(); // it would show little
    leave(&port, n_expected);
    while (n_runs) free(runs[--n_runs]);
    for (uint32_t i = 0; i < 2; i++) free(port.queues[i].arena), free(port.queues[i].slots);
    return 0;
}
