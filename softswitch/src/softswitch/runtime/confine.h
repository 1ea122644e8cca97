/* SPDX-License-Identifier: Apache-2.0
 *
 * What a switch process may still do once its ports are open: a program or a frame that took it over shall find little.
 */
#ifndef SS_CONFINE_H
#define SS_CONFINE_H

/* Before threads start, so that they have no more rights than ss_confine() leaves: the kernel has these by thread. */
void ss_confine_threads(void);

/* Gives up for good what the event loop does not need, and returns one line that says what holds, and what the kernel
 * has refused:
 *
 *   no new privileges   no program that it might run has more than itself (PR_SET_NO_NEW_PRIVS)
 *   capabilities        CAP_NET_RAW and CAP_NET_ADMIN alone are left, where it had them: an interface that comes back
 *                       needs a new packet socket with large buffers
 *   system calls        in all threads, those of the event loop; of socket, setsockopt and ioctl, those of ports; no
 * file is opened, no program run, and no memory becomes code (seccomp).  Any other one is SIGSYS, which is reported.
 *   not dumpable        other processes of its user do not read its memory; no core files
 *
 * Builds with AddressSanitizer or ThreadSanitizer keep system calls and dumps: the sanitizer reads /proc and looks for
 * leaks with ptrace.
 */
const char *ss_confine(void);
#endif
