# SPDX-License-Identifier: Apache-2.0
"""Frames that wait at a port."""

from __future__ import annotations

import subprocess

from cbuild import cc
from softswitch.engine.linking import RUNTIME
from switch_support import needs
from switch_support.probe import PROBE
from switch_support.sanitized import FLAGS, SEED

FULL_INTERFACE = (RUNTIME / "io.c").read_text() + """
#include <sys/socket.h>
#include <assert.h>
static uint32_t tries; /* of the kernel, whose queue stays full */
int sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags) { return tries++, errno = ENOBUFS, -1; }
uint64_t ss_tick(ss_switch *sw, uint64_t now_us) { return UINT64_MAX; }
void ss_turn_end(ss_switch *sw) {}
void ss_port_forget(void) {}
bool ss_port_refresh(ss_port *p) { return false; }
void ss_channel_event(ss_channel *c, uint8_t kind, uint32_t id, uint64_t now_us, const uint8_t *data, uint32_t n) {}
void ss_pcap_flush(ss_pcap *p) {}
int main(void) {
    static ss_io io;
    static uint8_t frame[64];
    struct ss_slot slot = {.head = sizeof frame};
    ss_port port = {.up = true, .n_slots = 1};
    port.queues[0] = (ss_queue){.arena = frame, .slots = &slot, .n = 1, .settled = 1};
    port.queue = port.leaving = port.queues;
    io.timer = timerfd_create(CLOCK_MONOTONIC, 0);
    assert(ss_io_add_port(&io, &port));
    for (; io.stages.now_us < 2000; io.stages.now_us += 100) { /* turns that other ports cause */
        ss_stages_settle(&io.stages);
        set_timer(&io);
        assert(tries == 1 + io.stages.now_us / 500 && io.timer_due == 500 * tries);
    }
}
"""
"""A port whose interface refuses a frame, in an event loop that wakes five times as often as the port has to try."""


def test_a_full_interface_is_tried_as_often_while_other_ports_are_busy() -> None:
    """The kernel does not tell when there is room again: each half millisecond the port tries, however often the loop
    turns for others."""
    others = ("stages.c", "queue.c", "transmit.c", "segment.c", "hash.c", "parallel.c")
    program = cc.build([FULL_INTERFACE, *(RUNTIME / file for file in others)], kind="exe", name="full-interface",
                       include=[RUNTIME],
                       flags=["-ffunction-sections", "-Wl,--gc-sections"])  # without what the loop calls elsewhere

    subprocess.run([program], check=True, timeout=100)


def test_frames_that_wait_outlive_what_they_referred_to() -> None:
    """Committed, sent and put aside in random order, they are the bytes that they were; nothing outside is touched."""
    needs.require("sanitizers")
    program = cc.build([PROBE.with_name("queue_fuzz.c"), RUNTIME / "queue.c"], kind="exe", name="queue-fuzz",
                       include=[RUNTIME], flags=FLAGS, compiler=cc.Compiler(("gcc",), "sanitized"))

    done = subprocess.run([program, SEED], capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
