/* SPDX-License-Identifier: Apache-2.0
 *
 * Action profiles and selectors.
 */
#ifndef SS_PROFILES_H
#define SS_PROFILES_H
#include "codec.h"
#include "rules.h"

typedef struct {
    uint32_t id, slot, action_id, refs, n_params;
    uint8_t *params;
} ss_member;
typedef struct {
    uint32_t id, max_size, refs, n;
    uint32_t *member, *weight;
    uint32_t n_choices;
    ss_member **choices;
} ss_group;
typedef struct ss_profile {
    const ss_profile_info *info;
    ss_idmap members, groups;
} ss_profile;
bool ss_profiles_open(ss_switch *);
void ss_profiles_close(ss_switch *);
void ss_profiles_reset(ss_switch *);
const ss_member *ss_profile_choose(ss_switch *, const ss_profile *, const ss_rule *, const uint8_t *sel, uint32_t n);

/* Requests; each returns a status and has written the reply's body. */
int ss_do_member_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_member_read(ss_switch *, ss_reader *, ss_writer *);
int ss_do_group_write(ss_switch *, ss_reader *, ss_writer *);
int ss_do_group_read(ss_switch *, ss_reader *, ss_writer *);
#endif
