/* SPDX-License-Identifier: Apache-2.0
 *
 * The interface of NCCL's network plug-ins, in version 8: every NCCL from 2.20 on takes it.  Names, orders
 * and numbers are those of NVIDIA's headers (github.com/NVIDIA/nccl, Apache-2.0; there net_v8), declared anew; fields
 * and functions that the plug-in lacks are untyped pointers.
 */
#ifndef NETFOLD_NCCL_H
#define NETFOLD_NCCL_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    ncclSuccess = 0,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
} ncclResult_t;

/* Types and reductions have the numbers of netfold_dtype and netfold_op. */
typedef int ncclDataType_t;
typedef int ncclRedOp_t;

enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };            /* levels */
enum { NCCL_INIT = 0x1, NCCL_NET = 0x10, NCCL_ALL = ~0 }; /* subsystems */
enum { NCCL_PTR_HOST = 0x1 };                             /* kinds of memory */
enum { NCCL_NET_HANDLE_BYTES = 128, NCCL_REQUESTS = 64 }; /* of a handle; requests that NCCL has under way, at most */

typedef void (*ncclDebugLogger_t)(int level, unsigned long flags, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

typedef struct {
    const char *name;
    const char *pciPath; /* in /sys; NULL: not known */
    uint64_t guid;
    int ptrSupport; /* kinds of memory */
    int regIsGlobal;
    int speed; /* Mb/s */
    int port;
    float latency; /* us; 0: not known */
    int maxComms;
    int maxRecvs; /* receives that one call begins */
    int netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log);
    ncclResult_t (*devices)(int *count);
    ncclResult_t (*getProperties)(int device, ncclNetProperties_v8_t *properties);
    ncclResult_t (*listen)(int device, void *handle, void **listener);
    ncclResult_t (*connect)(int device, void *handle, void **sender, void **offload);
    ncclResult_t (*accept)(void *listener, void **receiver, void **offload);
    ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **memory);
    void *regMrDmaBuf;
    ncclResult_t (*deregMr)(void *comm, void *memory);
    ncclResult_t (*isend)(void *sender, void *data, int size, int tag, void *memory, void **request);
    ncclResult_t (*irecv)(void *receiver, int count, void **data, int *sizes, int *tags, void **memory, void **request);
    ncclResult_t (*iflush)(void *receiver, int count, void **data, int *sizes, void **memory, void **request);
    ncclResult_t (*test)(void *request, int *done, int *sizes);
    ncclResult_t (*closeSend)(void *sender);
    ncclResult_t (*closeRecv)(void *receiver);
    ncclResult_t (*closeListen)(void *listener);
    void *getDeviceMr;
    void *irecvConsumed;
} ncclNet_v8_t;

typedef struct {
    void *mhandle;
    void *address;
    uint32_t size;
} ncclNetSGE_v8_t;

typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log);
    ncclResult_t (*devices)(int *count);
    ncclResult_t (*getProperties)(int device, ncclNetProperties_v8_t *properties);
    ncclResult_t (*listen)(int device, void *handle, void **listener);
    ncclResult_t (*connect)(void *handles[], int ranks, int rank, void *listener, void **comm);
    ncclResult_t (*reduceSupport)(ncclDataType_t type, ncclRedOp_t op, int *supported);
    ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **memory);
    void *regMrDmaBuf;
    ncclResult_t (*deregMr)(void *comm, void *memory);
    ncclResult_t (*iallreduce)(void *comm, void *send, void *receive, int count, ncclDataType_t type, ncclRedOp_t op,
                               void *send_memory, void *receive_memory, void **request);
    ncclResult_t (*iallgather)(void *comm, void *send, int parts, ncclNetSGE_v8_t *receive, size_t bytes_per_rank,
                               size_t offset, size_t bytes, void *send_memory, void **request);
    ncclResult_t (*ireducescatter)(void *comm, int parts, ncclNetSGE_v8_t *send, void *receive, size_t bytes_per_rank,
                                   size_t offset, size_t bytes, ncclDataType_t type, ncclRedOp_t op,
                                   void *receive_memory, void **request);
    ncclResult_t (*iflush)(void *comm, void *data, int size, void *memory, void **request);
    ncclResult_t (*test)(void *request, int *done, int *size);
    ncclResult_t (*closeColl)(void *comm);
    ncclResult_t (*closeListen)(void *listener);
} ncclCollNet_v8_t;

#endif
