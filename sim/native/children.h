/* SPDX-License-Identifier: Apache-2.0 */
/* A set of the children of a switch in one tree, as many as the program's widest bitmap has (MAX_CHILDREN, 256). */
#ifndef SIM_CHILDREN_H
#define SIM_CHILDREN_H
#include <stdint.h>

struct children {
    uint64_t word[4];
};

static inline int children_has(const struct children *set, uint32_t place) {
    return (int)(set->word[place >> 6] >> (place & 63) & 1);
}
static inline void children_add(struct children *set, uint32_t place) {
    set->word[place >> 6] |= UINT64_C(1) << (place & 63);
}
static inline void children_remove(struct children *set, uint32_t place) {
    set->word[place >> 6] &= ~(UINT64_C(1) << (place & 63));
}
static inline int children_none(const struct children *set) {
    return !(set->word[0] | set->word[1] | set->word[2] | set->word[3]);
}
#endif
