/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "verbs_pairs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>

#define HOPS 64
#define RNR_TIMER 12 /* 0.64 ms: what a sender waits where no receive is posted, which does not happen here */

void nf_verbs_say(nf_verbs_device *d, int error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(d->why, sizeof d->why, format, arguments);
    va_end(arguments);
    if (error && n >= 0 && (size_t)n < sizeof d->why)
        snprintf(d->why + n, sizeof d->why - (size_t)n, ": %s", strerror(error));
}

/* ---- the device -------------------------------------------------------------------------------------------------- */
static struct ibv_context *open_named(const char *name) {
    int n = 0;
    struct ibv_device **all = ibv_get_device_list(&n);
    struct ibv_context *found = NULL;
    for (int i = 0; all && i < n && !found; i++)
        if (!strcmp(ibv_get_device_name(all[i]), name)) found = ibv_open_device(all[i]);
    int error = errno;
    if (all) ibv_free_device_list(all);
    errno = error;
    return found;
}

static bool check_port(nf_verbs_device *d, const char *name, uint64_t longest) {
    struct ibv_port_attr port;
    int error = ibv_query_port(d->context, d->port, &port);
    if (error) {
        nf_verbs_say(d, error, "port %u of %s does not answer", d->port, name);
        return false;
    }
    if (port.state != IBV_PORT_ACTIVE) {
        nf_verbs_say(d, 0, "port %u of %s is %s: expected it active; look at its interface (`ip link`)", d->port, name,
                     ibv_port_state_str(port.state));
        return false;
    }
    if (port.active_mtu < d->path_mtu) {
        nf_verbs_say(d, 0,
                     "port %u of %s has an active MTU of %u bytes, the fabric's packets have %u: give its interface an "
                     "MTU of %u or more (`ip link set mtu`)",
                     d->port, name, 128u << port.active_mtu, 128u << d->path_mtu, (128u << d->path_mtu) + 128);
        return false;
    }
    if (port.max_msg_sz < longest) {
        nf_verbs_say(d, 0,
                     "%s takes messages of %u bytes, this job's have %llu: it needs fewer slots (`netfold status`)",
                     name, port.max_msg_sz, (unsigned long long)longest);
        return false;
    }
    return true;
}

bool nf_verbs_device_open(nf_verbs_device *d, const char *name, uint8_t port, int own_gid, int fold_gid,
                          uint32_t path_mtu, uint32_t streams, uint64_t longest) {
    *d = (nf_verbs_device){.port = port,
                           .own_gid = own_gid,
                           .fold_gid = fold_gid,
                           .path_mtu = path_mtu == NF_MAX_PATH_MTU ? IBV_MTU_4096 : IBV_MTU_1024};
    errno = ENODEV;
    if (!(d->context = open_named(name))) {
        nf_verbs_say(d, errno,
                     "cannot open the RDMA device %s (its user-space driver is in the package ibverbs-providers, "
                     "/dev/infiniband/uverbs* must be ours to read and write)",
                     name);
        return false;
    }
    if (!check_port(d, name, longest)) return false;
    int completions = (int)(2 * 2 * NF_VERBS_OUTSTANDING * streams);
    int flags = fcntl(d->context->async_fd, F_GETFL);
    if (flags < 0 || fcntl(d->context->async_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        nf_verbs_say(d, errno, "the events of %s cannot be polled", name);
    else if (!(d->pd = ibv_alloc_pd(d->context)))
        nf_verbs_say(d, errno, "%s gives no protection domain", name);
    else if (!(d->events = ibv_create_comp_channel(d->context)))
        nf_verbs_say(d, errno, "%s gives no completion channel", name);
    else if (!(d->completions = ibv_create_cq(d->context, completions, NULL, d->events, 0)))
        nf_verbs_say(d, errno, "%s gives no completion queue of %d entries", name, completions);
    else
        return true;
    return false;
}

void nf_verbs_device_close(nf_verbs_device *d) {
    if (d->completions) ibv_destroy_cq(d->completions);
    if (d->events) ibv_destroy_comp_channel(d->events);
    if (d->pd) ibv_dealloc_pd(d->pd);
    if (d->context) ibv_close_device(d->context);
    d->completions = NULL;
    d->events = NULL;
    d->pd = NULL;
    d->context = NULL;
}

struct ibv_mr *nf_verbs_register(nf_verbs_device *d, void *memory, size_t bytes, bool writes) {
    struct ibv_mr *region = ibv_reg_mr(d->pd, memory, bytes, writes ? IBV_ACCESS_LOCAL_WRITE : 0);
    if (!region)
        nf_verbs_say(d, errno, "%zu bytes of memory cannot be registered (root may; others need `ulimit -l`)", bytes);
    return region;
}

bool nf_verbs_device_events(nf_verbs_device *d) {
    struct pollfd ready = {.fd = d->context->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    while (poll(&ready, 1, 0) > 0 && ibv_get_async_event(d->context, &event) == 0) {
        enum ibv_event_type type = event.event_type;
        ibv_ack_async_event(&event);
        if (type == IBV_EVENT_CQ_ERR || type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR ||
            type == IBV_EVENT_QP_ACCESS_ERR || type == IBV_EVENT_DEVICE_FATAL) {
            nf_verbs_say(d, 0, "the device reports: %s", ibv_event_type_str(type));
            return false;
        }
    }
    return true;
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------- */
static struct ibv_qp *make(nf_verbs_device *d) {
    struct ibv_qp_init_attr wanted = {.send_cq = d->completions,
                                      .recv_cq = d->completions,
                                      .qp_type = IBV_QPT_RC,
                                      .cap = {.max_send_wr = NF_VERBS_OUTSTANDING,
                                              .max_recv_wr = NF_VERBS_OUTSTANDING,
                                              .max_send_sge = NF_VERBS_PIECES,
                                              .max_recv_sge = NF_VERBS_PIECES}};
    struct ibv_qp *qp = ibv_create_qp(d->pd, &wanted);
    if (!qp) {
        nf_verbs_say(d, errno, "no queue pair can be made");
        return NULL;
    }
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = d->port};
    int error = ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (!error) return qp;
    nf_verbs_say(d, error, "queue pair %u cannot be initialised", qp->qp_num);
    ibv_destroy_qp(qp);
    return NULL;
}

bool nf_verbs_ends_make(nf_verbs_device *d, nf_verbs_ends *ends) {
    return (ends->out = make(d)) && (ends->in = make(d));
}

/* Brings a queue pair up to where it receives what `peer` sends. */
static bool receive_from(nf_verbs_device *d, struct ibv_qp *qp, int gid, uint32_t peer, uint32_t peer_qp,
                         uint32_t psn) {
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = d->path_mtu,
        .dest_qp_num = peer_qp,
        .rq_psn = psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RNR_TIMER,
        .ah_attr = {.is_global = 1, .port_num = d->port, .grh = {.sgid_index = (uint8_t)gid, .hop_limit = HOPS}}};
    uint8_t *to = attributes.ah_attr.grh.dgid.raw; /* ::ffff:a.b.c.d */
    to[10] = to[11] = 0xff;
    nf_put32(to + 12, peer);
    int error = ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    if (error)
        nf_verbs_say(d, error,
                     "queue pair %u cannot be connected to %u.%u.%u.%u (the host needs a route to it, and a neighbour "
                     "that answers: `ip route get`, `ip neigh`)",
                     qp->qp_num, peer >> 24, peer >> 16 & 255, peer >> 8 & 255, peer & 255);
    return error == 0;
}

bool nf_verbs_ends_connect(nf_verbs_device *d, const nf_verbs_ends *ends, const nf_verbs_neighbour *to) {
    if (!receive_from(d, ends->in, d->fold_gid, to->predecessor, to->before_qp, to->psn) ||
        !receive_from(d, ends->out, d->own_gid, to->peer, to->peer_qp, to->psn))
        return false;
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTS,
                                     .timeout = NF_VERBS_TIMEOUT,
                                     .retry_cnt = NF_VERBS_RETRIES,
                                     .rnr_retry = NF_VERBS_RNR_RETRIES,
                                     .sq_psn = to->psn,
                                     .max_rd_atomic = 1};
    int error = ibv_modify_qp(ends->out, &attributes,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                  IBV_QP_MAX_QP_RD_ATOMIC);
    if (error) nf_verbs_say(d, error, "queue pair %u cannot be made ready to send", ends->out->qp_num);
    return error == 0;
}

void nf_verbs_ends_destroy(nf_verbs_ends *ends) {
    if (ends->out) ibv_destroy_qp(ends->out);
    if (ends->in) ibv_destroy_qp(ends->in);
    *ends = (nf_verbs_ends){0};
}
