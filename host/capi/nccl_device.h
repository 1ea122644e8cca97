/* SPDX-License-Identifier: Apache-2.0
 *
 * The common part of both halves of NCCL's plug-in: the one device that NCCL sees, NCCL's log, and random numbers. */
#ifndef NETFOLD_NCCL_DEVICE_H
#define NETFOLD_NCCL_DEVICE_H

#include <netinet/in.h>

#include "nccl.h"

#define EXPORT __attribute__((visibility("default")))

extern ncclDebugLogger_t nccl_log; /* NULL before init */

#define WARN(...)                                                                                         \
    do {                                                                                                  \
        if (nccl_log) nccl_log(NCCL_LOG_WARN, NCCL_ALL, __func__, __LINE__, "NET/netfold: " __VA_ARGS__); \
    } while (0)
#define INFO(...)                                                                                                     \
    do {                                                                                                              \
        if (nccl_log) nccl_log(NCCL_LOG_INFO, NCCL_INIT | NCCL_NET, __func__, __LINE__, "NET/netfold: " __VA_ARGS__); \
    } while (0)

/* Finds this host's address on the fabric.  ncclSystemError, and a warning, without: NCCL goes on without the plug-in.
 */
ncclResult_t device_init(ncclDebugLogger_t log);
ncclResult_t device_count(int *count);
ncclResult_t device_properties(int device, ncclNetProperties_v8_t *properties);

/* This host's address on the fabric, with port 0. */
struct sockaddr_in device_address(void);

/* Both halves take the host's memory only, and know it by its address. */
ncclResult_t device_register(void *comm, void *data, size_t size, int type, void **memory);
ncclResult_t device_forget(void *comm, void *memory);

/* Fills memory with random bytes. */
ncclResult_t device_random(void *into, size_t bytes);

#endif
