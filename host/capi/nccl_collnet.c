/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's CollNet on netfold.h: each communicator is a job of its own, and a thread of it runs NCCL's requests in their
 * order.  So NCCL's threads, which ask without end whether a request is done, never wait for CPython.
 *
 * NCCL gathers and scatters by windows: bytes [offset, offset + bytes) of the rows of all ranks, one row after another.
 * A gathered window is a sum here to which each rank gives its own part, and zeros elsewhere; a scattered one is a sum
 * of which each rank keeps its own part.  In the switches this takes the time of the longer direction, as a gather
 * does.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl_device.h"
#include "netfold.h"

enum {
    TIMEOUT = 600,      /* seconds without progress, as NCCL in torch: a rank may be late for a collective */
    CLOSE_TIMEOUT = 20, /* seconds to wait for the end of a communicator */
    LONGEST_JOB = 256,
};
static const char MAGIC[8] = "netfold1"; /* of handles */
static const char EARLY[] = "NCCL closed the communicator before its collective was done";

/* Rank 0's names the job. */
struct handle {
    char magic[sizeof MAGIC];
    uint64_t job;
};
_Static_assert(sizeof(struct handle) <= NCCL_NET_HANDLE_BYTES, "NCCL's handles are shorter");

struct comm;

struct request {
    struct comm *comm;
    struct request *next; /* in the queue */
    int used;
    atomic_int done;
    ncclResult_t result;
    const void *send; /* what is reduced: count elements */
    void *receive;
    size_t count;
    netfold_dtype dtype;
    netfold_op op;
    char *window; /* memory of the request's own; NULL: it needs none */
    void *to;     /* where `bytes` bytes from window + from go in the end */
    size_t from, bytes;
};

struct comm {
    netfold_comm *joined;
    int rank, ranks;
    char job[LONGEST_JOB];
    pthread_t worker, closer;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more, ended;
    struct request requests[NCCL_REQUESTS], *first, *last;
    ncclResult_t failed; /* of the first request that failed: all later ones fail, too */
    int running, closing, closed;
};

static ncclResult_t result_of(netfold_status status) {
    switch (status) {
    case NETFOLD_OK: return ncclSuccess;
    case NETFOLD_MISMATCH:
    case NETFOLD_LOST:
    case NETFOLD_TIMEOUT:
    case NETFOLD_CLOSED: return ncclRemoteError;
    case NETFOLD_INTERNAL: return ncclInternalError;
    default: return ncclSystemError;
    }
}

/* ---- a communicator's thread ------------------------------------------------------------------------------------- */
static ncclResult_t run(struct request *request) {
    struct comm *comm = request->comm;
    netfold_status status = netfold_allreduce(comm->joined, request->send, request->receive, request->count,
                                              request->dtype, request->op, NULL);
    if (status != NETFOLD_OK) {
        WARN("job %s, rank %d of %d: %s: %s", comm->job, comm->rank, comm->ranks, netfold_status_name(status),
             netfold_error());
        return result_of(status);
    }
    pthread_mutex_lock(&comm->lock);
    int closing = comm->closing; /* then the memory may be in other use once closeColl has returned */
    if (!closing && request->window && request->bytes)
        memcpy(request->to, request->window + request->from, request->bytes);
    pthread_mutex_unlock(&comm->lock);
    return closing ? ncclRemoteError : ncclSuccess;
}

static void *work(void *argument) {
    struct comm *comm = argument;
    pthread_mutex_lock(&comm->lock);
    for (;;) {
        while (!comm->first && !comm->closing) pthread_cond_wait(&comm->more, &comm->lock);
        struct request *request = comm->first;
        if (!request) break;
        comm->first = request->next;
        ncclResult_t result = comm->closing ? ncclRemoteError : comm->failed;
        if (result == ncclSuccess) {
            comm->running = 1;
            pthread_mutex_unlock(&comm->lock);
            result = run(request);
            pthread_mutex_lock(&comm->lock);
            comm->running = 0;
        }
        if (comm->failed == ncclSuccess) comm->failed = result;
        request->result = result;
        atomic_store(&request->done, 1);
    }
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

/* ---- joining and leaving ----------------------------------------------------------------------------------------- */
static ncclResult_t collnet_listen(int device, void *handle, void **listener) {
    (void)device;
    struct handle mine = {.job = 0};
    memcpy(mine.magic, MAGIC, sizeof MAGIC);
    ncclResult_t result = device_random(&mine.job, sizeof mine.job);
    memset(handle, 0, NCCL_NET_HANDLE_BYTES);
    memcpy(handle, &mine, sizeof mine);
    *listener = NULL; /* nothing listens: ranks meet at the controller */
    return result;
}

static ncclResult_t collnet_close_listen(void *listener) {
    (void)listener;
    return ncclSuccess;
}

/* The seconds of $NETFOLD_TIMEOUT, or TIMEOUT; 0 and a warning if it is no positive number. */
static double timeout(void) {
    const char *said = getenv("NETFOLD_TIMEOUT");
    if (!said || !*said) return TIMEOUT;
    char *end;
    double seconds = strtod(said, &end);
    if (!*end && seconds > 0 && seconds < 1e9) return seconds;
    WARN("NETFOLD_TIMEOUT=%s: expected a positive number of seconds", said);
    return 0;
}

static ncclResult_t collnet_connect(void *handles[], int ranks, int rank, void *listener, void **made) {
    (void)listener;
    *made = NULL;
    struct handle first;
    for (int i = 0; i < ranks; i++) {
        if (!memcmp(handles[i], MAGIC, sizeof MAGIC)) continue;
        WARN("rank %d of %d: the handle of rank %d is of another plug-in or version", rank, ranks, i);
        return ncclInvalidUsage;
    }
    memcpy(&first, handles[0], sizeof first);
    netfold_options options;
    netfold_options_init(&options);
    options.rank = rank, options.world = ranks, options.timeout = timeout();
    if (!options.timeout) return ncclInvalidUsage;
    const char *rails = getenv("NETFOLD_RAILS"), *job = getenv("NETFOLD_JOB");
    if (!rails || !*rails) options.rail = "innet"; /* folds, or NCCL had better go its own way */
    struct comm *comm = calloc(1, sizeof *comm);
    if (!comm) return ncclSystemError;
    snprintf(comm->job, sizeof comm->job, "%.200s.%016llx", job && *job ? job : "nccl", (unsigned long long)first.job);
    options.job = comm->job;
    netfold_status status = netfold_join(&options, &comm->joined);
    if (status != NETFOLD_OK) {
        WARN("rank %d of %d does not join job %s: %s: %s", rank, ranks, comm->job, netfold_status_name(status),
             netfold_error());
        free(comm);
        return result_of(status);
    }
    pthread_condattr_t monotonic;
    comm->rank = rank, comm->ranks = ranks;
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->more, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&comm->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&comm->worker, NULL, work, comm)) {
        WARN("rank %d of %d, job %s: the system starts no thread", rank, ranks, comm->job);
        netfold_leave(comm->joined);
        free(comm);
        return ncclSystemError;
    }
    INFO("rank %d of %d has joined job %s", rank, ranks, comm->job);
    *made = comm;
    return ncclSuccess;
}

/* Ends a communicator, on a thread of its own: CPython may be held by the one that closes it. */
static void *end(void *argument) {
    struct comm *comm = argument;
    pthread_mutex_lock(&comm->lock);
    int busy = comm->running || comm->first;
    comm->closing = 1;
    pthread_cond_signal(&comm->more);
    pthread_mutex_unlock(&comm->lock);
    if (busy) {
        WARN("job %s, rank %d: %s", comm->job, comm->rank, EARLY);
        if (netfold_abort(comm->joined, EARLY) != NETFOLD_OK)
            WARN("rank %d does not abort job %s: %s", comm->rank, comm->job, netfold_error());
    }
    pthread_join(comm->worker, NULL);
    netfold_status status = netfold_leave(comm->joined);
    if (status != NETFOLD_OK) WARN("rank %d leaves job %s: %s", comm->rank, comm->job, netfold_error());
    pthread_mutex_lock(&comm->lock);
    comm->closed = 1;
    pthread_cond_signal(&comm->ended);
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}

static ncclResult_t collnet_close(void *closed) {
    struct comm *comm = closed;
    struct timespec until;
    int late = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CLOSE_TIMEOUT;
    if (pthread_create(&comm->closer, NULL, end, comm)) {
        WARN("rank %d, job %s: the system starts no thread to close it", comm->rank, comm->job);
        return ncclSystemError;
    }
    pthread_mutex_lock(&comm->lock);
    while (!comm->closed && !late) late = pthread_cond_timedwait(&comm->ended, &comm->lock, &until);
    late = !comm->closed;
    pthread_mutex_unlock(&comm->lock);
    if (late) {
        WARN("rank %d, job %s is not closed after %d s, and is left behind", comm->rank, comm->job, CLOSE_TIMEOUT);
        pthread_detach(comm->closer);
        return ncclSystemError;
    }
    pthread_join(comm->closer, NULL);
    for (int i = 0; i < NCCL_REQUESTS; i++) free(comm->requests[i].window);
    free(comm);
    return ncclSuccess;
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */
/* Folded in the switches: what else netfold.h reduces, NCCL had better reduce between the hosts itself. */
static int folds(ncclDataType_t type, ncclRedOp_t op) {
    int known = type == NETFOLD_INT32 || type == NETFOLD_FLOAT32 || type == NETFOLD_FLOAT16 || type == NETFOLD_BFLOAT16;
    return known && (op == NETFOLD_SUM || op == NETFOLD_MAX || op == NETFOLD_MIN);
}

static ncclResult_t collnet_supports(ncclDataType_t type, ncclRedOp_t op, int *supported) {
    *supported = folds(type, op);
    return ncclSuccess;
}

/* A free request; NULL where all are under way: NCCL asks again. */
static struct request *unused(struct comm *comm) {
    for (int i = 0; i < NCCL_REQUESTS; i++) {
        if (comm->requests[i].used) continue;
        comm->requests[i] = (struct request){.comm = comm};
        return &comm->requests[i];
    }
    return NULL;
}

static void put(struct request *request, void **begun) {
    struct comm *comm = request->comm;
    request->used = 1;
    *begun = request;
    pthread_mutex_lock(&comm->lock);
    if (comm->first)
        comm->last->next = request;
    else
        comm->first = request;
    comm->last = request;
    pthread_cond_signal(&comm->more);
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t refuse(struct comm *comm, const char *what, ncclDataType_t type, ncclRedOp_t op) {
    WARN("job %s, rank %d: %s of type %d with reduction %d does not fold, or its sizes do not fit", comm->job,
         comm->rank, what, type, op);
    return ncclInvalidArgument;
}

static ncclResult_t collnet_allreduce(void *to, void *send, void *receive, int count, ncclDataType_t type,
                                      ncclRedOp_t op, void *send_memory, void *receive_memory, void **begun) {
    (void)send_memory, (void)receive_memory;
    struct comm *comm = to;
    *begun = NULL;
    if (count < 0 || !folds(type, op)) return refuse(comm, "allreduce", type, op);
    struct request *request = unused(comm);
    if (!request) return ncclSuccess;
    size_t each = type == NETFOLD_FLOAT16 || type == NETFOLD_BFLOAT16 ? 2 : 4;
    request->send = send, request->receive = receive, request->count = (size_t)count;
    request->dtype = (netfold_dtype)type, request->op = (netfold_op)op, request->bytes = each * (size_t)count;
    put(request, begun);
    return ncclSuccess;
}

/* This rank's part of a window, from its begin, in *from; returns its bytes. */
static size_t own(const struct comm *comm, size_t bytes_per_rank, size_t offset, size_t bytes, size_t *from) {
    size_t begin = (size_t)comm->rank * bytes_per_rank, end = begin + bytes_per_rank;
    if (begin < offset) begin = offset;
    if (end > offset + bytes) end = offset + bytes;
    if (begin >= end) begin = end = offset;
    *from = begin - offset;
    return end - begin;
}

/* Whether a window is one, in one part, and within the rows of all ranks. */
static int window(const struct comm *comm, int parts, size_t bytes_per_rank, size_t offset, size_t bytes) {
    size_t all;
    return parts == 1 && !__builtin_mul_overflow(bytes_per_rank, (size_t)comm->ranks, &all) && bytes <= all &&
           offset <= all - bytes;
}

static ncclResult_t collnet_allgather(void *to, void *send, int parts, ncclNetSGE_v8_t *receive, size_t bytes_per_rank,
                                      size_t offset, size_t bytes, void *send_memory, void **begun) {
    (void)send_memory;
    struct comm *comm = to;
    *begun = NULL;
    if (!window(comm, parts, bytes_per_rank, offset, bytes) || receive->size < bytes)
        return refuse(comm, "allgather", NETFOLD_INT8, NETFOLD_SUM);
    struct request *request = unused(comm);
    if (!request) return ncclSuccess;
    size_t words = (bytes + 3) / 4, from, mine = own(comm, bytes_per_rank, offset, bytes, &from);
    request->window = calloc(words + !words, 4);
    if (!request->window) return ncclSystemError;
    if (mine) memcpy(request->window + from, send, mine);
    request->send = request->receive = request->window, request->count = words;
    request->dtype = NETFOLD_INT32, request->op = NETFOLD_SUM;
    request->to = receive->address, request->bytes = bytes;
    put(request, begun);
    return ncclSuccess;
}

static ncclResult_t collnet_reduce_scatter(void *to, int parts, ncclNetSGE_v8_t *send, void *receive,
                                           size_t bytes_per_rank, size_t offset, size_t bytes, ncclDataType_t type,
                                           ncclRedOp_t op, void *receive_memory, void **begun) {
    (void)receive_memory;
    struct comm *comm = to;
    *begun = NULL;
    size_t each = type == NETFOLD_FLOAT16 || type == NETFOLD_BFLOAT16 ? 2 : 4;
    if (!folds(type, op) || !window(comm, parts, bytes_per_rank, offset, bytes) || bytes % each || send->size < bytes)
        return refuse(comm, "reduce_scatter", type, op);
    struct request *request = unused(comm);
    if (!request) return ncclSuccess;
    request->window = malloc(bytes + !bytes);
    if (!request->window) return ncclSystemError;
    request->send = send->address, request->receive = request->window, request->count = bytes / each;
    request->dtype = (netfold_dtype)type, request->op = (netfold_op)op;
    request->to = receive, request->bytes = own(comm, bytes_per_rank, offset, bytes, &request->from);
    put(request, begun);
    return ncclSuccess;
}

static ncclResult_t collnet_flush(void *comm, void *data, int size, void *memory, void **request) {
    (void)comm, (void)data, (void)size, (void)memory;
    *request = NULL;
    WARN("NCCL asks to flush memory of a device, of which none was taken");
    return ncclInternalError;
}

static ncclResult_t collnet_test(void *begun, int *done, int *size) {
    struct request *request = begun;
    *done = atomic_load(&request->done);
    if (!*done) return ncclSuccess;
    if (size) *size = (int)request->bytes;
    free(request->window);
    request->window = NULL;
    request->used = 0;
    return request->result;
}

EXPORT const ncclCollNet_v8_t ncclCollNetPlugin_v8 = {
    .name = "netfold",
    .init = device_init,
    .devices = device_count,
    .getProperties = device_properties,
    .listen = collnet_listen,
    .connect = collnet_connect,
    .reduceSupport = collnet_supports,
    .regMr = device_register,
    .deregMr = device_forget,
    .iallreduce = collnet_allreduce,
    .iallgather = collnet_allgather,
    .ireducescatter = collnet_reduce_scatter,
    .iflush = collnet_flush,
    .test = collnet_test,
    .closeColl = collnet_close,
    .closeListen = collnet_close_listen,
};
