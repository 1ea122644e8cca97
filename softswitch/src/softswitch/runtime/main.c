/* SPDX-License-Identifier: Apache-2.0
 *
 * A switch process: one P4 program on Linux interfaces, controlled through an inherited socket (softswitch/p4runtime
 * starts it; nobody else needs to).
 *
 *   PROGRAM --control FD [--cpu-port N] [--seed N] [--queue FRAMES] [--threads N] [--no-join] [--no-vnet] [--like-bmv2]
 *           [--pcap DIR] [-i PORT@IFACE]...
 *
 * One that is built with SS_TRACE also takes --trace FD --trace-program N --trace-limit BYTES --trace-keep BYTES
 * (trace_file.h).
 *
 * Exit status: 0 the control socket was closed, 1 cannot start (one line on stderr says why), or a signal.  On a fatal
 * signal stderr tells the port and the start of the frame that was in the pipeline.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "confine.h"
#include "io.h"
#include "parallel.h"
#include "requests.h"

static ss_io the_io;

#if !defined(__SANITIZE_ADDRESS__)
static size_t put_text(char *out, const char *text) {
    size_t n = strlen(text);
    memcpy(out, text, n);
    return n;
}

static size_t put_number(char *out, uint32_t v) {
    char digits[10];
    size_t n = 0, i = 0;
    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    while (n) out[i++] = digits[--n];
    return i;
}

/* Only what a signal handler may do: no stdio, no memory. */
static void report_crash(int signal_number, siginfo_t *about, void *context) {
    (void)context;
    static const char hex[] = "0123456789abcdef";
    char text[512];
    size_t n = put_text(text, "fatal signal ");
    n += put_number(text + n, (uint32_t)signal_number);
    if (signal_number == SIGSYS) {
        n += put_text(text + n, ", system call ");
        n += put_number(text + n, (uint32_t)about->si_syscall);
        n += put_text(text + n, ", which a switch never makes (confine.h),");
    }
    const uint8_t *frame = the_io.stages.last_frame;
    if (gettid() != getpid())
        n += put_text(text + n, " in a thread that receives and sends");
    else if (frame) {
        uint32_t len = the_io.stages.last_len, shown = len < 64 ? len : 64;
        n += put_text(text + n, " in the pipeline; port ");
        n += put_number(text + n, the_io.stages.last_port);
        n += put_text(text + n, ", frame of ");
        n += put_number(text + n, len);
        n += put_text(text + n, " bytes: ");
        for (uint32_t i = 0; i < shown; i++) text[n++] = hex[frame[i] >> 4], text[n++] = hex[frame[i] & 15];
        if (shown < len) n += put_text(text + n, "...");
    } else
        n += put_text(text + n, " outside of the pipeline");
    text[n++] = '\n';
    if (write(STDERR_FILENO, text, n) < 0) {
    }
    raise(signal_number); /* SA_RESETHAND: now with the default action */
}

static void watch_for_crashes(void) {
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
    struct sigaction action = {.sa_sigaction = report_crash, .sa_flags = (int)SA_RESETHAND | SA_NODEFER | SA_SIGINFO};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) sigaction(fatal[i], &action, NULL);
}
#else
static void watch_for_crashes(void) {} /* the sanitizer tells more */
#endif

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

static uint64_t number(const char *option, const char *text, uint64_t max) {
    char *end = NULL;
    errno = 0;
    uint64_t v = text ? strtoull(text, &end, 0) : 0;
    if (!text || !*text || *end || errno || v > max) {
        fprintf(stderr, "%s: expected a number up to %llu, got %s\n", option, (unsigned long long)max,
                text ? text : "nothing");
        exit(1);
    }
    return v;
}

int main(int argc, char **argv) {
    int control = -1;
    uint32_t threads = 1;
    ss_options options = {.io = &the_io,
                          .reserve = ss_io_reserve,
                          .commit = ss_io_commit,
                          .depth = ss_io_depth,
                          .event = ss_io_event,
                          .cpu_port = SS_NO_PORT,
                          .seed = 1};
    ss_port_options port_options = {.queue = 1024, .vnet = true, .join = true};
    const char *why = NULL;
#ifdef SS_TRACE
    int trace_fd = -1;
    uint16_t trace_program = 0;
    uint64_t trace_limit = UINT64_MAX;
    uint32_t trace_keep = SS_MAX_FRAME;
    options.refusal = ss_io_refusal;
#endif

    /* The parent's end is this process's end, whatever kills it.  Ctrl-C at a terminal, and the SIGTERM that timeout(1)
     * and systemd send to all processes of a group, are the parent's business: it closes the control socket. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    watch_for_crashes();

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (!strcmp(a, "--no-join"))
            port_options.join = false;
        else if (!strcmp(a, "--like-bmv2"))
            port_options.like_bmv2 = true;
        else if (!strcmp(a, "--no-vnet"))
            port_options.vnet = false;
        else if (!strcmp(a, "--control"))
            control = (int)number(a, argv[++i], 1 << 20);
        else if (!strcmp(a, "--cpu-port"))
            options.cpu_port = (uint32_t)number(a, argv[++i], SS_NO_PORT - 1);
        else if (!strcmp(a, "--seed"))
            options.seed = number(a, argv[++i], UINT64_MAX);
        else if (!strcmp(a, "--queue"))
            port_options.queue = (uint32_t)number(a, argv[++i], 1 << 20);
        else if (!strcmp(a, "--threads"))
            threads = (uint32_t)number(a, argv[++i], 64);
        else if (!strcmp(a, "--pcap"))
            port_options.pcap = argv[++i];
#ifdef SS_TRACE
        else if (!strcmp(a, "--trace"))
            trace_fd = (int)number(a, argv[++i], 1 << 20);
        else if (!strcmp(a, "--trace-program"))
            trace_program = (uint16_t)number(a, argv[++i], UINT16_MAX);
        else if (!strcmp(a, "--trace-limit"))
            trace_limit = number(a, argv[++i], UINT64_MAX);
        else if (!strcmp(a, "--trace-keep"))
            trace_keep = (uint32_t)number(a, argv[++i], SS_MAX_FRAME);
#endif
        else if (!strcmp(a, "-i"))
            i++;
        else
            return fail(a, "unknown option");
    }
    if (control < 0) return fail("--control", "missing");
    fcntl(control, F_SETFD, FD_CLOEXEC);
    if (!ss_io_open(&the_io, control, &why)) return fail("event loop", why);
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "-i")) continue;
        const char *interface = strchr(argv[i + 1], '@');
        if (!interface) return fail(argv[i + 1], "expected PORT@INTERFACE");
        char digits[16];
        snprintf(digits, sizeof digits, "%.*s", (int)(interface - argv[i + 1]), argv[i + 1]);
        ss_port *p =
            ss_port_open((uint32_t)number("port", digits, SS_MAX_PORTS - 1), interface + 1, &port_options, &why);
        if (!p) return fail(argv[i + 1], why);
        if (!ss_io_add_port(&the_io, p)) return fail(argv[i + 1], "port number used twice");
        i++;
    }
    the_io.cpu_port = options.cpu_port;
    the_io.port_options = port_options;
    the_io.stages.sw = ss_open(&ss_the_program, &options, &why);
    if (!the_io.stages.sw) return fail(ss_the_program.source, why);
#ifdef SS_TRACE
    if (trace_fd >= 0) {
        fcntl(trace_fd, F_SETFD, FD_CLOEXEC);
        if (!ss_io_trace(&the_io, trace_fd, trace_program, trace_limit, trace_keep))
            return fail("--trace", "out of memory");
    }
#endif
    ss_confine_threads();
    unsigned helpers = threads ? ss_parallel_start(threads - 1) : 0;
    if (helpers + 1 < threads) ss_io_tell(&the_io, "%u threads of %u: the system starts no more", helpers + 1, threads);
    the_io.confined = ss_confine();
    ss_io_run(&the_io, ss_io_execute);
    ss_io_close(&the_io);
    ss_close(the_io.stages.sw);
    return 0;
}
