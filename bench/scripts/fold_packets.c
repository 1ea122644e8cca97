/* SPDX-License-Identifier: Apache-2.0
 *
 * Hands the packets of a fold to a switch in this process and takes the time that it needs (fold_packets.py).
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "crc32.h"

#define HEADERS 54u /* Ethernet, IPv4, UDP, BTH */
#define MASKED 48u  /* 8 bytes of ones, IPv4, UDP, BTH */
#define ICRC 4u

typedef struct {
    void *capture;
    void (*receive)(void *, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_us);
    const uint8_t *(*take)(void *, size_t *);
} target;

static void finish(uint8_t *frame, uint32_t len, uint32_t psn) {
    uint8_t masked[MASKED];
    for (int i = 0; i < 3; i++) frame[51 + i] = (uint8_t)(psn >> (16 - 8 * i));
    memset(masked, 0xff, 8);
    memcpy(masked + 8, frame + 14, MASKED - 8);
    masked[8 + 1] = masked[8 + 8] = masked[8 + 10] = masked[8 + 11] = 0xff;
    masked[28 + 6] = masked[28 + 7] = masked[36 + 4] = 0xff;
    uint32_t crc = ss_crc32(ss_crc32(0, masked, MASKED), frame + HEADERS, len - HEADERS - ICRC);
    memcpy(frame + len - ICRC, &crc, ICRC);
}

/* Of processor time: other load does not count. */
static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Every child's `at_once` packets from PSN `psn` on, child after child, `rounds` times.  `frames` has one frame a
 * child, `len` bytes each; `room` takes at_once of them.  Returns nanoseconds; *out counts the bytes that left. */
uint64_t fold_packets(const target *to, const uint8_t *frames, uint32_t len, uint32_t children, uint32_t at_once,
                      uint32_t rounds, uint32_t psn, uint8_t *room, uint64_t *out) {
    uint64_t spent = 0;
    for (uint32_t round = 0; round < rounds; round++, psn += at_once) {
        for (uint32_t child = 0; child < children; child++) {
            for (uint32_t i = 0; i < at_once; i++) {
                memcpy(room + (size_t)i * len, frames + (size_t)child * len, len);
                finish(room + (size_t)i * len, len, psn + i);
            }
            uint64_t begin = now_ns();
            for (uint32_t i = 0; i < at_once; i++)
                to->receive(to->capture, child + 1, room + (size_t)i * len, len, round);
            spent += now_ns() - begin;
        }
        size_t n;
        to->take(to->capture, &n);
        *out += n;
    }
    return spent;
}
