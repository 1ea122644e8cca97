/* SPDX-License-Identifier: Apache-2.0 */
/* Max-min fair rates by progressive filling.
 *
 * A flow uses weight[k] of each unit of its rate on link[k], k in first[flow] .. first[flow + 1] - 1: 1 on a pinned
 * path, 1/paths where it is sprayed.  The link with the smallest room per weight fills first and freezes its flows at
 * that rate; room and weight of their other links shrink, so that no other link's level falls, and a heap of levels
 * may be brought up to date lazily. */
#include <stdint.h>
#include <stdlib.h>

struct level {
    double value;
    uint32_t link;
};

static int lower(struct level a, struct level b) {
    return a.value < b.value || (a.value == b.value && a.link < b.link);
}

static void sink(struct level *heap, uint32_t count, uint32_t i) {
    struct level moved = heap[i];
    for (uint32_t child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && lower(heap[child + 1], heap[child])) child++;
        if (!lower(heap[child], moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* active: the flows that want a rate.  rate: for all flows, written for active ones.  Returns 0, or 1 without
 * memory. */
int max_min(uint32_t links, const double *capacity, const int64_t *first, const uint32_t *link, const float *weight,
            uint32_t active_count, const uint32_t *active, double *rate) {
    double *room = malloc(links * sizeof *room), *sum = calloc(links, sizeof *sum);
    uint64_t *begin = calloc((size_t)links + 2, sizeof *begin);
    struct level *heap = malloc(links * sizeof *heap);
    uint64_t entries = 0;
    for (uint32_t i = 0; i < active_count; i++) entries += (uint64_t)(first[active[i] + 1] - first[active[i]]);
    uint32_t *users = malloc((entries + 1) * sizeof *users);
    int failed = !room || !sum || !begin || !heap || !users;

    if (!failed) {
        for (uint32_t i = 0; i < active_count; i++) {
            rate[active[i]] = -1;
            for (int64_t k = first[active[i]]; k < first[active[i] + 1]; k++) {
                sum[link[k]] += weight[k];
                begin[link[k] + 2]++;
            }
        }
        for (uint32_t l = 0; l < links; l++) begin[l + 2] += begin[l + 1];
        for (uint32_t i = 0; i < active_count; i++)
            for (int64_t k = first[active[i]]; k < first[active[i] + 1]; k++) users[begin[link[k] + 1]++] = active[i];

        uint32_t count = 0;
        for (uint32_t l = 0; l < links; l++) {
            room[l] = capacity[l];
            if (begin[l + 1] > begin[l]) heap[count++] = (struct level){room[l] / sum[l], l};
        }
        for (uint32_t i = count / 2; i-- > 0;) sink(heap, count, i);

        while (count) {
            uint32_t l = heap[0].link;
            double level = sum[l] > 1e-9 ? (room[l] > 0 ? room[l] / sum[l] : 0) : -1;
            if (level > heap[0].value * (1 + 1e-12)) { /* has risen since it was put there */
                heap[0].value = level;
                sink(heap, count, 0);
                continue;
            }
            if (level < heap[0].value) level = heap[0].value; /* rounding, or what is left are crumbs */
            heap[0] = heap[--count];
            if (count) sink(heap, count, 0);
            for (uint64_t u = begin[l]; u < begin[l + 1]; u++) {
                uint32_t flow = users[u];
                if (rate[flow] >= 0) continue;
                rate[flow] = level;
                for (int64_t k = first[flow]; k < first[flow + 1]; k++) {
                    room[link[k]] -= weight[k] * level;
                    sum[link[k]] -= weight[k];
                }
            }
        }
    }
    free(room);
    free(sum);
    free(begin);
    free(heap);
    free(users);
    return failed;
}
