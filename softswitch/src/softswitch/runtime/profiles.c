/* SPDX-License-Identifier: Apache-2.0
 *
 * Action profiles and selectors.  A group's choices are its members, by order of their creation, each repeated `weight`
 * times; a packet takes choice hash % n (BMv2).
 */
#include "profiles.h"
#include "internal.h"

#define SS_MAX_CHOICES 65536u

bool ss_profiles_open(ss_switch *sw) {
    sw->profiles = calloc(sw->program->n_profiles + 1, sizeof *sw->profiles);
    if (!sw->profiles) return false;
    for (uint32_t i = 0; i < sw->program->n_profiles; i++) sw->profiles[i].info = &sw->program->profiles[i];
    return true;
}

static void free_member(ss_member *member) { free(member->params), free(member); }
static void free_group(ss_group *group) { free(group->member), free(group->weight), free(group->choices), free(group); }

void ss_profiles_reset(ss_switch *sw) {
    for (uint32_t i = 0; sw->profiles && i < sw->program->n_profiles; i++) {
        ss_profile *p = &sw->profiles[i];
        for (uint32_t s = 0; s < p->members.n_slots; s++)
            if (p->members.items[s]) free_member(p->members.items[s]);
        for (uint32_t s = 0; s < p->groups.n_slots; s++)
            if (p->groups.items[s]) free_group(p->groups.items[s]);
        ss_idmap_free(&p->members);
        ss_idmap_free(&p->groups);
    }
}

void ss_profiles_close(ss_switch *sw) {
    ss_profiles_reset(sw);
    free(sw->profiles);
}

const ss_member *ss_profile_choose(ss_switch *sw, const ss_profile *p, const ss_rule *rule, const uint8_t *sel,
                                   uint32_t n) {
    if (rule->kind == SS_DO_MEMBER) return ss_idmap_get(&p->members, rule->target);
    const ss_group *group = ss_idmap_get(&p->groups, rule->target);
    if (group->n_choices == 0) return NULL;
    uint64_t h = sel ? ss_hash(sw, p->info->algo, sel, n) : 0;
    return group->choices[h % group->n_choices];
}

static ss_profile *get_profile(ss_switch *sw, ss_reader *r, ss_writer *w, int *status) {
    uint32_t index = get_u32(r);
    if (r->bad) {
        *status = refuse_short(w);
        return NULL;
    }
    if (index >= sw->program->n_profiles) {
        *status =
            refuse(w, SS_INVALID_ARGUMENT, "no action profile %u: the program has %u", index, sw->program->n_profiles);
        return NULL;
    }
    return &sw->profiles[index];
}

int ss_do_member_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    uint8_t kind = get_u8(r);
    ss_profile *p = get_profile(sw, r, w, &status);
    if (!p) return status;
    uint32_t id = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (kind > SS_DELETE) return refuse(w, SS_INVALID_ARGUMENT, "unknown kind of write %u", kind);
    ss_member *member = ss_idmap_get(&p->members, id);
    if (kind == SS_INSERT && member)
        return refuse(w, SS_ALREADY_EXISTS, "action profile %s has a member %u", p->info->name, id);
    if (kind != SS_INSERT && !member)
        return refuse(w, SS_NOT_FOUND, "action profile %s has no member %u", p->info->name, id);
    if (kind == SS_DELETE) {
        if (member->refs)
            return refuse(w, SS_FAILED_PRECONDITION, "member %u of %s is in use %u times", id, p->info->name,
                          member->refs);
        free_member(ss_idmap_remove(&p->members, id));
        return SS_OK;
    }
    uint32_t table = get_u32(r), action = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (table >= sw->program->n_tables || sw->program->tables[table].profile < 0 ||
        &sw->profiles[sw->program->tables[table].profile] != p || action >= sw->program->tables[table].n_actions)
        return refuse(w, SS_INVALID_ARGUMENT, "action %u of table %u is none of action profile %s", action, table,
                      p->info->name);
    const ss_action_info *info = &sw->program->tables[table].actions[action];
    size_t n = get_left(r);
    if (n != ss_params_bytes(info))
        return refuse(w, SS_INVALID_ARGUMENT, "action %s: expected %u bytes of parameters, got %zu", info->name,
                      ss_params_bytes(info), n);
    if (kind == SS_INSERT && p->members.used >= p->info->size)
        return refuse(w, SS_RESOURCE_EXHAUSTED, "action profile %s is full: its size is %llu", p->info->name,
                      (unsigned long long)p->info->size);
    uint8_t *params = malloc(n + 1);
    if (kind == SS_INSERT && params && (member = calloc(1, sizeof *member))) {
        member->id = id;
        member->slot = ss_idmap_add(&p->members, id, member);
        if (member->slot == UINT32_MAX) free(member), member = NULL;
    }
    if (!params || !member) {
        free(params);
        return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    }
    memcpy(params, get_bytes(r, n), n);
    free(member->params);
    member->params = params;
    member->n_params = (uint32_t)n;
    member->action_id = info->id;
    return SS_OK;
}

static void put_member(ss_writer *w, const void *item) {
    const ss_member *member = item;
    put_u32(w, member->id);
    put_u32(w, member->action_id);
    put_u32(w, member->n_params);
    put_bytes(w, member->params, member->n_params);
}

int ss_do_member_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_profile *p = get_profile(sw, r, w, &status);
    return p ? ss_read_items(&p->members, "member", r, w, put_member) : status;
}

static void put_group(ss_writer *w, const void *item) {
    const ss_group *group = item;
    put_u32(w, group->id);
    put_u32(w, group->max_size);
    put_u32(w, group->n);
    for (uint32_t i = 0; i < group->n; i++) put_u32(w, group->member[i]), put_u32(w, group->weight[i]);
}

int ss_do_group_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    ss_profile *p = get_profile(sw, r, w, &status);
    return p ? ss_read_items(&p->groups, "group", r, w, put_group) : status;
}

static void count_refs(ss_profile *p, const ss_group *group, int by) {
    for (uint32_t i = 0; i < group->n; i++) {
        ss_member *member = ss_idmap_get(&p->members, group->member[i]);
        member->refs += (uint32_t)by;
    }
}

static int by_slot(const void *a, const void *b) {
    uint32_t x = (*(ss_member *const *)a)->slot, y = (*(ss_member *const *)b)->slot;
    return x < y ? -1 : x > y;
}

/* Reads the members of a group into `group`, whose arrays are new. */
static int get_group(ss_profile *p, ss_reader *r, ss_writer *w, ss_group *group) {
    uint64_t total = 0;
    group->max_size = get_u32(r);
    uint32_t n = get_u32(r);
    if (r->bad || get_left(r) < 8ull * n) return refuse_short(w);
    group->member = malloc(4ull * n + 4);
    group->weight = malloc(4ull * n + 4);
    if (!group->member || !group->weight) return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    for (group->n = 0; group->n < n; group->n++) {
        uint32_t id = group->member[group->n] = get_u32(r), weight = group->weight[group->n] = get_u32(r);
        if (!ss_idmap_get(&p->members, id))
            return refuse(w, SS_NOT_FOUND, "action profile %s has no member %u", p->info->name, id);
        for (uint32_t i = 0; i < group->n; i++)
            if (group->member[i] == id)
                return refuse(w, SS_INVALID_ARGUMENT, "member %u is twice in group %u", id, group->id);
        if (weight == 0) return refuse(w, SS_INVALID_ARGUMENT, "member %u of group %u has weight 0", id, group->id);
        total += weight;
    }
    uint64_t most = group->max_size           ? group->max_size
                    : p->info->max_group_size ? p->info->max_group_size
                                              : SS_MAX_CHOICES;
    if (total > most || total > SS_MAX_CHOICES)
        return refuse(w, SS_RESOURCE_EXHAUSTED, "group %u: the weights add up to %llu, more than %llu", group->id,
                      (unsigned long long)total, (unsigned long long)(most < SS_MAX_CHOICES ? most : SS_MAX_CHOICES));
    group->choices = malloc(sizeof *group->choices * (total + 1));
    if (!group->choices) return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < group->weight[i]; k++)
            group->choices[group->n_choices++] = ss_idmap_get(&p->members, group->member[i]);
    qsort(group->choices, group->n_choices, sizeof *group->choices, by_slot);
    return SS_OK;
}

int ss_do_group_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    int status = SS_OK;
    uint8_t kind = get_u8(r);
    ss_profile *p = get_profile(sw, r, w, &status);
    if (!p) return status;
    uint32_t id = get_u32(r);
    if (r->bad) return refuse_short(w);
    if (kind > SS_DELETE) return refuse(w, SS_INVALID_ARGUMENT, "unknown kind of write %u", kind);
    if (!p->info->selector)
        return refuse(w, SS_INVALID_ARGUMENT, "action profile %s is no selector and has no groups", p->info->name);
    ss_group *group = ss_idmap_get(&p->groups, id);
    if (kind == SS_INSERT && group)
        return refuse(w, SS_ALREADY_EXISTS, "selector %s has a group %u", p->info->name, id);
    if (kind != SS_INSERT && !group) return refuse(w, SS_NOT_FOUND, "selector %s has no group %u", p->info->name, id);
    if (kind == SS_DELETE) {
        if (group->refs)
            return refuse(w, SS_FAILED_PRECONDITION, "group %u of %s is in use %u times", id, p->info->name,
                          group->refs);
        count_refs(p, group, -1);
        free_group(ss_idmap_remove(&p->groups, id));
        return SS_OK;
    }
    ss_group *made = calloc(1, sizeof *made);
    if (!made) return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    made->id = id;
    status = get_group(p, r, w, made);
    if (!status && kind == SS_INSERT && ss_idmap_add(&p->groups, id, made) == UINT32_MAX)
        status = refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    if (status) {
        free_group(made);
        return status;
    }
    count_refs(p, made, 1);
    if (kind == SS_MODIFY) {
        count_refs(p, group, -1);
        made->refs = group->refs;
        ss_group old = *group;
        *group = *made;
        *made = old;
        free_group(made);
    }
    return SS_OK;
}
