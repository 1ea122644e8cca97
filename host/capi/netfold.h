/* SPDX-License-Identifier: Apache-2.0
 *
 * NetFold's C interface: allreduce and its relatives on host memory, folded in the switches where they can be.
 *
 *     netfold_comm *comm;
 *     if (netfold_join(NULL, &comm) != NETFOLD_OK) { fprintf(stderr, "%s\n", netfold_error()); return 1; }
 *     netfold_allreduce(comm, mine, sum, 1024, NETFOLD_FLOAT32, NETFOLD_SUM, NULL);
 *     netfold_leave(comm);
 *
 * Every rank makes the same calls in the same order.  The library runs CPython in the calling process, and may be used
 * from a Python process, too.  Calls may come from any thread, but those of one communicator must not overlap: begin
 * several by requests instead.  A child that is forked off must not use what its parent has joined: its calls return
 * NETFOLD_CLOSED.  Read docs/c.md for building and for the cost of a call.
 */
#ifndef NETFOLD_H
#define NETFOLD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NETFOLD_API_VERSION 1 /* grows when a function or a field is added; nothing is ever removed or moved */

/* How a call ended.  The text of the last failure in a thread is netfold_error(). */
typedef enum netfold_status {
    NETFOLD_OK = 0,
    NETFOLD_INVALID = 1,  /* the caller's mistake: an argument, or two calls of one communicator at the same time */
    NETFOLD_REFUSED = 2,  /* the controller cannot be reached, or refuses this rank or its plan */
    NETFOLD_MISMATCH = 3, /* the ranks made different calls, or with different sizes or types */
    NETFOLD_LOST = 4,     /* a rank, a rail, a tree or the job is gone; join anew */
    NETFOLD_TIMEOUT = 5,  /* no progress within the time-out */
    NETFOLD_CLOSED = 6,   /* the communicator was left or aborted, or belongs to the process that forked this one */
    NETFOLD_SYSTEM = 7,   /* the operating system refused memory, a socket, a file or the start of CPython */
    NETFOLD_INTERNAL = 8, /* a fault of NetFold: report it with the text */
} netfold_status;

typedef enum netfold_dtype {
    NETFOLD_INT8 = 0,
    NETFOLD_UINT8 = 1,
    NETFOLD_INT32 = 2,
    NETFOLD_UINT32 = 3,
    NETFOLD_INT64 = 4,
    NETFOLD_UINT64 = 5,
    NETFOLD_FLOAT16 = 6,
    NETFOLD_FLOAT32 = 7,
    NETFOLD_FLOAT64 = 8,
    NETFOLD_BFLOAT16 = 9,
} netfold_dtype; /* the numbers are those of ncclDataType_t */

typedef enum netfold_op {
    NETFOLD_SUM = 0,
    NETFOLD_PRODUCT = 1,
    NETFOLD_MAX = 2,
    NETFOLD_MIN = 3,
    NETFOLD_AVERAGE = 4, /* of floats */
} netfold_op;            /* the numbers are those of ncclRedOp_t */

typedef struct netfold_comm netfold_comm;       /* the ranks of a job, or of a group of them */
typedef struct netfold_request netfold_request; /* a call that has begun */

/* What netfold_join needs to know.  Call netfold_options_init() first, then set what differs.  Strings that are NULL,
 * and numbers that are 0 or -1 as shown, come from the environment as `netfold run`, torchrun, mpirun and Slurm set it,
 * or have the default of Python's Communicator.join. */
typedef struct netfold_options {
    size_t size;            /* sizeof(netfold_options), set by netfold_options_init */
    const char *job;        /* the job's name */
    int rank;               /* this rank, from 0; -1: from the environment */
    int world;              /* number of ranks; 0: from the environment */
    const char *address;    /* this host's IPv4 address on the fabric */
    const char *controller; /* "host:port" or "unix:/path" */
    const char *token;      /* the fabric's, where it has one */
    const char *rail;       /* "auto", "innet", "verbs", "tcp" or "roce" */
    const char *algorithm;  /* of allreduce */
    double timeout;         /* seconds without progress that end a call; 0: 10 */
    double join_timeout;    /* seconds to wait for the other ranks; 0: 30 */
    int lane_bits;          /* of folded floats: 32, 16 or 8; 0: from the environment, or 32 */
    int reproducible;       /* 1: the bits of a sum depend on the contributions alone; 0: not; -1: by the environment */
} netfold_options;

/* NETFOLD_API_VERSION of the library that runs. */
int netfold_api_version(void);

/* What failed last in this thread, with what to do; "" where nothing has.  Valid until this thread's next call. */
const char *netfold_error(void);

/* "NETFOLD_OK" and so on; "unknown status" for other numbers. */
const char *netfold_status_name(netfold_status status);

void netfold_options_init(netfold_options *options);

/* Join a job, and wait until all its ranks have.  options may be NULL.  *comm is NULL where it fails. */
netfold_status netfold_join(const netfold_options *options, netfold_comm **comm);

/* A communicator of some of the ranks, for which all ranks of comm call it, each with the group it is in; the ranks are
 * numbered in their order.  Leave it before comm. */
netfold_status netfold_group(netfold_comm *comm, const int *ranks, int count, netfold_comm **group);

/* This rank's number, and the number of ranks; -1 where the call fails. */
int netfold_rank(netfold_comm *comm);
int netfold_size(netfold_comm *comm);

/* How calls of so many bytes would go now, and why, as text of at most room bytes with its end, cut where it is longer.
 */
netfold_status netfold_explain(netfold_comm *comm, size_t bytes, char *text, size_t room);

/* The collectives.  request NULL: return when the call is done.  Else: return at once, with a request that must be
 * given to netfold_wait; the memory belongs to NetFold until then.  Begun calls run in their order.
 *
 * count is a number of elements.  send and receive may be the same address where their sizes are the same, and must not
 * overlap otherwise; all_gather and reduce_scatter also take this rank's own part of the other buffer.
 */

/* receive = the reduction of all ranks' send; count elements each.  Reductions take uint8, int32, int64 and floats. */
netfold_status netfold_allreduce(netfold_comm *comm, const void *send, void *receive, size_t count, netfold_dtype dtype,
                                 netfold_op op, netfold_request **request);

/* receive = this rank's count elements of the reduction of all ranks' send, which has count x size elements. */
netfold_status netfold_reduce_scatter(netfold_comm *comm, const void *send, void *receive, size_t count,
                                      netfold_dtype dtype, netfold_op op, netfold_request **request);

/* receive = the count elements of every rank, one rank after another: count x size elements. */
netfold_status netfold_all_gather(netfold_comm *comm, const void *send, void *receive, size_t count,
                                  netfold_dtype dtype, netfold_request **request);

/* buffer = the root's. */
netfold_status netfold_broadcast(netfold_comm *comm, void *buffer, size_t count, netfold_dtype dtype, int root,
                                 netfold_request **request);

/* Wait until every rank has come here. */
netfold_status netfold_barrier(netfold_comm *comm, netfold_request **request);

/* *done is 1 once the request has ended, well or not, else 0.  The request goes on to exist. */
netfold_status netfold_test(netfold_request *request, int *done);

/* Wait for the request's end, and free it in any case.  Returns how it ended. */
netfold_status netfold_wait(netfold_request *request);

/* End what is under way with an error that has these words, from any thread; bytes of them that are not UTF-8 are shown
 * as U+FFFD.  On the other ranks it ends when this one leaves, or sooner. */
netfold_status netfold_abort(netfold_comm *comm, const char *why);

/* Leave the job, or end the use of a group, and free comm in any case.  A rank that ends without is a lost one. */
netfold_status netfold_leave(netfold_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
