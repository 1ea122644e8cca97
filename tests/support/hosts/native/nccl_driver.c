/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls NCCL's plug-in as NCCL does (src/plugin/net.cc, src/transport/coll_net.cc and net.cc of
 * github.com/NVIDIA/nccl): one rank of a job, as a program, or as a thread of one.  FOLDER/NAME.RANK stands for NCCL's
 * bootstrap, FOLDER/log for its log.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "nccl.h"

enum { INT32 = 2, INT64 = 4, FLOAT16 = 6, FLOAT32 = 7, BFLOAT16 = 9, SUM = 0, PRODUCT = 1, MAX = 2, MIN = 3 };
enum { RANKS = 8, CHANNELS = 3, REQUESTS = 8, MOST = 6000, WITHIN = 100 /* seconds */ };
enum { NCCL_PTR_CUDA = 2 };

#define CHECK(truth)                                                      \
    do {                                                                  \
        if (!(truth)) {                                                   \
            say("rank %d, line %d: not " #truth "\n", me.rank, __LINE__); \
            return 1;                                                     \
        }                                                                 \
    } while (0)
#define GOOD(call) CHECK((call) == ncclSuccess)

struct rank {
    int rank, world;
    const ncclCollNet_v8_t *coll;
    const ncclNet_v8_t *net;
};
typedef char handles_t[RANKS][NCCL_NET_HANDLE_BYTES];

static char folder[4000];

static void say(const char *format, ...) {
    char path[4096];
    va_list rest;
    snprintf(path, sizeof path, "%s/log", folder);
    FILE *file = fopen(path, "a");
    va_start(rest, format);
    if (file) vfprintf(file, format, rest), fclose(file);
    va_end(rest);
}

static void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char words[8192];
    va_list rest;
    va_start(rest, format);
    vsnprintf(words, sizeof words, format, rest);
    va_end(rest);
    say("%s %lx %s:%d %s\n", level == NCCL_LOG_WARN ? "WARN" : "INFO", flags, file, line, words);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* A moment's pause.  Returns 0 once it is later than END: others have the processor while this rank waits. */
static int waits(double end) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return now() < end;
}

/* Tells all ranks this one's handle, and reads theirs. */
static int exchange(struct rank me, const char *name, handles_t all, const char *mine) {
    char path[4096], there[4200];
    snprintf(path, sizeof path, "%s/%s.%d.new", folder, name, me.rank);
    snprintf(there, sizeof there, "%s/%s.%d", folder, name, me.rank);
    FILE *file = fopen(path, "w");
    CHECK(file && fwrite(mine, NCCL_NET_HANDLE_BYTES, 1, file) == 1 && !fclose(file) && !rename(path, there));
    double end = now() + WITHIN;
    for (int i = 0; i < me.world; i++) {
        snprintf(there, sizeof there, "%s/%s.%d", folder, name, i);
        while (!(file = fopen(there, "r")) && waits(end));
        CHECK(file && fread(all[i], NCCL_NET_HANDLE_BYTES, 1, file) == 1 && !fclose(file));
    }
    return 0;
}

/* Begins until the plug-in has taken the request, and waits until a request has ended. */
#define BEGIN(call, request)                \
    do {                                    \
        double until = now() + WITHIN;      \
        do GOOD(call);                      \
        while (!(request) && waits(until)); \
        CHECK(request);                     \
    } while (0)

static int ended(struct rank me, void *request, ncclResult_t expected, int bytes) {
    double end = now() + WITHIN;
    int done = 0, size = -1;
    ncclResult_t result = ncclSuccess;
    while (!done && result == ncclSuccess && waits(end)) result = me.coll->test(request, &done, &size);
    if (result != expected) say("rank %d: result %d, expected %d\n", me.rank, result, expected);
    CHECK(done && result == expected);
    CHECK(result != ncclSuccess || size == bytes);
    return 0;
}

/* A communicator of all ranks, or of one more, which never comes. */
static int connected(struct rank me, const char *name, int absent, ncclResult_t expected, void **comm) {
    handles_t all = {{0}};
    char mine[NCCL_NET_HANDLE_BYTES];
    void *pointers[RANKS], *listener = NULL;
    GOOD(me.coll->listen(0, mine, &listener));
    if (exchange(me, name, all, mine)) return 1;
    memcpy(all[me.world], mine, sizeof mine);
    for (int i = 0; i < RANKS; i++) pointers[i] = all[i];
    CHECK(me.coll->connect(pointers, me.world + absent, me.rank, listener, comm) == expected);
    CHECK((*comm != NULL) == (expected == ncclSuccess));
    if (expected == ncclSuccess) GOOD(me.coll->closeListen(listener));
    return 0;
}

/* ---- what is tried ----------------------------------------------------------------------------------------------- */
static int refusals(struct rank me, void *comm) {
    static int data[4];
    int is = -1;
    void *memory = NULL, *request = NULL;
    const int fold[] = {INT32, FLOAT16, FLOAT32, BFLOAT16};
    for (int type = 0; type < 12; type++)
        for (int op = 0; op < 4; op++) {
            int known = op != PRODUCT && (type == fold[0] || type == fold[1] || type == fold[2] || type == fold[3]);
            GOOD(me.coll->reduceSupport(type, op, &is));
            CHECK(is == known);
        }
    CHECK(me.coll->iallreduce(comm, data, data, 4, INT64, SUM, NULL, NULL, &request) == ncclInvalidArgument &&
          !request);
    CHECK(me.coll->iallreduce(comm, data, data, 4, INT32, PRODUCT, NULL, NULL, &request) == ncclInvalidArgument);
    ncclNetSGE_v8_t part = {NULL, data, 8};
    CHECK(me.coll->iallgather(comm, data, 1, &part, 8, 0, 16, NULL, &request) == ncclInvalidArgument);
    CHECK(me.coll->iallgather(comm, data, 1, &part, 4, (size_t)-4, 8, NULL, &request) == ncclInvalidArgument);
    CHECK(me.coll->ireducescatter(comm, 1, &part, data, 4, 0, 7, INT32, SUM, NULL, &request) == ncclInvalidArgument);
    GOOD(me.coll->regMr(comm, data, sizeof data, NCCL_PTR_HOST, &memory));
    GOOD(me.coll->deregMr(comm, memory));
    CHECK(me.coll->regMr(comm, data, sizeof data, NCCL_PTR_CUDA, &memory) != ncclSuccess);
    return 0;
}

static int elements(int k) { return MOST - 500 * k; }

/* Several requests under way on each of several communicators; the last ones are asked for first. */
static int in_flight(struct rank me, void **comms) {
    enum { ALL = CHANNELS * REQUESTS };
    union number {
        float f;
        int i;
    } *send = calloc((size_t)ALL * MOST, sizeof *send), *out = calloc((size_t)ALL * MOST, sizeof *out);
    void *requests[ALL] = {NULL};
    CHECK(send && out);
    for (int a = 0; a < ALL; a++) {
        int k = a / CHANNELS, is_float = k % 2 == 0, op = k % 4 < 2 ? SUM : is_float ? MIN : MAX;
        union number *mine = send + (size_t)a * MOST;
        for (int i = 0; i < elements(k); i++) {
            int value = (me.rank + 1) * (i % 100 - 50) + a;
            if (is_float)
                mine[i].f = (float)value / 4;
            else
                mine[i].i = value << 20; /* sums wrap */
        }
        BEGIN(me.coll->iallreduce(comms[a % CHANNELS], mine, out + (size_t)a * MOST, elements(k),
                                  is_float ? FLOAT32 : INT32, op, NULL, NULL, &requests[a]),
              requests[a]);
    }
    for (int a = ALL - 1; a >= 0; a--) {
        int k = a / CHANNELS, is_float = k % 2 == 0;
        int done = 0, size = 0;
        if (a >= ALL - CHANNELS) {
            if (ended(me, requests[a], ncclSuccess, 4 * elements(k))) return 1;
        } else { /* those before the last one are done before it */
            GOOD(me.coll->test(requests[a], &done, &size));
            CHECK(done && size == 4 * elements(k));
        }
        for (int i = 0; i < elements(k); i++) {
            int base = i % 100 - 50, low = base * (base < 0 ? me.world : 1) + a,
                high = base * (base < 0 ? 1 : me.world) + a;
            int sum = base * me.world * (me.world + 1) / 2 + me.world * a;
            int value = k % 4 < 2 ? sum : is_float ? low : high;
            union number got = out[(size_t)a * MOST + i];
            CHECK(is_float ? got.f == (float)value / 4 : got.i == (int)((unsigned)value << 20));
        }
    }
    free(send), free(out);
    return 0;
}

/* As many requests as the plug-in takes at once, twice. */
static int at_once(struct rank me, void *comm) {
    for (int round = 0; round < 2; round++) {
        int data[NCCL_REQUESTS + 1], begun = 0;
        void *requests[NCCL_REQUESTS + 1] = {NULL};
        for (; begun <= NCCL_REQUESTS; begun++) {
            data[begun] = begun + me.rank;
            GOOD(me.coll->iallreduce(comm, data + begun, data + begun, 1, INT32, MAX, NULL, NULL, &requests[begun]));
            if (!requests[begun]) break;
        }
        CHECK(begun == NCCL_REQUESTS);
        for (int i = 0; i < begun; i++) {
            if (ended(me, requests[i], ncclSuccess, 4)) return 1;
            CHECK(data[i] == i + me.world - 1);
        }
    }
    return 0;
}

static int halves(struct rank me, void *comm) {
    static const unsigned short SUMS[][5] = {{0, 0x3c00, 0x4000, 0x4200, 0x4400}, {0, 0x3f80, 0x4000, 0x4040, 0x4080}};
    for (int kind = 0; kind < 2; kind++) {
        unsigned short data[1001];
        void *request = NULL;
        for (int i = 0; i < 1001; i++) data[i] = SUMS[kind][1];
        BEGIN(me.coll->iallreduce(comm, data, data, 1001, kind ? BFLOAT16 : FLOAT16, SUM, NULL, NULL, &request),
              request);
        if (ended(me, request, ncclSuccess, 2002)) return 1;
        for (int i = 0; i < 1001; i++) CHECK(data[i] == SUMS[kind][me.world]);
    }
    return 0;
}

/* Gathers and scatters all rows by windows that begin and end anywhere. */
static int windows(struct rank me, void *comm) {
    enum { ROW = 1004 };
    static const size_t CUTS[] = {0, 700, 704, 1500, 2600, 0};
    unsigned char mine[ROW], rows[ROW * RANKS] = {0};
    float all[ROW * RANKS / 4], sum[ROW / 4] = {0};
    size_t total = (size_t)ROW * (size_t)me.world, begin = (size_t)ROW * (size_t)me.rank;
    for (size_t i = 0; i < ROW; i++) mine[i] = (unsigned char)(7 * ((int)i + me.rank));
    for (size_t i = 0; i < total / 4; i++) all[i] = (float)((me.rank + 1) * (int)(i % 50));
    for (int cut = 0; cut < 5; cut++) {
        size_t from = CUTS[cut] < total ? CUTS[cut] : total,
               to = cut < 4 && CUTS[cut + 1] < total ? CUTS[cut + 1] : total;
        size_t at = from < begin ? begin : from, up = to < begin + ROW ? to : begin + ROW, own = at < up ? up - at : 0;
        size_t row = own ? at - begin : 0;
        void *gather = NULL, *scatter = NULL;
        ncclNetSGE_v8_t part = {NULL, rows + from, (uint32_t)(to - from)}, given = {NULL, all + from / 4, part.size};
        BEGIN(me.coll->iallgather(comm, mine + row, 1, &part, ROW, from, to - from, NULL, &gather), gather);
        BEGIN(
            me.coll->ireducescatter(comm, 1, &given, sum + row / 4, ROW, from, to - from, FLOAT32, SUM, NULL, &scatter),
            scatter);
        if (ended(me, scatter, ncclSuccess, (int)own) || ended(me, gather, ncclSuccess, (int)(to - from))) return 1;
    }
    for (size_t i = 0; i < total; i++) CHECK(rows[i] == (unsigned char)(7 * (i % ROW + i / ROW)));
    for (size_t i = 0; i < ROW / 4; i++)
        CHECK(sum[i] == (float)(me.world * (me.world + 1) / 2 * (int)((i + begin / 4) % 50)));
    return 0;
}

/* As many messages as the plug-in takes at once, twice. */
static int messages_at_once(struct rank me, void *sender, void *receiver) {
    for (int round = 0; round < 2; round++) {
        int out[NCCL_REQUESTS + 1], in[NCCL_REQUESTS], begun = 0, size = sizeof *in, tag = 0;
        void *sent[NCCL_REQUESTS + 1] = {NULL}, *got[NCCL_REQUESTS], *none = NULL;
        for (; begun <= NCCL_REQUESTS; begun++) {
            out[begun] = round * 1000 + begun;
            GOOD(me.net->isend(sender, out + begun, sizeof *out, 0, NULL, &sent[begun]));
            if (!sent[begun]) break;
        }
        CHECK(begun == NCCL_REQUESTS);
        for (int i = 0; i < begun; i++) {
            void *to = in + i;
            BEGIN(me.net->irecv(receiver, 1, &to, &size, &tag, &none, &got[i]), got[i]);
        }
        for (int i = 0; i < begun; i++) {
            double end = now() + WITHIN;
            int there = 0, here = 0;
            while ((!there || !here) && waits(end)) {
                if (!there) GOOD(me.net->test(sent[i], &there, NULL));
                if (!here) GOOD(me.net->test(got[i], &here, &size));
            }
            CHECK(there && here && size == sizeof *in && in[i] == round * 1000 + i);
        }
    }
    return 0;
}

/* Each rank sends to the next one, past strangers at the listener. */
static int messages(struct rank me) {
    enum { LONG = 3 << 20, COUNT = 4 };
    static const int SIZES[COUNT] = {0, 5, LONG, 1};
    int next = (me.rank + 1) % me.world, before = (me.rank + me.world - 1) % me.world, room = LONG, size, tag = 0, done;
    handles_t all = {{0}};
    char mine[NCCL_NET_HANDLE_BYTES], *out = malloc(LONG), *in = malloc((size_t)COUNT * LONG);
    void *listener = NULL, *sender = NULL, *receiver = NULL, *sent[COUNT], *got[COUNT], *none = NULL;
    CHECK(out && in);
    GOOD(me.net->listen(0, mine, &listener));
    struct sockaddr_in where;
    memcpy(&where, mine, sizeof where);
    int strangers[2];
    for (int i = 0; i < 2; i++) {
        strangers[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(!connect(strangers[i], (struct sockaddr *)&where, sizeof where));
    }
    CHECK(write(strangers[1], "these are not the words", 16) == 16);
    GOOD(me.net->accept(listener, &receiver, NULL));
    GOOD(me.net->accept(listener, &receiver, NULL));
    CHECK(!receiver);
    if (exchange(me, "messages", all, mine)) return 1;
    for (double end = now() + WITHIN; (!sender || !receiver) && waits(end);) {
        if (!sender) GOOD(me.net->connect(0, all[next], &sender, NULL));
        if (!receiver) GOOD(me.net->accept(listener, &receiver, NULL));
    }
    CHECK(sender && receiver);
    for (int i = 0; i < LONG; i++) out[i] = (char)(i * 13 + me.rank);
    for (int i = 0; i < COUNT; i++) {
        void *to = in + (size_t)i * LONG;
        BEGIN(me.net->isend(sender, out, SIZES[i], 0, NULL, &sent[i]), sent[i]);
        BEGIN(me.net->irecv(receiver, 1, &to, &room, &tag, &none, &got[i]), got[i]);
    }
    for (int left = COUNT, over = 0; left; left--) { /* the last one is asked for first */
        double end = now() + WITHIN;
        for (done = 0; !done && waits(end);) {
            for (int i = 0; i < COUNT; i++) {
                over = 0;
                if (sent[i]) GOOD(me.net->test(sent[i], &over, NULL));
                if (over) sent[i] = NULL;
            }
            GOOD(me.net->test(got[left - 1], &done, &size));
        }
        CHECK(done && size == SIZES[left - 1]);
        for (int i = 0; i < size; i++) CHECK(in[(size_t)(left - 1) * LONG + i] == (char)(i * 13 + before));
    }
    for (int i = 0; i < COUNT; i++)
        for (done = !sent[i]; !done;) GOOD(me.net->test(sent[i], &done, NULL));
    if (messages_at_once(me, sender, receiver) || exchange(me, "sent", all, mine)) return 1;
    if (me.rank == 0) GOOD(me.net->closeSend(sender)); /* the next one hears of it */
    void *to = in;
    if (before == 0) {
        ncclResult_t result = me.net->irecv(receiver, 1, &to, &room, &tag, &none, &got[0]);
        for (double end = now() + WITHIN; result == ncclSuccess && waits(end);)
            result = me.net->test(got[0], &done, &size);
        CHECK(result == ncclRemoteError);
    }
    if (me.rank) GOOD(me.net->closeSend(sender));
    GOOD(me.net->closeRecv(receiver));
    GOOD(me.net->closeListen(listener));
    for (int i = 0; i < 2; i++) close(strangers[i]);
    free(out), free(in);
    return 0;
}

static int everything(struct rank me) {
    void *comms[CHANNELS];
    ncclNetProperties_v8_t is;
    int devices = 0;
    GOOD(me.net->devices(&devices));
    CHECK(devices == 1);
    GOOD(me.coll->getProperties(0, &is));
    CHECK(is.ptrSupport == NCCL_PTR_HOST && is.maxRecvs == 1 && is.speed > 0 && !is.netDeviceType);
    for (int i = 0; i < CHANNELS; i++) {
        char name[] = {'c', (char)('0' + i), 0};
        if (connected(me, name, 0, ncclSuccess, &comms[i])) return 1;
    }
    if (refusals(me, comms[0]) || in_flight(me, comms) || halves(me, comms[1]) || at_once(me, comms[0]) ||
        windows(me, comms[2]))
        return 1;
    for (int i = 0; i < CHANNELS; i++) GOOD(me.coll->closeColl(comms[i]));
    return messages(me);
}

/* The last rank is gone once all have joined: by itself, or with its process. */
static int gone(struct rank me, int killed) {
    void *comm, *requests[2] = {NULL};
    float data[100] = {0}, first[100] = {0};
    if (connected(me, killed ? "lost" : "left", 0, ncclSuccess, &comm)) return 1;
    BEGIN(me.coll->iallreduce(comm, first, first, 100, FLOAT32, SUM, NULL, NULL, &requests[0]), requests[0]);
    if (ended(me, requests[0], ncclSuccess, 400)) return 1;
    if (me.rank == me.world - 1) {
        if (killed) _exit(0);
        GOOD(me.coll->closeColl(comm));
        return 0;
    }
    for (int i = 0; i < 2; i++)
        BEGIN(me.coll->iallreduce(comm, data, data, 100, FLOAT32, SUM, NULL, NULL, &requests[i]), requests[i]);
    for (int i = 1; i >= 0; i--)
        if (ended(me, requests[i], ncclRemoteError, 0)) return 1;
    me.coll->closeColl(comm);
    return 0;
}

/* Rank 0 closes while its request waits for the others.  They may have its part, and so that sum, but no later one. */
static int closed(struct rank me) {
    void *comm, *requests[2] = {NULL};
    handles_t all = {{0}};
    float data[100] = {0}, later[100] = {0};
    int done = 0;
    if (connected(me, "closed", 0, ncclSuccess, &comm)) return 1;
    BEGIN(me.coll->iallreduce(comm, data, data, 100, FLOAT32, SUM, NULL, NULL, &requests[0]), requests[0]);
    if (ended(me, requests[0], ncclSuccess, 400)) return 1;
    requests[0] = NULL;
    if (me.rank == 0) {
        BEGIN(me.coll->iallreduce(comm, data, data, 100, FLOAT32, SUM, NULL, NULL, &requests[0]), requests[0]);
        GOOD(me.coll->closeColl(comm));
    }
    if (exchange(me, "after", all, all[0])) return 1;
    if (me.rank == 0) return 0;
    BEGIN(me.coll->iallreduce(comm, data, data, 100, FLOAT32, SUM, NULL, NULL, &requests[0]), requests[0]);
    BEGIN(me.coll->iallreduce(comm, later, later, 100, FLOAT32, SUM, NULL, NULL, &requests[1]), requests[1]);
    if (ended(me, requests[1], ncclRemoteError, 0)) return 1;
    ncclResult_t first = me.coll->test(requests[0], &done, NULL);
    CHECK(done && (first == ncclSuccess || first == ncclRemoteError));
    me.coll->closeColl(comm);
    return 0;
}

/* A rank alone closes while its request waits, as FOLDER/waits says.  The sum comes all the same. */
static int late(struct rank me) {
    void *comm, *request = NULL;
    char file[4096];
    float given[100] = {1}, kept[100] = {0};
    ncclNetSGE_v8_t part = {NULL, given, sizeof given};
    if (connected(me, "late", 0, ncclSuccess, &comm)) return 1;
    BEGIN(me.coll->ireducescatter(comm, 1, &part, kept, sizeof kept, 0, sizeof given, FLOAT32, SUM, NULL, &request),
          request);
    snprintf(file, sizeof file, "%s/waits", folder);
    double end = now() + WITHIN;
    while (access(file, F_OK) && waits(end));
    GOOD(me.coll->closeColl(comm));
    for (int i = 0; i < 100; i++) CHECK(!kept[i]);
    return 0;
}

/* The folder of all ranks of this process, before any of them is driven. */
void place(const char *at) { snprintf(folder, sizeof folder, "%s", at); }

/* Returns 0 if all is as it must be; else FOLDER/log says what is not. */
int drive(const char *plugin, const char *what, int rank, int world) {
    struct rank me = {.rank = rank, .world = world};
    void *comm;
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    if (!library) say("%s\n", dlerror());
    CHECK(library);
    me.net = dlsym(library, "ncclNetPlugin_v8");
    me.coll = dlsym(library, "ncclCollNetPlugin_v8");
    CHECK(me.net && me.coll);
    if (!strcmp(what, "unset")) {
        CHECK(me.net->init(logger) == ncclSystemError && me.coll->init(logger) == ncclSystemError);
        return 0;
    }
    GOOD(me.net->init(logger));
    GOOD(me.coll->init(logger));
    if (!strcmp(what, "everything")) return everything(me);
    if (!strcmp(what, "left") || !strcmp(what, "lost")) return gone(me, what[1] == 'o');
    if (!strcmp(what, "closed")) return closed(me);
    if (!strcmp(what, "late")) return late(me);
    CHECK(!strcmp(what, "absent"));
    ncclResult_t expected = getenv("EXPECTED") ? (ncclResult_t)atoi(getenv("EXPECTED")) : ncclSystemError;
    return connected(me, "absent", 1, expected, &comm);
}

int main(int count, char **words) {
    const char *rank = getenv("RANK"), *world = getenv("WORLD_SIZE");
    if (count != 4 || !rank || !world) return 2;
    place(words[2]);
    int failed = drive(words[1], words[3], atoi(rank), atoi(world));
    printf("%s\n", failed ? "failed" : "as it must be");
    return failed;
}
