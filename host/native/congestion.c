/* SPDX-License-Identifier: Apache-2.0 */
#include "congestion.h"

#define GAIN (1.0 / 16) /* g of RFC 8257, section 4.2 */

static double larger(double a, double b) { return a > b ? a : b; }

void nf_congestion_open(nf_congestion *c, const nf_congestion_rules *rules, uint64_t next) {
    *c = (nf_congestion){
        .allowed = rules->start, .alpha = rules->alpha, .slow_start = rules->slow_start, .round_end = next};
}

void nf_congestion_halve(nf_congestion *c, double floor) {
    if (c->allowed > floor) c->allowed = larger(c->allowed / 2, floor);
}

void nf_congestion_lost(nf_congestion *c, const nf_congestion_rules *rules, uint64_t una, uint64_t next) {
    if (!rules->halve_at_once) {
        c->lost = true;
    } else if (una >= c->halved_until) {
        c->allowed = larger(c->allowed / 2, rules->loss_floor); /* up, too, where marks had left fewer */
        c->slow_start = false;
        c->halved_until = next;
    }
}

bool nf_congestion_round(nf_congestion *c, const nf_congestion_rules *rules, uint64_t una, uint64_t next) {
    if (una < c->round_end || !c->acknowledged) return false;
    /* An acknowledgement that comes twice brings its mark along, and so there may be more marks than packets. */
    double share = c->marked < c->acknowledged ? (double)c->marked / c->acknowledged : 1;
    c->alpha += (share - c->alpha) * GAIN;
    if (c->lost) nf_congestion_halve(c, rules->loss_floor);
    if (c->marked)
        c->allowed *= 1 - c->alpha / 2;
    else if (!c->slow_start && !c->lost)
        c->allowed += rules->growth;
    c->allowed = c->allowed < rules->least ? rules->least : c->allowed > rules->most ? rules->most : c->allowed;
    c->round_end = next;
    c->acknowledged = c->marked = 0;
    c->lost = false;
    return true;
}
