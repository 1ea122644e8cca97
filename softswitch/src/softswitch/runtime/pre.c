/* SPDX-License-Identifier: Apache-2.0
 *
 * The packet replication engine's control side: multicast groups and clone sessions.
 */
#include "pre.h"
#include "internal.h"

#define SS_MAX_REPLICAS 65536u

static void free_multicast(ss_multicast *group) { free(group->replicas), free(group); }
static void free_clone(ss_clone *session) { free(session->replicas), free(session); }

void ss_pre_reset(ss_switch *sw) {
    for (uint32_t s = 0; s < sw->multicasts.n_slots; s++)
        if (sw->multicasts.items[s]) free_multicast(sw->multicasts.items[s]);
    for (uint32_t s = 0; s < sw->clones.n_slots; s++)
        if (sw->clones.items[s]) free_clone(sw->clones.items[s]);
    ss_idmap_free(&sw->multicasts);
    ss_idmap_free(&sw->clones);
}

static int by_port(const void *a, const void *b) {
    const ss_replica *x = a, *y = b;
    if (x->port != y->port) return x->port < y->port ? -1 : 1;
    return x->instance < y->instance ? -1 : x->instance > y->instance;
}

/* Reads u32 n and the replicas; no pair may come twice. */
static int get_replicas(ss_reader *r, ss_writer *w, ss_replica **out, uint32_t *count) {
    uint32_t n = get_u32(r);
    if (r->bad || get_left(r) < 8ull * n) return refuse_short(w);
    if (n > SS_MAX_REPLICAS) return refuse(w, SS_RESOURCE_EXHAUSTED, "at most %u replicas, got %u", SS_MAX_REPLICAS, n);
    ss_replica *replicas = malloc((n + 1) * sizeof *replicas), *sorted = malloc((n + 1) * sizeof *sorted);
    int status = replicas && sorted ? SS_OK : refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
    if (!status && n) {
        memcpy(replicas, get_bytes(r, 8ull * n), 8ull * n);
        for (uint32_t i = 0; i < n && !status; i++)
            if (replicas[i].port > SS_DROP_PORT || replicas[i].instance > 0xffff)
                status =
                    refuse(w, SS_INVALID_ARGUMENT, "replica port %u instance %u: ports go to %u, instances to 65535",
                           replicas[i].port, replicas[i].instance, SS_DROP_PORT);
        memcpy(sorted, replicas, 8ull * n);
        qsort(sorted, n, sizeof *sorted, by_port);
        for (uint32_t i = 1; i < n && !status; i++)
            if (by_port(&sorted[i - 1], &sorted[i]) == 0)
                status = refuse(w, SS_INVALID_ARGUMENT, "replica port %u instance %u is there twice", sorted[i].port,
                                sorted[i].instance);
    }
    free(sorted);
    if (status) {
        free(replicas);
        return status;
    }
    *out = replicas;
    *count = n;
    return SS_OK;
}

/* Common checks of a write: the item that is there (or none), or a refusal. */
static int get_item(const ss_idmap *map, const char *what, uint8_t kind, uint32_t id, ss_writer *w, void **item) {
    if (kind > SS_DELETE) return refuse(w, SS_INVALID_ARGUMENT, "unknown kind of write %u", kind);
    *item = ss_idmap_get(map, id);
    if (kind == SS_INSERT && *item) return refuse(w, SS_ALREADY_EXISTS, "%s %u is there already", what, id);
    if (kind != SS_INSERT && !*item) return refuse(w, SS_NOT_FOUND, "no %s %u", what, id);
    return SS_OK;
}

int ss_do_multicast_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    void *item = NULL;
    uint8_t kind = get_u8(r);
    uint32_t id = get_u32(r);
    if (r->bad) return refuse_short(w);
    int status = get_item(&sw->multicasts, "multicast group", kind, id, w, &item);
    if (status) return status;
    ss_multicast *group = item;
    if (kind == SS_DELETE) {
        free_multicast(ss_idmap_remove(&sw->multicasts, id));
        return SS_OK;
    }
    if (id == 0) return refuse(w, SS_INVALID_ARGUMENT, "multicast group 0 means no multicast");
    ss_replica *replicas;
    uint32_t n;
    if ((status = get_replicas(r, w, &replicas, &n))) return status;
    if (kind == SS_INSERT) {
        group = calloc(1, sizeof *group);
        if (!group || ss_idmap_add(&sw->multicasts, id, group) == UINT32_MAX) {
            free(replicas), free(group);
            return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
        }
        group->id = id;
    }
    free(group->replicas);
    group->replicas = replicas;
    group->n = n;
    return SS_OK;
}

int ss_do_clone_write(ss_switch *sw, ss_reader *r, ss_writer *w) {
    void *item = NULL;
    uint8_t kind = get_u8(r);
    uint32_t id = get_u32(r);
    if (r->bad) return refuse_short(w);
    int status = get_item(&sw->clones, "clone session", kind, id, w, &item);
    if (status) return status;
    ss_clone *session = item;
    if (kind == SS_DELETE) {
        free_clone(ss_idmap_remove(&sw->clones, id));
        return SS_OK;
    }
    uint32_t truncate_to = get_u32(r), group = get_u32(r), n;
    ss_replica *replicas;
    if ((status = get_replicas(r, w, &replicas, &n))) return status;
    if (kind == SS_INSERT) {
        session = calloc(1, sizeof *session);
        if (!session || ss_idmap_add(&sw->clones, id, session) == UINT32_MAX) {
            free(replicas), free(session);
            return refuse(w, SS_RESOURCE_EXHAUSTED, "out of memory");
        }
    }
    free(session->replicas);
    *session = (ss_clone){id, truncate_to, group, n, replicas};
    return SS_OK;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void put_replicas(ss_writer *w, const ss_replica *replicas, uint32_t n) {
    put_u32(w, n);
    put_bytes(w, replicas, 8ull * n);
}

static void put_multicast(ss_writer *w, const void *item) {
    const ss_multicast *group = item;
    put_u32(w, group->id);
    put_replicas(w, group->replicas, group->n);
}

static void put_clone(ss_writer *w, const void *item) {
    const ss_clone *session = item;
    put_u32(w, session->id);
    put_u32(w, session->truncate_to);
    put_u32(w, session->group);
    put_replicas(w, session->replicas, session->n);
}

int ss_do_multicast_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    return ss_read_items(&sw->multicasts, "multicast group", r, w, put_multicast);
}

int ss_do_clone_read(ss_switch *sw, ss_reader *r, ss_writer *w) {
    return ss_read_items(&sw->clones, "clone session", r, w, put_clone);
}
