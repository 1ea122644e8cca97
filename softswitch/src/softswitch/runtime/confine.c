/* SPDX-License-Identifier: Apache-2.0
 *
 * Privileges that a running switch gives up; see confine.h.
 */
#define _GNU_SOURCE
#include "confine.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#endif
#define X32 0x40000000u /* numbers of another set of system calls on x86-64 */

static bool drop_capabilities(void) {
    const uint32_t keep = 1u << CAP_NET_RAW | 1u << CAP_NET_ADMIN;
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct have[2];
    if (syscall(SYS_capget, &head, have)) return false;
    have[0].effective &= keep, have[0].permitted &= keep, have[0].inheritable = 0;
    have[1].effective = have[1].permitted = have[1].inheritable = 0;
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, have) == 0;
}

static bool refuse_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; }

void ss_confine_threads(void) {
    drop_capabilities();
    refuse_privileges();
}

#if defined(ARCHITECTURE) && !defined(SANITIZED)
typedef struct {
    struct sock_filter code[256];
    uint16_t n;
} filter;

static void put(filter *f, uint16_t code, uint32_t k, uint8_t yes, uint8_t no) {
    f->code[f->n++] = (struct sock_filter){code, yes, no, k};
}

static void load(filter *f, size_t at) { put(f, BPF_LD | BPF_W | BPF_ABS, (uint32_t)at, 0, 0); }
static void give(filter *f, uint32_t verdict) { put(f, BPF_RET | BPF_K, verdict, 0, 0); }

static void allow(filter *f, uint32_t call) {
    put(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1);
    give(f, SECCOMP_RET_ALLOW);
}

/* The low half of an argument; both architectures are little-endian, and the kernel takes these as int. */
static void load_argument(filter *f, unsigned i) { load(f, offsetof(struct seccomp_data, args) + 8u * i); }

static void allow_with(filter *f, uint32_t call, unsigned argument, uint8_t n, const uint32_t *values) {
    put(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, (uint8_t)(2 * n + 2));
    load_argument(f, argument);
    for (uint8_t i = 0; i < n; i++) {
        put(f, BPF_JMP | BPF_JEQ | BPF_K, values[i], 0, 1);
        give(f, SECCOMP_RET_ALLOW);
    }
    give(f, SECCOMP_RET_TRAP);
}

static void allow_without(filter *f, uint32_t call, unsigned argument, uint32_t bits) {
    put(f, BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4);
    load_argument(f, argument);
    put(f, BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    give(f, SECCOMP_RET_TRAP);
    give(f, SECCOMP_RET_ALLOW);
}

static bool filter_calls(void) {
    static const uint32_t calls[] = {
        __NR_recvmmsg,
        __NR_sendmmsg,
        __NR_recvfrom,
        __NR_sendto,
        __NR_epoll_pwait,
        __NR_epoll_ctl,
        __NR_timerfd_settime,
        __NR_clock_gettime,
        __NR_read,
        __NR_write,
        __NR_writev,
        __NR_close,
        __NR_bind,
        __NR_getsockopt,
        __NR_uname, /* interfaces that come back */
        __NR_brk,
        __NR_munmap,
        __NR_mremap,
        __NR_madvise,
        __NR_futex,
        __NR_sched_yield,
        __NR_getcpu,
        __NR_getrandom, /* malloc */
        __NR_fstat,
        __NR_newfstatat,
        __NR_lseek,
        __NR_ftruncate, /* stdio: captures; the last cuts off half a packet of a full disk */
        __NR_getpid,
        __NR_gettid,
        __NR_tgkill,
        __NR_rt_sigprocmask,
        __NR_rt_sigreturn, /* crash reports */
        __NR_restart_syscall,
        __NR_exit,
        __NR_exit_group,
#ifdef __NR_epoll_wait
        __NR_epoll_wait,
#endif
    };
    static const uint32_t domains[] = {AF_PACKET, AF_UNIX}; /* AF_UNIX: what if_nametoindex asks through */
    static const uint32_t levels[] = {SOL_SOCKET, SOL_PACKET};
    static const uint32_t self[] = {0}; /* SCHED_BATCH, and back (io.c); the cores of a thread (parallel.c) */
    static const uint32_t questions[] = {SIOCGIFMTU, SIOCGIFFLAGS, SIOCGIFINDEX};
    filter f = {.n = 0};
    load(&f, offsetof(struct seccomp_data, arch));
    put(&f, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    give(&f, SECCOMP_RET_KILL_PROCESS);
    load(&f, offsetof(struct seccomp_data, nr));
    put(&f, BPF_JMP | BPF_JGE | BPF_K, X32, 0, 1);
    give(&f, SECCOMP_RET_KILL_PROCESS);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) allow(&f, calls[i]);
    allow_with(&f, __NR_socket, 0, 2, domains);
    allow_with(&f, __NR_setsockopt, 1, 2, levels);
    allow_with(&f, __NR_ioctl, 1, 3, questions);
    allow_with(&f, __NR_sched_setscheduler, 0, 1, self);
    allow_with(&f, __NR_sched_getaffinity, 0, 1, self);
    allow_with(&f, __NR_sched_setaffinity, 0, 1, self);
    allow_without(&f, __NR_mmap, 2, PROT_EXEC);
    allow_without(&f, __NR_mprotect, 2, PROT_EXEC);
    give(&f, SECCOMP_RET_TRAP);
    struct sock_fprog program = {f.n, f.code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}
#endif

const char *ss_confine(void) {
    static char said[256];
    size_t n = 0;
    const struct rlimit none = {0, 0};
#define SAY(...) n += (size_t)snprintf(said + n, sizeof said - n, __VA_ARGS__)
    setrlimit(RLIMIT_CORE, &none);
    bool capabilities = drop_capabilities();
    SAY(capabilities ? "capabilities: net_raw and net_admin at most" : "capabilities kept (%s)", strerror(errno));
    bool privileges = refuse_privileges();
    SAY(privileges ? "; no new privileges" : "; new privileges possible (%s)", strerror(errno));
#ifdef SANITIZED
    SAY("; all system calls, for the sanitizer");
#elif defined(ARCHITECTURE)
    bool hidden = prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0;
    SAY(hidden ? "; not dumpable" : "; dumpable (%s)", strerror(errno));
    bool filtered = filter_calls();
    SAY(filtered ? "; system calls of the event loop alone" : "; all system calls: no seccomp here (%s)",
        strerror(errno));
#else
    SAY("; all system calls: no filter for this processor");
#endif
#undef SAY
    return said;
}
