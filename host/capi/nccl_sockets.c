/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL's point-to-point messages over TCP.  NCCL takes CollNet only from a library that has them, too: its own sockets
 * cannot stand beside a plug-in's CollNet.  A connection is one of TCP, from the sender to the receiver; a message is
 * its size, as 4 bytes in network order, and its bytes.  A receiver's listener has a secret that only its handle tells:
 * a connection that does not begin with it is closed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "nccl_device.h"

enum {
    CONNECT_TIMEOUT = 30, /* seconds */
    DEAD_AFTER = 30,      /* seconds after which a host that does not answer counts as lost */
    STRANGERS = 16,       /* connections that may be without the secret at once */
    SECRET_BYTES = 16,
};

struct listener {
    int socket;
    unsigned char secret[SECRET_BYTES];
    int accepted[STRANGERS]; /* sockets; -1: free */
    int oldest;
};

struct message {
    struct stream *stream;
    char *data;
    uint32_t size, header; /* header: the size as it is on the wire */
    size_t moved;          /* bytes so far, with the header's */
    int used, done;
};

struct stream {
    int socket, sends;
    ncclResult_t failed;
    struct sockaddr_in peer;
    const void *handle;     /* while it is connecting: where NCCL keeps the handle, */
    struct stream *another; /* and another one that is connecting */
    struct timespec begun;
    unsigned char secret[SECRET_BYTES];
    struct message messages[NCCL_REQUESTS]; /* a ring */
    unsigned next, first;                   /* the next message's place, and the first one's that is not done */
};

struct handle {
    struct sockaddr_in address;
    unsigned char secret[SECRET_BYTES];
};
_Static_assert(sizeof(struct handle) <= NCCL_NET_HANDLE_BYTES, "NCCL's handles are shorter");

static ncclResult_t system_error(const char *what) {
    WARN("%s: %s", what, strerror(errno));
    return ncclSystemError;
}

static ncclResult_t broken(struct stream *stream, const char *why) {
    char peer[INET_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET, &stream->peer.sin_addr, peer, sizeof peer);
    WARN("the connection %s %s has failed: %s", stream->sends ? "to" : "from", peer, why);
    return stream->failed = ncclRemoteError;
}

/* A socket that does not wait, and that tells a lost host; a negative number and errno where there is none. */
static int prepared(int made) {
    int on = 1, idle = DEAD_AFTER / 3, tries = 4, dead = DEAD_AFTER * 1000;
    if (made < 0) return made;
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(made, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(made, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    idle /= 2;
    setsockopt(made, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    setsockopt(made, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    setsockopt(made, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead, sizeof dead);
    return made;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */
static ncclResult_t net_listen(int device, void *handle, void **made) {
    (void)device;
    struct sockaddr_in address = device_address();
    socklen_t size = sizeof address;
    struct listener *listener = calloc(1, sizeof *listener);
    if (!listener) return ncclSystemError;
    for (int i = 0; i < STRANGERS; i++) listener->accepted[i] = -1;
    listener->socket = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ncclResult_t result = device_random(listener->secret, SECRET_BYTES);
    if (result == ncclSuccess &&
        (listener->socket < 0 || bind(listener->socket, (struct sockaddr *)&address, sizeof address) ||
         listen(listener->socket, SOMAXCONN) || getsockname(listener->socket, (struct sockaddr *)&address, &size)))
        result = system_error("cannot listen at this host's address on the fabric");
    if (result != ncclSuccess) {
        if (listener->socket >= 0) close(listener->socket);
        free(listener);
        return result;
    }
    struct handle *told = handle;
    memset(handle, 0, NCCL_NET_HANDLE_BYTES);
    told->address = address;
    memcpy(told->secret, listener->secret, SECRET_BYTES);
    *made = listener;
    return ncclSuccess;
}

static ncclResult_t close_stream(void *closed) {
    struct stream *stream = closed;
    if (stream && stream->socket >= 0) close(stream->socket);
    free(stream);
    return ncclSuccess;
}

/* Whether the connection stands and its secret is sent. */
static ncclResult_t finish(struct stream *stream, int *stands) {
    struct pollfd writable = {.fd = stream->socket, .events = POLLOUT};
    struct timespec now;
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&writable, 1, 0) > 0) {
        getsockopt(stream->socket, SOL_SOCKET, SO_ERROR, &error, &size);
        *stands = !error && send(stream->socket, stream->secret, SECRET_BYTES, MSG_NOSIGNAL) == SECRET_BYTES;
        return *stands ? ncclSuccess : broken(stream, strerror(error ? error : errno));
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - stream->begun.tv_sec <= CONNECT_TIMEOUT) return ncclSuccess;
    return broken(stream, "it does not answer");
}

static struct stream *connecting; /* those that NCCL asks for again, until they stand */
static pthread_mutex_t connecting_lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes the stream that was begun for this copy of a handle; NULL: none was.  The handle itself, which another rank has
 * made, says nothing of it. */
static struct stream *take(const struct handle *handle) {
    pthread_mutex_lock(&connecting_lock);
    struct stream **at = &connecting;
    while (*at && ((*at)->handle != handle || memcmp((*at)->secret, handle->secret, SECRET_BYTES)))
        at = &(*at)->another;
    struct stream *found = *at;
    if (found) *at = found->another;
    pthread_mutex_unlock(&connecting_lock);
    return found;
}

static void keep(struct stream *stream) {
    pthread_mutex_lock(&connecting_lock);
    stream->another = connecting;
    connecting = stream;
    pthread_mutex_unlock(&connecting_lock);
}

static ncclResult_t net_connect(int device, void *handle, void **made, void **offload) {
    (void)device, (void)offload;
    const struct handle *told = handle;
    struct stream *stream = take(told);
    ncclResult_t result = ncclSuccess;
    int stands = 0;
    *made = NULL;
    if (!stream) {
        stream = calloc(1, sizeof *stream);
        if (!stream) return ncclSystemError;
        stream->sends = 1, stream->peer = told->address, stream->handle = told;
        memcpy(stream->secret, told->secret, SECRET_BYTES);
        clock_gettime(CLOCK_MONOTONIC, &stream->begun);
        stream->socket = prepared(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (connect(stream->socket, (struct sockaddr *)&stream->peer, sizeof stream->peer) && errno != EINPROGRESS)
            result = broken(stream, strerror(errno));
    }
    if (result == ncclSuccess) result = finish(stream, &stands);
    if (stands)
        *made = stream;
    else if (result == ncclSuccess)
        keep(stream);
    else
        close_stream(stream);
    return result;
}

static ncclResult_t net_accept(void *listening, void **made, void **offload) {
    (void)offload;
    struct listener *listener = listening;
    *made = NULL;
    int came = accept4(listener->socket, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (came >= 0) {
        int *place = &listener->accepted[listener->oldest++ % STRANGERS];
        if (*place >= 0) close(*place); /* it has had its time: so many came after it */
        *place = prepared(came);
    } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        return system_error("cannot accept a connection");
    }
    for (int i = 0; i < STRANGERS; i++) {
        int *each = &listener->accepted[i];
        unsigned char said[SECRET_BYTES];
        ssize_t got = *each < 0 ? -1 : recv(*each, said, sizeof said, MSG_PEEK);
        if (*each < 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)) || (got > 0 && got < SECRET_BYTES)) continue;
        struct stream *stream = NULL;
        if (got == SECRET_BYTES && !memcmp(said, listener->secret, SECRET_BYTES) &&
            recv(*each, said, sizeof said, 0) == SECRET_BYTES)
            stream = calloc(1, sizeof *stream);
        int taken = *each;
        *each = -1;
        if (stream) {
            socklen_t size = sizeof stream->peer;
            stream->socket = taken;
            getpeername(taken, (struct sockaddr *)&stream->peer, &size);
            *made = stream;
            break;
        }
        close(taken);
    }
    return ncclSuccess;
}

static ncclResult_t net_close_listen(void *closed) {
    struct listener *listener = closed;
    for (int i = 0; i < STRANGERS; i++)
        if (listener->accepted[i] >= 0) close(listener->accepted[i]);
    close(listener->socket);
    free(listener);
    return ncclSuccess;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
/* Moves what the socket takes or has.  Returns the stream's failure, which stays. */
static ncclResult_t progress(struct stream *stream) {
    while (stream->failed == ncclSuccess && stream->first != stream->next) {
        struct message *message = &stream->messages[stream->first % NCCL_REQUESTS];
        size_t header = sizeof message->header;
        int in_header = message->moved < header;
        char *at = in_header ? (char *)&message->header + message->moved : message->data + (message->moved - header);
        size_t left = in_header ? header - message->moved : header + message->size - message->moved;
        int more = in_header && message->size ? MSG_MORE : 0;
        ssize_t moved =
            stream->sends ? send(stream->socket, at, left, MSG_NOSIGNAL | more) : recv(stream->socket, at, left, 0);
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (moved < 0) return broken(stream, strerror(errno));
        if (!moved) return broken(stream, "the other rank has closed it");
        message->moved += (size_t)moved;
        if (in_header && message->moved == header && !stream->sends) {
            if (ntohl(message->header) > message->size) return broken(stream, "a message is longer than was expected");
            message->size = ntohl(message->header);
        }
        if (message->moved == header + message->size) {
            message->done = 1;
            stream->first++;
        }
    }
    return stream->failed;
}

static ncclResult_t post(struct stream *stream, void *data, int size, void **request) {
    struct message *message = &stream->messages[stream->next % NCCL_REQUESTS];
    *request = NULL;
    if (size < 0) return ncclInvalidArgument;
    if (message->used) return stream->failed; /* all are under way: NCCL asks again */
    *message = (struct message){.stream = stream, .data = data, .size = (uint32_t)size, .used = 1};
    if (stream->sends) message->header = htonl(message->size);
    stream->next++;
    *request = message;
    return progress(stream);
}

static ncclResult_t net_send(void *stream, void *data, int size, int tag, void *memory, void **request) {
    (void)tag, (void)memory;
    return post(stream, data, size, request);
}

static ncclResult_t net_receive(void *stream, int count, void **data, int *sizes, int *tags, void **memory,
                                void **request) {
    (void)tags, (void)memory;
    *request = NULL;
    return count == 1 ? post(stream, data[0], sizes[0], request) : ncclInvalidArgument;
}

static ncclResult_t net_test(void *request, int *done, int *sizes) {
    struct message *message = request;
    ncclResult_t result = message->done ? ncclSuccess : progress(message->stream);
    *done = message->done;
    if (!message->done) return result;
    if (sizes) sizes[0] = (int)message->size;
    message->used = 0;
    return ncclSuccess;
}

static ncclResult_t net_flush(void *stream, int count, void **data, int *sizes, void **memory, void **request) {
    (void)stream, (void)count, (void)data, (void)sizes, (void)memory;
    *request = NULL;
    WARN("NCCL asks to flush memory of a device, of which none was taken");
    return ncclInternalError;
}

EXPORT const ncclNet_v8_t ncclNetPlugin_v8 = {
    .name = "netfold",
    .init = device_init,
    .devices = device_count,
    .getProperties = device_properties,
    .listen = net_listen,
    .connect = net_connect,
    .accept = net_accept,
    .regMr = device_register,
    .deregMr = device_forget,
    .isend = net_send,
    .irecv = net_receive,
    .iflush = net_flush,
    .test = net_test,
    .closeSend = close_stream,
    .closeRecv = close_stream,
    .closeListen = net_close_listen,
};
