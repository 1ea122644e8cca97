/* SPDX-License-Identifier: Apache-2.0 */
#include "reps.h"

#include <string.h>

void nf_reps_open(nf_reps *r, uint64_t seed, uint32_t ports, uint32_t window) {
    memset(r, 0, sizeof *r);
    r->random = seed;
    r->window = window;
    r->explore = window < ports ? window : ports;
    r->next = (uint32_t)(seed % ports); /* not all hosts begin with the same path */
}

static uint32_t draw(nf_reps *r, uint32_t ports) {
    uint64_t z = r->random += 0x9E3779B97F4A7C15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(((z ^ z >> 31) >> 32) * ports >> 32);
}

uint32_t nf_reps_next(nf_reps *r, uint32_t ports, int64_t now) {
    if (r->frozen_until && now >= r->frozen_until) {
        r->frozen_until = 0;
        memset(r->fresh, 0, sizeof r->fresh);
        r->explore = r->window < ports ? r->window : ports;
    }
    if (r->frozen_until && r->known) return r->cache[r->turn++ % r->known];
    if (r->explore) {
        r->explore--;
        return r->next++ % ports;
    }
    for (uint32_t i = 0; i < NF_REPS_CACHE; i++) {
        uint32_t at = (r->head + i) % NF_REPS_CACHE;
        if (r->fresh[at]) {
            r->fresh[at] = false;
            return r->cache[at];
        }
    }
    return draw(r, ports);
}

void nf_reps_recycle(nf_reps *r, uint32_t port) {
    r->cache[r->head] = port;
    r->fresh[r->head] = true;
    r->head = (r->head + 1) % NF_REPS_CACHE;
    if (r->known < NF_REPS_CACHE) r->known++;
}

bool nf_reps_echo(nf_reps *r, uint16_t port, bool marked) {
    if (r->n_echoes == NF_REPS_ECHOES) return false;
    r->echoes[r->n_echoes++] = (nf_echo){port, marked};
    return true;
}

void nf_reps_freeze(nf_reps *r, int64_t now) { r->frozen_until = now + NF_REPS_FREEZE; }
