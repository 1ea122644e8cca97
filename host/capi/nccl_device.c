/* SPDX-License-Identifier: Apache-2.0
 *
 * The device that NCCL's plug-in shows: this host's interface on the fabric, found as netfold.host.environment finds
 * it.
 */
#define _GNU_SOURCE
#include "nccl_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { UNKNOWN_SPEED = 10000 }; /* Mb/s, as NCCL's sockets take it */

ncclDebugLogger_t nccl_log;

static struct sockaddr_in address;
static int speed = UNKNOWN_SPEED;
static char *pci_path;

/* The address of the interface that leads to a "host:port".  Returns whether there is one. */
static int towards(const char *target) {
    char host[256];
    const char *colon = strrchr(target, ':');
    size_t length = colon ? (size_t)(colon - target) : strlen(target);
    if (!length || length >= sizeof host || !strncmp(target, "unix:", 5)) return 0;
    memcpy(host, target, length);
    host[length] = 0;
    struct addrinfo *found = NULL, hints = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    if (getaddrinfo(host, "9", &hints, &found)) return 0;
    int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* sends nothing: it only looks up the route */
    socklen_t size = sizeof address;
    int known = probe >= 0 && !connect(probe, found->ai_addr, found->ai_addrlen) &&
                !getsockname(probe, (struct sockaddr *)&address, &size);
    if (probe >= 0) close(probe);
    freeaddrinfo(found);
    address.sin_port = 0;
    return known;
}

/* Finds the address.  Returns whether it did. */
static int find(void) {
    const char *said = getenv("NETFOLD_ADDRESS"), *controllers = getenv("NETFOLD_CONTROLLER");
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    if (said && *said) return inet_pton(AF_INET, said, &address.sin_addr) == 1;
    char *all = controllers ? strdup(controllers) : NULL, *rest = NULL;
    int known = 0;
    for (char *one = all ? strtok_r(all, ", ", &rest) : NULL; one && !known; one = strtok_r(NULL, ", ", &rest))
        known = towards(one);
    free(all);
    return known;
}

/* Reads the speed and the PCI path of the interface that has the address. */
static void look_up(void) {
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all)) return;
    for (struct ifaddrs *one = all; one; one = one->ifa_next) {
        struct sockaddr_in *at = (struct sockaddr_in *)one->ifa_addr;
        if (!at || at->sin_family != AF_INET || at->sin_addr.s_addr != address.sin_addr.s_addr) continue;
        char path[PATH_MAX];
        int mbps;
        snprintf(path, sizeof path, "/sys/class/net/%s/speed", one->ifa_name);
        FILE *file = fopen(path, "re");
        if (file && fscanf(file, "%d", &mbps) == 1 && mbps > 0) speed = mbps;
        if (file) fclose(file);
        snprintf(path, sizeof path, "/sys/class/net/%s/device", one->ifa_name);
        free(pci_path);
        pci_path = realpath(path, NULL);
        break;
    }
    freeifaddrs(all);
}

ncclResult_t device_init(ncclDebugLogger_t log) {
    nccl_log = log;
    const char *controller = getenv("NETFOLD_CONTROLLER"), *planes = getenv("NETFOLD_PLANES");
    if (!(controller && *controller) && !(planes && *planes)) {
        WARN("neither NETFOLD_CONTROLLER nor NETFOLD_PLANES is set: NCCL goes on without NetFold");
        return ncclSystemError;
    }
    if (!find()) {
        WARN(
            "NETFOLD_ADDRESS is not this host's IPv4 address on the fabric, and NETFOLD_CONTROLLER leads to none: NCCL "
            "goes on without NetFold");
        return ncclSystemError;
    }
    look_up();
    INFO("uses %s, at %d Mb/s", inet_ntoa(address.sin_addr), speed);
    return ncclSuccess;
}

ncclResult_t device_count(int *count) {
    *count = 1;
    return ncclSuccess;
}

ncclResult_t device_properties(int device, ncclNetProperties_v8_t *properties) {
    if (device) {
        WARN("device %d: there is only device 0", device);
        return ncclInvalidArgument;
    }
    *properties = (ncclNetProperties_v8_t){
        .name = "netfold",
        .pciPath = pci_path,
        .ptrSupport = NCCL_PTR_HOST,
        .speed = speed,
        .maxComms = 65536,
        .maxRecvs = 1,
    };
    return ncclSuccess;
}

struct sockaddr_in device_address(void) { return address; }

ncclResult_t device_register(void *comm, void *data, size_t size, int type, void **memory) {
    (void)comm, (void)data, (void)size;
    *memory = NULL;
    if (type == NCCL_PTR_HOST) return ncclSuccess;
    INFO("memory of kind %d is not taken, only the host's (%d)", type, NCCL_PTR_HOST);
    return ncclInvalidUsage;
}

ncclResult_t device_forget(void *comm, void *memory) {
    (void)comm, (void)memory;
    return ncclSuccess;
}

ncclResult_t device_random(void *into, size_t bytes) {
    if (getrandom(into, bytes, 0) == (ssize_t)bytes) return ncclSuccess;
    WARN("the system gives no random numbers: %s", strerror(errno));
    return ncclSystemError;
}
